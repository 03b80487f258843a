package queue

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// mark marks an object in watch 1. Its Source is of no consequence.
func mark(object string) store.MarkChange {
	return store.MarkChange{Source: "another", Watch: 1, Mark: store.Mark{Object: object, UID: "u", Hash: 7}}
}

// objects are what is marked in watch 1 of the source.
func objects(t *testing.T, s *Source) (found []string) {
	t.Helper()
	marks, more, err := s.Marks.List(1, "", 1000)
	if err != nil || more {
		t.Fatal(more, err)
	}
	for _, m := range marks {
		found = append(found, m.Object)
	}
	if n, _, err := s.Marks.Count(1); n != int64(len(found)) || err != nil {
		t.Errorf("%d marks are counted, %d are there: %v", n, len(found), err)
	}
	return found
}

// A report is stored with its marks and the state of its watch, or nothing of it is.
func TestReport_AllOrNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		settings := tenantSource("a", "a", schedule.Ceilings{})
		settings.MaxPending = 2
		h := newFixture(t, settings, tenantSource("b", "b", schedule.Ceilings{}))
		due, state := sized(10), store.WatchState{Watch: 1, Scope: "*", Version: "9", Complete: true}
		var refused *schedule.Error
		for what, report := range map[string]func(s *Source) error{
			"a quota": func(s *Source) error {
				return s.Marks.Report([]Item{{"k1", due}, {"k2", due}, {"k3", due}}, []store.MarkChange{mark("a/b"), {Watch: 1, State: &state}})
			},
			"a bad key": func(s *Source) error {
				return s.Marks.Report([]Item{{"k1", due}, {"a\nb", due}}, []store.MarkChange{mark("a/b")})
			},
			"an object without a name": func(s *Source) error {
				return s.Marks.Report([]Item{{"k1", due}}, []store.MarkChange{mark("a/b"), mark("")})
			},
			"the same without items": func(s *Source) error { return s.Marks.Report(nil, []store.MarkChange{mark("a/b"), mark("")}) },
		} {
			if err := report(h.sources[0]); !errors.As(err, &refused) {
				t.Errorf("%s: %v", what, err)
			}
			if found := objects(t, h.sources[0]); found != nil || h.sources[0].usage.keys.Load() != 0 {
				t.Errorf("%s: there are marks of %v and %d keys", what, found, h.sources[0].usage.keys.Load())
			}
			if states, err := h.sources[0].Marks.States(); err != nil || len(states) > 0 {
				t.Errorf("%s: there are states %v, %v", what, states, err)
			}
		}
		must(t, h.sources[0].Marks.Report([]Item{{"k1", due}, {"k2", due}}, []store.MarkChange{mark("a/b"), mark("a/c"), {Watch: 1, State: &state}}))
		kept := due
		kept.Policy = schedule.Keep
		must(t, h.sources[0].Marks.Report([]Item{{"k1", kept}}, []store.MarkChange{mark("kept")}))
		gone := mark("a/c")
		gone.Remove, gone.Before = true, gone.Mark.Size()
		must(t, h.sources[0].Marks.Report(nil, []store.MarkChange{mark("only"), gone}))
		must(t, h.sources[0].Marks.Report(nil, nil))
		recount(t, h.sources[0], 1)
		h.check("with marks")
		h.restart()
		h.check("after a start")
		s := h.sources[0]
		if got, want := objects(t, s), []string{"a/b", "kept", "only"}; !cmp.Equal(got, want) {
			t.Error(got, want)
		}
		if m, ok, err := s.Marks.Get(1, "a/b"); !ok || err != nil || !cmp.Equal(m, mark("a/b").Mark) {
			t.Error(m, ok, err)
		}
		if states, err := s.Marks.States(); len(states) != 2 || !cmp.Equal(states[0], state) || err != nil {
			t.Error(states, err)
		}
		if found := objects(t, h.sources[1]); found != nil {
			t.Error("of another source:", found)
		}
		for _, watch := range []uint64{1, countOf(1)} {
			must(t, s.Marks.Remove(watch))
		}
		if states, err := s.Marks.States(); len(states) > 0 || err != nil || objects(t, s) != nil || s.usage.keys.Load() != 2 {
			t.Error("a watch that was removed has states or marks, or took keys away:", states, err, s.usage.keys.Load())
		}
	})
}

// A full disk refuses marks, and a report with them as a whole; marks are still removed.
func TestReport_FullDisk(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newFixture(t, tenantSource("a", "a", schedule.Ceilings{}))
		s := h.sources[0]
		must(t, s.Marks.Report([]Item{{"k1", sized(10)}}, []store.MarkChange{mark("a/b"), mark("a/c")}))
		h.free(1<<30/20 - 1)
		full := "storage_full the adapter's disk is full"
		if got := refusal(t, s.Marks.Report(nil, []store.MarkChange{mark("a/d")})); got != full {
			t.Error("a mark:", got)
		}
		if got := refusal(t, s.Marks.Report([]Item{{"k1", sized(10)}}, []store.MarkChange{mark("a/d")})); got != full {
			t.Error("a mark, with an item that does not grow:", got)
		}
		gone := mark("a/c")
		gone.Remove = true
		h.free(1 << 30 / 20)
		if got := refusal(t, s.Marks.Report([]Item{{"k1", sized(9)}}, []store.MarkChange{gone})); got != "" {
			t.Error("the end of a mark, with an item that does not grow:", got)
		}
		if got := objects(t, s); !cmp.Equal(got, []string{"a/b"}) {
			t.Error(got)
		}
		h.free(1 << 30)
		must(t, s.Marks.Report(nil, []store.MarkChange{mark("a/d")}))
	})
}

