package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const (
	promptly  = time.Millisecond // after it is due and there is capacity
	heartbeat = 10 * time.Second // after a jump of the wall clock
)

const noRoom = "the room of all sources"

// blocked says what else than time keeps the source from starting a delivery
// now, "" if nothing does.
func (m *model) blocked(s *source, now time.Time) string {
	total := 0
	for _, o := range m.sources {
		total += o.inFlight + o.letters
	}
	free := m.maxInFlight - total - 1 // after one more; all are in one namespace
	own := s.inFlight + s.letters
	switch {
	case s.settings.Suspend:
		return "suspended"
	case s.inFlight >= s.settings.MaxInFlight:
		return "maxInFlight"
	case free < 0, total > 0 && free < total+1, own > 0 && free-(total+1) < 2*(own+1):
		return noRoom
	case s.settings.MaxPerSecond > 0 && s.available(now) < 1:
		return "maxPerSecond"
	}
	return ""
}

// blockedLetter is blocked for a dead letter, which has slots of its own.
func (m *model) blockedLetter(s *source, now time.Time) string {
	if s.letters >= max(1, s.settings.MaxInFlight/4) {
		return "the slots of dead letters"
	}
	return m.blocked(s, now)
}

// available is the source's budget of deliveries: maxPerSecond a second, and
// bursts of one second's worth.
func (s *source) available(now time.Time) float64 {
	rate := float64(s.settings.MaxPerSecond)
	return min(rate, s.tokens+now.Sub(s.tokensAt).Seconds()*rate) + 1e-6
}

// observe is called before anything changes that decides about capacity.
func (m *model) observe() {
	now := time.Now()
	for _, s := range m.sources {
		if m.blocked(s, now) != "" {
			s.blockedAt = latest(s.blockedAt, now)
		}
		if m.blockedLetter(s, now) != "" {
			s.lettersBlockedAt = latest(s.lettersBlockedAt, now)
		}
	}
}

func latest(first time.Time, others ...time.Time) time.Time {
	for _, t := range others {
		if t.After(first) {
			first = t
		}
	}
	return first
}

// readyAt is since when, in the bubble's time, nothing but the adapter itself
// can keep a key from being delivered that is due by the wall clock.
func (m *model) readyAt(s *source, k *key) time.Time {
	now := time.Now()
	at := now.Add(-m.wall().Sub(k.cur.at()))
	if s.settings.MaxPerSecond > 0 && s.tokens < 1 {
		at = latest(at, s.tokensAt.Add(time.Duration(math.Ceil((1-s.tokens)/float64(s.settings.MaxPerSecond)*1e9))))
	}
	at = latest(at, k.changed, s.blockedAt, m.upAt, m.slowUntil)
	if k.cur.dead != nil {
		at = latest(at, s.lettersBlockedAt)
	}
	if !m.jumpAt.IsZero() && at.Before(m.jumpAt.Add(heartbeat)) {
		at = m.jumpAt.Add(heartbeat)
	}
	return at
}

// startable says that a key could be in delivery now.
func (m *model) startable(s *source, k *key, wall time.Time) bool {
	return k.cur != nil && k.fl == nil && !k.cur.at().After(wall) && !k.cur.expired(wall)
}

