package storetest

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// History makes random changes over few names and few instants, so that they
// meet often. Every entry has a revision of its own, as the queue's have, but
// for retries, which keep it.
type History struct {
	*rand.Rand
	Start time.Time
	Next  func() uint64
	// MaxData bounds the events' data, default 300.
	MaxData int
	now     model
	marks   marks
}

var sources = []string{"s0", "s1", "s2"}

// NewHistory starts with nothing.
func NewHistory(r *rand.Rand, start time.Time, next func() uint64) *History {
	return &History{Rand: r, Start: start, Next: next, now: model{}, marks: marks{}}
}

func (h *History) name() name {
	n := name{source: sources[h.IntN(len(sources))], key: []string{"a", "a/", "ab", "b", "ü"}[h.IntN(5)]}
	if h.IntN(2) == 0 {
		n.key += fmt.Sprint(h.IntN(4))
	}
	if h.IntN(6) == 0 {
		n.key = schedule.DeadLetterKey(uint64(h.IntN(40)))
	}
	return n
}

func (h *History) at() time.Time { return h.Start.Add(time.Duration(h.IntN(20)-5) * time.Second) }

func (h *History) maybe(t *time.Time) {
	if h.IntN(4) == 0 {
		*t = h.at()
	}
}

// Changes are up to five of one Apply; the history has them from now on.
func (h *History) Changes() []store.Change {
	var changes []store.Change
	for range 1 + h.IntN(5) {
		n := h.name()
		c := store.Change{Source: n.source, Key: n.key, Old: h.now[n]}
		switch {
		case h.IntN(3) == 0:
		case c.Old != nil && h.IntN(3) == 0: // a retry
			c.New = with(c.Old, func(e *schedule.Entry) { e.RetryAt, e.Tries = h.at(), e.Tries+1 })
		default:
			r := h.Next()
			c.New = &schedule.Entry{Revision: r, Occurrence: r, ScheduledAt: h.Start, DueAt: h.at()}
			h.maybe(&c.New.RetryAt)
			h.maybe(&c.New.ExpiresAt)
			h.maybe(&c.New.UnfinishedAt)
			h.maybe(&c.New.PreviousDueAt)
			c.New.Priority = schedule.Priorities[h.IntN(schedule.Bands)]
			if c.New.MayWait = h.IntN(2) == 0; h.IntN(3) == 0 {
				c.New.Slack = new(time.Duration(h.IntN(3)) * time.Second)
			}
			if h.IntN(2) == 0 {
				c.New.Event = &schedule.Event{Data: make([]byte, h.IntN(cmp.Or(h.MaxData, 300)))}
			}
		}
		h.now.apply(c)
		changes = append(changes, c)
	}
	return changes
}

// Purge forgets a source and names it.
func (h *History) Purge() string {
	source := sources[h.IntN(len(sources))]
	maps.DeleteFunc(h.now, func(n name, _ *schedule.Entry) bool { return n.source == source })
	maps.DeleteFunc(h.marks, func(n watchName, _ *watched) bool { return n.source == source })
	return source
}

// State is a moment of a history.
type State struct {
	Entries map[[2]string]*schedule.Entry // by source and key
	Marks   map[[2]string][]store.Mark    // by source and the number of the watch
	Watches map[string][]store.WatchState // by source
}

// State is what the history came to.
func (h *History) State() State {
	s := State{Entries: map[[2]string]*schedule.Entry{}, Marks: map[[2]string][]store.Mark{}, Watches: map[string][]store.WatchState{}}
	for n, e := range h.now {
		s.Entries[[2]string{n.source, n.key}] = e
	}
	for n := range h.marks {
		if found := h.marks.list(n, ""); len(found) > 0 {
			s.Marks[[2]string{n.source, fmt.Sprint(n.watch)}] = found
		}
	}
	for _, source := range sources {
		if found := h.marks.states(source); len(found) > 0 {
			s.Watches[source] = found
		}
	}
	return s
}

// Find returns the same of a store.
func Find(s store.Store) (State, error) {
	found := State{Entries: map[[2]string]*schedule.Entry{}, Marks: map[[2]string][]store.Mark{}, Watches: map[string][]store.WatchState{}}
	for _, n := range Names() {
		e, err := s.Get(n[0], n[1])
		if err != nil {
			return found, err
		}
		if e != nil {
			found.Entries[n] = e
		}
	}
	for _, source := range sources {
		states, err := statesOf(s, source)
		if err != nil {
			return found, err
		}
		if len(states) > 0 {
			found.Watches[source] = states
		}
		for _, watch := range watches {
			marks, _, err := s.Marks(source, watch, "", 1000)
			if err != nil {
				return found, err
			}
			if len(marks) > 0 {
				found.Marks[[2]string{source, fmt.Sprint(watch)}] = marks
			}
		}
	}
	return found, nil
}

