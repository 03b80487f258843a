package schedule

import (
	"time"
)

// Attempt is one delivery for a Sender to make.
type Attempt struct {
	Source *Spec
	Target Target // the sink, or the dead letter sink
	Key    string
	Entry  *Entry
	ID     string // of the event
	// Begin is called right before the first byte is written, and returns whether the
	// attempt may still start. If so the caller must write at once and then call
	// wrote: a change that replaces the occurrence is answered only after that. If
	// not, the caller must write nothing, and the outcome is Aborted. Begin is called
	// again before the attempt is written once more. nil: it may start.
	Begin func() (wrote func(), ok bool)
	// OnCallOff takes the function that ends the attempt: it is called when a change replaces the
	// occurrence before the attempt has begun, and when the first write blocks such a change. nil:
	// the attempt ends at its Begin.
	OnCallOff func(end func())
}

// NewAttempt is the next attempt to deliver an entry. It is false for a dead
// letter whose source has no dead letter sink any more.
func NewAttempt(src *Spec, key string, e *Entry, storeID string) (Attempt, bool) {
	a := Attempt{Source: src, Target: src.Sink, Key: key, Entry: e, ID: e.EventID(storeID)}
	if e.DeadLetter != nil {
		if src.DeadLetter == nil {
			return a, false
		}
		a.Key, a.Target = e.DeadLetter.Key, *src.DeadLetter
	}
	return a, true
}

// Revision is the revision of the occurrence. A dead letter keeps the Revision, DueAt
// and Number of the delivery that was given up.
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