// A source that is removed while reports come in keeps nothing, and takes nothing more.
func TestReport_OfARemovedSource(t *testing.T) {
	t.Parallel()
	h := newFixture(t, tenantSource("a", "a", schedule.Ceilings{}))
	s := h.sources[0]
	expect := func(what string, err error) {
		var refused *schedule.Error
		if !errors.As(err, &refused) || refused.Code != schedule.CodeNotFound {
			t.Errorf("%s: %v", what, err)
		}
	}
	var reporters sync.WaitGroup
	first := make(chan struct{}, 4)
	for n := range 4 {
		reporters.Go(func() {
			for i := 0; ; i++ {
				name := fmt.Sprintf("%d/%d", n, i)
				err := s.Marks.Report([]Item{{name, sized(1)}}, []store.MarkChange{mark(name)})
				if err == nil {
					err = s.Marks.Report(nil, []store.MarkChange{mark(name + "-lazy")})
				}
				if err == nil {
					err = s.Marks.SetState(store.WatchState{Watch: uint64(n)})
				}
				if err != nil {
					expect("a report", err)
					return
				}
				if i == 3 {
					first <- struct{}{}
				}
			}
		})
	}
	for range 4 {
		<-first
	}
	must(t, h.q.Remove(s.uid))
	reporters.Wait()
	if all, err := h.db.Sources(); len(all) != 0 || err != nil {
		t.Errorf("there are sources %v: %v", all, err)
	}
	_, _, marksErr := s.Marks.List(1, "", 1)
	_, _, markErr := s.Marks.Get(1, "a")
	_, _, countErr := s.Marks.Count(1)
	_, statesErr := s.Marks.States()
	for what, err := range map[string]error{
		"List": marksErr, "Get": markErr, "Count": countErr, "States": statesErr, "Remove": s.Marks.Remove(1),
		"SetState": s.Marks.SetState(store.WatchState{}), "Report": s.Marks.Report(nil, []store.MarkChange{mark("a")}),
	} {
		expect(what, err)
	}
}

// watched is a source whose store records how many marks came with how many changes.
func watched(t *testing.T) (s *Source, seen func() []string) {
	t.Helper()
	var all []string
	s, _ = open(t, func(c *Config, _ *schedule.Spec) {
		c.Store = &hooked{Store: c.Store, applied: func(_ bool, marks []store.MarkChange, changes []store.Change) error {
			all = append(all, fmt.Sprintf("%d changes %d marks", len(changes), len(marks)))
			return nil
		}}
	})
	return s, func() []string {
		defer func() { all = nil }()
		return all
	}
}

// Items with events are one change with the marks, whatever their keys hold now. Items that inherit large events go
// page by page, and the marks with the last page.
func TestReport_MarksGoWithTheLastPage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, seen := watched(t)
		large := schedule.Request{Event: &schedule.Event{Data: []byte(strings.Repeat("x", 200<<10))}}
		var keep, inherit []Item
		for i := range 5 {
			r, key := after(time.Hour), fmt.Sprint("k", i)
			r.Event = large.Event
			must(t, errorOf(s.Schedule(key, &r, nil)))
			keep, inherit = append(keep, Item{key, sized(1)}), append(inherit, Item{key, after(time.Minute)})
		}
		seen()
		must(t, s.Marks.Report(inherit, []store.MarkChange{mark("a")}))
		if got, want := seen(), []string{"3 changes 0 marks", "2 changes 1 marks"}; !cmp.Equal(got, want) {
			t.Error(got, want)
		}
		must(t, s.Marks.Report(keep, []store.MarkChange{mark("a")}))
		if got, want := seen(), []string{"5 changes 1 marks"}; !cmp.Equal(got, want) {
			t.Error(got, want)
		}
	})
}

// The key of a deleted object ends also when a report finds the deletion waiting, of which it reads no event.
func TestReport_DeletedObjectsKeyEnds(t *testing.T) {
	t.Parallel()
	caused := &schedule.Event{Type: schedule.DefaultEventType, Extensions: map[string]any{schedule.FinalAttribute: true, schedule.CauseAttribute: "a"}}
	deleted := &schedule.Event{ID: "1", Source: "s", Type: "dev.knative.apiserver.ref.delete"}
	change := &schedule.Event{ID: "2", Source: "s", Type: "dev.knative.apiserver.ref.update"}
	for name, c := range map[string]struct {
		events []*schedule.Event
		others int // more keys in the same report
		ends   bool
	}{
		"an owned object behind the owner":          {[]*schedule.Event{deleted, caused}, 0, true},
		"two owned objects":                         {[]*schedule.Event{caused, caused}, 0, true},
		"two owned objects in a report of two keys": {[]*schedule.Event{caused, caused}, 1, true},
		"an owned object behind a schedule":         {[]*schedule.Event{change, caused}, 0, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, _ := open(t, func(_ *Config, sp *schedule.Spec) { sp.MaxInterval = time.Hour })
			for _, e := range c.events {
				r := after(time.Second)
				r.Policy, r.Event, r.Ingested = schedule.Earliest, e, true
				items := []Item{{"k", r}}
				for range c.others {
					items = append(items, Item{"other", sized(10)})
				}
				must(t, s.Marks.Report(items, nil))
			}
			time.Sleep(2 * time.Second)
			for {
				d, err := s.Take()
				must(t, err)
				if d == nil {
					break
				}
				must(t, errorOf(s.Finish(d, schedule.Outcome{Kind: schedule.Succeeded, Status: 204})))
			}
			if _, there, err := s.Get("k"); there == c.ends || err != nil {
				t.Errorf("%s: the key is there: %t, %v", name, there, err)
			}
		})
	}
}
