package kube

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// An owner with too many calls does not delay the others, and the queue forgets an
// owner whose last call is over.
func TestCallQueue_SharesSlotsAndForgetsOwners(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewCallQueue(CallLimit{Slots: 3, Share: 2, Wait: time.Second, Take: time.Minute})
		slow := func(context.Context) error { time.Sleep(5 * time.Second); return nil }
		var mu sync.Mutex
		var wg sync.WaitGroup
		results := map[error]int{}
		for range 200 {
			wg.Go(func() {
				err := q.Do(t.Context(), "busy", slow)
				mu.Lock()
				defer mu.Unlock()
				results[err]++
			})
		}
		synctest.Wait()
		start := time.Now()
		if err := q.Do(t.Context(), "other", func(context.Context) error { return nil }); err != nil || time.Since(start) > 0 {
			t.Errorf("another owner: %v after %s", err, time.Since(start))
		}
		wg.Wait()
		if results[nil] != 2 || results[ErrBusy] != 198 {
			t.Errorf("results of the busy owner: %v", results)
		}
		if n := len(q.owners); n != 0 {
			t.Errorf("%d owners are remembered", n)
		}
	})
}

// A call ends with its time, and without a wait there is a slot at once or none.
func TestCallQueue_BoundsACall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewCallQueue(CallLimit{Slots: 1, Share: 1, Take: time.Second})
		release, err := q.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := q.Acquire(t.Context(), "b"); !errors.Is(err, ErrBusy) || time.Since(start) > 0 {
			t.Errorf("%v after %s, want %v at once", err, time.Since(start), ErrBusy)
		}
		release()
		err = q.Do(t.Context(), "b", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}
