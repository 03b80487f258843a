package crash

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// wire is how long a request that an adapter has started may be on its way to
// the sink's handler, on a machine that is busy with other things.
const wire = 3 * time.Second

// judge holds what was acknowledged against what was delivered.
func (rec *recorder) judge(t *testing.T) *sums {
	t.Helper()
	rec.mu.Lock()
	defer rec.mu.Unlock()
	s := &rec.sums
	for key, h := range rec.histories {
		slices.SortStableFunc(h.deliveries, func(a, b *visit) int { return a.At.Compare(b.At) })
		rec.answers(t, key, h)
		rec.visits(t, key, h)
		rec.obsolete(t, key, h)
		if rec.lost(t, key, h) {
			s.owed++
		}
		s.calls, s.deliveries = s.calls+len(h.calls), s.deliveries+len(h.deliveries)
		for _, c := range h.calls {
			if c.known {
				s.acknowledged++
			}
		}
	}
	s.kills, s.keys = len(rec.lives)-1, len(rec.histories)
	t.Logf("%s", s)
	if s.acknowledged < 20*s.kills || s.deliveries < 10*s.kills {
		t.Error("too little happened for this to mean anything")
	}
	return s
}

// sums are what happened in histories, and what was wrong in them.
type sums struct {
	mu                                                              sync.Mutex
	kills, keys, calls, acknowledged, deliveries, owed, lost, early int
}

func (s *sums) add(of *sums) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kills, s.keys, s.calls, s.acknowledged = s.kills+of.kills, s.keys+of.keys, s.calls+of.calls, s.acknowledged+of.acknowledged
	s.deliveries, s.owed, s.lost, s.early = s.deliveries+of.deliveries, s.owed+of.owed, s.lost+of.lost, s.early+of.early
}

func (s *sums) String() string {
	return fmt.Sprintf("%d kills, %d keys, %d calls (%d acknowledged), %d deliveries, %d keys owed at the end; %d lost, %d early",
		s.kills, s.keys, s.calls, s.acknowledged, s.deliveries, s.owed, s.lost, s.early)
}

// answers: revisions of a key only grow, and no time is sooner than asked for.
func (rec *recorder) answers(t *testing.T, key string, h *history) {
	t.Helper()
	var last *call
	for _, c := range h.calls {
		if !c.known {
			continue
		}
		if c.status >= 400 {
			t.Errorf("%s: %s was refused with status %d", key, c.what, c.status)
		}
		if c.what != "put" {
			continue
		}
		if last != nil && (c.revision < last.revision || c.revision == last.revision && !c.refused) {
			t.Errorf("%s: revision %d was acknowledged after %d", key, c.revision, last.revision)
		}
		if !c.refused && c.delay > 0 && c.dueAt.Before(c.sent.Add(c.delay)) {
			t.Errorf("%s: a PUT of %s asking for %s is due at %s", key, c.sent, c.delay, c.dueAt)
		}
		last = c
	}
}

// visits: nothing is early, one delivery at a time, and revision, id and event belong together.
func (rec *recorder) visits(t *testing.T, key string, h *history) {
	t.Helper()
	byRevision, byID := map[uint64]*visit{}, map[string]*visit{}
	var prev *visit
	for _, v := range h.deliveries {
		if v.At.Before(v.DueAt) {
			rec.sums.early++
			t.Errorf("%s: revision %d was delivered %s early", key, v.Revision, v.DueAt.Sub(v.At))
		}
		if same := byRevision[v.Revision]; same != nil && (same.Attr("id") != v.Attr("id") || same.Attr("type") != v.Attr("type")) {
			t.Errorf("%s: revision %d was %s of %s, then %s of %s", key, v.Revision, same.Attr("id"), same.Attr("type"), v.Attr("id"), v.Attr("type"))
		}
		if same := byID[v.Attr("id")]; same != nil && same.Attr("type") != v.Attr("type") {
			t.Errorf("%s: id %s was of %s, then of %s", key, v.Attr("id"), same.Attr("type"), v.Attr("type"))
		}
		byRevision[v.Revision], byID[v.Attr("id")] = v, v
		if prev != nil && !rec.deathBetween(prev.At, v.At) {
			if prev.left.IsZero() || v.At.Before(prev.left) {
				t.Errorf("%s: two deliveries at a time: revisions %d and %d", key, prev.Revision, v.Revision)
			}
			if v.Revision < prev.Revision {
				t.Errorf("%s: revision %d was delivered after %d", key, v.Revision, prev.Revision)
			}
		}
		i := h.index(v)
		if i < 0 {
			t.Errorf("%s: %s was never sent", key, v.Attr("type"))
			continue
		}
		c := h.calls[i]
		if c.known && c.refused {
			t.Errorf("%s: %s was delivered, whose call changed nothing", key, c.mark)
		}
		if c.known && c.what == "put" && !c.refused && (v.Revision < c.revision || v.Revision == c.revision && !v.DueAt.Equal(c.dueAt)) {
			t.Errorf("%s: revision %d, acknowledged for %s, was delivered as %d, due at %s", key, c.revision, c.dueAt, v.Revision, v.DueAt)
		}
		prev = v
	}
}

