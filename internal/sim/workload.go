package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/scale"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// Workloads of a history are scaled at once, and outlast the process. With a sink they accept connections at once, so that
// the promises about lateness hold for their sources too. Without a sink they start, work and crash as the seed says.

// randomWorkload gives some sources a workload, the same over all of their settings.
func (w *world) randomWorkload(r *rand.Rand, s *schedule.Spec) {
	n := (fnv(s.UID) + w.h.seed) % 12
	if n > 6 {
		return
	}
	s.Scale = schedule.Scale{
		Workload: schedule.Workload{Kind: "Deployment", Name: s.UID, Replicas: 1}, Mode: schedule.ScaleAuto, Recorded: true,
		Cooldown: pick(r, time.Second, 10*time.Second, 5*time.Minute), StartTimeout: 2 * time.Minute,
	}
	s.Scale.Held = s.Scale.Workload
	s.Company = s.Scale.Cooldown
	if n > 3 {
		s.Scale.Sinkless, s.Sink, s.Company = true, schedule.Target{}, 0
	}
	if n > 4 {
		s.Scale.Busy = schedule.Busy{Port: 8080, Path: "/metrics"}
	}
}

// naps reports whether a workload is looked at all the time while it is awake.
func (w *world) naps() bool {
	for _, s := range w.settings {
		if s.Scale.Sinkless {
			return true
		}
	}
	return false
}

// phases are what a workload does from now on: it starts, and works now and then; sometimes a container ends.
func (w *world) phases(name string) []phase {
	at := time.Now()
	if w.draining {
		return []phase{{from: at, ready: true}}
	}
	w.sent[name]++
	r := rand.New(rand.NewPCG(w.h.seed, fnv(name)+uint64(w.sent[name])<<32))
	all := []phase{{from: at}}
	next := phase{ready: true}
	for at = at.Add(pick(r, 0, time.Second, time.Second, 20*time.Second, 5*time.Minute)); ; {
		next.from = at
		if all = append(all, next); r.IntN(4) == 0 {
			return append(all, phase{from: at.Add(10 * time.Minute), ready: true, restarts: next.restarts})
		}
		switch at = at.Add(pick(r, 3*time.Second, 7*time.Second, 30*time.Second, 4*time.Minute)); {
		case next.busy || !next.ready:
			next.busy, next.ready = false, true
		case r.IntN(4) == 0:
			next.ready = r.IntN(2) == 0
			next.restarts++
		default:
			next.busy = true
		}
	}
}

var errDead = errors.New("the process is dead")

// Replicas implements scale.API.
func (p *process) Replicas(_ context.Context, _ objects.Account, x schedule.Workload) (int32, error) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return p.w.workloads[x.Name].replicas, nil
}

// SetReplicas implements scale.API.
func (p *process) SetReplicas(_ context.Context, _ objects.Account, x schedule.Workload, n int32) (int32, error) {
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.dead {
		return 0, errDead
	}
	if n == 0 && p.underWay[x.Name] > 0 {
		w.judge.broken("no delivery is under way on a workload that is told to sleep", "%d are under way on %s", p.underWay[x.Name], x.Name)
	}
	was := w.workloads[x.Name].replicas
	if n != was {
		now := scaled{name: x.Name, replicas: n}
		if n > 0 {
			now.phases = w.phases(x.Name)
		}
		w.scale(now)
	}
	return was, nil
}

// scale changes a workload. The caller holds the lock.
func (w *world) scale(to scaled) {
	w.workloads[to.name] = to
	w.record(to)
}

// calm lets the workloads that are awake start at once, and work and crash no more. The caller holds the lock.
func (w *world) calm() {
	now := time.Now()
	for _, name := range slices.Sorted(maps.Keys(w.workloads)) {
		if x := w.workloads[name]; x.replicas > 0 {
			last := *x.phaseAt(now)
			x.phases = slices.DeleteFunc(slices.Clone(x.phases), func(p phase) bool { return p.from.After(now) })
			if last.busy || !last.ready {
				x.phases = append(x.phases, phase{from: now, ready: true, restarts: last.restarts})
			}
			w.scale(x)
		}
	}
}

// Examine implements scale.API.
func (p *process) Examine(_ context.Context, _ objects.Account, x schedule.Workload, busy schedule.Busy) (scale.Health, error) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	now := p.w.workloads[x.Name]
	h := scale.Health{Replicas: now.replicas}
	if now.replicas == 0 {
		return h, nil
	}
	at := now.phaseAt(time.Now())
	h.Pods = []scale.Pod{{UID: fmt.Sprint(p.w.sent[x.Name]), Ready: at.ready, Restarts: at.restarts}}
	h.Work = scale.Work{Known: at.ready && busy.Port > 0, Busy: at.busy && busy.Port > 0}
	return h, nil
}

// follow makes the ends of the source's keys part of the trace, if the sink does not see them.
func (p *process) follow(uid string, s *queue.Source) error {
	if !s.Spec().Scale.Sinkless {
		return nil
	}
	f, _, err := s.Follow(0, false)
	if err != nil {
		return err
	}
	read := func() (more <-chan struct{}, over bool) {
		for {
			events, more, slow, over := f.Next(nil, 100)
			if slow {
				p.w.fail("the events of %s are too many", uid)
			}
			if len(events) == 0 {
				return more, over || slow
			}
			for _, e := range events {
				if e.Kind == "outcome" {
					p.w.add(ended{uid, e.Key, e.Attempt, schedule.Disposition(e.Result)})
				}
			}
		}
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.followers = append(p.followers, func() { read() })
	go func() {
		defer f.Close()
		for {
			p.w.mu.Lock()
			more, over := (<-chan struct{})(nil), p.dead
			if !over {
				more, over = read()
			}
			p.w.mu.Unlock()
			if over {
				return
			}
			<-more
		}
	}()
	return nil
}

// connect is scale.Config.Connect.
func (p *process) connect(_ context.Context, src *schedule.Spec) error {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.w.workloads[src.Scale.Name].replicas == 0 {
		return errors.New("refused")
	}
	return nil
}

// reaches reports whether an attempt makes a connection. The caller holds the lock.
func (p *process) reaches(a *schedule.Attempt) bool {
	return a.Entry.DeadLetter != nil || !a.Source.Scale.Scales() || p.w.workloads[a.Source.Scale.Name].replicas > 0
}
