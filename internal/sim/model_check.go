package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

func (m *model) describe(k *key) string {
	if k == nil {
		return "unknown"
	}
	text := "nothing"
	if e := k.cur; e != nil {
		text = fmt.Sprintf("rev %d(%d) occ %d due %s retry %s expires %s older %s attempt %d tries %d uid %q event %+v dead %+v",
			m.revs[e.rev], e.rev, e.occ, stamp(e.dueAt), stamp(e.retryAt), stamp(e.expiresAt), stamp(e.olderAt), e.attempt, e.tries, e.uid, e.event, e.dead)
	}
	if f := k.fl; f != nil {
		text += fmt.Sprintf("; in delivery: rev %d(%d) own %v superseded %v cancelled %v", m.revs[f.e.rev], f.e.rev, f.own, f.superseded, f.cancelled)
	}
	return text
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05.999999999")
}

// differs compares what the queue says of a key with the model's occurrence.
func (m *model) differs(k *key, e *entry, state schedule.State, inFlight bool, v schedule.View) string {
	same := func(what string, got, want any) string {
		if got == want {
			return ""
		}
		return fmt.Sprintf("%s %v, want %v", what, got, want)
	}
	instant := func(what string, got, want time.Time) string {
		if got.Equal(want) {
			return ""
		}
		return fmt.Sprintf("%s %s, want %s", what, stamp(got), stamp(want))
	}
	event := ""
	if !v.Event.Equal(e.event) {
		event = fmt.Sprintf("event %+v, want %+v", v.Event, e.event)
	}
	revision := ""
	if !m.seeRevision(k, e.rev, v.Revision) {
		revision = fmt.Sprintf("revision %d, want %d or, when new, more than %d", v.Revision, m.revs[e.rev], m.newest[k].rev)
	}
	return cmp.Or(
		revision, same("state", v.State, state), same("inFlight", v.InFlight, inFlight),
		instant("dueAt", v.DueAt, e.dueAt), instant("next attempt", v.RetryAt, e.retryAt), instant("scheduledAt", v.ScheduledAt, e.scheduledAt),
		instant("expiresAt", v.ExpiresAt, e.expiresAt), same("attempt", v.Attempt, e.attempt),
		same("uid", v.UID, e.uid), same("reason", v.Reason, e.reason), event, same("maxInterval", interval(v.MaxInterval), interval(e.maxInterval)),
	)
}

func interval(d *time.Duration) time.Duration {
	if d == nil {
		return -1
	}
	return *d
}

// view compares what GET or a list shows of a key.
func (m *model) view(k *key, v schedule.View, found bool) string {
	now := m.wall()
	e := k.present(now)
	switch {
	case e == nil && !found:
		return ""
	case e == nil:
		return fmt.Sprintf("it is there with revision %d, want nothing", v.Revision)
	case !found:
		return "it is not there, want " + m.describe(k)
	}
	state := viewState(e, now)
	if k.own() {
		state = schedule.InFlight
	}
	return m.differs(k, e, state, k.fl != nil, v)
}

// fits says whether what a restart found of a key may be what the model has.
func (m *model) fits(k *key, v schedule.View, found bool) string {
	old := k.cur
	k.cur, m.probing = recovered(old), true
	defer func() { k.cur, m.probing = old, false }()
	if diff := m.view(k, v, found); diff != "" || !found {
		return diff
	}
	if v.Tries != k.cur.tries {
		return fmt.Sprintf("tries %d, want %d", v.Tries, k.cur.tries)
	}
	return ""
}

// answers compares the answer to a request.
func (m *model) answers(want answer, got queue.Scheduled) string {
	code := schedule.Code("")
	if got.Err != nil {
		code = got.Err.Code
	}
	if code != want.code {
		return fmt.Sprintf("code %q, want %q", code, want.code)
	}
	if code != "" {
		return ""
	}
	if got.Result != want.result {
		return fmt.Sprintf("result %s, want %s", got.Result, want.result)
	}
	if !got.PreviousDueAt.Equal(want.previous) {
		return fmt.Sprintf("previousDueAt %s, want %s", stamp(got.PreviousDueAt), stamp(want.previous))
	}
	return m.differs(want.key, want.e, want.state, want.inFlight, got.View)
}

