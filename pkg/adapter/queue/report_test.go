package queue

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
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

// A report is stored with its marks, or nothing of it is.
func TestReport_AllOrNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		settings := tenantSource("a", "a", schedule.Ceilings{})
		settings.MaxPending = 2
		h := newHouse(t, settings, tenantSource("b", "b", schedule.Ceilings{}))
		defer func() { h.close() }()
		due := sized(10)
		var refused *schedule.Error
		for what, report := range map[string]func(s *Source) error{
			"a quota": func(s *Source) error {
				return s.Marks.Report([]Item{{"k1", due}, {"k2", due}, {"k3", due}}, []store.MarkChange{mark("a/b")})
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
		}
		must(t, h.sources[0].Marks.Report([]Item{{"k1", due}, {"k2", due}}, []store.MarkChange{mark("a/b"), mark("a/c")}))
		kept := due
		kept.Policy = schedule.Keep
		must(t, h.sources[0].Marks.Report([]Item{{"k1", kept}}, []store.MarkChange{mark("kept")}))
		gone := mark("a/c")
		gone.Remove, gone.Before = true, gone.Mark.Size()
		must(t, h.sources[0].Marks.Report(nil, []store.MarkChange{mark("only"), gone}))
		must(t, h.sources[0].Marks.Report(nil, nil))
		state := store.WatchState{Watch: 1, Version: "9", Complete: true}
		must(t, h.sources[0].Marks.SetState(state))
		recount(t, h.sources[0], 1)
		h.check("with marks")
		h.close()
		h.open()
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &house{t: t, fs: vfs.NewMem(), settings: []*schedule.Spec{tenantSource("a", "a", schedule.Ceilings{})}}
		free := func(n uint64) {
			h.fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: n, TotalBytes: 1 << 30})
			time.Sleep(time.Second) // fake: the answer is kept for a moment
		}
		free(1 << 30)
		h.open()
		defer h.close()
		s := h.sources[0]
		must(t, s.Marks.Report([]Item{{"k1", sized(10)}}, []store.MarkChange{mark("a/b"), mark("a/c")}))
		free(1<<30/20 - 1)
		full := "storage_full the adapter's disk is full"
		if got := refusal(t, s.Marks.Report(nil, []store.MarkChange{mark("a/d")})); got != full {
			t.Error("a mark:", got)
		}
		if got := refusal(t, s.Marks.Report([]Item{{"k1", sized(10)}}, []store.MarkChange{mark("a/d")})); got != full {
			t.Error("a mark, with an item that does not grow:", got)
		}
		gone := mark("a/c")
		gone.Remove = true
		free(1 << 30 / 20)
		if got := refusal(t, s.Marks.Report([]Item{{"k1", sized(9)}}, []store.MarkChange{gone})); got != "" {
			t.Error("the end of a mark, with an item that does not grow:", got)
		}
		if got := objects(t, s); !cmp.Equal(got, []string{"a/b"}) {
			t.Error(got)
		}
		free(1 << 30)
		must(t, s.Marks.Report(nil, []store.MarkChange{mark("a/d")}))
	})
}

// A source that is removed while reports come in keeps nothing, and takes nothing more.
func TestReport_OfARemovedSource(t *testing.T) {
	t.Parallel()
	h := newHouse(t, tenantSource("a", "a", schedule.Ceilings{}))
	defer h.close()
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

// applies is a store that records how many marks came with how many changes.
type applies struct {
	store.Store
	seen []string
}

func (a *applies) ApplyMarked(lazy bool, marks []store.MarkChange, changes ...store.Change) (store.Commit, error) {
	a.seen = append(a.seen, fmt.Sprintf("%d changes %d marks", len(changes), len(marks)))
	return a.Store.ApplyMarked(lazy, marks, changes...)
}

// Items with events are one change with the marks, whatever their keys hold now. Items
// that inherit large events go page by page, and the marks with the last page.
func TestReport_MarksGoWithTheLastPage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a *applies
		s, done := open(t, func(c *Config, _ *schedule.Spec) {
			a = &applies{Store: c.Store}
			c.Store = a
		})
		defer done()
		large := schedule.Request{Event: &schedule.Event{Data: []byte(strings.Repeat("x", 200<<10))}}
		var keep, inherit []Item
		for i := range 5 {
			r, key := after(time.Hour), fmt.Sprint("k", i)
			r.Event = large.Event
			must(t, errorOf(s.Schedule(key, &r, nil)))
			keep, inherit = append(keep, Item{key, sized(1)}), append(inherit, Item{key, after(time.Minute)})
		}
		a.seen = nil
		must(t, s.Marks.Report(inherit, []store.MarkChange{mark("a")}))
		if want := []string{"3 changes 0 marks", "2 changes 1 marks"}; !cmp.Equal(a.seen, want) {
			t.Error(a.seen, want)
		}
		a.seen = nil
		must(t, s.Marks.Report(keep, []store.MarkChange{mark("a")}))
		if want := []string{"5 changes 1 marks"}; !cmp.Equal(a.seen, want) {
			t.Error(a.seen, want)
		}
	})
}

// The state of a watch is stored with the report that carries it, or not at all.
func TestReport_CarriesTheState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		settings := tenantSource("a", "a", schedule.Ceilings{})
		settings.MaxPending = 1
		h := newHouse(t, settings)
		defer func() { h.close() }()
		s, due := h.sources[0], sized(10)
		at := func(version string) store.MarkChange {
			return store.MarkChange{Watch: 1, State: &store.WatchState{Watch: 1, Scope: "*", Version: version, Complete: true}}
		}
		var refused *schedule.Error
		if err := s.Marks.Report([]Item{{"k1", due}, {"k2", due}}, []store.MarkChange{mark("a/b"), at("6")}); !errors.As(err, &refused) {
			t.Error(err)
		}
		if states, err := s.Marks.States(); err != nil || len(states) > 0 {
			t.Errorf("%v, %v after a refused report", states, err)
		}
		must(t, s.Marks.Report([]Item{{"k1", due}}, []store.MarkChange{mark("a/b"), at("7")}))
		want := []store.WatchState{*at("7").State}
		if states, err := s.Marks.States(); err != nil || !cmp.Equal(states, want) || len(objects(t, s)) != 1 {
			t.Errorf("%v, %v, want %v", states, err, want)
		}
	})
}

// The key of a deleted object came back with maxInterval for ever when a report found the deletion waiting:
// of what waits a report reads no event, and so did not see that it ends the key.
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, done := open(t, func(_ *Config, sp *schedule.Spec) { sp.MaxInterval = time.Hour })
				defer done()
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
					t.Errorf("the key is there: %t, %v", there, err)
				}
			})
		})
	}
}
