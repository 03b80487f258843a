// Package load makes load: callers in a closed loop, each with one call under
// way, for a fixed time. Whoever is measured gets the same loop and the same
// arithmetic, so that what differs between two of them is they themselves.
//
// It guarantees that only what ended within the window is counted, that a run
// ends on its own, and that one failed call fails the whole run: a rate that
// holds errors says nothing.
package load

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Op makes one call and returns how many items it carried.
type Op func() (items int, err error)

// Load is a closed loop of callers.
type Load struct {
	Callers int           // default 64
	Warm    time.Duration // not counted, default 0
	For     time.Duration // the window that is counted, default 1 s
}

// Tally is what happened within the window.
type Tally struct {
	Items, Calls int64
	Elapsed      time.Duration
	P50, P99     time.Duration // of the calls
}

// Rate is items a second.
func (t Tally) Rate() float64 {
	if t.Elapsed <= 0 {
		return 0
	}
	return float64(t.Items) / t.Elapsed.Seconds()
}

// Run opens every caller, then lets all of them call until the window is over.
// atWindow, when not nil, is called as the window opens and again as it closes.
func (l Load) Run(ctx context.Context, open func(caller int) (Op, func(), error), atWindow func()) (Tally, error) {
	if l.Callers == 0 {
		l.Callers = 64
	}
	if l.For == 0 {
		l.For = time.Second
	}
	ops := make([]Op, l.Callers)
	for i := range ops {
		op, shut, err := open(i)
		if err != nil {
			return Tally{}, fmt.Errorf("load: opening caller %d: %w", i, err)
		}
		defer shut()
		ops[i] = op
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		callers sync.WaitGroup
		mu      sync.Mutex
		total   Tally
		took    []time.Duration
		from    = time.Now().Add(l.Warm)
		to      = from.Add(l.For)
	)
	for i, op := range ops {
		callers.Go(func() {
			var own Tally
			var times []time.Duration
			for began := time.Now(); began.Before(to) && ctx.Err() == nil; {
				n, err := op()
				ended := time.Now()
				if err != nil {
					cancel(fmt.Errorf("load: caller %d: %w", i, err))
					return
				}
				if !ended.Before(from) && ended.Before(to) {
					own.Items += int64(n)
					own.Calls++
					times = append(times, ended.Sub(began))
				}
				began = ended
			}
			mu.Lock()
			defer mu.Unlock()
			total.Items += own.Items
			total.Calls += own.Calls
			took = append(took, times...)
		})
	}
	if atWindow != nil {
		callers.Go(func() {
			for _, at := range []time.Time{from, to} {
				select {
				case <-time.After(time.Until(at)):
					atWindow()
				case <-ctx.Done():
					return
				}
			}
		})
	}
	callers.Wait()
	if err := context.Cause(ctx); err != nil {
		return Tally{}, err
	}
	slices.Sort(took)
	total.Elapsed = l.For
	total.P50, total.P99 = Percentile(took, 0.5), Percentile(took, 0.99)
	return total, nil
}

// Percentile returns the smallest of the sorted values that at least the share
// p of them does not exceed, zero when there are none.
func Percentile[T any](sorted []T, p float64) T {
	var zero T
	if len(sorted) == 0 {
		return zero
	}
	n := int(p * float64(len(sorted)))
	if float64(n) < p*float64(len(sorted)) {
		n++
	}
	return sorted[min(max(n-1, 0), len(sorted)-1)]
}
