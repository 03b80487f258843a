package queue

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// held is a queue whose fsyncs wait until the test lets them, and what each change of its store was of.
type held struct {
	*fixture
	release chan struct{}
	panics  bool // the next change of many does
	full    bool // a change waits for space
	changes []int
	callers sync.WaitGroup
}

func newHeld(t *testing.T, settings *schedule.Spec) *held {
	h := &held{release: make(chan struct{})}
	h.fixture = newFixtureOn(t, func(s store.Store) store.Store {
		return &waits{h, &hooked{
			Store: s,
			before: func(call, _ string) error {
				switch {
				case call == "Wait":
					<-h.release
				case call == "Space" && h.full:
					return store.ErrFull
				}
				return nil
			},
			applied: func(_ bool, _ []store.MarkChange, changes []store.Change) error {
				if h.panics && len(changes) > 1 {
					h.panics = false
					panic("of the test")
				}
				h.changes = append(h.changes, len(changes))
				return nil
			},
		}}
	}, settings)
	return h
}

// waits is a store in which a change may wait for space.
type waits struct {
	of *held
	store.Store
}

func (w *waits) Waiting() bool { return w.of.full }

// schedule calls, and returns what the call will return.
func (h *held) schedule(key string, r schedule.Request) *Scheduled {
	out := new(Scheduled)
	h.callers.Go(func() {
		got, err := h.sources[0].Schedule(key, &r, nil)
		if e, ok := errors.AsType[*schedule.Error](err); ok {
			got.Err, err = e, nil
		}
		must(h.t, err)
		*out = got
	})
	synctest.Wait()
	return out
}

// Calls that come while one waits for its fsync are one change of the store, in their order; each has its own answer.
func TestGather_OneChangeForMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		settings := tenantSource("ns", "s", schedule.Ceilings{})
		settings.MaxPending = 3
		h := newHeld(t, settings)
		first := h.schedule("first", after(time.Hour))
		var outs []*Scheduled
		for _, key := range []string{"a", "b", "a", "", "c"} {
			outs = append(outs, h.schedule(key, after(time.Hour)))
		}
		close(h.release)
		h.callers.Wait()
		if got := fmt.Sprint(h.changes); got != "[1 2]" {
			t.Errorf("the changes were of %s keys, want [1 2]: first alone, then a and b", got)
		}
		var got []string
		for _, o := range append(outs, first) {
			what := string(o.Result)
			if o.Err != nil {
				what = string(o.Err.Code)
			}
			got = append(got, what)
		}
		if got, want := strings.Join(got, " "), "created created replaced invalid_argument quota_exceeded created"; got != want {
			t.Errorf("the answers were %s, want %s", got, want)
		}
		if outs[0].View.Revision >= outs[2].View.Revision {
			t.Errorf("the second call of a key has revision %d, the first %d", outs[2].View.Revision, outs[0].View.Revision)
		}
		h.check("after the calls")
	})
}

// A call whose key holds a large event is admitted alone, with its own claim of memory, and its company as well.
func TestGather_LargeEntryGoesAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHeld(t, tenantSource("ns", "s", schedule.Ceilings{}))
		h.release = make(chan struct{}, 100)
		for range 100 {
			h.release <- struct{}{}
		}
		h.schedule("large", sized(200<<10))
		h.release = make(chan struct{})
		h.schedule("first", after(time.Hour))
		large, small := h.schedule("large", after(time.Minute)), h.schedule("small", after(time.Minute))
		h.changes = nil
		close(h.release)
		h.callers.Wait()
		if large.Err != nil || small.Err != nil || len(large.View.Event.Data) != 200<<10 || len(h.changes) != 2 {
			t.Errorf("answers %v and %v after changes of %v keys", large.Err, small.Err, h.changes)
		}
	})
}

// A call that panics while it leads lets the calls in its company end, and the next call lead.
func TestGather_PanicEndsItsCompany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHeld(t, tenantSource("ns", "s", schedule.Ceilings{}))
		first := h.schedule("first", after(time.Hour))
		h.callers.Go(func() {
			defer func() { _ = recover() }()
			r := after(time.Hour)
			_, _ = h.sources[0].Schedule("panics", &r, nil)
		})
		synctest.Wait()
		h.panics = true
		second := h.schedule("second", after(time.Hour))
		close(h.release)
		h.callers.Wait()
		third := h.schedule("third", after(time.Hour))
		if first.Err != nil || second.Err != errUnknown || third.Err != nil {
			t.Errorf("the answers were %v, %v and %v", first.Err, second.Err, third.Err)
		}
	})
}

// While a change waits for space, a call is refused at once: it does not gather behind that change.
func TestGather_NoneWaitsForSpace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHeld(t, tenantSource("ns", "s", schedule.Ceilings{}))
		first := h.schedule("first", after(time.Hour))
		h.full = true
		second := h.schedule("second", after(time.Hour))
		if second.Err == nil || second.Err.Code != schedule.CodeStorageFull {
			t.Errorf("the answer was %v", second.Err)
		}
		h.full = false
		close(h.release)
		h.callers.Wait()
		if first.Err != nil {
			t.Error(first.Err)
		}
	})
}
