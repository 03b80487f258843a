package schedule

import (
	"math"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/calendar"
)

// Policy decides the time of a key that already has a waiting occurrence.
type Policy string

// The policies.
const (
	Replace  Policy = "replace"  // the new time
	Earliest Policy = "earliest" // the sooner
	Latest   Policy = "latest"   // the later
	Keep     Policy = "keep"     // no change at all
	Fail     Policy = "fail"     // already_exists
)

// ParsePolicy reads a policy's name.
func ParsePolicy(field, s string) (Policy, error) {
	switch p := Policy(s); p {
	case Replace, Earliest, Latest, Keep, Fail:
		return p, nil
	}
	return "", Invalid(field, "%.64q is not one of replace, earliest, latest, keep, fail", s)
}

// Request asks for an occurrence of a key. At most one of Delay, DueAt, Backoff and
// Calendar is set; without any the source's schedule or delay applies. Absent fields are zero.
type Request struct {
	Delay    *time.Duration
	DueAt    time.Time
	Backoff  *Backoff
	Calendar *Calendar // without its jitter and end, which the request has
	Jitter   float64   // 0..1, adds up to that share of the delay

	Policy      Policy // "": the source's
	Event       *Event
	MaxInterval *time.Duration
	Slack       *time.Duration
	Priority    Priority
	ExpiresAt   time.Time
	UID         string
	// UIDIfNone: the uid is what another object says, so it only fills in a uid that the key
	// does not have.
	UIDIfNone bool
	// EventIfNone: the event is no news, so only a key that has no occurrence gets it.
	EventIfNone bool
	Reason      string

	TraceParent, TraceState string

	// Ingested marks a CloudEvent sent to the source's address. It never changes the
	// counter, and replaces a delivery under way only with the policies replace and
	// latest.
	Ingested bool

	// Run makes the key due now; it must exist. See [RunNow].
	Run bool

	Conditions
}

// RunNow returns the request that makes a key due now and keeps everything else. Like an
// event it cancels no delivery under way: then the key is due once more afterwards.
func RunNow(c Conditions) Request {
	return Request{Run: true, Ingested: true, Policy: Earliest, Delay: new(time.Duration), Conditions: c}
}

// Conditions guard a change. They are checked before anything else.
type Conditions struct {
	IfMatch     *uint64 // the revision the key must have
	IfNoneMatch bool    // the key must be absent
	IfUID       string  // the uid the key must have, if it is there (DELETE)
}

// Check returns an error if a condition does not hold for cur, nil when the key is
// absent.
func (c *Conditions) Check(key string, cur *Entry) error {
	switch {
	case c.IfNoneMatch && cur != nil:
		return Refuse(CodePrecondition, "If-None-Match: key %q exists with revision %d", key, cur.Revision)
	case c.IfMatch != nil && cur == nil:
		return Refuse(CodePrecondition, "If-Match: key %q is absent", key)
	case c.IfMatch != nil && cur.Revision != *c.IfMatch:
		return Refuse(CodePrecondition, "If-Match: key %q has revision %d, not %d", key, cur.Revision, *c.IfMatch)
	case c.IfUID != "" && cur != nil && cur.UID != c.IfUID:
		return Refuse(CodePrecondition, "uid: key %q has uid %q, not %q", key, cur.UID, c.IfUID)
	}
	return nil
}

// Result is the effect of a request.
type Result string

// The results.
const (
	Created  Result = "created"
	Replaced Result = "replaced"
	Merged   Result = "merged" // the time stayed, the rest is new
	Kept     Result = "kept"   // nothing changed
)

// Change is a request's effect on a key.
type Change struct {
	Result Result
	Entry  *Entry // the key's new entry; the old one when kept
	// Supersedes: this change replaced the occurrence of a delivery under way, whose
	// failure is not retried.
	Supersedes bool
	// NewObject: the stored uid was another one. The answer to a delivery under way
	// has no effect.
	NewObject bool
}

// Inputs are the facts, besides the key's entry, from which Apply and Finish decide.
// They are passed by value, so that a decision has no other state.
type Inputs struct {
	Key      string
	Source   *Spec
	Revision uint64 // of a new entry
	StoreID  string // for the event ID of a dead letter; Apply does not need it
	Now      time.Time
	Random   float64 // in [0,1), for the jitter
	// Started is when the delivery under way began, zero without one; Finish does not need it.
	Started time.Time
}

