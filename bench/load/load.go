// Package load makes load: callers in a closed loop, each with one call under
// way, for a fixed time. Every contestant gets the same loop and the same
// arithmetic, so the only difference between two measurements is the contestant.
//
// It guarantees that only calls that ended within the window are counted, that
// a run ends on its own, and that one failed call fails the whole run: a rate
// with errors in it says nothing.
package load

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// Op makes one call and returns how many items it carried.
type Op func() (items int, err error)

// Load is a closed loop of callers.
type Load struct {
	Callers   int
	Warm, For time.Duration // the time that is not counted, then the window that is
}

// Tally is what happened within the window.
type Tally struct {
	Items, Calls int64
	Elapsed      time.Duration
	// P50, P99 and Longest are of the calls.
	P50, P99, Longest time.Duration
}

// Rate returns items a second.
func (t Tally) Rate() float64 { return float64(t.Items) / t.Elapsed.Seconds() }

// Run opens every caller, then lets all of them call until the window is over.
// It calls atWindow when the window opens and again when it closes.
func (l Load) Run(ctx context.Context, open func(caller int) (Op, func(), error), atWindow func()) (Tally, error) {
	ops := make([]Op, l.Callers)
	for i := range ops {
		op, shut, err := open(i)
		if err != nil {
			return Tally{}, fmt.Errorf("load: opening caller %d: %w", i, err)
		}
		defer shut()
		ops[i] = op
	}
	from := time.Now().Add(l.Warm)
	to := from.Add(l.For)
	items, took := make([]int64, l.Callers), make([][]time.Duration, l.Callers)
	callers, running := errgroup.WithContext(ctx)
	for i, op := range ops {
		callers.Go(func() (err error) {
			if items[i], took[i], err = repeat(running, op, from, to); err != nil {
				return fmt.Errorf("load: caller %d: %w", i, err)
			}
			return nil
		})
	}
	callers.Go(func() error {
		for _, at := range []time.Time{from, to} {
			select {
			case <-time.After(time.Until(at)):
				atWindow()
			case <-running.Done():
				return context.Cause(running)
			}
		}
		return nil
	})
	if err := callers.Wait(); err != nil {
		return Tally{}, err
	}
	calls := slices.Concat(took...)
	slices.Sort(calls)
	total := Tally{Calls: int64(len(calls)), Elapsed: l.For, P50: Percentile(calls, 0.5), P99: Percentile(calls, 0.99), Longest: Percentile(calls, 1)}
	for _, n := range items {
		total.Items += n
	}
	return total, nil
}

// repeat calls op until the window is over. It counts the calls that ended within the window.
func repeat(ctx context.Context, op Op, from, to time.Time) (items int64, took []time.Duration, err error) {
	for began := time.Now(); began.Before(to) && ctx.Err() == nil; {
		n, err := op()
		ended := time.Now()
		if err != nil {
			return items, nil, err
		}
		if !ended.Before(from) && ended.Before(to) {
			items += int64(n)
			took = append(took, ended.Sub(began))
		}
		began = ended
	}
	return items, took, nil
}

// Percentile returns the smallest of the sorted values that at least the share
// p of them does not exceed, zero when there are none.
func Percentile[T any](sorted []T, p float64) (value T) {
	if len(sorted) > 0 {
		value = sorted[max(int(math.Ceil(p*float64(len(sorted))))-1, 0)]
	}
	return value
}
