package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/bench/peers/judge"
)

// sizes are the numbers of a run.
type sizes struct {
	callers    int
	warm, puts time.Duration
	burst      int
	rate       int // due a second, for lateness
	lateFor    time.Duration
	kills      int
}

// speeds is what put, burst and lateness found.
type speeds struct {
	rates      []float64       // puts a second, of each round
	took       []time.Duration // by each put
	delivered  float64         // a second, of the burst
	l50s, l99s []time.Duration // arrival after the due time, of each round
}

// median returns the median of the rounds.
func median[V cmp.Ordered](values []V) (v V) {
	if len(values) > 0 {
		v = slices.Sorted(slices.Values(values))[len(values)/2]
	}
	return v
}

func (s *speeds) puts() float64      { return median(s.rates) }
func (s *speeds) l50() time.Duration { return median(s.l50s) }
func (s *speeds) l99() time.Duration { return median(s.l99s) }

func (s *speeds) took50() time.Duration {
	return judge.Percentile(slices.Sorted(slices.Values(s.took)), 0.5)
}
func (s *speeds) took99() time.Duration {
	return judge.Percentile(slices.Sorted(slices.Values(s.took)), 0.99)
}

func (s *speeds) String() string {
	return fmt.Sprintf("puts %.0f/s, %s / %s; burst %.0f/s; late %s / %s", s.rates, s.took50(), s.took99(), s.delivered, s.l50s, s.l99s)
}

// keyOf returns the key of an index. Neighbours are far apart in key order, as the keys of independent objects are.
func keyOf(index int) string {
	return fmt.Sprintf("Repo/%08x/site-%07d", uint32(index)*2654435761, index)
}

// newData returns 256 random letters, which nothing can compress much.
func newData() string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	var b [256]byte
	for i := range b {
		b[i] = letters[rand.IntN(len(letters))]
	}
	return string(b[:])
}

// on runs a part of a run on a new host, with its peer started, and ends all.
func (p *peer) on(dir string, takes func(string) time.Duration, part func(h *host, s *sink) error) error {
	dir = filepath.Join(dir, "peer")
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := newSink(takes)
	defer s.server.Close()
	h := newHost(dir, s.addr())
	defer h.kill()
	if err := h.up(p); err != nil {
		return err
	}
	if err := part(h, s); err != nil {
		return fmt.Errorf("%w%s", err, h.lastWords())
	}
	return nil
}

// each calls do with numbers from 0, with so many callers, until it has been called n times or the time is over.
func (p *peer) each(h *host, callers, n int, end time.Time, do func(c client, i int) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, callers)
	for i := range callers {
		c, err := p.connect(h)
		if err != nil {
			return err
		}
		wg.Go(func() {
			defer c.close()
			for errs[i] == nil && (end.IsZero() || time.Now().Before(end)) {
				number := int(next.Add(1)) - 1
				if number >= n {
					return
				}
				errs[i] = do(c, number)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func none(string) time.Duration { return 0 }

// put schedules new keys for the next hour.
func (p *peer) put(dir string, size sizes, found *speeds) error {
	return p.on(dir, none, func(h *host, _ *sink) error {
		at := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		from := time.Now().Add(size.warm)
		end := from.Add(size.puts)
		var mu sync.Mutex
		var took []time.Duration
		err := p.each(h, size.callers, math.MaxInt, end, func(c client, i int) error {
			key, data, began := keyOf(i), newData(), time.Now()
			if err := c.schedule(context.Background(), key, at, data); err != nil {
				return err
			}
			if ended := time.Now(); ended.After(from) && ended.Before(end) {
				mu.Lock()
				defer mu.Unlock()
				took = append(took, ended.Sub(began))
			}
			return nil
		})
		found.rates, found.took = append(found.rates, float64(len(took))/size.puts.Seconds()), append(found.took, took...)
		if len(took) == 0 {
			err = errors.Join(err, errors.New("no call ended"))
		}
		return err
	})
}

var errTooSlow = errors.New("scheduling took longer than expected")

// deliveries schedules n keys, waits until all have come, and returns how long after its time each came. When scheduling
// takes too long, it tries again with more time for it.
func (p *peer) deliveries(dir string, size sizes, n int, puts float64, due func(i int) time.Duration) (late []time.Duration, err error) {
	for factor := 1.5; factor < 20; factor *= 2 {
		lead := 2*time.Second + time.Duration(factor*float64(n)/puts*float64(time.Second))
		err = p.on(dir, none, func(h *host, s *sink) (err error) {
			late, err = p.deliver(h, s, size, n, time.Now().Add(lead).Truncate(time.Millisecond), due)
			return err
		})
		if !errors.Is(err, errTooSlow) {
			break
		}
	}
	return late, err
}

func (p *peer) deliver(h *host, s *sink, size sizes, n int, start time.Time, due func(i int) time.Duration) (late []time.Duration, _ error) {
	if err := p.each(h, size.callers, n, time.Time{}, func(c client, i int) error {
		if time.Now().After(start) {
			return errTooSlow
		}
		return c.schedule(context.Background(), keyOf(i), start.Add(due(i)), newData())
	}); err != nil {
		return nil, err
	}
	last := start.Add(due(n - 1))
	if !until(time.Until(last)+2*time.Minute, func() bool { return s.seen() == n }) {
		return nil, fmt.Errorf("%d of %d have come two minutes after the last one's time", s.seen(), n)
	}
	for i := range n {
		came, _ := s.first(keyOf(i))
		late = append(late, came.Sub(start.Add(due(i))))
	}
	slices.Sort(late)
	return late, nil
}

// burst lets all keys be due at one instant.
func (p *peer) burst(dir string, size sizes, found *speeds) error {
	late, err := p.deliveries(dir, size, size.burst, found.puts(), func(int) time.Duration { return 0 })
	found.delivered = float64(size.burst) / judge.Percentile(late, 1).Seconds()
	return err
}

// lateness lets so many be due each second.
func (p *peer) lateness(dir string, size sizes, found *speeds) error {
	n := int(float64(size.rate) * size.lateFor.Seconds())
	late, err := p.deliveries(dir, size, n, found.puts(), func(i int) time.Duration { return time.Duration(i) * time.Second / time.Duration(size.rate) })
	found.l50s, found.l99s = append(found.l50s, judge.Percentile(late, 0.5)), append(found.l99s, judge.Percentile(late, 0.99))
	return err
}