// Apply decides the effect of the request on a key. cur is the key's entry, nil
// when it has none. own is true while the delivery under way is of that entry:
// then nothing waits. An error is always an *Error, and then nothing changes.
func (r *Request) Apply(in Inputs, cur *Entry, own bool) (Change, error) {
	if err := r.Check(in.Key, cur); err != nil {
		return Change{}, err
	}
	if r.Run && cur == nil {
		return Change{}, Refuse(CodeNotFound, "nothing waits and nothing is in flight under key %q", in.Key)
	}
	r = r.beside(cur)
	waiting := cur != nil && !own
	c := Change{Result: Created}
	policy := r.policy(in.Source)
	if cur != nil && r.UID != "" && cur.UID != "" && r.UID != cur.UID {
		policy, c.NewObject = Replace, true
	}
	if waiting {
		switch policy {
		case Fail:
			return Change{}, Refuse(CodeExists, "key %q is already scheduled for %s and the policy is fail", in.Key, cur.DueAt.UTC().Format(time.RFC3339Nano))
		case Keep:
			return Change{Result: Kept, Entry: cur}, nil
		}
		c.Result = Replaced
	}

	e := r.entry(in, cur, own, policy)
	at, err := r.time(in, cur, &c, e)
	if err != nil {
		return Change{}, err
	}
	if own && policy != Replace && policy != Latest { // what comes in between does not postpone a calendar
		if tick := cur.calendar(in.Source).due(&in, in.Started, in.Source.Ceilings.MinDelay); !tick.IsZero() && tick.Before(at) && !isOver(tick, e.until()) {
			at = tick
		}
	}
	if r.Run && waiting && at.After(cur.At()) { // the least wait does not postpone a key
		at = cur.At()
		if at.Before(in.Now) {
			at = in.Now
		}
	}
	e.DueAt = at
	if waiting {
		e.PreviousDueAt = cur.DueAt
		e.Priority = max(e.Priority, cur.Priority)
	}
	c.Supersedes = !r.Ingested || policy == Replace || policy == Latest
	if waiting && !r.Run && (policy == Earliest || policy == Latest) {
		c.Result = e.merge(cur, policy, at)
	}
	if waiting && r.Ingested && !r.Run {
		e.keepDistance(cur, in.Now)
	}
	e.identify(cur, r.Event != nil, own, c.Result, in.Now)

	if !c.Supersedes && cur != nil {
		e.behind(cur, own)
	}
	c.Entry = e
	return c, nil
}

// keepDistance bounds how soon an event repeats a run that failed: events that come often
// must not undo the back-off.
func (e *Entry) keepDistance(cur *Entry, now time.Time) {
	at := now.Add(eventFloor(e.Attempt))
	if cur.RetryAt.Before(at) { // also when the key is not between attempts
		at = cur.RetryAt
	}
	if e.At().Before(at) {
		e.RetryAt = at
	}
}

// beside is the request without what it may say only about a key that has nothing else: a uid that fills in,
// an event that is no news, and that a success ends the key.
func (r *Request) beside(cur *Entry) *Request {
	if cur == nil {
		return r
	}
	c := *r
	if r.UIDIfNone && cur.UID != "" {
		c.UID = ""
	}
	switch {
	case r.EventIfNone:
		c.Event = nil
	case r.Event.final() && !cur.Event.Ends():
		c.Event = r.Event.without(FinalAttribute)
	}
	return &c
}

// behind records for a restart that the event e was accepted behind a delivery under
// way. It records nothing if e is due no later than the delivered occurrence.
func (e *Entry) behind(cur *Entry, own bool) {
	owed, since := cur.dueAgainAt(), cur.UnfinishedAt
	if own {
		if since = cur.DueAt; !owed.IsZero() && owed.Before(e.DueAt) {
			e.DueAt, e.MayWait, e.OnSchedule = owed, false, false // an event never postpones
		}
	}
	if since.Before(e.DueAt) || !own && !owed.IsZero() {
		e.UnfinishedAt = since
	}
}

func (r *Request) policy(src *Spec) Policy {
	switch {
	case r.Policy != "":
		return r.Policy
	case r.Ingested:
		return src.Ingest.Policy
	}
	return src.Policy
}

// entry returns the new entry without its times and counters. With replace it comes
// from the request alone, except the event. With the other policies every absent
// field stays as it was, except the expiry of a delivery under way, which belongs to
// that occurrence alone, and the expiry of a key that an event merges into: the event has
// none, and it must not vanish with another one's.
func (r *Request) entry(in Inputs, cur *Entry, own bool, policy Policy) *Entry {
	e := &Entry{
		Revision: in.Revision, Occurrence: in.Revision, ScheduledAt: in.Now,
		ExpiresAt: r.ExpiresAt, MaxInterval: r.MaxInterval, Timing: Timing{Slack: r.Slack}, Priority: r.Priority, UID: r.UID, Event: r.Event,
		Cause: Cause{Reason: r.Reason, TraceParent: r.TraceParent, TraceState: r.TraceState},
	}
	if cur != nil && e.Event == nil {
		e.Event = cur.Event
	}
	if r.Run {
		e.Priority = cur.Priority
	}
	if cur == nil || policy == Replace {
		var of *Entry
		if r.Ingested && r.Calendar == nil && r.UID == "" { // an event removes no schedule
			of = cur
		}
		e.keepCalendar(r, of, own)
		return e
	}
	if e.ExpiresAt.IsZero() && !own && (!r.Ingested || r.Run) {
		e.ExpiresAt = cur.ExpiresAt
	}
	if e.MaxInterval == nil {
		e.MaxInterval = cur.MaxInterval
	}
	if e.Slack == nil {
		e.Slack = cur.Slack
	}
	if e.UID == "" {
		e.UID = cur.UID
	}
	if e.Reason == "" {
		e.Reason = cur.Reason
	}
	if e.TraceParent == "" {
		e.TraceParent, e.TraceState = cur.TraceParent, cur.TraceState
	}
	e.keepCalendar(r, cur, own)
	return e
}

