package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Above the exact count the numbers are older, and not 0.
func TestCounts_AboveTheExactOnesAreThere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, _ := open(t, nil)
		at := time.Now()
		fill(t, s, exactDue+100, at)
		for range 2 { // counted anew, then as counted before
			if c, err := s.Counts(); err != nil || c.Due != exactDue+100 || !c.OldestDueAt.Equal(at) {
				t.Errorf("%+v %v", c, err)
			}
		}
	})
}

// Rows of a source that is not set, however many, delay no expiry.
func TestSweep_GoesPastWhatItCannotDrop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, _ := open(t, nil)
		now := time.Now().UTC()
		for i := range 2*sweepRows + 10 {
			e := &schedule.Entry{Revision: uint64(i + 1), DueAt: now.Add(time.Hour), ExpiresAt: now.Add(time.Second)}
			must(t, errorOf(s.q.store.Apply(true, store.Change{Source: "absent", Key: fmt.Sprint(i), New: e})))
		}
		r := after(time.Hour)
		r.ExpiresAt = now.Add(2 * time.Second)
		for _, key := range []string{"a", "b"} {
			must(t, errorOf(s.Schedule(key, &r, nil)))
			r.ExpiresAt = r.ExpiresAt.Add(20 * time.Second)
		}
		for want := int64(1); want >= 0; want-- {
			time.Sleep(20 * time.Second)
			if c, err := s.Counts(); err != nil || c.Pending != want {
				t.Errorf("%+v %v, want %d", c, err, want)
			}
		}
		// Once the source is set, its rows are dropped too.
		settings := *s.Spec()
		settings.UID, settings.Name = "absent", "absent"
		back, err := s.q.Set(&settings)
		must(t, err)
		time.Sleep(5 * time.Second)
		if c, err := back.Counts(); err != nil || c.Pending != 0 {
			t.Errorf("%+v %v", c, err)
		}
	})
}

// An entry that cannot be read has its place in the quota until it is replaced or removed.
func TestUnreadable_IsReplacedAndRemoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var broken sync.Map
		corrupt := func(_, key string) error {
			if _, is := broken.Load(key); is {
				return &store.CorruptError{Source: "s", Key: key, Err: errors.New("bad")}
			}
			return nil
		}
		s, _ := open(t, func(c *Config, s *schedule.Spec) {
			c.Store, s.MaxPending = &hooked{Store: c.Store, before: corrupt}, 3
		})
		r := after(time.Hour)
		for _, key := range []string{"a", "b", "c"} {
			must(t, errorOf(s.Schedule(key, &r, nil)))
			broken.Store(key, true)
		}
		if _, err := s.Schedule("d", &r, nil); err == nil {
			t.Error("a fourth key is accepted")
		}
		if got, err := s.Schedule("a", &r, nil); err != nil || got.Result != schedule.Created {
			t.Error(got, err)
		}
		broken.Delete("a")
		must(t, s.Cancel("b", schedule.Conditions{}))
		broken.Delete("b")
		if c, err := s.Counts(); err != nil || c.Pending != 2 {
			t.Errorf("%+v %v", c, err)
		}
		if n, err := s.CancelAll(t.Context(), ""); n != 2 || err != nil {
			t.Errorf("%d were cancelled: %v", n, err)
		}
		broken.Delete("c")
		synctest.Wait()
		if c, err := s.Counts(); err != nil || c.Pending != 0 || s.usage.keys.Load() != 0 {
			t.Errorf("%+v %v", c, err)
		}
		if n, _, err := s.q.store.Count("s"); n != 0 || err != nil {
			t.Errorf("the store counts %d: %v", n, err)
		}
		if rows, _, err := s.q.store.Due(nil, "s", schedule.NormalPriority, store.Position{}, 10); len(rows) > 0 || err != nil {
			t.Errorf("rows are left: %v %v", rows, err)
		}
	})
}

// A disk that fails every read costs a bounded number of goroutines, and what is due is delivered once it reads again.
func TestReads_ThatFailAreTriedInBounds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var failing atomic.Bool
		s, _ := open(t, func(c *Config, _ *schedule.Spec) {
			c.Store = &hooked{Store: c.Store, before: func(_, key string) error {
				if key != "" && failing.Load() {
					return syscall.EIO
				}
				return nil
			}}
		})
		n := 3 * int(maxRereads)
		fill(t, s, n, time.Now())
		failing.Store(true)
		for range 5 {
			if d, err := s.Take(); d != nil || err != nil {
				t.Fatal(d, err)
			}
			if got := s.page.again.Load(); got > maxRereads {
				t.Errorf("%d keys wait to be read again", got)
			}
			if !s.NextAt().IsZero() {
				t.Error("it wants to be asked again at once")
			}
			time.Sleep(300 * time.Millisecond)
		}
		failing.Store(false)
		taken := map[string]bool{}
		for range 10 {
			time.Sleep(time.Second)
			for d, err := s.Take(); d != nil || err != nil; d, err = s.Take() {
				must(t, err)
				taken[d.Key] = true
				must(t, errorOf(s.Finish(d, schedule.Outcome{Kind: schedule.Succeeded})))
			}
		}
		if len(taken) != n {
			t.Errorf("%d of %d were delivered", len(taken), n)
		}
	})
}

