package storetest

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// watches are the numbers of watches that a history may use, in the order of WatchStates.
var watches = []uint64{0, 0x2f, math.MaxUint64}

// objects are what they watch: one with a name that others start with, and one without
// a namespace.
var objects = []string{"a", "a-b/c", "a/", "a/b", "a/b-c", "b/x", "ü"}

type watchName struct {
	source string
	watch  uint64
}

// watched is what the model has of a watch.
type watched struct {
	marks map[string]store.Mark
	state *store.WatchState
}

// marks is what a store holds of watches, as simply as can be.
type marks map[watchName]*watched

func (m marks) at(n watchName) *watched {
	if m[n] == nil {
		m[n] = &watched{marks: map[string]store.Mark{}}
	}
	return m[n]
}

func (m marks) list(n watchName, after string) (found []store.Mark) {
	if w := m[n]; w != nil {
		for _, object := range slices.Sorted(maps.Keys(w.marks)) {
			if object > after {
				found = append(found, w.marks[object])
			}
		}
	}
	return found
}

func (m marks) states(source string) (found []store.WatchState) {
	for n, w := range m {
		switch {
		case n.source != source:
		case w.state != nil:
			found = append(found, *w.state)
		case len(w.marks) > 0:
			found = append(found, store.WatchState{Watch: n.watch})
		}
	}
	return sorted(found)
}

func sorted(states []store.WatchState) []store.WatchState {
	slices.SortFunc(states, func(a, b store.WatchState) int { return cmp.Compare(a.Watch, b.Watch) })
	return states
}

// statesOf are the states of a source's watches by their number.
func statesOf(s store.Store, source string) ([]store.WatchState, error) {
	states, err := s.WatchStates(source)
	return sorted(states), err
}

func (h *History) sources() (found []string) {
	for _, source := range sources {
		keys, dead := h.now.count(source)
		if keys > 0 || dead > 0 || len(h.marks.states(source)) > 0 {
			found = append(found, source)
		}
	}
	return found
}

func (h *History) watch() watchName {
	return watchName{sources[h.IntN(len(sources))], watches[h.IntN(len(watches))]}
}

// Marks are up to three for one ApplyMarked; the history has them from now on.
func (h *History) Marks() []store.MarkChange {
	var changes []store.MarkChange
	for range h.IntN(4) {
		n := h.watch()
		c := store.MarkChange{Source: n.source, Watch: n.watch, Mark: store.Mark{Object: objects[h.IntN(len(objects))]}}
		if h.IntN(3) == 0 {
			c.Remove = true
			delete(h.marks.at(n).marks, c.Mark.Object)
		} else {
			c.Mark.UID = []string{"", "17", "0b1c8f5e-8d7a-4c55-9f0e-0123456789ab"}[h.IntN(3)]
			c.Mark.Hash = h.Uint64()
			c.Mark.Keys = [][]string{nil, {}, {"Website/a/b"}, {"k", "ü"}}[h.IntN(4)]
			h.marks.at(n).marks[c.Mark.Object] = c.Mark
		}
		changes = append(changes, c)
	}
	return changes
}

// Watch makes a change of a watch, which is lazy; the history has it from now on.
func (h *History) Watch() (change func(store.Store) error) {
	n := h.watch()
	if h.IntN(3) == 0 {
		delete(h.marks, n)
		return func(s store.Store) error { return s.RemoveWatch(n.source, n.watch) }
	}
	state := store.WatchState{Watch: n.watch, Version: fmt.Sprint(h.IntN(1000)), Complete: h.IntN(2) == 0}
	if h.IntN(2) == 0 {
		state.Scope, state.Revision = "all", "website-00002"
	}
	h.marks.at(n).state = &state
	return func(s store.Store) error { return s.SetWatchState(n.source, state) }
}

// Set makes the history go on from a state.
func (h *History) Set(s State) {
	h.now, h.marks = model{}, marks{}
	for n, e := range s.Entries {
		h.now[name{n[0], n[1]}] = e
	}
	for n, found := range s.Marks {
		watch, err := strconv.ParseUint(n[1], 10, 64)
		if err != nil {
			panic(err) // State writes it
		}
		for _, m := range found {
			h.marks.at(watchName{n[0], watch}).marks[m.Object] = m
		}
	}
	for source, states := range s.Watches {
		for _, state := range states {
			if w := h.marks.at(watchName{source, state.Watch}); state != (store.WatchState{Watch: state.Watch}) {
				w.state = &state
			}
		}
	}
}

