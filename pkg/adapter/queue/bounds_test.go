package queue

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// atOnce makes calls of several callers at once, and returns how many succeed.
func atOnce(callers, calls int, call func(caller, i int) bool) int64 {
	var succeeded atomic.Int64
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for i := range calls {
				if call(c, i) {
					succeeded.Add(1)
				}
			}
		})
	}
	all.Wait()
	return succeeded.Load()
}

// A hundred thousand keys due at one instant are taken once, in order, from bounded memory.
func TestTake_TiesInBoundedMemory(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const rows = 256
		n := 20_000
		if testing.Short() {
			n = 2000
		}
		s, _ := open(t, func(c *Config, _ *schedule.Spec) { c.PageRows = rows })
		fill(t, s, n, time.Now().Add(time.Hour))
		synctest.Wait() // the first page may be loading
		if at := s.NextAt(); !at.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("the next one is due at %s", at)
		}
		if d, err := s.Take(); d != nil || err != nil {
			t.Fatal("something is handed out early", err)
		}
		time.Sleep(time.Hour)
		for i := 0; i < n; {
			d, err := s.Take()
			must(t, err)
			s.page.mu.Lock()
			if held := s.page.rows.Len(); held > 2*rows {
				t.Fatalf("%d rows in memory", held)
			}
			s.page.mu.Unlock()
			if d == nil { // the next page is loading
				if synctest.Wait(); s.NextAt().IsZero() {
					t.Fatalf("nothing is left after %d", i)
				}
				continue
			}
			if want := fmt.Sprintf("k%06d", i); d.Key != want {
				t.Fatalf("%s is handed out, want %s", d.Key, want)
			}
			must(t, errorOf(s.Finish(d, schedule.Outcome{Kind: schedule.Succeeded})))
			i++
		}
		if c, err := s.Counts(); err != nil || c.Pending != 0 {
			t.Errorf("%+v %v", c, err)
		}
	})
}

// maxPending is exact among concurrent calls.
func TestMaxPending_ExactAtOnce(t *testing.T) {
	t.Parallel()
	const limit, callers, keys = 100, 8, 60
	s, _ := open(t, func(_ *Config, s *schedule.Spec) { s.MaxPending = limit })
	accepted := atOnce(callers, keys, func(c, i int) bool {
		// Another caller has half of the keys too.
		r := after(time.Hour)
		got, err := s.Schedule(fmt.Sprintf("%d/%d", c/2+(i%2)*callers*c, i), &r, nil)
		if e, ok := errors.AsType[*schedule.Error](err); err != nil && (!ok || e.Code != schedule.CodeQuota || e.RetryAfter <= 0) {
			t.Error(err)
		}
		return err == nil && got.Result == schedule.Created
	})
	if accepted != limit {
		t.Errorf("%d keys were accepted, want %d", accepted, limit)
	}
	counts, err := s.Counts()
	if err != nil || counts.Pending != limit {
		t.Errorf("%+v %v", counts, err)
	}
	views, _, err := s.List(ListOptions{Limit: 1})
	must(t, err)
	r := after(time.Minute)
	if got, err := s.Schedule(views[0].Key, &r, nil); err != nil || got.Result != schedule.Replaced {
		t.Error("replacing an existing key is still allowed:", got, err)
	}
	must(t, s.Cancel(views[0].Key, schedule.Conditions{}))
	if _, err := s.Schedule("new", &r, nil); err != nil {
		t.Error("a key was removed, and a new one is refused:", err)
	}
	if err := s.ScheduleTogether([]Item{{Key: "other", Request: r}}); err == nil {
		t.Error("a key is accepted beyond the limit")
	}
	if counts, _ := s.Counts(); counts.Pending != limit {
		t.Errorf("%+v", counts)
	}
}

// A key that is in a bulk twice is applied in order. Of several together one that is refused refuses all.
func TestBulk_KeyTwiceAppliedInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, _ := open(t, func(_ *Config, s *schedule.Spec) { s.MaxPending = 2 })
		r := after(time.Hour)
		if err := s.ScheduleTogether([]Item{{"a", r}, {"b", r}, {"c", r}}); err == nil || s.usage.keys.Load() != 0 {
			t.Fatal("more than maxPending were accepted, or some of them:", err)
		}
		must(t, s.ScheduleTogether([]Item{{"a", r}, {"b", r}, {"a", r}}))
		must(t, errorOf(s.CancelAll(t.Context(), "")))
		fail, keep, first, drop := after(0), after(0), after(time.Minute), after(time.Minute)
		fail.Policy, keep.Policy, drop.ExpiresAt = schedule.Fail, schedule.Keep, time.Now()
		bad := after(0)
		bad.IfNoneMatch = true
		out, err := s.ScheduleAll([]Item{
			{"a", first}, {"a", after(time.Hour)}, {"a", keep}, {"a", fail}, {"a", bad}, {"", after(0)},
			{"gone", drop}, {"gone", first}, {"over", first}, {"b", first},
		}, nil)
		must(t, err)
		var got []string
		for _, o := range out {
			if o.Err != nil {
				got = append(got, string(o.Err.Code))
				continue
			}
			got = append(got, string(o.Result))
		}
		want := []string{"created", "replaced", "kept", "already_exists", "precondition_failed", "invalid_argument", "created", "created", "quota_exceeded", "quota_exceeded"}
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if v, ok, _ := s.Get("a"); !ok || !v.DueAt.Equal(time.Now().Add(time.Hour)) || v.Revision != out[1].View.Revision {
			t.Errorf("%+v", v)
		}
		if out[1].View.Revision <= out[0].View.Revision || !out[1].View.PreviousDueAt.Equal(out[0].View.DueAt) {
			t.Errorf("%+v %+v", out[0], out[1])
		}
		if c, _ := s.Counts(); c.Pending != 2 {
			t.Errorf("%+v", c)
		}
	})
}