// start judges the start of a delivery.
func (m *model) start(s *source, a *schedule.Attempt) (*key, *flight) {
	wall, now := m.wall(), time.Now()
	m.checkOrder()
	k, name := m.find(s, a)
	if k == nil {
		m.fail("a delivery of key %q, revision %d, that nothing waits for: %s", a.Key, a.Revision(), m.describe(s.keys[a.Key]))
		return nil, nil
	}
	from := m.state(k)
	e := k.cur
	bad := func(promise, format string, args ...any) {
		m.fail("%s: the delivery of %q: %s\n  the key: %s", promise, name, fmt.Sprintf(format, args...), m.describe(k))
	}
	switch {
	case s.gone:
		bad("a removed source delivers nothing", "")
	case a.Source != s.settings:
		bad("settings are in force for the next delivery", "it has older ones")
	case k.fl != nil:
		bad("one key, one delivery at a time", "another is under way")
	case e.at().After(wall):
		bad("never early", "%s too early", e.at().Sub(wall))
	case e.expired(wall):
		bad("not delivered after expiresAt", "expired at %s", e.expiresAt)
	}
	why := m.blocked(s, now)
	if e.dead != nil {
		why = m.blockedLetter(s, now)
	}
	switch why {
	case "", noRoom: // the latter is no promise
	default:
		bad("limits", "%s", why)
	}
	m.checkAttempt(e, k, a, bad)
	if late := now.Sub(m.readyAt(s, k)); late > promptly {
		bad("prompt when due and there is capacity", "%s late", late)
	}
	m.observe()
	f := &flight{e: e, own: true}
	k.fl = f
	k.sent++
	s.tokens, s.tokensAt = s.available(now)-1e-6-1, now
	if e.dead != nil {
		s.letters++
	} else {
		s.inFlight++
	}
	m.started = append(m.started, started{s, e, now})
	m.step(from, "start", m.state(k))
	return k, f
}

// find is the key of an attempt, or the dead letter.
func (m *model) find(s *source, a *schedule.Attempt) (*key, string) {
	if a.Entry.DeadLetter == nil {
		if k := s.keys[a.Key]; k != nil && k.cur != nil {
			return k, a.Key
		}
		return nil, ""
	}
	for name, k := range s.keys {
		if k.cur != nil && k.cur.dead != nil && k.cur.dead.key == a.Key && m.revs[k.cur.dead.rev] == a.Revision() {
			return k, name
		}
	}
	return nil, ""
}

func (m *model) checkAttempt(e *entry, k *key, a *schedule.Attempt, bad func(promise, format string, args ...any)) {
	due, attempt, event, target := e.dueAt, e.attempt, e.event, a.Source.Sink
	if e.dead != nil {
		due, attempt, event, target = e.dead.dueAt, e.dead.attempt, e.dead.event, *a.Source.DeadLetter
		if got := a.Entry.DeadLetter.Failure.Code; got != e.dead.code {
			bad("a dead letter says why", "code %d, want %d", got, e.dead.code)
		}
	} else if !m.seeRevision(k, e.rev, a.Revision()) {
		bad("the newest revision is delivered", "revision %d, want %d", a.Revision(), m.revs[e.rev])
	}
	if !a.DueAt().Equal(due) {
		bad("the due time stays the original", "%s, want %s", a.DueAt(), due)
	}
	if a.Number() != attempt {
		bad("the attempt counter", "%d, want %d", a.Number(), attempt)
	}
	if !a.Entry.Event.Equal(event) {
		bad("the newest event is delivered", "%+v, want %+v", a.Entry.Event, event)
	}
	if a.Target != target {
		bad("the sink in force", "%+v, want %+v", a.Target, target)
	}
	if !m.seeID(e, a.ID) {
		bad("an id belongs to one occurrence", "id %q, of occurrence %d it is %q, and that id is of occurrence %d", a.ID, e.occ, m.ids[e.occ], m.owner[a.ID])
	}
}

// checkOrder looks at what started at an earlier instant: of the keys of the
// source that were ready before, none that is still there may be older. Dead
// letters have slots, and an order, of their own.
func (m *model) checkOrder() {
	if len(m.started) == 0 || !time.Now().After(m.started[0].at) {
		return
	}
	wall := m.wall().Add(-time.Since(m.started[0].at))
	for _, st := range m.started {
		for name, k := range st.s.keys {
			if k.cur == nil || k.cur.dead != nil || st.e.dead != nil {
				continue
			}
			if !st.s.gone && k.changed.Before(st.at) && m.startable(st.s, k, wall) && k.cur.at().Before(st.e.at()) && m.readySince(k, wall, st.at) {
				m.fail("oldest first: at %s %q, of %s, was due and another of %s was started; upAt %s", wall, name, k.cur.at(), st.e.at(), m.upAt)
			}
		}
	}
	m.started = m.started[:0]
}

// readySince says whether a key was due for certain before the instant: not
// only since a jump or a restart that the adapter may not have dealt with yet.
func (m *model) readySince(k *key, wall, instant time.Time) bool {
	at := latest(instant.Add(-wall.Sub(k.cur.at())), m.upAt, m.slowUntil)
	if !m.jumpAt.IsZero() {
		at = latest(at, m.jumpAt.Add(heartbeat))
	}
	return at.Before(instant)
}