// While a write waits for space on the disk, reads answer.
func TestReads_AnswerWhileAWriteWaits(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && strings.HasSuffix(op.Path, ".log") && (op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpReuseForWrite) {
			return syscall.ENOSPC
		}
		return nil
	}))
	db, err := store.Open(store.Options{Dir: "data", FS: fs})
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	s, _ := open(t, func(c *Config, _ *schedule.Spec) { c.Store, c.Log = db, slog.New(slog.DiscardHandler) })
	const n = 2000
	fill(t, s, n, time.Now().Add(time.Hour))
	full.Store(true)
	// These are more than a memtable takes. The write needs a new log, for which there is no space,
	// and holds its stripes until there is. If the log were there and could not be written, the
	// write would wait without its stripes, or be refused.
	items, data := make([]Item, 1000), make([]byte, 24<<10)
	for i := range items {
		items[i] = Item{Key: fmt.Sprintf("k%06d", i), Request: schedule.Request{DueAt: time.Now().Add(time.Hour), Event: &schedule.Event{Data: data}}}
	}
	written := make(chan error, 1)
	go func() {
		_, err := s.ScheduleAll(items, nil)
		written <- err
	}()
	held := func(st *stripe) bool {
		if st.TryLock() {
			st.Unlock()
			return false
		}
		return true
	}
	begun := time.Now()
	for during := false; !during; { // until all is read between two looks at one stripe that is held
		if time.Since(begun) > time.Minute {
			t.Fatal("no write waits with a stripe held")
		}
		waits := slices.IndexFunc(items, func(i Item) bool { return held(s.stripes.of(i.Key)) })
		for i := range n {
			if _, ok, err := s.Get(fmt.Sprintf("k%06d", i)); !ok || err != nil {
				t.Fatal(i, ok, err)
			}
		}
		if views, _, err := s.List(ListOptions{Limit: 1000}); len(views) != 1000 || err != nil {
			t.Error(len(views), err)
		}
		if c, err := s.Counts(); c.Pending != n || err != nil {
			t.Errorf("%+v %v", c, err)
		}
		during = waits >= 0 && db.Waiting() && held(s.stripes.of(items[waits].Key))
	}
	full.Store(false)
	must(t, <-written)
}

// A call that outlives the store ends with a refusal, and not the process.
func TestCall_BehindTheEndIsNoFault(t *testing.T) {
	t.Parallel()
	s, done := open(t, nil)
	r := after(time.Hour)
	must(t, errorOf(s.Schedule("k", &r, nil)))
	done()
	_, putErr := s.Schedule("k", &r, nil)
	_, allErr := s.CancelAll(t.Context(), "")
	for i, err := range []error{putErr, s.Cancel("k", schedule.Conditions{}), allErr} {
		if err == nil {
			t.Errorf("%d: it is acknowledged", i)
		}
	}
}

// A caller that has gone does not keep a long cancellation going.
func TestCancelAll_EndsWithItsCaller(t *testing.T) {
	t.Parallel()
	s, _ := open(t, nil)
	fill(t, s, 3*cancelPage, time.Now().Add(time.Hour))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var refused *schedule.Error
	if n, err := s.CancelAll(ctx, ""); n != 0 || !errors.As(err, &refused) || refused.Code != schedule.CodeUnavailable {
		t.Error(n, err)
	}
	for _, step := range []struct {
		prefix string
		n      int
	}{{"k00001", 10}, {"", 3*cancelPage - 10}} {
		if n, err := s.CancelAll(t.Context(), step.prefix); n != step.n || err != nil {
			t.Errorf("%q: %d, %v", step.prefix, n, err)
		}
	}
}

// The pages of the first sources shrink when others come.
func TestPages_ShareTheirBudget(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, _ := open(t, func(c *Config, _ *schedule.Spec) { c.PageBudget = 1024 })
		fill(t, s, 1000, time.Now().Add(time.Hour))
		for i := range 7 {
			settings := *s.Spec()
			settings.UID, settings.Name = fmt.Sprint(i), fmt.Sprint(i)
			must(t, errorOf(s.q.Set(&settings)))
		}
		time.Sleep(heartbeatEvery)
		synctest.Wait()
		if n := s.page.rows.Len(); n > 2*1024/8 {
			t.Errorf("%d rows in memory", n)
		}
	})
}

// The clock's mark follows the clock back.
func TestClock_MarkFollowsAJumpBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var offset atomic.Int64
		s, _ := open(t, func(c *Config, _ *schedule.Spec) {
			c.Now = func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }
		})
		for _, jump := range []time.Duration{365 * 24 * time.Hour, 0} {
			offset.Store(int64(jump))
			time.Sleep(2 * time.Minute)
			mark, err := s.q.store.Clock()
			if gap := s.now().Sub(mark); err != nil || gap.Abs() > 2*time.Minute {
				t.Errorf("the mark is %s away from the clock: %v", gap, err)
			}
		}
	})
}
