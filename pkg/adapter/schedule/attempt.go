package schedule

import (
	"time"
)

// Attempt is one delivery to be made: what a Sender needs to know.
type Attempt struct {
	Source *Source
	Target Target // the sink, or the dead letter sink
	Key    string
	Entry  *Entry
	ID     string // of the event
	// Begin asks, right before the first byte is written, whether the attempt
	// may still start. If so the caller writes at once and calls wrote then: a
	// change that takes the place of the occurrence is answered only after that.
	// If not, nothing is written and the outcome is Aborted. It is asked again
	// before the attempt is written once more. nil: it may.
	Begin func() (wrote func(), ok bool)
}

// NewAttempt is the next attempt to deliver an entry. It is false for a dead
// letter whose source has no dead letter sink any more.
func NewAttempt(src *Source, key string, e *Entry, storeID string) (Attempt, bool) {
	a := Attempt{Source: src, Target: src.Sink, Key: key, Entry: e, ID: e.EventID(storeID)}
	if e.DeadLetter != nil {
		if src.DeadLetter == nil {
			return a, false
		}
		a.Key, a.Target = e.DeadLetter.Key, *src.DeadLetter
	}
	return a, true
}

// Revision is the occurrence's. A dead letter keeps it, DueAt and Number as they
// were in the delivery that was given up.
func (a *Attempt) Revision() uint64 {
	if d := a.Entry.DeadLetter; d != nil {
		return d.Revision
	}
	return a.Entry.Revision
}

// DueAt is when the occurrence was due.
func (a *Attempt) DueAt() time.Time {
	if d := a.Entry.DeadLetter; d != nil {
		return d.Due
	}
	return a.Entry.DueAt
}

// Number is the attempt counter; 0 is the first attempt.
func (a *Attempt) Number() uint32 {
	if d := a.Entry.DeadLetter; d != nil {
		return d.Attempt
	}
	return a.Entry.Attempt
}
