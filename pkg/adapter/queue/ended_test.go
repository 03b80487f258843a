package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// ending ends a store after some more calls, as the store of an owner does that loses its lease.
type ending struct {
	store.Store
	left atomic.Int64 // calls; -1: it does not end
}

// ends makes a store end, with the error.
func (s *ending) ends(why error) *hooked {
	return &hooked{Store: s.Store, before: func(call, _ string) error {
		if strings.HasPrefix(call, "Space") {
			return nil
		}
		for {
			left := s.left.Load()
			if left == 0 {
				return why
			}
			if left < 0 || s.left.CompareAndSwap(left, left-1) {
				return nil
			}
		}
	}}
}

// contents are the revisions of all that is stored of the source.
func (s *ending) contents(t *testing.T) map[string]uint64 {
	t.Helper()
	all := map[string]uint64{}
	items, _, err := s.Store.List("s", "", "", 10_000, true)
	letters, _, e := s.Store.Letters("s", schedule.KeptLetterKey(""), "", 10_000, true)
	must(t, errors.Join(err, e))
	for _, i := range append(items, letters...) {
		all[i.Key] = i.Entry.Revision
	}
	return all
}

// pages are items that a bulk call takes in several pages.
func pages() []Item {
	items := make([]Item, 6)
	for i := range items {
		items[i] = Item{Key: fmt.Sprint("large", i), Request: schedule.Request{Event: large(byte(i))}}
	}
	return items
}

// A call that meets a store which has ended, as when an owner loses its lease, is refused as during a failover, and
// nothing is logged as an error. What says that nothing was changed is true.
func TestCall_StoreEnds(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	calls := map[string]func(*Source) error{
		"GET":               func(s *Source) error { _, _, err := s.Get("a001"); return err },
		"list":              func(s *Source) error { _, _, err := s.List(ListOptions{Limit: 10}); return err },
		"counts":            func(s *Source) error { _, err := s.Counts(); return err },
		"PUT":               func(s *Source) error { _, err := s.Schedule("a001", &schedule.Request{}, nil); return err },
		"bulk":              func(s *Source) error { _, err := s.ScheduleAll([]Item{{Key: "a001"}, {Key: "new"}}, nil); return err },
		"bulk, large":       func(s *Source) error { _, err := s.ScheduleAll(pages(), nil); return err },
		"events":            func(s *Source) error { return s.ScheduleTogether([]Item{{Key: "a001"}, {Key: "new"}}) },
		"DELETE":            func(s *Source) error { return s.Cancel("a001", schedule.Conditions{}) },
		"DELETE, prefix":    func(s *Source) error { _, err := s.CancelAll(ctx, "a"); return err },
		"letter":            func(s *Source) error { _, _, err := s.Letters.Get("l0"); return err },
		"letters":           func(s *Source) error { _, _, err := s.Letters.List("", "", 10); return err },
		"DELETE, letter":    func(s *Source) error { return s.Letters.Discard("l0") },
		"DELETE, letters":   func(s *Source) error { _, err := s.Letters.DiscardAll(ctx, ""); return err },
		"redrive":           func(s *Source) error { _, err := s.Letters.Redrive("l0", false, nil); return err },
		"redrive, all":      func(s *Source) error { _, _, err := s.Letters.RedriveAll(ctx, "", false, nil); return err },
		"report of a watch": func(s *Source) error { return s.Marks.Report(nil, []store.MarkChange{{Mark: store.Mark{Object: "o"}}}) },
		"states of a watch": func(s *Source) error { _, err := s.Marks.States(); return err },
	}
	errs, step := []error{store.ErrNotOwner, store.ErrClosed, store.ErrUnknown}, 1
	if testing.Short() {
		errs, step = errs[:1], 10
	}
	for name, call := range calls {
		for _, why := range errs {
			for left := 0; ; left += step {
				ended := false
				synctest.Test(t, func(t *testing.T) {
					ended = endsDuring(t, fmt.Sprintf("%s: %v after %d", name, why, left), call, left, why)
				})
				if !ended {
					break
				}
			}
		}
	}
}

// openEnding opens a source on a store that will end, and keeps what is logged as an error.
func openEnding(t *testing.T, why error, letters int) (s *Source, db *ending, logged *bytes.Buffer, done func()) {
	logged = new(bytes.Buffer)
	s, done = open(t, func(c *Config, s *schedule.Spec) {
		db = &ending{Store: c.Store}
		db.left.Store(-1)
		c.Store, c.Log = db.ends(why), slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelError}))
		s.Letters = schedule.Letters{Keep: letters, MaxAge: time.Hour}
	})
	return s, db, logged, done
}

// endsDuring makes the call at a store that ends after some calls. It reports whether that was
// before the call had ended.
func endsDuring(t *testing.T, what string, call func(*Source) error, left int, why error) bool {
	s, db, logged, done := openEnding(t, why, 10)
	for i := range 3 {
		deliver(t, s, fmt.Sprint("l", i), refused)
	}
	items := make([]Item, cancelPage+10)
	for i := range items {
		items[i] = Item{Key: fmt.Sprintf("a%03d", i), Request: after(time.Hour)}
	}
	must(t, errorOf(s.ScheduleAll(items, nil)))
	synctest.Wait()
	before := db.contents(t)
	if len(before) != len(items)+3 {
		t.Fatalf("%d keys and dead letters", len(before))
	}
	db.left.Store(int64(left))
	err := call(s)
	ended := db.left.Load() == 0 // also by its last call
	synctest.Wait()
	db.left.Store(-1)
	changed := !cmp.Equal(before, db.contents(t))
	done()
	if logged.Len() > 0 {
		t.Errorf("%s: it logs %s", what, logged.String())
	}
	if err == nil {
		return ended
	}
	e := RefusalOfEndedStore(err)
	var r *schedule.Error
	if errors.As(err, &r) && r != e || e == nil {
		t.Errorf("%s: %v", what, err)
		return false
	}
	if e.Code != schedule.CodeUnavailable || e.RetryAfter != time.Second {
		t.Errorf("%s: %+v", what, e)
	}
	if changed && strings.Contains(e.Detail, "nothing was changed") {
		t.Errorf("%s: something was changed, and the answer is %q", what, e.Detail)
	}
	if !changed && !errors.Is(why, store.ErrUnknown) && e == errUnknown {
		t.Errorf("%s: nothing was changed, and the answer is %q", what, e.Detail)
	}
	return true
}

// The outcome of a delivery whose store ended meanwhile is dropped: the next owner delivers the key again.
func TestFinish_StoreEnds(t *testing.T) {
	t.Parallel()
	for _, why := range []error{store.ErrClosed, store.ErrNotOwner, store.ErrSealed, store.ErrUnknown} {
		for left := range 6 {
			synctest.Test(t, func(t *testing.T) {
				s, db, logged, _ := openEnding(t, why, 1)
				deliver(t, s, "older", refused)
				must(t, errorOf(s.Schedule("k", &schedule.Request{}, nil)))
				d := take(t, s)
				db.left.Store(int64(left))
				if _, err := s.Finish(d, refused); err != nil && RefusalOfEndedStore(err) == nil {
					t.Errorf("%v after %d: %v", why, left, err)
				}
				time.Sleep(2 * heartbeatEvery) // also the clock's mark
				s.Letters.trim()
				synctest.Wait()
				if logged.Len() > 0 {
					t.Errorf("%v after %d: it logs %s", why, left, logged.String())
				}
			})
		}
	}
}