func (rec *recorder) deathBetween(from, to time.Time) bool {
	return slices.ContainsFunc(rec.lives, func(l life) bool {
		return !l.dead.IsZero() && !l.dead.Before(from) && !l.killing.After(to)
	})
}

// index is the call that a delivery's event came with.
func (h *history) index(v *visit) int {
	return slices.IndexFunc(h.calls, func(c *call) bool { return c.mark != "" && c.mark == v.Attr("type") })
}

// obsolete: after an acknowledged change no delivery of what it took the place of is started. The sink sees when a
// request arrives; that it was started later than some instant follows from its due time, from the end of the delivery
// before it, and from the birth of the process that sent it.
func (rec *recorder) obsolete(t *testing.T, key string, h *history) {
	t.Helper()
	var prev *visit
	for _, v := range h.deliveries {
		started := v.At.Add(-wire)
		later := func(at time.Time) {
			if at.After(started) {
				started = at
			}
		}
		later(v.DueAt)
		if prev != nil && !rec.deathBetween(prev.At, v.At) {
			later(prev.left)
			if v.Attempt > 0 && v.Revision == prev.Revision {
				later(prev.left.Add(20 * time.Millisecond)) // the back-off
			}
		}
		for _, l := range rec.lives {
			if v.At.After(l.ready.Add(200 * time.Millisecond)) {
				later(l.launched)
			}
		}
		prev = v
		at := h.index(v)
		if at < 0 {
			continue
		}
		for _, c := range h.calls[at+1:] {
			if c.known && !c.refused && started.After(c.ack) {
				t.Errorf("%s: a delivery of %s (revision %d, attempt %d) that arrived at %s was started after %s, when a %s (revision %d) was acknowledged",
					key, v.Attr("type"), v.Revision, v.Attempt, v.At, c.ack, c.what, c.revision)
				break
			}
		}
	}
}

// lost: what was acknowledged last and not followed by anything has been
// delivered, until the sink was content. It reports whether the key was owed.
func (rec *recorder) lost(t *testing.T, key string, h *history) bool {
	t.Helper()
	var last *call
	for _, c := range h.calls {
		switch {
		case c.known && c.refused:
		case c.known && c.what != "delete":
			last = c
		default: // cancelled, or perhaps superseded by a call without an answer
			last = nil
		}
	}
	if last == nil {
		return false
	}
	if len(h.deliveries) == 0 {
		rec.sums.lost++
		t.Errorf("%s: %s, acknowledged at %s with revision %d, was never delivered", key, last.mark, last.ack, last.revision)
		return true
	}
	v := h.deliveries[len(h.deliveries)-1]
	switch {
	case v.Attr("type") != last.mark:
		rec.sums.lost++
		t.Errorf("%s: %s, acknowledged at %s, was never delivered; the last that came is %s", key, last.mark, last.ack, v.Attr("type"))
	case v.status >= 300:
		rec.sums.lost++
		t.Errorf("%s: %s failed with %d and was not delivered again", key, last.mark, v.status)
	case v.byAgain:
		rec.sums.lost++
		t.Errorf("%s: %s was asked for again after %s and did not come", key, last.mark, v.again)
	}
	return true
}
