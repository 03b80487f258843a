package schedule

import (
	"time"
)

// OutcomeKind is the result of an attempt to deliver.
type OutcomeKind uint8

// The kinds of outcome.
const (
	Aborted   OutcomeKind = iota // cut off by the adapter, or called off before it started: as if it had not started
	Succeeded                    // 2xx
	Failed                       // worth another attempt
	Rejected                     // not worth another attempt
)

// Outcome is the sink's answer to one attempt.
type Outcome struct {
	Kind OutcomeKind
	// Again asks for the key once more: with Failed instead of the back-off, otherwise
	// as a new occurrence.
	Again *RescheduleAfter
	// Never: maxInterval must not bring the key back; only with Succeeded.
	Never bool
	// Priority is the key's from now on; nil: it stays. Of an occurrence that waits it raises the priority.
	Priority *Priority
	// RetryAfter is the wait that the sink asked for; only with Failed.
	RetryAfter time.Duration
	Failure    Failure // with Failed and Rejected
	Status     int     // of the answer; 0 when there was none
	TimedOut   bool    // delivery.timeout ended the attempt; only with Failed
	Unreached  bool    // no connection was made to the sink; only with Failed
	Unsent     bool    // the sink is not to blame, it was not called: no try is counted; only with Failed
}

// RescheduleAfter says when the key is due next, as the header Reschedule-After does.
type RescheduleAfter struct {
	After time.Duration // counts when At is zero
	At    time.Time
	Reply *Event // the event to deliver, only with Succeeded; nil: the same
}

// time is when the key is due again, not before the least wait.
func (a *RescheduleAfter) time(in Inputs, least time.Duration) time.Time {
	after := a.After
	if !a.At.IsZero() {
		after = a.At.Sub(in.Now)
	}
	return in.after(max(after, least, MinWait))
}

// after is the end of a wait that an outcome asks for, with the source's jitter.
func (in *Inputs) after(wait time.Duration) time.Time {
	return in.Now.Add(addJitter(wait, in.Source.Jitter, in.Random))
}

// Flight is a delivery under way.
type Flight struct {
	Entry *Entry // the key's when the delivery started
	// Started is when that was.
	Started time.Time
	// Own: the entry is still the key's, nothing was accepted since.
	Own bool
	// Superseded: a request replaced the occurrence; its failure is not retried.
	Superseded bool
	// Cancelled: the answer has no effect.
	Cancelled bool
	// OwnCounter: the occurrence that was scheduled meanwhile has its own counter.
	OwnCounter bool
}

// Accept records a change of the key during the flight.
func (f *Flight) Accept(c Change, ingested bool) {
	if c.Result == Kept {
		return
	}
	f.Own = false
	f.Superseded = f.Superseded || c.Supersedes
	f.Cancelled = f.Cancelled || c.NewObject
	f.OwnCounter = f.OwnCounter || !ingested
}

// CalledOff reports that a request or a DELETE replaced the occurrence: an attempt
// that has not begun must not begin any more.
func (f *Flight) CalledOff() bool { return f.Superseded || f.Cancelled }

// Cancel records that the key was deleted during the flight.
func (f *Flight) Cancel() { f.Own, f.Cancelled = false, true }

// Disposition is the fate of the delivered occurrence, for metrics and logs.
type Disposition string

// The dispositions.
const (
	Delivered    Disposition = "delivered"
	Retrying     Disposition = "retrying"
	DeadLettered Disposition = "dead_lettered"
	KeptLetter   Disposition = "kept"    // given up, and kept as a dead letter
	Dropped      Disposition = "dropped" // given up, and not kept
	Expired      Disposition = "expired"
	Superseding  Disposition = "superseded" // failed or not begun, and replaced by a newer occurrence
	Unfinished   Disposition = "aborted"
)

// Dispositions are all dispositions.
var Dispositions = [...]Disposition{Delivered, Retrying, DeadLettered, KeptLetter, Dropped, Expired, Superseding, Unfinished}

// Step is an outcome's effect on a key.
type Step struct {
	Next        *Entry // the key's entry from now on; nil: none
	Changed     bool   // Next differs from what is stored
	Dead        *Entry // a dead letter to store, or to keep, or nil
	Disposition Disposition
}

// Finish decides the effect of a delivery's outcome on its key. cur is the key's
// entry, nil when it has none.
func (f *Flight) Finish(in Inputs, cur *Entry, o Outcome) Step {
	waiting := cur
	if f.Own {
		waiting = nil
	}
	s := Step{Next: cur, Disposition: Unfinished}
	switch o.Kind {
	case Aborted:
		if f.CalledOff() {
			s.Disposition = Superseding
		} else if waiting != nil { // an event that came in meanwhile does not postpone it
			s.Next, s.Changed = waiting.Recover()
		}
		return s
	case Succeeded:
		s.Disposition = Delivered
	default:
		s.Disposition = Superseding
	}
	if f.Cancelled {
		return s
	}
	switch {
	case o.Kind == Succeeded && waiting != nil:
		s.Next, s.Changed = f.succeedBefore(in, waiting, o)
	case o.Kind == Succeeded:
		s.Next, s.Changed = f.next(in, o), true
	default:
		s = f.fail(in, waiting, o)
	}
	return s
}

