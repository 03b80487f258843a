package main

import (
	"context"
	"log"
	"maps"
	"slices"
	"sync"
	"time"
)

// sample is a reading at an instant.
type sample struct {
	at time.Time
	reading
}

// series are the samples of one subject, oldest first.
type series []sample

// cost is memory over time, and CPU time.
type cost struct {
	Memory float64 // byte-seconds of its own
	Text   float64 // byte-seconds of mapped programs
	CPU    float64 // seconds
}

func (c cost) plus(other cost) cost {
	return cost{c.Memory + other.Memory, c.Text + other.Text, c.CPU + other.CPU}
}

// bytes returns all memory.
func (c cost) bytes() float64 { return c.Memory + c.Text }

func (c cost) times(n float64) cost { return cost{c.Memory * n, c.Text * n, c.CPU * n} }

// between returns the cost from one instant to another, with straight lines
// between the samples. A subject that is not older than the record had used
// nothing when it started.
func (s series) between(from, to time.Time, older bool) cost {
	var c cost
	for i := 1; i < len(s); i++ {
		a, b := s[i-1], s[i]
		start, end := latest(a.at, from), earliest(b.at, to)
		if !start.Before(end) {
			continue
		}
		x, y := along(a, b, start), along(a, b, end)
		seconds := end.Sub(start).Seconds()
		c = c.plus(cost{Memory: (x.memory + y.memory) / 2 * seconds, Text: (x.text + y.text) / 2 * seconds, CPU: max(y.cpu-x.cpu, 0)}) // a restarted process begins at 0
	}
	if len(s) > 0 && !older && !s[0].at.Before(from) && s[0].at.Before(to) {
		c.CPU += s[0].cpu
	}
	return c
}

func along(a, b sample, at time.Time) reading {
	share := at.Sub(a.at).Seconds() / b.at.Sub(a.at).Seconds()
	return reading{
		cpu: a.cpu + (b.cpu-a.cpu)*share, memory: a.memory + (b.memory-a.memory)*share, text: a.text + (b.text-a.text)*share,
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// record has the readings over time, and the pods of them.
type record struct {
	mu      sync.Mutex
	began   time.Time
	series  map[subject]series
	older   map[subject]bool // existed when the record began
	pods    map[string]metadata
	missed  int // readings that failed
	reading meter
}

func newRecord(m meter) *record {
	return &record{series: map[subject]series{}, older: map[subject]bool{}, pods: map[string]metadata{}, reading: m}
}

// keep reads at an interval until ctx ends. A failed reading leaves a gap.
func (r *record) keep(ctx context.Context, c *cluster, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for i := 0; ; i++ {
		if err := r.once(ctx, c, i%4 == 0); err != nil && ctx.Err() == nil {
			r.missed++
			log.Print(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (r *record) once(ctx context.Context, c *cluster, names bool) error {
	readings, err := r.reading(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	r.mu.Lock()
	first := r.began.IsZero()
	if first {
		r.began = now
	}
	for s, read := range readings {
		if first {
			r.older[s] = true
		}
		r.series[s] = append(r.series[s], sample{now, read})
	}
	r.mu.Unlock()
	if !names {
		return nil
	}
	pods, err := c.pods(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, pod := range pods {
		r.pods[pod.UID] = pod
	}
	return nil
}

// usage is the cost of one subject.
type usage struct {
	part string
	pod  metadata
	subject
	cost
	seconds  float64   // that it existed
	from     time.Time // its first sample in the time
	complete bool      // the time has its whole life
}

// between returns the cost of all subjects that belong to a part.
func (r *record) between(from, to time.Time) []usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []usage
	for _, s := range slices.SortedFunc(maps.Keys(r.series), bySubject) {
		samples := r.series[s]
		pod := r.pods[s.name]
		name := part(s, pod)
		first, last := samples[0].at, samples[len(samples)-1].at
		start, end := latest(first, from), earliest(last, to)
		if name == "" || !start.Before(end) {
			continue
		}
		all = append(all, usage{
			part: name, pod: pod, subject: s, cost: samples.between(from, to, r.older[s]), seconds: end.Sub(start).Seconds(), from: start,
			complete: !r.older[s] && !first.Before(from) && last.Before(to.Add(-3*time.Second)),
		})
	}
	return all
}

// trace returns the memory of all subjects that match, at an interval: seconds and bytes.
func (r *record) trace(from, to time.Time, every time.Duration, matches func(subject, metadata) bool) [][2]float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	var points [][2]float64
	for at := from; !at.After(to); at = at.Add(every) {
		sum := 0.0
		for s, samples := range r.series {
			if !matches(s, r.pods[s.name]) {
				continue
			}
			i, found := slices.BinarySearchFunc(samples, at, func(s sample, at time.Time) int { return s.at.Compare(at) })
			switch {
			case found:
				sum += samples[i].memory + samples[i].text
			case i > 0 && i < len(samples):
				between := along(samples[i-1], samples[i], at)
				sum += between.memory + between.text
			}
		}
		points = append(points, [2]float64{at.Sub(from).Seconds(), sum})
	}
	return points
}
