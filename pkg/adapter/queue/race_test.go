package queue

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// What a caller was told holds for every delivery that starts later, and no key is in two deliveries at a time.
func TestConcurrency_KeepsAKeysOrder(t *testing.T) {
	t.Parallel()
	const keys, callers, workers = 4, 4, 4
	calls := 400
	if testing.Short() {
		calls = 100
	}
	s, _ := open(t, func(c *Config, _ *schedule.Spec) { c.PageRows = 4 })
	name := func(i int) string { return fmt.Sprint("k", i) }
	var acknowledged [keys]atomic.Uint64 // the newest revision that a caller was told
	var flying [keys]atomic.Int32
	var running, delivering sync.WaitGroup
	stop := make(chan struct{})
	deliver := func(r *rand.Rand) {
		var floor [keys]uint64
		for i := range keys {
			floor[i] = acknowledged[i].Load()
		}
		d, err := s.Take()
		if err != nil {
			t.Error(err)
		}
		if d == nil {
			return
		}
		i := int(d.Key[1] - '0')
		if d.Revision() < floor[i] {
			t.Errorf("%s: a delivery of revision %d started after %d was acknowledged", d.Key, d.Revision(), floor[i])
		}
		if flying[i].Add(1) != 1 {
			t.Errorf("%s is in two deliveries at a time", d.Key)
		}
		o := []schedule.Outcome{
			{Kind: schedule.Succeeded}, {Kind: schedule.Failed}, {Kind: schedule.Rejected},
			{Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{}},
		}[r.IntN(4)]
		flying[i].Add(-1)
		if _, err := s.Finish(d, o); err != nil {
			t.Error(err)
		}
	}
	for w := range workers {
		delivering.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for {
				select {
				case <-stop:
					return
				default:
					deliver(r)
				}
			}
		})
	}
	for c := range callers {
		running.Go(func() {
			r := rand.New(rand.NewPCG(uint64(c), 2))
			for range calls {
				i := r.IntN(keys)
				req := after(time.Duration(r.IntN(2)) * time.Millisecond)
				req.Policy = []schedule.Policy{schedule.Replace, schedule.Earliest, schedule.Keep}[r.IntN(3)]
				var err error
				switch r.IntN(6) {
				case 0:
					err = s.Cancel(name(i), schedule.Conditions{})
				case 1:
					_, err = s.CancelAll(t.Context(), name(i))
				case 2:
					_, err = s.ScheduleAll([]Item{{name(i), req}, {name((i + 1) % keys), req}, {name(i), req}}, nil)
				default:
					var got Scheduled
					if got, err = s.Schedule(name(i), &req, nil); err == nil && got.Result != schedule.Kept {
						raise(&acknowledged[i], got.View.Revision)
					}
				}
				if e := (*schedule.Error)(nil); err != nil && !errors.As(err, &e) {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
	close(stop)
	delivering.Wait()
	if _, err := s.CancelAll(t.Context(), ""); err != nil {
		t.Error(err)
	}
	if c, err := s.Counts(); err != nil || c.Pending != 0 || c.InFlight != 0 || s.usage.keys.Load() != 0 || s.stripes.own[1].Load() != 0 {
		t.Errorf("%+v, %d keys, %d own, %v", c, s.usage.keys.Load(), s.stripes.own[1].Load(), err)
	}
}

func raise(to *atomic.Uint64, n uint64) {
	for {
		old := to.Load()
		if n <= old || to.CompareAndSwap(old, n) {
			return
		}
	}
}