// agreeMarks holds the reads of marks against the model.
func agreeMarks(t *testing.T, f *fixture, h *History) {
	t.Helper()
	for _, source := range sources {
		states, err := statesOf(f, source)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "states", h.marks.states(source), states)
		n := watchName{source, watches[h.IntN(len(watches))]}
		after := append([]string{"", "a/a"}, objects...)[h.IntN(len(objects)+2)]
		want, limit := h.marks.list(n, after), 1+h.IntN(5)
		got, more, err := f.Marks(source, n.watch, after, limit)
		if err != nil || more != (len(want) > limit) {
			t.Fatal(more, err)
		}
		same(t, "marks", want[:min(len(want), limit)], got)
		all := h.marks.list(n, "")
		size := int64(0)
		for i := range all {
			size += all[i].Size()
		}
		if count, bytes, err := f.CountMarks(source, n.watch); count != int64(len(all)) || bytes != size || err != nil {
			t.Fatal(count, len(all), bytes, size, err)
		}
		object := objects[h.IntN(len(objects))]
		at := slices.IndexFunc(all, func(m store.Mark) bool { return m.Object == object })
		m, ok, err := f.Mark(source, n.watch, object)
		if err != nil || ok != (at >= 0) {
			t.Fatal(ok, err)
		}
		if ok {
			same(t, "mark", all[at], m)
		}
	}
}

func markComesBack(t *testing.T, f *fixture) {
	want := []store.Mark{
		{Object: "bare"},
		{Object: "ops/web", UID: "0b1c8f5e-8d7a-4c55-9f0e-0123456789ab", Hash: math.MaxUint64},
		{Object: "ops/web-1", UID: "0B1C8F5E-8D7A-4C55-9F0E-0123456789AB", Hash: 1, Keys: []string{}},
		{Object: "ops/web-2", UID: "0b1c8f5e-8d7a-4c55-9f0e_0123456789ab", Hash: 1 << 63, Keys: []string{"Website/ops/a", "", "ü"}},
		{Object: "ü", UID: "short"},
	}
	state := store.WatchState{Watch: 7, Scope: "all", Version: "4711", Complete: true, Revision: "website-00001"}
	var changes []store.MarkChange
	for _, m := range want {
		changes = append(changes, store.MarkChange{Source: "s", Watch: 7, Mark: m})
	}
	if err := f.SetWatchState("s", state); err != nil {
		t.Fatal(err)
	}
	f.applyMarked(false, changes)
	for _, kill := range []bool{false, true} {
		got, more, err := f.Marks("s", 7, "", 10)
		if err != nil || more {
			t.Fatal(more, err)
		}
		for i := range got { // nil is not the same as empty here
			if (got[i].Keys == nil) != (want[i].Keys == nil) {
				t.Errorf("%+v, want %+v", got[i], want[i])
			}
		}
		same(t, "marks", want, got)
		states, err := f.WatchStates("s")
		if err != nil {
			t.Fatal(err)
		}
		same(t, "states", []store.WatchState{state}, states)
		sources, err := f.Sources()
		if err != nil {
			t.Fatal(err)
		}
		same(t, "sources", []string{"s"}, sources)
		f.reopen(kill)
	}
}

// markedTogether loses the power with marks that are lazy: each of them is there
// exactly when the entry of its batch is.
func markedTogether(t *testing.T, f *fixture) {
	for round := range 5 {
		for i := range 6 {
			n := fmt.Sprintf("%d-%d", round, i)
			mark := store.MarkChange{Source: "s", Watch: 7, Mark: store.Mark{Object: n}}
			f.applyMarked(i != 3, []store.MarkChange{mark}, store.Change{Source: "s", Key: n, New: f.entry(0)})
		}
		f.reopen(true)
		for i := range 6 {
			n := fmt.Sprintf("%d-%d", round, i)
			_, ok, err := f.Mark("s", 7, n)
			if err != nil || ok != (f.get("s", n) != nil) || i <= 3 && !ok {
				t.Fatalf("%s: its mark is there: %v, its entry: %v (%v)", n, ok, f.get("s", n), err)
			}
		}
	}
}

func marksEnd(t *testing.T, f *fixture) {
	fill := func() {
		t.Helper()
		for _, source := range []string{"s", "s2"} {
			for _, watch := range []uint64{6, 7, 8} {
				f.applyMarked(false, []store.MarkChange{{Source: source, Watch: watch, Mark: store.Mark{Object: "a/b"}}, {Source: source, Watch: watch, Mark: store.Mark{Object: "\xff"}}})
				if err := f.SetWatchState(source, store.WatchState{Watch: watch, Version: "1"}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	check := func(source string, want ...uint64) {
		t.Helper()
		states, err := f.WatchStates(source)
		if err != nil || len(states) != len(want) {
			t.Fatalf("%d states of %s, want %d: %v", len(states), source, len(want), err)
		}
		for _, watch := range []uint64{6, 7, 8} {
			n, _, err := f.CountMarks(source, watch)
			if there := slices.Contains(want, watch); err != nil || (n == 2) != there || (n == 0) == there {
				t.Fatalf("watch %d of %s has %d marks, want %v: %v", watch, source, n, want, err)
			}
		}
	}
	fill()
	if err := f.RemoveWatch("s", 7); err != nil {
		t.Fatal(err)
	}
	check("s", 6, 8)
	check("s2", 6, 7, 8)
	fill()
	check("s", 6, 7, 8)
	if err := f.Purge("s"); err != nil {
		t.Fatal(err)
	}
	f.reopen(true)
	synctest.Wait()
	check("s")
	check("s2", 6, 7, 8)
	sources, err := f.Sources()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "sources", []string{"s2"}, sources)
}