// lingering are keys that have expired and may not have been dropped yet.
func (m *model) lingering(s *source) (n int64) {
	now := m.wall()
	for _, k := range s.keys {
		if k.cur.expired(now) && !k.own() {
			n++
		}
	}
	if !time.Now().After(m.unsureUntil) {
		n += int64(len(s.keys))
	}
	return n
}

func (m *model) anyLingering() bool {
	for _, s := range m.sources {
		if m.lingering(s) > 0 {
			return true
		}
	}
	return false
}

// expire drops what must have been dropped by now.
func (m *model) expire() {
	now, wall := time.Now(), m.wall()
	for _, s := range m.sources {
		for _, k := range s.keys {
			if !k.cur.expired(wall) || k.own() {
				continue
			}
			at := latest(now.Add(-wall.Sub(k.cur.expiresAt)), k.changed, m.upAt)
			if !m.jumpAt.IsZero() && at.Before(m.jumpAt.Add(heartbeat)) {
				at = m.jumpAt.Add(heartbeat)
			}
			if now.Sub(at) > 5*time.Second {
				from := schedule.Due
				if k.fl != nil {
					from = schedule.Behind
				}
				m.set(k, nil)
				m.step(from, "expire", m.state(k))
			}
		}
	}
}

// counts compares a source's numbers.
func (m *model) counts(s *source, got queue.Counts) string {
	now := m.wall()
	var want queue.Counts
	for _, k := range s.keys {
		switch e := k.waiting(now); {
		case k.cur != nil && k.cur.dead != nil:
			want.DeadLetters++
			continue
		case e == nil:
		case e.dueAt.After(now):
			want.Pending++
			if want.NextDueAt.IsZero() || e.dueAt.Before(want.NextDueAt) {
				want.NextDueAt = e.dueAt
			}
		default:
			want.Pending++
			want.Due++
			if want.OldestDueAt.IsZero() || e.dueAt.Before(want.OldestDueAt) {
				want.OldestDueAt = e.dueAt
			}
		}
		if k.fl != nil && k.fl.e.dead == nil {
			want.InFlight++
		}
	}
	lingering := m.lingering(s)
	if got.Pending < want.Pending || got.Pending > want.Pending+lingering {
		return fmt.Sprintf("pending %d, want %d and at most %d expired", got.Pending, want.Pending, lingering)
	}
	if got.InFlight != want.InFlight || got.DeadLetters != want.DeadLetters {
		return fmt.Sprintf("inFlight %d, dead letters %d, want %d, %d", got.InFlight, got.DeadLetters, want.InFlight, want.DeadLetters)
	}
	if lingering > 0 {
		return ""
	}
	if got.Due != want.Due || !got.NextDueAt.Equal(want.NextDueAt) || !got.OldestDueAt.Equal(want.OldestDueAt) {
		return fmt.Sprintf("due %d next %s oldest %s, want %d %s %s", got.Due, stamp(got.NextDueAt), stamp(got.OldestDueAt),
			want.Due, stamp(want.NextDueAt), stamp(want.OldestDueAt))
	}
	return ""
}

// listed are the names that a list shows, in its order.
func (m *model) listed(s *source, byDue bool, prefix string) []string {
	now := m.wall()
	names := slices.DeleteFunc(s.names(), func(name string) bool {
		return s.keys[name].present(now) == nil || len(name) < len(prefix) || name[:len(prefix)] != prefix
	})
	if byDue {
		slices.SortStableFunc(names, func(a, b string) int { return s.keys[a].cur.dueAt.Compare(s.keys[b].cur.dueAt) })
	}
	return names
}