// checkPrompt looks for keys that should be in delivery by now.
func (m *model) checkPrompt() {
	wall, now := m.wall(), time.Now()
	m.checkOrder()
	for _, s := range m.sources {
		if m.blocked(s, now) != "" {
			continue
		}
		lettersBlocked := m.blockedLetter(s, now) != ""
		for name, k := range s.keys {
			if lettersBlocked && k.cur != nil && k.cur.dead != nil {
				continue
			}
			if m.startable(s, k, wall) && now.Sub(m.readyAt(s, k)) > promptly {
				m.fail("prompt when due and there is capacity: %q of %s is not delivered for %s\n  the key: %s",
					name, s.settings.UID, now.Sub(m.readyAt(s, k)), m.describe(k))
			}
		}
	}
}

// finish does what section 5 says of the sink's answer.
func (m *model) finish(s *source, k *key, o schedule.Outcome) {
	if s.gone {
		return
	}
	m.checkOrder()
	m.observe()
	wall := m.wall()
	from, f := m.state(k), k.fl
	if !f.own && k.cur.expired(wall) {
		m.set(k, nil)
	}
	k.fl, k.changed = nil, time.Now()
	if f.e.dead != nil {
		s.letters--
	} else {
		s.inFlight--
	}
	on := "succeed"
	switch {
	case o.Kind == schedule.Aborted:
		return // only when the process ends
	case f.cancelled:
	case o.Kind == schedule.Succeeded:
		m.succeed(s, k, f, o, wall)
	default:
		on = m.failed(s, k, f, o, wall)
	}
	to := m.state(k)
	if from == schedule.Leaving && to == schedule.Absent {
		on = "answer"
	}
	if from == schedule.Behind && on == "succeed" || from != schedule.Absent {
		m.step(from, on, to)
	}
}

func (m *model) succeed(s *source, k *key, f *flight, o schedule.Outcome, now time.Time) {
	again := askedFor(o, now)
	if k.cur != nil && !f.own { // something newer waits
		m.sooner(k, f, again)
		return
	}
	interval := f.e.interval(s)
	switch {
	case f.e.dead != nil:
		m.set(k, nil)
	case !f.e.owedAt.IsZero():
		m.set(k, m.owed(f.e, again, now))
	case o.Again != nil:
		n := m.renewed(f.e, now, again)
		if o.Again.Reply != nil {
			n.event = o.Again.Reply
		}
		m.set(k, n)
	case o.Never || deleted(f.e.event) || interval == 0:
		m.set(k, nil)
	default:
		m.set(k, m.renewed(f.e, now, now.Add(interval)))
	}
}

// askedFor is the time that an answer asks for, zero when it asks for none.
func askedFor(o schedule.Outcome, now time.Time) time.Time {
	switch {
	case o.Again == nil:
		return time.Time{}
	case o.Again.At.IsZero():
		return now.Add(o.Again.After)
	}
	return latest(now, o.Again.At)
}

// sooner is what an answer that settles a run makes of the newer occurrence
// behind it.
func (m *model) sooner(k *key, f *flight, again time.Time) {
	n := *k.cur
	n.olderAt = time.Time{}
	if !f.ownCounter {
		n.attempt, n.tries = 0, 0
	}
	if !again.IsZero() && again.Before(n.at()) {
		n.dueAt, n.retryAt, n.rev = again, time.Time{}, m.token()
	}
	m.set(k, &n)
}

// owed is the occurrence at the time of an event that came in behind a delivery
// which a crash cut off, or at the time that the sink asks for, if that is sooner.
func (m *model) owed(e *entry, again, now time.Time) *entry {
	at := e.owedAt
	if !again.IsZero() && again.Before(at) {
		at = again
	}
	return m.renewed(e, now, latest(now, at))
}

func deleted(e *schedule.Event) bool {
	return e != nil && (e.Type == "dev.knative.apiserver.ref.delete" || e.Type == "dev.knative.apiserver.resource.delete")
}

