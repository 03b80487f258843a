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
}

// NewHistory starts with nothing.
func NewHistory(r *rand.Rand, start time.Time, next func() uint64) *History {
	return &History{Rand: r, Start: start, Next: next, now: model{}}
}

func (h *History) name() name {
	n := name{source: fmt.Sprintf("s%d", h.IntN(3)), key: []string{"a", "a/", "ab", "b", "ü"}[h.IntN(5)]}
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
	source := fmt.Sprintf("s%d", h.IntN(3))
	maps.DeleteFunc(h.now, func(n name, _ *schedule.Entry) bool { return n.source == source })
	return source
}

// State is what the history came to, by source and key.
func (h *History) State() map[[2]string]*schedule.Entry {
	m := map[[2]string]*schedule.Entry{}
	for n, e := range h.now {
		m[[2]string{n.source, n.key}] = e
	}
	return m
}

// Find returns the same of a store.
func Find(s store.Store) (map[[2]string]*schedule.Entry, error) {
	found := map[[2]string]*schedule.Entry{}
	for _, n := range Names() {
		e, err := s.Get(n[0], n[1])
		if err != nil {
			return nil, err
		}
		if e != nil {
			found[n] = e
		}
	}
	return found, nil
}

// Names are all names that a history may use.
func Names() [][2]string {
	var all [][2]string
	for s := range 3 {
		source := fmt.Sprintf("s%d", s)
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
		f.apply(r.IntN(2) == 0, h.Changes()...)
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
	for i := range 3 {
		source := fmt.Sprintf("s%d", i)
		after := store.Position{}
		if h.IntN(2) == 0 {
			after = store.Position{At: h.at(), Key: h.name().key}
		}
		rows, more, err := f.Due(nil, source, after, limit)
		wantRows, wantMore := m.due(source, after, limit)
		if err != nil || more != wantMore {
			t.Fatal(more, err)
		}
		same(t, "due", wantRows, rows)

		prefix, key := []string{"", "a", "a/", "z"}[h.IntN(4)], ""
		if h.IntN(2) == 0 {
			key = []string{"a", "a/", "a3", "b"}[h.IntN(4)]
		}
		items, more, err := f.List(source, prefix, key, limit)
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
		b, err := f.Backlog(source, now, 1000, skip)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "backlog", m.backlog(source, now, skip), b)

		keys, dead, err := f.Count(source)
		wantK, wantD := m.count(source)
		if keys != wantK || dead != wantD || err != nil {
			t.Fatal(keys, dead, err)
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
	sources, err := f.Sources()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "sources", m.sources(), sources)
}
