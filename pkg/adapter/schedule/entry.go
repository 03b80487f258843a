package schedule

import (
	"strconv"
	"time"
)

// Entry is the stored state of one key: its newest occurrence, waiting or in
// delivery. The zero time means "none". An Entry is immutable once stored: every
// step makes a new one.
type Entry struct {
	// Revision grows with every accepted change of the key and is never used again.
	Revision uint64
	// Occurrence is the revision that made the occurrence; the event's id
	// follows from it, so it stays over retries and restarts.
	Occurrence uint64

	ScheduledAt time.Time // when the newest change was accepted
	DueAt       time.Time // retries do not move it
	// PreviousDueAt is when the occurrence was due that a request found waiting, or this one
	// before an answer of the sink brought it forward. A new occurrence has none.
	PreviousDueAt time.Time

	RetryAt   time.Time // set between two attempts: when the next one starts
	ExpiresAt time.Time // not delivered from then on
	// UnfinishedAt is the due time of an older occurrence that was in delivery when
	// an event was accepted. If the process ends before the outcome is known, the key
	// is due at that time, because an event never cancels. After such a restart it is
	// later than DueAt: then it is the event's own time, at which the key is due once
	// more.
	UnfinishedAt time.Time

	Attempt uint32 // the key's counter: failed runs in a row
	Tries   uint32 // failed deliveries of this occurrence's event, for retry and its back-off

	// LastFailure is the occurrence's last failed attempt; nil: none failed.
	LastFailure *LastFailure

	MaxInterval *time.Duration // nil: the source's
	Timing
	Priority Priority
	UID      string
	Cause
	Event *Event // nil: the default event

	// DeadLetter is set for an entry under a dead letter key.
	DeadLetter *DeadLetter
}

// Cause is what the call that scheduled an occurrence says of itself.
type Cause struct {
	Reason                  string
	TraceParent, TraceState string // its W3C trace context
}

// Timing is when an occurrence goes, beside its instants.
type Timing struct {
	Slack    *time.Duration // nil: the source's
	MayWait  bool           // for company, within its slack: see [Entry.OwnSlack]
	Calendar *Calendar      // nil: the source's
	// OnSchedule: DueAt is an instant of the source's schedule, and nothing asked for a time of its own, which
	// would be lost if the key moved with the schedule.
	OnSchedule bool
}

// DeadLetter is the reason why an event goes to the dead letter sink.
type DeadLetter struct {
	Key     string    // the key it was delivered for
	Due     time.Time // of its occurrence
	ID      string    // of its event, as it was first sent
	Attempt uint32    // its counter when the last attempt started
	Tries   uint32    // attempts of its occurrence
	Failure Failure
	// Revision is the revision that the last attempt carried.
	Revision uint64
}

// LastFailure is a failed attempt, for callers who read the key.
type LastFailure struct {
	At   time.Time
	Code int    // HTTP status; 0 when there was no answer
	Data []byte // start of the answer's body; without an answer the reason
}

// Failure is the last answer before a delivery was given up.
type Failure struct {
	Dest string // the URL that refused
	Code int    // HTTP status; 0 when there was no answer
	Data []byte // start of the answer's body, at most MaxFailureData
}

// BadAnswer is the error of a 2xx whose wait could not be read.
const BadAnswer = "bad_answer"

// IsBadAnswer reports whether a failed attempt was answered with the status of a success:
// its wait could not be read.
func IsBadAnswer(code int) bool { return code >= 200 && code <= 299 }

// MaxFailureData is how many bytes of a failing answer are kept and shown.
const MaxFailureData = 1024

// At is when the next attempt may start.
func (e *Entry) At() time.Time {
	if !e.RetryAt.IsZero() {
		return e.RetryAt
	}
	return e.DueAt
}

// dueAgainAt is when the key is due once more, independent of the outcome; zero if it is
// not. See UnfinishedAt.
func (e *Entry) dueAgainAt() time.Time {
	if e.UnfinishedAt.After(e.DueAt) {
		return e.UnfinishedAt
	}
	return time.Time{}
}

// Expired reports that the occurrence must not be delivered any more.
func (e *Entry) Expired(now time.Time) bool {
	return !e.ExpiresAt.IsZero() && !now.Before(e.ExpiresAt)
}

// EventID is the CloudEvents id of the entry's deliveries. The store's id
// keeps it unique when a new data directory is made.
func (e *Entry) EventID(storeID string) string {
	if e.DeadLetter != nil {
		return e.DeadLetter.ID
	}
	if e.Event != nil && e.Event.ID != "" {
		return e.Event.ID
	}
	return storeID + "-" + strconv.FormatUint(e.Occurrence, 10)
}

// entryBytes is the fixed part of every Size: times and counters, the rows of the
// indexes, and the first idBytes of both the event's id and the trace context, which
// change from occurrence to occurrence.
const (
	entryBytes = 128
	idBytes    = 64
)

// Size is the bytes that the entry counts in quotas: its key, attributes and data,
// before compression, and a fixed amount for the rest. It depends only on values
// that callers choose, so a replacement by the same values never grows. The size of
// nil is 0.
func (e *Entry) Size(key string) int64 {
	if e == nil {
		return 0
	}
	n := entryBytes + len(key) + len(e.UID) + len(e.Reason) + max(len(e.TraceState)-idBytes, 0) + int(e.Event.size())
	if c := e.Calendar; c != nil {
		n += len(c.Cron) + len(c.TimeZone)
	}
	if e.LastFailure != nil {
		n += len(e.LastFailure.Data)
	}
	if d := e.DeadLetter; d != nil {
		n += len(d.Key) + len(d.ID) + len(d.Failure.Dest) + len(d.Failure.Data)
	}
	return int64(n)
}

func (e *Entry) interval(src *Spec) time.Duration {
	if e.MaxInterval != nil {
		return *e.MaxInterval
	}
	return src.MaxInterval
}

// View is a key as callers see it.
type View struct {
	Key string
	*Entry
	State    State
	InFlight bool // a delivery is under way, of this or of an older occurrence
	// CompanyUntil is when the key, which is due and waits for company, is delivered at the latest; else zero.
	CompanyUntil time.Time
}

// Retrying reports that the key is between two attempts.
func (v *View) Retrying() bool { return v.State != InFlight && !v.RetryAt.IsZero() }

// Attempts is how many attempts of the occurrence were started so far.
func (v *View) Attempts() uint32 {
	if v.State == InFlight {
		return increment(v.Tries)
	}
	return v.Tries
}

// WaitFor notes that due keys of the source wait for company until an instant, at the latest; zero if none does. A key
// in delivery waits for the end of that.
func (v *View) WaitFor(until time.Time, src *Spec, now time.Time) {
	if end := v.SlackEnd(src); v.State == Due && !v.InFlight && !until.IsZero() && end.After(now) {
		v.CompanyUntil = until
	}
}

// NewView returns the view of an entry. own: the delivery under way is of this
// occurrence, so nothing waits.
func NewView(key string, e *Entry, inFlight, own bool, now time.Time) View {
	v := View{Key: key, Entry: e, State: Waiting, InFlight: inFlight}
	switch {
	case own:
		v.State = InFlight
	case !e.DueAt.After(now):
		v.State = Due
	}
	return v
}
