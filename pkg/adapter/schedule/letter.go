package schedule

import (
	"time"
)

// Letters says which dead letters are kept; Keep 0: none.
type Letters struct {
	Keep   int // of a source: the newest
	MaxAge time.Duration
}

// A dead letter that is kept has the key of its occurrence behind keptPrefix, so there is
// one for each key. No other dead letter has a key like it: see DeadLetterKey.
const keptPrefix = deadLetterPrefix + "/"

// KeptLetterKey is the key under which the dead letter of a key is kept.
func KeptLetterKey(key string) string { return keptPrefix + key }

// IsKeptLetterKey reports whether the key is of a dead letter that is kept.
func IsKeptLetterKey(key string) bool {
	return len(key) > len(keptPrefix) && key[:len(keptPrefix)] == keptPrefix
}

// A dead letter that is kept is due keptFor later, so that it is not delivered and the
// due order has all of them behind all keys, oldest first. KeptAfter is between the two.
const (
	keptFor   = MaxDuration + MaxDuration/2
	KeptAfter = MaxDuration + MaxDuration/100
)

// keep returns the occurrence, or the dead letter that its sink refused, as a dead letter
// that is kept.
func (e *Entry) keep(in Inputs, failure Failure) *Entry {
	letter := e
	if e.DeadLetter == nil {
		letter = e.deadLetter(in, failure)
	}
	return letter.Keep(in)
}

// Keep returns a dead letter as one that is kept from now on. Its Occurrence stays the revision of
// the outcome that gave the event up.
func (e *Entry) Keep(in Inputs) *Entry {
	return &Entry{
		Revision: in.Revision, Occurrence: e.Occurrence, ScheduledAt: in.Now, DueAt: in.Now.Add(keptFor),
		ExpiresAt: in.Now.Add(in.Source.Letters.MaxAge), MaxInterval: e.MaxInterval, Timing: Timing{Slack: e.Slack}, Priority: e.Priority, UID: e.UID, Cause: e.Cause,
		Event: e.Event, DeadLetter: e.DeadLetter,
	}
}

// left reports that cur is the occurrence which the outcome that made the letter left behind, with
// maxInterval or Reschedule-After, and that nothing was accepted since: that has a revision of its own.
func (e *Entry) left(cur *Entry) bool {
	return cur.Revision == e.Occurrence && cur.Occurrence == e.Occurrence
}

// Redrive returns the request that makes a new occurrence of a dead letter that is kept:
// due now, with an id of its own. cur is the key's entry, nil when nothing waits and nothing
// is in flight: otherwise cur is newer than the letter, which takes its place only with
// replace, unless the outcome that made the letter left it. Then it keeps its time if that
// is sooner.
func (e *Entry) Redrive(cur *Entry, replace bool) (Request, error) {
	r := Request{
		Delay: new(time.Duration), Policy: Earliest, Event: e.Event.again(), MaxInterval: e.MaxInterval, Slack: e.Slack, Priority: e.Priority, Reason: e.Reason,
		TraceParent: e.TraceParent, TraceState: e.TraceState,
	}
	switch {
	case cur == nil:
		r.UID = e.UID
	case !replace && !e.left(cur):
		return r, Refuse(CodeExists, "key %q has something newer, scheduled at %s: wait until it has ended, or give replace=true to put the dead letter in its place",
			e.DeadLetter.Key, cur.ScheduledAt.UTC().Format(time.RFC3339Nano))
	}
	if r.Event == nil { // the default event, also if the key has another one by now
		r.Event = &Event{}
	}
	return r, nil
}