// Names are all names that a history may use.
func Names() [][2]string {
	var all [][2]string
	for _, source := range sources {
		for _, key := range []string{"a", "a/", "ab", "b", "ü"} {
			all = append(all, [2]string{source, key})
			for i := range 4 {
				all = append(all, [2]string{source, key + fmt.Sprint(i)})
			}
		}
		for i := range 40 {
			all = append(all, [2]string{source, schedule.DeadLetterKey(uint64(i))})
		}
	}
	return all
}

func agreesWithModel(t *testing.T, f *fixture) {
	r := Seed(t)
	h := NewHistory(r, f.now, f.revision)
	for step := range 400 {
		f.applyMarked(r.IntN(2) == 0, h.Marks(), h.Changes()...)
		if r.IntN(10) == 0 {
			if err := h.Watch()(f); err != nil {
				t.Fatal(err)
			}
		}
		switch r.IntN(100) {
		case 0:
			f.reopen(false)
		case 1:
			if err := f.Purge(h.Purge()); err != nil {
				t.Fatal(err)
			}
		}
		if step%8 == 0 {
			agree(t, f, h)
		}
	}
	agree(t, f, h)
}

// agree holds every read against the model.
func agree(t *testing.T, f *fixture, h *History) {
	t.Helper()
	m, now := h.now, h.at()
	limit := 1 + h.IntN(12)
	for _, source := range sources {
		after := store.Position{}
		if h.IntN(2) == 0 {
			after = store.Position{At: h.at(), Key: h.name().key}
		}
		for _, p := range schedule.Priorities {
			rows, more, err := f.Due(nil, source, p, after, limit)
			wantRows, wantMore := m.due(source, p, after, limit)
			if err != nil || more != wantMore {
				t.Fatal(more, err)
			}
			same(t, "due", wantRows, rows)
		}

		prefix, key := []string{"", "a", "a/", "z"}[h.IntN(4)], ""
		if h.IntN(2) == 0 {
			key = []string{"a", "a/", "a3", "b"}[h.IntN(4)]
		}
		items, more, err := f.List(source, prefix, key, limit, true)
		wantKeys, wantMore := m.list(source, prefix, key, limit)
		if err != nil || more != wantMore {
			t.Fatal(more, err)
		}
		same(t, "list", wantKeys, keysOf(items))
		for _, item := range items {
			same(t, "entry", m[name{source, item.Key}], item.Entry)
		}

		items, next, err := f.ListDue(source, prefix, store.Position{}, 1000, 10_000)
		if err != nil || next != (store.Position{}) {
			t.Fatal(next, err)
		}
		same(t, "list by time", m.listDue(source, prefix), keysOf(items))

		skip := func(key string, _ uint64) bool { return key == "a1" }
		b, err := f.Backlog(source, now, time.Second, 1000, skip)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "backlog", m.backlog(source, now, time.Second, skip), b)

		keys, dead, err := f.Count(source)
		wantK, wantD := m.count(source)
		if keys != wantK || dead != wantD || err != nil {
			t.Fatal(keys, dead, err)
		}
		if keys, err := f.Bands(source); keys != m.bands(source) || err != nil {
			t.Fatal(keys, m.bands(source), err)
		}
		if bytes, err := f.Bytes(source); bytes != m.bytes(source) || err != nil {
			t.Fatal(bytes, m.bytes(source), err)
		}
	}
	synctest.Wait() // rows of a purge go in the background
	expired, next, err := f.Expired(now, store.SourceRow{}, 1000)
	wantExpired, wantNext := m.expired(now)
	if err != nil || !next.Equal(wantNext) {
		t.Fatal(next, err)
	}
	same(t, "expired", wantExpired, expired)
	if len(wantExpired) > 1 {
		expired, next, err = f.Expired(now, store.SourceRow{}, 1)
		if err != nil || !next.IsZero() {
			t.Fatal(next, err)
		}
		same(t, "one expired", wantExpired[:1], expired)
		expired, next, err = f.Expired(now, expired[0], 1000)
		if err != nil || !next.Equal(wantNext) {
			t.Fatal(next, err)
		}
		same(t, "expired behind it", wantExpired[1:], expired)
	}
	unfinished, err := f.Unfinished()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "unfinished", m.unfinished(), unfinished)
	all, err := f.Sources()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "sources", h.sources(), all)
	agreeMarks(t, f, h)
}
