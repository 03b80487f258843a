package sim

import (
	"cmp"
	"math"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Which due time, counter and event a request or an answer leads to is no invariant:
// it is these rules, written from docs/http-api.md. They do not call package
// schedule, so that an error there is found.

// answer is the right answer to a request.
type answer struct {
	code     schedule.Code // "" = accepted
	result   schedule.Result
	key      *key
	newest   *occurrence // after the request
	inFlight bool
	now      time.Time
}

// misses reports that a condition does not hold. A revision that was never seen is none
// that a caller names.
func misses(c *schedule.Conditions, o *occurrence) bool {
	return c.IfNoneMatch && o != nil ||
		c.IfMatch != nil && (o == nil || o.rev.number == 0 || o.rev.number != *c.IfMatch) ||
		c.IfUID != "" && o != nil && o.uid != c.IfUID
}

// request applies a request to a key.
func (j *judge) request(s *source, k *key, r *schedule.Request) answer {
	now := j.wall
	cur, waiting := k.shown(now), k.waiting(now) // with nothing waiting, cur is in delivery
	a := answer{key: k, result: schedule.Created, now: now, inFlight: k.out != nil}
	if misses(&r.Conditions, cur) {
		return answer{code: schedule.CodePrecondition}
	}
	policy := s.settings.Policy
	if r.Ingested {
		policy = s.settings.Ingest.Policy
	}
	if r.Policy != "" {
		policy = r.Policy
	}
	another := cur != nil && r.UID != "" && cur.uid != "" && cur.uid != r.UID
	if another {
		policy = schedule.Replace
	}
	if waiting != nil {
		switch policy {
		case schedule.Fail:
			return answer{code: schedule.CodeExists}
		case schedule.Keep:
			a.result, a.newest = schedule.Kept, waiting
			return a
		}
		a.result = schedule.Replaced
	}

	var was occurrence
	if cur != nil {
		was = *cur
	}
	if another {
		was.attempt = 0
	}
	n := j.occurrence(cmp.Or(r.Event, was.event), now)
	n.expiresAt, n.maxInterval, n.slack, n.uid, n.reason = r.ExpiresAt, r.MaxInterval, r.Slack, r.UID, r.Reason
	n.priority = r.Priority
	if policy != schedule.Replace { // every absent field stays as it was
		n.slack, n.maxInterval, n.uid, n.reason = cmp.Or(n.slack, was.slack), cmp.Or(n.maxInterval, was.maxInterval), cmp.Or(n.uid, was.uid), cmp.Or(n.reason, was.reason)
		if waiting != nil && !r.Ingested { // the expiry of an occurrence in delivery is its own, and an event lifts it
			n.expiresAt = cmp.Or(n.expiresAt, was.expiresAt)
		}
	}
	removesNone := r.Ingested && r.Calendar == nil && r.UID == "" // an event removes no schedule
	n.calendarOf(r, &was, policy != schedule.Replace || removesNone, waiting == nil)
	asked, ok := following{j}.asked(s, &was, n, r)
	if !ok {
		return answer{code: schedule.CodeExhausted}
	}
	if cur != nil && waiting == nil && policy != schedule.Replace && policy != schedule.Latest {
		c, _ := s.follows(cur) // what comes in between does not postpone a calendar
		if at := c.due(k.out.began, now, j.random); !at.IsZero() && at.Before(asked) && !late(at, n.until()) {
			asked = at
		}
	}
	n.dueAt = asked
	if waiting != nil {
		n.previousDueAt, n.priority = waiting.dueAt, max(n.priority, waiting.priority)
	}
	if w := waiting; w != nil && (policy == schedule.Earliest && !asked.Before(w.dueAt) || policy == schedule.Latest && !asked.After(w.at())) {
		a.result = schedule.Merged // the time stays, and between two attempts a sooner one is for the next attempt
		if policy == schedule.Latest {
			n.mayWait, n.on = w.mayWait, w.on
		}
		if n.dueAt, n.retryAt = w.dueAt, w.retryAt; policy == schedule.Earliest && asked.Before(w.retryAt) {
			n.retryAt = asked
		}
	}
	if waiting != nil && policy == schedule.Earliest {
		n.mayWait = n.mayWait && waiting.mayWait
		if waiting.on == nil { // it moves with the source's schedule only if both would
			n.on = nil
		}
	}
	if waiting != nil && r.Ingested {
		n.keepDistance(now, waiting.retryAt)
	}
	if cur != nil && r.Event == nil {
		switch {
		case a.result == schedule.Merged:
			n.occ, n.tries = was.occ, was.tries
		case waiting == nil || was.tries > 0 || !was.dueAt.After(now): // the event may have been sent before
			n.event = withoutID(n.event)
		}
	}
	if !n.expired(now) && s.full(k, now) { // what has expired is dropped: it needs no quota
		return answer{code: schedule.CodeQuota}
	}
	replaces := !r.Ingested || policy == schedule.Replace || policy == schedule.Latest
	if !replaces {
		if n.olderAt, n.owedAt = was.olderAt, was.owedAt; waiting == nil {
			n.olderAt, n.owedAt = was.dueAt, time.Time{}
			if !was.owedAt.IsZero() && was.owedAt.Before(n.dueAt) { // an event never postpones
				n.dueAt, n.mayWait, n.on = was.owedAt, false, nil
			}
		}
	}
	if d := k.out; d != nil {
		d.overtaken = true
		d.replaced = d.replaced || replaces
		d.cancelled = d.cancelled || another
		d.counted = d.counted || !r.Ingested
	}
	a.newest = n
	j.set(k, n)
	if n.expired(now) { // accepted and dropped
		j.set(k, nil)
	}
	return a
}

// occurrence is a new one, due now.
func (j *judge) occurrence(e *schedule.Event, now time.Time) *occurrence {
	m := j.mark()
	return &occurrence{rev: m, occ: m, scheduledAt: now, dueAt: now, event: e}
}

// asked is when a request asks for the key, and sets the counter; false when the attempts are used up.
func (j following) asked(s *source, was, n *occurrence, r *schedule.Request) (time.Time, bool) {
	now := j.wall
	delay, ok := s.delay(was, n, r)
	n.mayWait = named(r, now) || exhausted(r, was)
	if c, on := s.asks(r, was, n); c != nil {
		n.mayWait, n.on = true, on
		return c.due(now, now, j.random), true
	}
	return now.Add(min(delay+time.Duration(math.Ceil(float64(delay)*r.Jitter*j.random)), schedule.MaxDuration)), ok
}

// delay is the wait that a request asks for, and sets the counter; false when the
// attempts are used up and nothing else brings the key back.
func (s *source) delay(was, n *occurrence, r *schedule.Request) (time.Duration, bool) {
	if r.Ingested {
		n.attempt = was.attempt
	}
	switch b := r.Backoff; {
	case exhausted(r, was):
		every := s.resync(r, was)
		return every, every > 0
	case b != nil:
		n.attempt = was.attempt + 1
		return grown(b.Base, b.Factor, b.Cap, n.attempt), true
	case r.Delay != nil:
		return *r.Delay, true
	case !r.DueAt.IsZero():
		return max(r.DueAt.Sub(n.scheduledAt), 0), true
	}
	return s.settings.Delay, true
}

// resync is the maxInterval of a key with a request.
func (s *source) resync(r *schedule.Request, was *occurrence) time.Duration {
	return s.interval(cmp.Or(r.MaxInterval, was.maxInterval))
}

// exhausted reports that the attempts of a back-off are used up.
func exhausted(r *schedule.Request, was *occurrence) bool {
	return r.Backoff != nil && r.Backoff.MaxAttempts > 0 && was.attempt >= r.Backoff.MaxAttempts
}

// full reports that the source takes no further key. Where few fit, requests are made
// only when nothing has expired that is still there.
func (s *source) full(k *key, now time.Time) bool {
	if k.shown(now) != nil || s.before[k] {
		return false
	}
	n := int64(0)
	for _, o := range s.keys {
		if !o.letter && (o.shown(now) != nil || s.before[o]) {
			n++
		}
	}
	return n >= s.settings.MaxPending
}

// cancel applies a DELETE, and says whether something waited.
func (j *judge) cancel(k *key, c *schedule.Conditions) (refused, waited bool) {
	if misses(c, k.shown(j.wall)) {
		return true, false
	}
	waited = k.waiting(j.wall) != nil
	if k.newest != nil {
		j.set(k, nil)
	}
	if k.out != nil {
		k.out.overtaken, k.out.cancelled = true, true
	}
	return false, waited
}

// verdict is what the sink's answer means for a delivery.
type verdict struct {
	settled bool      // done, or given up with a time for another occurrence
	gaveUp  bool      // rejected, or its retries are used up
	asked   time.Time // for another occurrence, if the answer says when
	ahead   bool      // and not for now
	retry   time.Time // for the next attempt, after a failure
	rank    schedule.Priority
}

func (s *source) verdict(d *delivery, o schedule.Outcome, now time.Time) (v verdict) {
	v.rank = d.of.priority
	if o.Priority != nil {
		v.rank = *o.Priority
	}
	if a := o.Again; a != nil {
		v.ahead = a.After > 0 || a.At.After(now)
		if v.asked = latest(now.Add(least), a.At); a.At.IsZero() {
			v.asked = now.Add(max(a.After, least))
		}
	}
	switch o.Kind {
	case schedule.Succeeded:
		v.settled = true
	case schedule.Rejected:
		v.gaveUp, v.settled = true, o.Again != nil
	case schedule.Failed:
		tries, most := d.of.tries+1, s.settings.Delivery.Retry
		v.gaveUp = most != nil && int(tries) > *most
		v.retry, v.asked = v.asked, time.Time{}
		if o.Again == nil {
			v.retry = now.Add(s.wait(tries, o.RetryAfter))
		}
	}
	return v
}

// finish applies the sink's answer to a delivery.
func (j *judge) finish(d *delivery, o schedule.Outcome) {
	s, k := d.source, d.key
	if d.overtaken && k.newest.expired(j.wall) {
		j.set(k, nil)
	}
	if o.Kind == schedule.Aborted {
		if n := restarted(k.newest); d.overtaken && !d.replaced && !d.cancelled && n != k.newest {
			j.set(k, n) // an event does not postpone what was cut off
		}
		return
	}
	if d.cancelled {
		return
	}
	v := s.verdict(d, o, j.wall)
	if v.gaveUp && s.settings.DeadLetter != nil && d.of.dead == nil {
		n := j.occurrence(d.of.event, j.wall)
		n.dead = &letter{k.name, d.of, o.Failure.Code}
		j.set(s.letter(n.rev), n)
	}
	switch newer := d.overtaken && k.newest != nil; {
	case d.replaced && !v.settled: // the newer occurrence decides about the key
		if newer && !d.counted {
			n := *k.newest
			n.attempt++
			n.keepDistance(j.wall, j.wall.Add(time.Second))
			j.set(k, &n)
		}
	case newer:
		j.set(k, j.behind(d, v))
	case v.settled || v.gaveUp:
		j.set(k, j.next(d, o, v))
	case d.of.expired(j.wall):
		j.set(k, nil)
	default:
		n := *d.of
		if n.tries, n.retryAt = n.tries+1, v.retry; !d.counted {
			n.attempt++
		}
		n.priority = v.rank
		j.set(k, &n)
	}
}

// behind is the newer occurrence after the answer to the older one: the sooner time
// wins, and an event never postpones.
func (j *judge) behind(d *delivery, v verdict) *occurrence {
	n := *d.key.newest
	n.olderAt = time.Time{}
	if !d.counted {
		if n.attempt++; v.settled {
			n.attempt, n.tries = 0, 0
		} else {
			n.keepDistance(j.wall, j.wall.Add(time.Second))
		}
	}
	if !v.asked.IsZero() || !v.settled && !v.gaveUp && !d.of.expired(v.retry) { // the run is asked for again, and joins it
		n.priority = max(n.priority, v.rank)
	}
	switch {
	case v.settled && !v.asked.IsZero() && v.asked.Before(n.at()):
		n.previousDueAt, n.dueAt, n.retryAt, n.rev = n.dueAt, v.asked, time.Time{}, j.mark()
		n.on = nil
		n.mayWait = n.mayWait && v.ahead
	case !v.settled && !v.gaveUp && !d.of.expired(v.retry) && v.retry.Before(n.at()):
		n.dueAt, n.retryAt = d.of.dueAt, v.retry
	}
	return &n
}

// next is the occurrence after one that is done or given up, when nothing waits:
// at the time that the answer asks for or that a restart left owed, the sooner of
// the two, else after maxInterval; and not later than its calendar says.
func (j *judge) next(d *delivery, o schedule.Outcome, v verdict) *occurrence {
	of, s := d.of, d.source
	asked, mayWait := v.asked, true
	due, event := asked, withoutID(of.event)
	every := s.interval(of.maxInterval)
	tick, until, over := following{j}.tick(d)
	ends := o.Never || o.Kind == schedule.Succeeded && deleted(of.event)
	if ends {
		tick = time.Time{}
	}
	switch {
	case of.dead != nil:
		return nil
	case !of.owedAt.IsZero():
		mayWait = false
		if due.IsZero() || of.owedAt.Before(due) {
			due = latest(j.wall, of.owedAt)
		}
	case !asked.IsZero():
		mayWait = v.ahead
		if o.Again.Reply != nil {
			event = o.Again.Reply
		}
	case ends, over, every == 0 && tick.IsZero():
		return nil
	case every == 0:
		due = tick
	default:
		due = j.wall.Add(max(every, least))
	}
	n := j.occurrence(event, j.wall)
	n.dueAt, n.mayWait, n.slack, n.maxInterval, n.uid, n.reason = due, mayWait, of.slack, of.maxInterval, of.uid, of.reason
	n.priority = v.rank
	if !tick.IsZero() {
		n.calendar, n.expiresAt = of.calendar, until
		if tick.Equal(n.dueAt) { // a sooner one also stands for a time that was asked for
			_, n.on = s.follows(n)
		}
		if tick.Before(n.dueAt) {
			n.dueAt = tick
		}
	}
	return n
}

// least is the least wait after an answer, and the floor of the first back-off.
const least = 5 * time.Millisecond

// keepDistance keeps an event that came to a failing key from the last failure, a second
// at most, but does not postpone the next attempt.
func (o *occurrence) keepDistance(now, retryAt time.Time) {
	at := now
	if o.attempt > 0 {
		at = now.Add(grown(least, 2, time.Second, o.attempt))
	}
	if retryAt.Before(at) {
		at = retryAt
	}
	if o.at().Before(at) {
		o.retryAt = at
	}
}

// wait is the pause after the n-th failure in a row.
func (s *source) wait(n uint32, retryAfter time.Duration) time.Duration {
	most, limit := 1000*time.Second, 1000*time.Second
	c := &s.settings.Delivery
	if c.BackoffMax != nil {
		most = *c.BackoffMax
	}
	w := grown(c.BackoffDelay, 2, most, n)
	if c.Linear {
		w = min(c.BackoffDelay*time.Duration(n), most)
	}
	if c.RetryAfterMax != nil {
		limit = *c.RetryAfterMax
	}
	return max(w, grown(least, 2, max(most, time.Second), n), min(retryAfter, limit))
}

// restarted is an occurrence after a restart, or after a delivery that was cut off: an event never postpones an older
// occurrence that was in delivery and is due again now; the event has its own time
// afterwards.
func restarted(o *occurrence) *occurrence {
	if o == nil || o.olderAt.IsZero() {
		return o
	}
	n := *o
	n.olderAt = time.Time{}
	if o.olderAt.Before(n.dueAt) {
		n.dueAt, n.retryAt, n.owedAt, n.mayWait, n.on = o.olderAt, time.Time{}, o.dueAt, false, nil
	}
	return &n
}

// interval is the maxInterval of a key, or else of its source.
func (s *source) interval(of *time.Duration) time.Duration {
	if of != nil {
		return *of
	}
	return s.settings.MaxInterval
}

// grown is min(base·factor^(n-1), limit).
func grown(base time.Duration, factor float64, limit time.Duration, n uint32) time.Duration {
	w := float64(base)
	for i := uint32(1); i < n && w < float64(limit); i++ {
		w *= factor
	}
	return min(time.Duration(math.Ceil(w)), limit)
}

func deleted(e *schedule.Event) bool {
	return e != nil && (e.Type == "dev.knative.apiserver.ref.delete" || e.Type == "dev.knative.apiserver.resource.delete")
}

// withoutID is an event that goes out under an id of its own.
func withoutID(e *schedule.Event) *schedule.Event {
	if e == nil || e.ID == "" {
		return e
	}
	c := *e
	c.ID = ""
	return &c
}

func latest(first time.Time, others ...time.Time) time.Time {
	for _, t := range others {
		if t.After(first) {
			first = t
		}
	}
	return first
}
