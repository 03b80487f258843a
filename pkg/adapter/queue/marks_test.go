package queue

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// countOf is the state that has the count of a watch.
func countOf(watch uint64) uint64 { return watch + 100 }

// recount stores how many marks the watch has, as a watch does that finds no count.
func recount(t *testing.T, s *Source, watch uint64) {
	t.Helper()
	n, bytes, err := s.Marks.Count(watch)
	if err == nil {
		err = s.Marks.SetState(store.WatchState{Watch: countOf(watch), Scope: store.MarkCount{Watch: watch, Marks: n, Bytes: bytes}.Scope()})
	}
	must(t, err)
}

// marking is a watch, which knows the size of its marks.
type marking struct {
	s     *Source
	watch uint64
	sizes map[string]int64
}

// change gives the object a mark with so many bytes of keys; less than 0 removes it.
func (m *marking) change(object string, keys int) store.MarkChange {
	c := store.MarkChange{Watch: m.watch, Mark: store.Mark{Object: object, UID: "u"}, Before: m.sizes[object], Remove: keys < 0}
	if keys > 0 {
		c.Mark.Keys = []string{strings.Repeat("k", keys)}
	}
	return c
}

// report reports changes, one for each object, with the count that they lead to.
func (m *marking) report(items []Item, changes ...store.MarkChange) error {
	n, bytes := int64(len(m.sizes)), int64(0)
	for _, size := range m.sizes {
		bytes += size
	}
	for _, c := range changes {
		bytes += c.Growth()
		if c.Before == 0 {
			n++
		}
		if c.Remove {
			n--
		}
	}
	count := store.WatchState{Watch: countOf(m.watch), Scope: store.MarkCount{Watch: m.watch, Marks: n, Bytes: bytes}.Scope()}
	if err := m.s.Marks.Report(items, append(slices.Clone(changes), store.MarkChange{Watch: count.Watch, State: &count})); err != nil {
		return err
	}
	for _, c := range changes {
		m.sizes[c.Mark.Object] = c.Mark.Size()
		if c.Remove {
			delete(m.sizes, c.Mark.Object)
		}
	}
	return nil
}

func (m *marking) end(t *testing.T) {
	t.Helper()
	for _, watch := range []uint64{m.watch, countOf(m.watch)} {
		must(t, m.s.Marks.Remove(watch))
	}
	m.sizes = map[string]int64{}
}

// Marks count in the namespace's bytes, of which a 32nd is left to keys, and not in the source's.
func TestMarks_CountInTheNamespace(t *testing.T) {
	t.Parallel()
	mine := tenantSource("ns", "mine", schedule.Ceilings{MaxBytes: 32_000})
	mine.MaxBytes = 2000
	h := newFixture(t, mine, tenantSource("ns", "same", schedule.Ceilings{MaxBytes: 32_000}), tenantSource("other", "x", schedule.Ceilings{MaxBytes: 32_000}))
	watch := func(source int) *marking { return &marking{h.sources[source], 1, map[string]int64{}} }
	m, same, other := watch(0), watch(1), watch(2)
	expect := func(what, want string, err error) {
		t.Helper()
		if got := refusal(t, err); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
		h.check(what)
	}
	const full = "quota_exceeded max-bytes in config-reschedule"
	rest := int(31_000 - (&store.Mark{Object: "a", UID: "u", Keys: []string{""}}).Size())
	expect("a byte more than all but a 32nd", full, m.report(nil, m.change("a", rest+1)))
	expect("the same with a key", full, m.report([]Item{{"k", sized(10)}}, m.change("a", rest+1)))
	expect("all but a 32nd", "", m.report(nil, m.change("a", rest)))
	expect("another source of the namespace", full, same.report(nil, same.change("a", 0)))
	expect("another namespace", "", other.report(nil, other.change("a", 100)))
	expect("the same size", "", m.report(nil, m.change("a", rest)))
	expect("a key has the rest", "", m.report([]Item{{"k", sized(500)}}, m.change("a", rest)))
	expect("a key in a source without marks", full, func() error { r := sized(1000); _, err := same.s.Schedule("k", &r, nil); return err }())
	expect("smaller", "", m.report(nil, m.change("a", rest-2000)))
	h.restart()
	h.check("after a restart")
	m.s, same.s = h.sources[0], h.sources[1]
	expect("after a restart", full, same.report(nil, same.change("a", 2000)))
	if n := m.s.usage.refused[slices.Index(quotas[:], ceilingBytes)].Load() + same.s.usage.refused[slices.Index(quotas[:], ceilingBytes)].Load(); n != 1 {
		t.Errorf("%d refusals are counted", n)
	}
}

