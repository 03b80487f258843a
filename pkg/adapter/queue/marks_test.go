package queue

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

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

// marked adds up the bytes of the marks that the store holds of a source.
func (h *house) marked(uid string) (sum int64) {
	h.t.Helper()
	states, err := h.db.WatchStates(uid)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, state := range states {
		_, bytes, err := h.db.CountMarks(uid, state.Watch)
		if err != nil {
			h.t.Fatal(err)
		}
		sum += bytes
	}
	return sum
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

// Marks count in the namespace's bytes and not in the source's. Their refusal names
// max-bytes, a 32nd of which is left to keys. What does not grow is not refused.
func TestMarks_CountInTheNamespace(t *testing.T) {
	t.Parallel()
	mine := tenantSource("ns", "mine", schedule.Ceilings{MaxBytes: 32_000})
	mine.MaxBytes = 2000
	h := newHouse(t, mine, tenantSource("ns", "same", schedule.Ceilings{MaxBytes: 32_000}), tenantSource("other", "x", schedule.Ceilings{MaxBytes: 32_000}))
	defer func() { h.close() }()
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
	h.close()
	h.open()
	h.check("after a restart")
	m.s, same.s = h.sources[0], h.sources[1]
	expect("after a restart", full, same.report(nil, same.change("a", 2000)))
	if n := m.s.usage.refused[slices.Index(quotas[:], ceilingBytes)].Load() + same.s.usage.refused[slices.Index(quotas[:], ceilingBytes)].Load(); n != 1 {
		t.Errorf("%d refusals are counted", n)
	}
}

// The end of an object frees its mark and schedules its keys in one change, which a full
// namespace does not refuse when the keys take less than the mark did.
func TestMarks_TheirEndFreesBytesForKeys(t *testing.T) {
	t.Parallel()
	h := newHouse(t, tenantSource("ns", "a", schedule.Ceilings{MaxBytes: 16_000}))
	defer h.close()
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
	h.check("at the end")
}

// What the end of an object frees counts for all of its keys. The second key was refused although the
// ceiling allowed both: the sum of the namespace held the first key, and not the bytes freed for it.
func TestMarks_TheirEndFreesBytesForEachKey(t *testing.T) {
	t.Parallel()
	h := newHouse(t, tenantSource("ns", "a", schedule.Ceilings{MaxBytes: 16_000}))
	defer h.close()
	m := &marking{h.sources[0], 1, map[string]int64{}}
	must(t, m.report(nil, m.change("large", 8000)))
	capacity := 16_000 - h.sources[0].usage.tenant.bytes.Load() + m.sizes["large"]
	items := func(second int) []Item { return []Item{{"k1", sized(5000)}, {"k2", sized(second)}} }
	second := int(capacity - bytesOf("k1", sized(5000)) - bytesOf("k2", sized(0)))
	if got := refusal(t, m.report(items(second+1), m.change("large", -1))); got == "" {
		t.Error("a byte too much")
	}
	h.check("a byte too much")
	if got := refusal(t, m.report(items(second), m.change("large", -1))); got != "" {
		t.Error(got)
	}
	h.check("all of it")
}

// Reports that come at once fill what the ceiling lets marks take, and never exceed it.
func TestMarks_ReportsAtOnceKeepTheCeiling(t *testing.T) {
	t.Parallel()
	const fits = 62
	one := (&store.Mark{Object: "0/00", UID: "u", Keys: []string{strings.Repeat("k", 500)}}).Size()
	c := schedule.Ceilings{MaxBytes: fits * one * 32 / 31}
	h := &house{t: t, fs: vfs.NewMem(), settings: []*schedule.Spec{tenantSource("ns", "a", c), tenantSource("ns", "b", c)}, yielding: true}
	h.open()
	defer h.close()
	var all sync.WaitGroup
	var accepted atomic.Int64
	for caller := range 8 {
		all.Go(func() {
			m := &marking{h.sources[caller%2], uint64(caller), map[string]int64{}}
			for i := range 20 {
				if m.report(nil, m.change(fmt.Sprintf("%d/%02d", caller, i), 500)) == nil {
					accepted.Add(1)
				}
			}
		})
	}
	all.Wait()
	if accepted.Load() != fits {
		t.Errorf("%d were accepted, want %d", accepted.Load(), fits)
	}
	h.check("at the end")
}

// yields is a store that lets other calls go first while one asks for space.
type yields struct{ store.Store }

func (y yields) Space(growth, held int64) error {
	for range 100 {
		runtime.Gosched()
	}
	return y.Store.Space(growth, held)
}

// fails is a store that ends at a change that is not lazy, or is.
type fails struct {
	store.Store
	fail, lazy bool
}

func (f *fails) ApplyMarked(lazy bool, marks []store.MarkChange, changes ...store.Change) (store.Commit, error) {
	if f.fail && (f.lazy || !lazy) {
		return nil, store.ErrClosed
	}
	return f.Store.ApplyMarked(lazy, marks, changes...)
}

// openFailing returns a source, its store, and its marks.
func openFailing(t *testing.T) (*Source, *fails, *marking) {
	t.Helper()
	var f *fails
	s, done := open(t, func(c *Config, _ *schedule.Spec) {
		f = &fails{Store: c.Store}
		c.Store = f
	})
	t.Cleanup(done)
	return s, f, &marking{s, 1, map[string]int64{}}
}

// A change that fails keeps no reservation, and frees nothing.
func TestMarks_FailureReleasesThem(t *testing.T) {
	t.Parallel()
	s, f, m := openFailing(t)
	must(t, m.report(nil, m.change("a", 100)))
	held, marked := s.usage.tenant.bytes.Load(), s.Marks.Bytes()
	f.fail, f.lazy = true, true
	for what, c := range map[string]store.MarkChange{"more": m.change("b", 100), "less": m.change("a", -1)} {
		for _, items := range [][]Item{nil, {{"k", sized(10)}}} {
			if err := m.report(items, c); err == nil {
				t.Errorf("%s: it did not fail", what)
			}
			if now := s.usage.tenant.bytes.Load(); now != held || s.Marks.Bytes() != marked {
				t.Errorf("%s, %d items: the namespace holds %d, the marks %d, want %d and %d", what, len(items), now, s.Marks.Bytes(), held, marked)
			}
		}
	}
}

// Items that inherit large events go page by page, and the marks with the last page. When
// that fails nothing is stored of them; and what they free is not for the pages before.
func TestMarks_LastPageFails(t *testing.T) {
	t.Parallel()
	s, f, m := openFailing(t)
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
		f.fail = true
		if err := m.report(items(5, ""), c); err == nil {
			t.Errorf("%s: it did not fail", what)
		}
		f.fail = false
		if now := s.usage.tenant.bytes.Load(); now != held || s.Marks.Bytes() != marked {
			t.Errorf("%s: the namespace holds %d, the marks %d, want %d and %d", what, now, s.Marks.Bytes(), held, marked)
		}
	}
}

