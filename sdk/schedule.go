package sdk

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"
)

// State is the state of a key.
type State string

// The states.
const (
	Waiting  State = "waiting"
	Due      State = "due"      // its time has come: queued, or between two attempts
	InFlight State = "inFlight" // being delivered, and nothing waits behind it
	// Retrying selects keys between two attempts from the due ones, in [ListOptions]. The
	// State of such a key is Due.
	Retrying State = "retrying"
)

// Result is the result of a request.
type Result string

// The results.
const (
	Created  Result = "created"  // nothing waited
	Replaced Result = "replaced" // something waited, and has a new time
	Merged   Result = "merged"   // the time stayed, the event is new
	Kept     Result = "kept"     // nothing changed
)

// Schedule is the state of a key at the source.
type Schedule struct {
	Key string `json:"key"`
	// Revision grows with every accepted change and is never used again for the key. It
	// is in the delivery too.
	Revision uint64 `json:"revision"`
	// Result is the result of the request that this answers.
	Result Result `json:"result,omitempty"`
	State  State  `json:"state"`
	// DueAt is when it is due; retries do not move it.
	DueAt time.Time `json:"dueAt"`
	// PreviousDueAt is when it was due before its time was last changed or confirmed; zero
	// of a new occurrence.
	PreviousDueAt time.Time `json:"previousDueAt,omitzero"`
	// ScheduledAt is when the newest change was accepted.
	ScheduledAt time.Time `json:"scheduledAt"`
	// Attempt is how many runs in a row failed.
	Attempt int `json:"attempt"`
	// InFlight is whether a delivery is in flight, of this or an older occurrence.
	InFlight bool `json:"inFlight"`
	// Tries is how many attempts of this occurrence were made.
	Tries int `json:"tries"`
	// NextAttemptAt is when the next attempt starts; zero unless it is between two.
	NextAttemptAt time.Time `json:"nextAttemptAt,omitzero"`
	// CompanyUntil is when it is delivered at the latest, while it is due and waits for
	// others, within its slack; else zero.
	CompanyUntil time.Time `json:"companyUntil,omitzero"`
	// LastFailure is the last failed attempt of this occurrence; nil if there is none.
	LastFailure *Failure `json:"lastFailure,omitempty"`

	// The fields of the request; zero if it did not set them.

	Terms
	UID         string         `json:"uid,omitempty"`
	Reason      string         `json:"reason,omitempty"`
	MaxInterval *time.Duration `json:"maxInterval,omitempty"`
	Slack       *time.Duration `json:"slack,omitempty"`
	ExpiresAt   time.Time      `json:"expiresAt,omitzero"`
	Event       *Event         `json:"event,omitempty"`
}

// Terms are the priority of a key, and its calendar, if it has one.
type Terms struct {
	Priority Priority `json:"priority,omitzero"`
	Cron     string   `json:"cron,omitempty"`
	TimeZone string   `json:"timeZone,omitempty"`
	Jitter   float64  `json:"jitter,omitempty"` // of the calendar; 0 is the source's
}

// Failure is an attempt that failed.
type Failure struct {
	At     time.Time `json:"at"`
	Status int       `json:"status"`          // of the sink's answer; 0 = there was none
	Error  string    `json:"error,omitempty"` // why there was no answer
	Detail string    `json:"detail,omitempty"`
}

type plainSchedule Schedule // without methods

// wireSchedule is a schedule in JSON. Its own fields hide the fields of the same name in
// plainSchedule.
type wireSchedule struct {
	plainSchedule
	Tries       *int      `json:"tries,omitempty"`
	MaxInterval *duration `json:"maxInterval,omitempty"`
	Slack       *duration `json:"slack,omitempty"`
}

// MarshalJSON writes the schedule as the schedule API has it: the answer to a request, which
// has a result, does not say how many tries there were.
func (s Schedule) MarshalJSON() ([]byte, error) {
	w := wireSchedule{plainSchedule: plainSchedule(s), MaxInterval: (*duration)(s.MaxInterval), Slack: (*duration)(s.Slack)}
	if s.Result == "" {
		w.Tries = &s.Tries
	}
	return marshal(w)
}

// missing names a member that a source never leaves out.
func (s *Schedule) missing() string {
	switch {
	case s.Key == "":
		return "key"
	case s.Revision == 0:
		return "revision"
	case s.State == "":
		return "state"
	case s.DueAt.IsZero():
		return "dueAt"
	}
	return ""
}

// marshal leaves <, > and & as they are: whether they are escaped is the caller's choice,
// and an encoder that does not escape could not take it back.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'}), err
}

