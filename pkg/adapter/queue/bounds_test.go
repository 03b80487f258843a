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

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// open is a queue with one source over a store in memory.
func open(t *testing.T, change func(*Config, *schedule.Spec)) (*Source, func()) {
	t.Helper()
	fatal := func(err error) { t.Errorf("fatal: %v", err) }
	db, err := store.Open(store.Options{Dir: "data", FS: vfs.NewMem(), Fatal: fatal})
	must(t, err)
	cfg := Config{Store: db, Fatal: fatal, Random: func() float64 { return 0 }}
	settings := &schedule.Spec{
		UID: "s", Namespace: "ns", Name: "s", Policy: schedule.Replace, Ingest: schedule.Ingest{Policy: schedule.Earliest},
		Delivery: schedule.Delivery{BackoffDelay: time.Second}, Limits: schedule.Limits{MaxInFlight: 100, MaxPending: 1_000_000},
	}
	if change != nil {
		change(&cfg, settings)
	}
	q, err := Open(cfg)
	must(t, err)
	s, err := q.Set(settings)
	must(t, err)
	return s, func() {
		q.Close()
		must(t, db.Close())
	}
}

func after(d time.Duration) schedule.Request { return schedule.Request{Delay: &d} }

// fill schedules n keys for one instant.
func fill(t *testing.T, s *Source, n int, at time.Time) {
	t.Helper()
	for from := 0; from < n; from += 1000 {
		items := make([]Item, min(1000, n-from))
		for i := range items {
			items[i] = Item{Key: fmt.Sprintf("k%06d", from+i), Request: schedule.Request{DueAt: at}}
		}
		out, err := s.ScheduleAll(items, nil)
		must(t, err)
		for _, o := range out {
			if o.Err != nil {
				t.Fatal(o.Err)
			}
		}
	}
}

// A hundred thousand keys due at one instant are taken once, in order, from bounded memory.
func TestTake_TiesInBoundedMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rows = 256
		n := 100_000
		if testing.Short() {
			n = 10_000
		}
		s, done := open(t, func(c *Config, _ *schedule.Spec) { c.PageRows = rows })
		defer done()
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
	s, done := open(t, func(_ *Config, s *schedule.Spec) { s.MaxPending = limit })
	defer done()
	var accepted, refused atomic.Int64
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for i := range keys {
				// Another caller has half of the keys too.
				r := after(time.Hour)
				got, err := s.Schedule(fmt.Sprintf("%d/%d", c/2+(i%2)*callers*c, i), &r, nil)
				var e *schedule.Error
				switch {
				case err == nil && got.Result == schedule.Created:
					accepted.Add(1)
				case errors.As(err, &e) && e.Code == schedule.CodeQuota && e.RetryAfter > 0:
					refused.Add(1)
				case err != nil:
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := accepted.Load(); n != limit {
		t.Errorf("%d keys were accepted, want %d (%d calls refused)", n, limit, refused.Load())
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

// A key that is in a bulk twice is applied in order.
func TestBulk_KeyTwiceAppliedInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, done := open(t, func(_ *Config, s *schedule.Spec) { s.MaxPending = 2 })
		defer done()
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

// One refused item of several together refuses them all.
func TestTogether_OneRefusedRefusesAll(t *testing.T) {
	t.Parallel()
	s, done := open(t, func(_ *Config, s *schedule.Spec) { s.MaxPending = 2 })
	defer done()
	r := after(time.Hour)
	if err := s.ScheduleTogether([]Item{{"a", r}, {"b", r}, {"c", r}}); err == nil {
		t.Fatal("more than maxPending were accepted")
	}
	if views, _, _ := s.List(ListOptions{Limit: 10}); len(views) != 0 {
		t.Errorf("%+v", views)
	}
	must(t, s.ScheduleTogether([]Item{{"a", r}, {"b", r}, {"a", r}}))
}