// time sets the entry's counter and returns the due time that the request asks for.
func (r *Request) time(in Inputs, cur *Entry, c *Change, e *Entry) (time.Time, error) {
	if cur != nil && !c.NewObject {
		e.Attempt = cur.Attempt
	}
	var delay time.Duration
	var follows *Calendar // gives the time
	jitter := r.Jitter
	e.MayWait = r.mayWait(in.Now)
	switch {
	case r.Calendar != nil:
		follows = e.Calendar
	case r.Backoff != nil:
		if most := r.Backoff.MaxAttempts; most > 0 && e.Attempt >= most {
			if delay = r.interval(cur, in.Source); delay <= 0 {
				follows = e.calendar(in.Source)
				e.OnSchedule = e.Calendar == nil && follows != nil
			}
			if delay <= 0 && follows == nil {
				return time.Time{}, Refuse(CodeExhausted, "backoff.maxAttempts: key %q has used up its %d attempts", in.Key, most)
			}
			e.Attempt, e.MayWait = 0, true
			if jitter == 0 { // maxInterval gives the time
				jitter = in.Source.Jitter
			}
			break
		}
		e.Attempt = increment(e.Attempt)
		delay = r.Backoff.wait(e.Attempt)
	case r.Delay != nil:
		delay = *r.Delay
	case !r.DueAt.IsZero():
		delay = max(r.DueAt.Sub(in.Now), 0)
	case in.Source.Calendar != nil:
		c := *in.Source.Calendar
		c.Jitter = r.Jitter // of this occurrence
		follows, e.OnSchedule = &c, true
	default:
		delay = in.Source.Delay
	}
	if r.Backoff == nil && !r.Ingested {
		e.Attempt = 0
	}
	delay = max(delay, in.Source.Ceilings.MinDelay)
	if follows != nil {
		e.MayWait = true
		at := follows.due(&in, in.Now, delay)
		if at.IsZero() {
			return at, Invalid(calendar.FieldCron, "%.64q never comes", follows.Cron)
		}
		return at, nil
	}
	return in.Now.Add(addJitter(delay, jitter, in.Random)), nil
}

// addJitter adds at most the share of a wait to it. MaxDuration stays the most: what is due later
// counts as a dead letter.
func addJitter(wait time.Duration, share, random float64) time.Duration {
	if share > 0 {
		wait += time.Duration(math.Ceil(float64(wait) * share * random))
	}
	return min(wait, MaxDuration)
}

// interval is the maxInterval that gives the due time when the attempts are used up:
// the request's, or the key's, or the source's.
func (r *Request) interval(cur *Entry, src *Spec) time.Duration {
	switch {
	case r.MaxInterval != nil:
		return *r.MaxInterval
	case cur != nil:
		return cur.interval(src)
	}
	return src.MaxInterval
}

// merge gives e the sooner or the later of the requested time and the time of cur.
// Between two attempts the time of the next attempt counts, and the original due
// time stays unless the new one is sooner. The sooner time may wait only if both may, and moves with the
// source's schedule only if both would.
func (e *Entry) merge(cur *Entry, policy Policy, at time.Time) Result {
	if policy == Latest {
		if at.After(cur.At()) {
			return Replaced
		}
		e.DueAt, e.RetryAt, e.MayWait, e.OnSchedule = cur.DueAt, cur.RetryAt, cur.MayWait, cur.OnSchedule
		return Merged
	}
	e.MayWait, e.OnSchedule = e.MayWait && cur.MayWait, e.OnSchedule && cur.OnSchedule
	if at.Before(cur.DueAt) {
		return Replaced
	}
	e.DueAt, e.RetryAt = cur.DueAt, cur.RetryAt
	if at.Before(e.RetryAt) {
		e.RetryAt = at
	}
	return Merged
}

// identify keeps the identity of an occurrence that stays the same. It gives an
// inherited event an id of its own if the event may have been attempted before:
// that is every event that is due, because an attempt that a crash cut off is not
// counted.
func (e *Entry) identify(cur *Entry, newEvent, own bool, result Result, now time.Time) {
	if cur == nil || newEvent {
		return
	}
	if result == Merged {
		e.Occurrence, e.Tries, e.LastFailure = cur.Occurrence, cur.Tries, cur.LastFailure
		return
	}
	if own || cur.Tries > 0 || !cur.DueAt.After(now) {
		e.Event = e.Event.again()
	}
}

func increment(n uint32) uint32 {
	if n == math.MaxUint32 {
		return n
	}
	return n + 1
}
