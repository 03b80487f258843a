package store

import (
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Overview is a summary of a data directory.
type Overview struct {
	ID      string           `json:"id"`
	Format  int              `json:"format"`
	Form    Form             `json:"form"`
	Clock   time.Time        `json:"clock,omitzero"` // the last recorded wall clock
	Sources []SourceOverview `json:"sources"`
}

// SourceOverview is a summary of a source.
type SourceOverview struct {
	Source      string `json:"source"`
	Keys        int64  `json:"keys"`
	DeadLetters int64  `json:"deadLetters"`
	// Watched counts the watched objects that are remembered.
	Watched int64 `json:"watched,omitempty"`
	// NextAt is the time of the next attempt of a key or dead letter.
	NextAt time.Time `json:"nextAt,omitzero"`
}

// Overview lists the sources.
func (db *DB) Overview() (Overview, error) {
	o := Overview{ID: db.id, Format: format, Form: db.form, Sources: []SourceOverview{}}
	var err error
	if o.Clock, err = db.Clock(); err != nil {
		return o, err
	}
	sources, err := db.Sources()
	if err != nil {
		return o, err
	}
	for _, source := range sources {
		s := SourceOverview{Source: source}
		if s.Keys, s.DeadLetters, err = db.Count(source); err != nil {
			return o, err
		}
		due, err := db.newDueOrder(db.db, source, Position{})
		if err != nil {
			return o, err
		}
		if first, _, ok := due.next(); ok {
			s.NextAt = first.At
		}
		if due.done(&err); err != nil {
			return o, err
		}
		if s.Watched, err = db.countMarks(appendSource(nil, tableMark, source)); err != nil {
			return o, err
		}
		o.Sources = append(o.Sources, s)
	}
	return o, nil
}

// Dump is an entry in readable form. Data is base64 in JSON.
type Dump struct {
	Source        string    `json:"source"`
	Key           string    `json:"key"`
	Revision      uint64    `json:"revision"`
	Occurrence    uint64    `json:"occurrence"`
	EventID       string    `json:"eventID"`
	ScheduledAt   time.Time `json:"scheduledAt,omitzero"`
	DueAt         time.Time `json:"dueAt,omitzero"`
	PreviousDueAt time.Time `json:"previousDueAt,omitzero"`
	RetryAt       time.Time `json:"retryAt,omitzero"`
	ExpiresAt     time.Time `json:"expiresAt,omitzero"`
	UnfinishedAt  time.Time `json:"unfinishedAt,omitzero"`
	Attempt       uint32    `json:"attempt"`
	Tries         uint32    `json:"tries"`
	DumpWaits
	UID         string               `json:"uid,omitempty"`
	Reason      string               `json:"reason,omitempty"`
	TraceParent string               `json:"traceParent,omitempty"`
	TraceState  string               `json:"traceState,omitempty"`
	Event       *schedule.Event      `json:"event,omitempty"`
	DeadLetter  *schedule.DeadLetter `json:"deadLetter,omitempty"`
}

// DumpWaits is how long the key may wait.
type DumpWaits struct {
	MaxInterval string `json:"maxInterval,omitempty"`
	Slack       string `json:"slack,omitempty"`
	MayWait     bool   `json:"mayWait,omitempty"`
	OnSchedule  bool   `json:"onSchedule,omitempty"`
	// Calendar is the key's own.
	Calendar *schedule.Calendar `json:"calendar,omitempty"`
}

// NewDump returns an entry in readable form.
func NewDump(source, key string, e *schedule.Entry, storeID string) Dump {
	d := Dump{
		Source: source, Key: key, Revision: e.Revision, Occurrence: e.Occurrence, EventID: e.EventID(storeID),
		ScheduledAt: e.ScheduledAt, DueAt: e.DueAt, PreviousDueAt: e.PreviousDueAt, RetryAt: e.RetryAt, ExpiresAt: e.ExpiresAt,
		UnfinishedAt: e.UnfinishedAt, Attempt: e.Attempt, Tries: e.Tries, DumpWaits: DumpWaits{MayWait: e.MayWait, OnSchedule: e.OnSchedule, Calendar: e.Calendar}, UID: e.UID, Reason: e.Reason,
		TraceParent: e.TraceParent, TraceState: e.TraceState, Event: e.Event, DeadLetter: e.DeadLetter,
	}
	if e.MaxInterval != nil {
		d.MaxInterval = e.MaxInterval.String()
	}
	if e.Slack != nil {
		d.Slack = e.Slack.String()
	}
	return d
}