// renewed is the next occurrence of a key, with a new id and without an expiry.
func (m *model) renewed(e *entry, now, due time.Time) *entry {
	t := m.token()
	return &entry{rev: t, occ: t, scheduledAt: now, dueAt: due, maxInterval: e.maxInterval, uid: e.uid, reason: e.reason, event: anew(e.event)}
}

// failed is also called for what was superseded: that is not retried, but when
// it is given up its event is a dead letter all the same.
func (m *model) failed(s *source, k *key, f *flight, o schedule.Outcome, now time.Time) string {
	d := &s.settings.Delivery
	tries := f.e.tries + 1
	giveUp := o.Kind == schedule.Rejected || d.Retry != nil && int(tries) > *d.Retry
	behind := k.cur != nil && !f.own
	again := askedFor(o, now)
	if o.Kind == schedule.Rejected && !again.IsZero() {
		m.rejectedAgain(s, k, f, o, again, now)
		return "give up"
	}
	if f.superseded { // what took its place decides about the key
		if giveUp {
			m.deadLetter(s, k, f, o, now)
			return "give up"
		}
		return "fail"
	}
	n := *f.e
	if behind {
		n = *k.cur
		n.olderAt = time.Time{}
	}
	if !f.ownCounter {
		n.attempt++
	}
	if !giveUp {
		if !behind && n.expired(now) {
			m.set(k, nil)
			return "expire"
		}
		retry := now.Add(pause(d, tries, o.RetryAfter))
		if !again.IsZero() {
			retry = again
		}
		switch {
		case !behind:
			n.tries, n.retryAt = tries, retry
		case retry.Before(n.at()): // an event never postpones
			n.dueAt, n.retryAt = f.e.dueAt, retry
		}
		m.set(k, &n)
		return "fail"
	}
	m.deadLetter(s, k, f, o, now)
	interval := f.e.interval(s)
	switch {
	case behind:
		m.set(k, &n)
	case !f.e.owedAt.IsZero():
		m.set(k, m.owed(f.e, time.Time{}, now))
	case o.Kind == schedule.Failed && interval > 0 && f.e.dead == nil:
		m.set(k, m.renewed(f.e, now, now.Add(interval)))
	default:
		m.set(k, nil)
	}
	return "give up"
}

// rejectedAgain gives the event up and has the key due again when the sink asks
// for it, as after a success.
func (m *model) rejectedAgain(s *source, k *key, f *flight, o schedule.Outcome, again, now time.Time) {
	m.deadLetter(s, k, f, o, now)
	switch {
	case k.cur != nil && !f.own:
		m.sooner(k, f, again)
	case f.e.dead != nil:
		m.set(k, nil)
	case !f.e.owedAt.IsZero():
		m.set(k, m.owed(f.e, again, now))
	default:
		m.set(k, m.renewed(f.e, now, again))
	}
}

// deadLetter is what becomes of an event that is given up, if there is a sink
// for it.
func (m *model) deadLetter(s *source, k *key, f *flight, o schedule.Outcome, now time.Time) {
	if s.settings.DeadLetter == nil || f.e.dead != nil {
		return
	}
	t := m.token()
	m.set(s.key(fmt.Sprintf("\x01%d", t)), &entry{rev: t, occ: t, scheduledAt: now, dueAt: now, event: f.e.event, dead: &deadLetter{
		key: m.nameOf(s, k), dueAt: f.e.dueAt, attempt: f.e.attempt, rev: f.e.rev, occ: f.e.occ, event: f.e.event, code: o.Failure.Code,
	}})
}

// pause is the wait after the n-th failure in a row.
func pause(d *schedule.Delivery, n uint32, retryAfter time.Duration) time.Duration {
	const most = 1000 * time.Second
	w := grown(d.BackoffDelay, 2, most, n)
	if d.Linear {
		w = min(d.BackoffDelay*time.Duration(n), most)
	}
	limit := most
	if d.RetryAfterMax != nil {
		limit = *d.RetryAfterMax
	}
	return max(w, min(retryAfter, limit))
}

func (m *model) nameOf(s *source, k *key) string {
	for name, o := range s.keys {
		if o == k {
			return name
		}
	}
	return ""
}
