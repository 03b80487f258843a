package sim

import (
	"math"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// answer is what a request must be answered with.
type answer struct {
	code     schedule.Code // "" = accepted
	result   schedule.Result
	key      *key
	e        *entry // of the answer
	state    schedule.State
	inFlight bool
	previous time.Time
}

// refuses checks the conditions of a request.
func (m *model) refuses(c *schedule.Conditions, e *entry) bool {
	return c.IfNoneMatch && e != nil ||
		c.IfMatch != nil && (e == nil || m.revs[e.rev] == 0 || m.revs[e.rev] != *c.IfMatch) ||
		c.IfUID != "" && e != nil && e.uid != c.IfUID
}

// request does what section 3 says of a PUT, and section 4 of an event.
func (m *model) request(s *source, name string, r *schedule.Request, random float64) answer {
	now, k := m.wall(), s.key(name)
	from := m.state(k)
	cur := k.present(now) // with nothing waiting, the occurrence in delivery
	waiting := k.waiting(now)
	if m.refuses(&r.Conditions, cur) {
		return answer{code: schedule.CodePrecondition}
	}
	policy := s.settings.Policy
	if r.Ingested {
		policy = s.settings.IngestPolicy
	}
	if r.Policy != "" {
		policy = r.Policy
	}
	newObject := cur != nil && r.UID != "" && cur.uid != "" && cur.uid != r.UID
	if newObject {
		policy = schedule.Replace
	}
	a := answer{key: k, result: schedule.Created, inFlight: k.fl != nil}
	if waiting != nil {
		a.previous = waiting.dueAt
		switch policy {
		case schedule.Fail:
			return answer{code: schedule.CodeExists}
		case schedule.Keep:
			a.result, a.e, a.state = schedule.Kept, waiting, viewState(waiting, now)
			return a
		}
		a.result = schedule.Replaced
	}

	n := &entry{rev: m.token(), scheduledAt: now, expiresAt: r.ExpiresAt, maxInterval: r.MaxInterval, uid: r.UID, reason: r.Reason, event: r.Event}
	n.occ = n.rev
	if cur != nil {
		n.inherit(cur, policy != schedule.Replace, waiting != nil)
	}
	wanted, ok := m.wantedAt(s, cur, n, r, newObject, now, random)
	if !ok {
		return answer{code: schedule.CodeExhausted}
	}
	n.dueAt = wanted
	supersedes := !r.Ingested || policy == schedule.Replace || policy == schedule.Latest
	if waiting != nil && n.merge(waiting, policy, wanted) {
		a.result = schedule.Merged
	}
	if cur != nil && r.Event == nil {
		switch {
		case a.result == schedule.Merged:
			n.occ = cur.occ
		case k.own() || cur.tries > 0 || !cur.dueAt.After(now): // the event may have been sent before: another occurrence is another event
			n.event = anew(n.event)
		}
	}
	if !n.expired(now) && m.full(s, k) { // what has expired is dropped: it needs no quota
		return answer{code: schedule.CodeQuota}
	}
	if !supersedes && cur != nil {
		if n.olderAt, n.owedAt = cur.olderAt, cur.owedAt; k.own() {
			n.olderAt, n.owedAt = cur.dueAt, time.Time{}
			if !cur.owedAt.IsZero() && cur.owedAt.Before(n.dueAt) { // an event never postpones
				n.dueAt = cur.owedAt
			}
		}
	}
	if f := k.fl; f != nil {
		f.own = false
		f.superseded = f.superseded || supersedes
		f.cancelled = f.cancelled || newObject
		f.ownCounter = f.ownCounter || !r.Ingested
	}
	a.e, a.state = n, viewState(n, now)
	m.set(k, n)
	if n.expired(now) { // accepted and dropped
		m.step(from, "schedule", after(k))
		m.set(k, nil)
		m.step(after(k), "expire", m.state(k))
	} else {
		m.step(from, "schedule", m.state(k))
	}
	return a
}

// after is where a request leads to before its occurrence expires.
func after(k *key) schedule.State {
	if k.fl != nil {
		return schedule.Behind
	}
	return schedule.Waiting
}

func viewState(e *entry, now time.Time) schedule.State {
	if e.dueAt.After(now) {
		return schedule.Waiting
	}
	return schedule.Due
}

// together notes that several requests come as one call.
func (s *source) together() (end func()) {
	s.before = map[*key]bool{}
	for _, k := range s.keys {
		if k.cur != nil {
			s.before[k] = true
		}
	}
	return func() { s.before = nil }
}

// full says that the source takes no further key.
func (m *model) full(s *source, k *key) bool {
	if k.cur != nil || s.before[k] {
		return false
	}
	n := int64(0)
	for _, name := range s.names() {
		if o := s.keys[name]; o.cur != nil || s.before[o] {
			n++
		}
	}
	return n >= s.settings.MaxPending
}

// inherit: the event stays unless there is a new one, and with all policies but
// replace every absent field stays as it was; but the expiry of what is in
// delivery is its own.
func (e *entry) inherit(cur *entry, fields, expiry bool) {
	if e.event == nil {
		e.event = cur.event
	}
	if !fields {
		return
	}
	if e.expiresAt.IsZero() && expiry {
		e.expiresAt = cur.expiresAt
	}
	if e.maxInterval == nil {
		e.maxInterval = cur.maxInterval
	}
	if e.uid == "" {
		e.uid = cur.uid
	}
	if e.reason == "" {
		e.reason = cur.reason
	}
}

func (e *entry) interval(s *source) time.Duration {
	if e.maxInterval != nil {
		return *e.maxInterval
	}
	return s.settings.MaxInterval
}

// wantedAt sets the counter and says when the request wants the key due; false
// when its attempts are used up.
func (m *model) wantedAt(s *source, cur, n *entry, r *schedule.Request, newObject bool, now time.Time, random float64) (time.Time, bool) {
	before := uint32(0)
	if cur != nil && !newObject {
		before = cur.attempt
	}
	var delay time.Duration
	switch {
	case r.Backoff != nil && r.Backoff.MaxAttempts > 0 && before >= r.Backoff.MaxAttempts:
		from := n
		if r.MaxInterval == nil && cur != nil {
			from = cur
		}
		if delay = from.interval(s); delay == 0 {
			return now, false
		}
	case r.Backoff != nil:
		n.attempt = before + 1
		delay = grown(r.Backoff.Base, r.Backoff.Factor, r.Backoff.Cap, n.attempt)
	case r.Delay != nil:
		delay = *r.Delay
	case !r.DueAt.IsZero():
		if r.DueAt.After(now) {
			delay = r.DueAt.Sub(now)
		}
	default:
		delay = s.settings.Delay
	}
	if r.Ingested {
		n.attempt = before
	}
	return now.Add(delay + time.Duration(math.Ceil(float64(delay)*r.Jitter*random))), true
}

// grown is min(base·factor^(n-1), limit).
func grown(base time.Duration, factor float64, limit time.Duration, n uint32) time.Duration {
	w := float64(base)
	for i := uint32(1); i < n && w < float64(limit); i++ {
		w *= factor
	}
	return min(time.Duration(math.Ceil(w)), limit)
}

// merge decides about the time between the wanted time and the time of the entry that waits,
// and says whether the latter stayed. Between two attempts the original due time
// stays, and the next attempt's may come sooner.
func (e *entry) merge(w *entry, policy schedule.Policy, wanted time.Time) bool {
	switch {
	case policy == schedule.Earliest && !wanted.Before(w.dueAt):
		e.dueAt, e.retryAt = w.dueAt, w.retryAt
		if wanted.Before(w.retryAt) {
			e.retryAt = wanted
		}
		return true
	case policy == schedule.Latest && !wanted.After(w.at()):
		e.dueAt, e.retryAt = w.dueAt, w.retryAt
		return true
	}
	return false
}

// anew is an event that goes out under an id of its own.
func anew(e *schedule.Event) *schedule.Event {
	if e == nil || e.ID == "" {
		return e
	}
	c := *e
	c.ID = ""
	return &c
}

// cancel does what DELETE does, and says whether something waited.
func (m *model) cancel(s *source, name string, c *schedule.Conditions) (refused, waited bool) {
	now, k := m.wall(), s.key(name)
	if m.refuses(c, k.present(now)) {
		return true, false
	}
	from := m.state(k)
	waited = k.waiting(now) != nil
	if k.cur != nil {
		m.set(k, nil)
	}
	if k.fl != nil {
		k.fl.own, k.fl.cancelled = false, true
	}
	if from != schedule.Absent && from != schedule.Leaving {
		m.step(from, "cancel", m.state(k))
	}
	return false, waited
}

// save notes where the model stands with a source, to go back there.
func (m *model) save(s *source) (undo func()) {
	log := len(m.log)
	type state struct {
		key
		fl flight
	}
	was := map[string]state{}
	for name, k := range s.keys {
		st := state{key: *k}
		if k.fl != nil {
			st.fl = *k.fl
		}
		was[name] = st
	}
	return func() {
		m.log = m.log[:log]
		for name, k := range s.keys {
			st := was[name]
			*k = st.key
			if k.fl != nil {
				*k.fl = st.fl
			}
		}
	}
}