// A mark that cannot be read is not in the count when it is removed: the sum is never less
// than 0, which would let the namespace exceed its ceiling.
func TestMarks_SumIsNeverLessThanZero(t *testing.T) {
	t.Parallel()
	h := newHouse(t, tenantSource("ns", "a", schedule.Ceilings{}))
	defer h.close()
	c := mark("a")
	c.Remove, c.Before = true, 1000
	must(t, h.sources[0].Marks.Report(nil, []store.MarkChange{c}))
	h.check("at the end")
}

// However marks come, change and go, the sums are what the store holds, also after a
// restart, and no growth exceeds the ceiling.
func TestMarks_SumsFollowTheStore(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	if s := os.Getenv("WALK_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	r := rand.New(rand.NewPCG(seed, 1))
	t.Logf("WALK_SEED=%d", seed)
	c := schedule.Ceilings{MaxBytes: 20_000}
	h := newHouse(t, tenantSource("a", "1", c), tenantSource("a", "2", c), tenantSource("b", "3", c))
	defer func() { h.close() }()
	watches := map[string]*marking{}
	of := func(source int, watch uint64) *marking {
		name := fmt.Sprintf("%s %d", h.settings[source].UID, watch)
		if watches[name] == nil {
			watches[name] = &marking{watch: watch, sizes: map[string]int64{}}
		}
		watches[name].s = h.sources[source]
		return watches[name]
	}
	accepted, refused, steps := 0, 0, 2000
	if testing.Short() {
		steps = 300
	}
	enough := steps / 20
	// Seeds differ in how much is refused, so a walk goes on until both have happened often enough.
	for step := 0; step < steps || accepted < enough || refused < enough; step++ {
		if step == 10*steps {
			t.Fatalf("%d reports were accepted and %d refused: the walk proves little", accepted, refused)
		}
		i := r.IntN(3)
		m, s := of(i, uint64(1+r.IntN(3))), h.sources[i]
		what, before := "", s.usage.tenant.bytes.Load()
		var err error
		switch n := r.IntN(100); {
		case n < 70:
			what = "report"
			changes := map[string]store.MarkChange{}
			for range 1 + r.IntN(3) {
				object := strconv.Itoa(r.IntN(20))
				if keys := r.IntN(1500) - 500; keys >= 0 || m.sizes[object] > 0 {
					changes[object] = m.change(object, keys)
				}
			}
			var items []Item
			for range r.IntN(3) {
				items = append(items, Item{strconv.Itoa(r.IntN(10)), sized(r.IntN(300))})
			}
			if err = m.report(items, slices.Collect(maps.Values(changes))...); err == nil {
				accepted++
			} else if refusal(t, err) == "quota_exceeded max-bytes in config-reschedule" {
				refused, err = refused+1, nil
			}
		case n < 75:
			what = "a key"
			h.put(i, strconv.Itoa(r.IntN(10)), sized(r.IntN(500)))
		case n < 83:
			what = "the end of a key"
			err = s.Cancel(strconv.Itoa(r.IntN(10)), schedule.Conditions{})
		case n < 87:
			what = "the end of a watch"
			m.end(t)
		case n < 90:
			what = "a count"
			recount(t, s, m.watch)
		case n < 93:
			what = "another namespace"
			moved := *h.settings[i]
			moved.Namespace = []string{"a", "b"}[r.IntN(2)]
			h.settings[i] = &moved
			_, err = h.q.Set(&moved)
			before = 1 << 40 // it may exceed the ceiling
		case n < 95:
			what = "the end of a source"
			if err = h.q.Remove(s.uid); err == nil {
				h.sources[i], err = h.q.Set(h.settings[i])
			}
			for watch := range uint64(3) {
				of(i, watch+1).sizes = map[string]int64{}
			}
		case n < 97:
			what = "a restart"
			h.close()
			h.open()
			s = h.sources[i]
		}
		if err != nil {
			t.Fatalf("step %d, %s: %v", step, what, err)
		}
		h.check(fmt.Sprintf("step %d, %s", step, what))
		if now := s.usage.tenant.bytes.Load(); now > before && now > c.MaxBytes && what != "a restart" && what != "the end of a source" {
			t.Fatalf("step %d, %s: the namespace grew from %d to %d bytes, its ceiling is %d", step, what, before, now, c.MaxBytes)
		}
	}
}