// next returns the occurrence that follows the run, done or given up, when nothing waits.
func (f *Flight) next(in Inputs, o Outcome) *Entry {
	n := f.occurrence(in, o)
	if n != nil {
		n.Priority = f.priority(o, nil)
	}
	return n
}

// occurrence is next without its priority.
func (f *Flight) occurrence(in Inputs, o Outcome) *Entry {
	e, least := f.Entry, in.Source.Ceilings.MinDelay
	if e.DeadLetter != nil {
		return nil
	}
	ends := o.Kind == Succeeded && (o.Never || e.Event.Ends())
	tick, until, over := f.tick(&in)
	if ends {
		tick = time.Time{}
	}
	var n *Entry
	switch owed, interval := e.dueAgainAt(), e.interval(in.Source); {
	case !owed.IsZero(): // like a newer occurrence that waits: the sooner time, its event
		if o.Again != nil && o.Kind != Failed && o.Again.time(in, least).Before(owed) {
			owed = o.Again.time(in, least)
		}
		n = e.renew(in, in.Now.Add(max(owed.Sub(in.Now), 0)))
	case o.Again != nil && o.Kind != Failed:
		n = e.renew(in, o.Again.time(in, least))
		n.MayWait = o.Again.mayWait(in.Now)
		if o.Again.Reply != nil {
			n.Event = o.Again.Reply
		}
	case ends, over, interval <= 0 && tick.IsZero():
		return nil
	default:
		due := tick
		if interval > 0 {
			due = in.after(max(interval, least, MinWait))
		}
		n = e.renew(in, due)
		n.MayWait = true
	}
	if !tick.IsZero() {
		n.follow(e, tick, until)
	}
	return n
}

// renew makes a new occurrence of the entry. An expiry and a calendar belonged to the old one: see [Entry.follow].
func (e *Entry) renew(in Inputs, due time.Time) *Entry {
	return &Entry{
		Revision: in.Revision, Occurrence: in.Revision, ScheduledAt: in.Now, DueAt: due,
		MaxInterval: e.MaxInterval, Timing: Timing{Slack: e.Slack}, UID: e.UID, Cause: e.Cause, Event: e.Event.again(),
	}
}

// succeedBefore returns the newer occurrence after the success of the older one, or
// after a rejection that asks for the key once more.
func (f *Flight) succeedBefore(in Inputs, waiting *Entry, o Outcome) (*Entry, bool) {
	n := *waiting
	n.UnfinishedAt = time.Time{}
	if !f.OwnCounter {
		n.Attempt, n.Tries = 0, 0
	}
	changed := !waiting.UnfinishedAt.IsZero() || n.Attempt != waiting.Attempt || n.Tries != waiting.Tries
	if o.Again != nil {
		n.Priority = f.priority(o, waiting)
		changed = changed || n.Priority != waiting.Priority
		if at := o.Again.time(in, in.Source.Ceilings.MinDelay); at.Before(n.At()) {
			n.PreviousDueAt, n.DueAt, n.RetryAt, n.OnSchedule = n.DueAt, at, time.Time{}, false
			n.MayWait = n.MayWait && o.Again.mayWait(in.Now)
			n.Revision, changed = in.Revision, true
		}
	}
	return &n, changed
}

// fail returns the effect of a failure. waiting is the entry that was accepted during
// the delivery, or nil.
func (f *Flight) fail(in Inputs, waiting *Entry, o Outcome) Step {
	if o.Unsent {
		return f.unsent(in, waiting, o)
	}
	tries := increment(f.Entry.Tries)
	if o.Kind == Rejected || in.Source.Delivery.exhausted(tries) {
		return f.giveUp(in, waiting, o)
	}
	at := in.after(in.Source.Delivery.wait(tries, o.RetryAfter))
	if o.Again != nil {
		at = o.Again.time(in, 0) // a retry: MinDelay does not apply
	}
	if f.Superseded || waiting != nil && f.Entry.Expired(at) { // no retry: the newer occurrence keeps its time
		s := Step{Disposition: Superseding}
		s.Next, s.Changed = f.failedBefore(in, waiting)
		return s
	}
	n := f.failed(in, waiting)
	n.Priority = f.priority(o, waiting)
	if waiting == nil {
		if n.Expired(in.Now) {
			return Step{Changed: true, Disposition: Expired}
		}
		n.Tries = tries
	}
	return f.retry(in, n, waiting, at, o)
}

// priority is the priority of the occurrence that follows from the run. waiting is what was accepted meanwhile, or nil.
func (f *Flight) priority(o Outcome, waiting *Entry) Priority {
	p := f.Entry.Priority
	if o.Priority != nil {
		p = *o.Priority
	}
	if waiting != nil {
		p = max(p, waiting.Priority)
	}
	return p
}