// The end of an object frees its mark for its keys in one change, which a full namespace does not refuse.
func TestMarks_TheirEndFreesBytesForKeys(t *testing.T) {
	t.Parallel()
	h := newFixture(t, tenantSource("ns", "a", schedule.Ceilings{MaxBytes: 16_000}))
	m := &marking{h.sources[0], 1, map[string]int64{}}
	must(t, m.report(nil, m.change("large", 8000), m.change("small", 5000)))
	s, fill := h.sources[0], int(16_000-h.sources[0].usage.tenant.bytes.Load()-bytesOf("fill", sized(0)))
	if got := h.put(0, "fill", sized(fill)); got != "" || s.usage.tenant.bytes.Load() != 16_000 {
		t.Fatal(got, s.usage.tenant.bytes.Load())
	}
	items := func(size int) []Item { return []Item{{"k1", sized(size)}, {"k2", sized(size)}} }
	for what, c := range map[string]struct {
		items   []Item
		changes []store.MarkChange
		refused bool
	}{
		"no mark ends":              {items(10), nil, true},
		"the keys take more":        {items(4000), []store.MarkChange{m.change("large", -1)}, true},
		"the first key takes more":  {[]Item{{"k1", sized(9000)}, {"k2", sized(10)}}, []store.MarkChange{m.change("large", -1)}, true},
		"another mark takes it all": {items(10), []store.MarkChange{m.change("large", -1), m.change("new", 7990)}, true},
	} {
		if got := refusal(t, m.report(c.items, c.changes...)); (got != "") != c.refused {
			t.Errorf("%s: %q", what, got)
		}
		h.check(what)
	}
	// A lower ceiling does not change that.
	lower := *s.Spec()
	lower.Ceilings.MaxBytes = 100
	must(t, errorOf(h.q.Set(&lower)))
	must(t, m.report(items(3500), m.change("large", -1)))
	h.check("with a lower ceiling")

	// What is freed counts for all of the keys. The second key was refused although the ceiling allowed both: the sum of
	// the namespace held the first key, and not the bytes freed for it.
	must(t, errorOf(h.q.Set(h.settings[0])))
	must(t, errorOf(s.CancelAll(t.Context(), "")))
	must(t, m.report(nil, m.change("small", -1), m.change("large", 8000)))
	second := int(16_000 - s.usage.tenant.bytes.Load() + m.sizes["large"] - bytesOf("k1", sized(5000)) - bytesOf("k2", sized(0)))
	for _, more := range []int{1, 0} {
		got := refusal(t, m.report([]Item{{"k1", sized(5000)}, {"k2", sized(second + more)}}, m.change("large", -1)))
		if (got != "") != (more > 0) {
			t.Errorf("%d bytes too much: %q", more, got)
		}
		h.check("at the end")
	}
}

// Reports that come at once fill what the ceiling lets marks take, and never exceed it.
func TestMarks_ReportsAtOnceKeepTheCeiling(t *testing.T) {
	t.Parallel()
	const fits = 62
	one := (&store.Mark{Object: "0/00", UID: "u", Keys: []string{strings.Repeat("k", 500)}}).Size()
	c := schedule.Ceilings{MaxBytes: fits * one * 32 / 31}
	h := newFixtureOn(t, yields, tenantSource("ns", "a", c), tenantSource("ns", "b", c))
	var watches [8]*marking
	for i := range watches {
		watches[i] = &marking{h.sources[i%2], uint64(i), map[string]int64{}}
	}
	if accepted := atOnce(8, 20, func(caller, i int) bool {
		m := watches[caller]
		return m.report(nil, m.change(fmt.Sprintf("%d/%02d", caller, i), 500)) == nil
	}); accepted != fits {
		t.Errorf("%d were accepted, want %d", accepted, fits)
	}
	h.check("at the end")
}

// openFailing returns a source whose changes fail when they may not be made, and its marks.
func openFailing(t *testing.T, mayChange func(lazy bool) bool) (*Source, *marking) {
	t.Helper()
	s, _ := open(t, func(c *Config, _ *schedule.Spec) {
		c.Store = &hooked{Store: c.Store, applied: func(lazy bool, _ []store.MarkChange, _ []store.Change) error {
			if !mayChange(lazy) {
				return store.ErrClosed
			}
			return nil
		}}
	})
	return s, &marking{s, 1, map[string]int64{}}
}

// A change that fails keeps no reservation, and frees nothing: also where items that inherit large events go page by
// page, and the marks with the last page, which fails. What they free is not for the pages before.
func TestMarks_FailureReleasesThem(t *testing.T) {
	t.Parallel()
	failing, lastPage := false, false
	s, m := openFailing(t, func(lazy bool) bool { return !failing || lazy && lastPage })
	must(t, m.report(nil, m.change("large", 3000)))
	items := func(n int, reason string) (items []Item) {
		for i := range n {
			r := after(time.Hour)
			r.Reason = reason
			items = append(items, Item{fmt.Sprint("k", i), r})
		}
		return items
	}
	for _, it := range items(5, "") {
		it.Request.Event = &schedule.Event{Data: []byte(strings.Repeat("x", 200<<10))}
		must(t, errorOf(s.Schedule(it.Key, &it.Request, nil)))
	}
	held, marked := s.usage.tenant.bytes.Load(), s.Marks.Bytes()
	full := *s.Spec()
	full.Ceilings.MaxBytes = held
	s.settings.Store(&full)
	if got := refusal(t, m.report(items(5, "a reason"), m.change("large", -1))); got != "quota_exceeded max-bytes in config-reschedule" {
		t.Errorf("what later pages free was used: %q", got)
	}
	full.Ceilings.MaxBytes = 0
	for what, c := range map[string]store.MarkChange{"more": m.change("b", 100), "less": m.change("large", -1)} {
		for _, items := range [][]Item{nil, {{"k", sized(10)}}, items(5, "")} {
			failing, lastPage = true, len(items) == 5
			if err := m.report(items, c); err == nil {
				t.Errorf("%s: it did not fail", what)
			}
			failing = false
			if now := s.usage.tenant.bytes.Load(); now != held || s.Marks.Bytes() != marked {
				t.Errorf("%s, %d items: the namespace holds %d, the marks %d, want %d and %d", what, len(items), now, s.Marks.Bytes(), held, marked)
			}
		}
	}
}

// A mark that cannot be read is not in the count when it is removed: the sum is never less than 0.
func TestMarks_SumIsNeverLessThanZero(t *testing.T) {
	t.Parallel()
	h := newFixture(t, tenantSource("ns", "a", schedule.Ceilings{}))
	c := mark("a")
	c.Remove, c.Before = true, 1000
	must(t, h.sources[0].Marks.Report(nil, []store.MarkChange{c}))
	h.check("at the end")
}