// UnmarshalJSON reads the answer of a source. It ignores unknown members.
func (s *Schedule) UnmarshalJSON(b []byte) error {
	var w wireSchedule
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*s = Schedule(w.plainSchedule)
	s.MaxInterval, s.Slack = (*time.Duration)(w.MaxInterval), (*time.Duration)(w.Slack)
	if w.Tries != nil {
		s.Tries = *w.Tries
	}
	return nil
}

// Counts are how much waits at a source. Above 10,000 due keys, Due and the
// instants may be a few seconds old.
type Counts struct {
	Pending  int // waiting and due
	Due      int // the part of Pending whose time has come, retries included
	InFlight int
	// NextDueAt is when the next key is due, OldestDueAt is when the key became due that
	// has been due for longest; zero when there is none.
	NextDueAt, OldestDueAt time.Time
	// CompanyUntil is until when, at the latest, due keys wait for others, within their
	// slack; zero if none does.
	CompanyUntil time.Time
	Watched      int // objects of spec.watch
	Retrying     int // the part of Due that is between two attempts
	DeadLetters  int // kept
	// Priorities are the keys of each priority, nil while all are normal.
	Priorities map[Priority]PriorityCounts
	// Scale is the state of the workload of spec.scale, nil without one.
	Scale *Scale
}

// PriorityCounts are the parts of [Counts] that have one priority.
type PriorityCounts struct {
	Pending int `json:"pending"`
	Due     int `json:"due"`
}

// Scale is the state of a workload that sleeps while there is nothing to deliver, and its
// figures since the source exists.
type Scale struct {
	State           string     `json:"state,omitempty"` // Asleep, Starting or Awake; "" until it is known
	Since           *time.Time `json:"since,omitempty"` // when State began
	Starts          int64      `json:"starts"`
	AwakeSeconds    int64      `json:"awakeSeconds"` // in which it was not asleep
	ObservedSeconds int64      `json:"observedSeconds"`
	LastStart       string     `json:"lastStart,omitempty"` // how long it took, such as 1.3s
	// QuietRuns is how often an observed workload with busy has reconciled while it would have
	// slept, QuietEverySeconds the mean time between two of them, Requeues how many of its
	// reconciles ended with RequeueAfter.
	QuietRuns         int64  `json:"quietRuns,omitempty"`
	QuietEverySeconds int64  `json:"quietEverySeconds,omitempty"`
	Requeues          int64  `json:"requeues,omitempty"`
	Reason            string `json:"reason,omitempty"`  // why it cannot be scaled, in one word
	Message           string `json:"message,omitempty"` // Reason as a sentence
}

type wireCounts struct {
	Pending      int        `json:"pending"`
	Due          int        `json:"due"`
	InFlight     int        `json:"inFlight"`
	NextDueAt    *time.Time `json:"nextDueAt"`
	OldestDueAt  *time.Time `json:"oldestDueAt"`
	CompanyUntil time.Time  `json:"companyUntil,omitzero"`
	Watched      int        `json:"watched"`
	Retrying     int        `json:"retrying"`
	DeadLetters  int        `json:"deadLetters"`
	Scale        *Scale     `json:"scale,omitempty"`

	Priorities map[Priority]PriorityCounts `json:"priorities,omitempty"`
}

// MarshalJSON writes the counts as the schedule API has them, where a zero
// instant is null.
func (c Counts) MarshalJSON() ([]byte, error) {
	w := wireCounts{Pending: c.Pending, Due: c.Due, InFlight: c.InFlight, CompanyUntil: c.CompanyUntil, Watched: c.Watched, Retrying: c.Retrying, DeadLetters: c.DeadLetters, Priorities: c.Priorities, Scale: c.Scale}
	if !c.NextDueAt.IsZero() {
		w.NextDueAt = &c.NextDueAt
	}
	if !c.OldestDueAt.IsZero() {
		w.OldestDueAt = &c.OldestDueAt
	}
	return json.Marshal(w)
}

// countsAnswer is an answer with the counts.
type countsAnswer struct {
	Counts
	members map[string]json.RawMessage
}

// UnmarshalJSON ignores unknown members.
func (a *countsAnswer) UnmarshalJSON(b []byte) error {
	return errors.Join(json.Unmarshal(b, &a.members), json.Unmarshal(b, &a.Counts))
}

// missing does not ask for what the first version of a source does not have.
func (a *countsAnswer) missing() string {
	for _, name := range []string{"pending", "due", "inFlight", "nextDueAt", "oldestDueAt"} {
		if _, there := a.members[name]; !there {
			return name
		}
	}
	return ""
}

// Outcome is the result of one item of a call for many.
type Outcome struct {
	Key string
	// Schedule is the state of the key, nil if the item was refused.
	Schedule *Schedule
	// Err is the reason if it was refused, an [*Error].
	Err error
}