// retry returns the effect of an attempt that comes again at an instant. n is the key's entry.
func (f *Flight) retry(in Inputs, n, waiting *Entry, at time.Time, o Outcome) Step {
	switch {
	case waiting == nil:
		n.RetryAt, n.LastFailure = at, &LastFailure{At: in.Now, Code: o.Failure.Code, Data: o.Failure.Data}
	case at.Before(n.At()): // an event never postpones: the retry comes first
		n.DueAt, n.RetryAt = f.Entry.DueAt, at
	}
	return Step{Next: n, Changed: true, Disposition: Retrying}
}

// An occurrence that cannot be sent is tried again after as long as it is late, within these bounds.
const unsentLeast, unsentMost = 5 * time.Second, time.Minute

// unsent returns the effect of an attempt that did not reach the sink for no fault of the sink's: no try is counted.
func (f *Flight) unsent(in Inputs, waiting *Entry, o Outcome) Step {
	switch {
	case f.Superseded:
		return Step{Next: waiting, Disposition: Superseding}
	case waiting == nil && f.Entry.Expired(in.Now):
		return Step{Changed: true, Disposition: Expired}
	}
	at := in.after(min(max(in.Now.Sub(f.Entry.DueAt), unsentLeast), unsentMost))
	n := *f.Entry
	if waiting != nil {
		n = *waiting
		n.UnfinishedAt = time.Time{}
	}
	n.Priority = f.priority(o, waiting)
	return f.retry(in, &n, waiting, at, o)
}

// failed is the key's entry, one failed run later. An event that waits keeps its distance
// to the failure.
func (f *Flight) failed(in Inputs, waiting *Entry) *Entry {
	n := *f.Entry
	if waiting != nil {
		n = *waiting
		n.UnfinishedAt, n.Tries = time.Time{}, 0
	}
	if f.OwnCounter {
		return &n
	}
	n.Attempt = increment(n.Attempt)
	if at := in.Now.Add(eventFloor(n.Attempt)); waiting != nil && n.At().Before(at) {
		n.RetryAt = at
	}
	return &n
}

// failedBefore returns the occurrence that waits behind the failed occurrence, if there is
// one. Its counter grows unless it is its own.
func (f *Flight) failedBefore(in Inputs, waiting *Entry) (*Entry, bool) {
	if waiting == nil || f.OwnCounter {
		return waiting, false
	}
	return f.failed(in, waiting), true
}

// giveUp ends the delivered occurrence. Its event goes to the dead letter sink, or is
// kept if there is none or it refused, even when a newer occurrence has replaced it.
func (f *Flight) giveUp(in Inputs, waiting *Entry, o Outcome) Step {
	s := Step{Next: waiting, Disposition: Dropped}
	switch {
	case in.Source.DeadLetter != nil && f.Entry.DeadLetter == nil:
		s.Dead, s.Disposition = f.Entry.deadLetter(in, o.Failure), DeadLettered
	case in.Source.Letters.Keep > 0:
		s.Dead, s.Disposition = f.Entry.keep(in, o.Failure), KeptLetter
	}
	switch again := o.Kind == Rejected && o.Again != nil; {
	case again && waiting != nil:
		s.Next, s.Changed = f.succeedBefore(in, waiting, o)
	case f.Superseded && !again, waiting != nil: // the newer occurrence decides
		s.Next, s.Changed = f.failedBefore(in, waiting)
	default:
		s.Next, s.Changed = f.next(in, o), true
	}
	return s
}

// deadLetter is the entry that carries the occurrence's event to the dead
// letter sink.
func (e *Entry) deadLetter(in Inputs, failure Failure) *Entry {
	return &Entry{
		Revision: in.Revision, Occurrence: in.Revision, ScheduledAt: in.Now, DueAt: in.Now,
		MaxInterval: e.MaxInterval, Timing: Timing{Slack: e.Slack}, Priority: e.Priority, UID: e.UID, Cause: e.Cause, Event: e.Event,
		DeadLetter: &DeadLetter{
			Key: in.Key, Due: e.DueAt, ID: e.EventID(in.StoreID), Attempt: e.Attempt, Tries: increment(e.Tries), Failure: failure, Revision: e.Revision,
		},
	}
}

// Recover returns the entry after a restart that cut off a delivery. The outcome of
// the older occurrence is unknown, so the key is due at its time, and once more at
// the time of the event that was accepted behind it.
func (e *Entry) Recover() (*Entry, bool) {
	if e.UnfinishedAt.IsZero() || !e.dueAgainAt().IsZero() {
		return e, false
	}
	n := *e
	n.UnfinishedAt = time.Time{}
	if e.UnfinishedAt.Before(e.DueAt) {
		n.DueAt, n.UnfinishedAt, n.RetryAt, n.MayWait, n.OnSchedule = e.UnfinishedAt, e.DueAt, time.Time{}, false, false
	}
	return &n, true
}
