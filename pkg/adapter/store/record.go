package store

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// recordVersion is the first byte of every record. A reader refuses another
// one; the database's format version (meta.go) keeps it from meeting one.
const recordVersion = 1

// The fields of a record that are there, in the order in which they follow.
const (
	hasOccurrence    = 1 << iota // else it is the revision
	hasScheduledAt               //
	hasDueAt                     //
	hasRetryAt                   //
	hasExpiresAt                 //
	hasUnfinishedAt              //
	hasAttempt                   //
	hasTries                     //
	hasMaxInterval               //
	hasUID                       //
	hasReason                    //
	hasTraceParent               //
	hasTraceState                //
	hasEvent                     // its size; the body is in a row of its own, or a small one at the end
	hasEventID                   //
	hasDeadLetter                //
	hasLastFailure               //
	hasPreviousDueAt             //
	endsKey                      // of the event, nothing follows: a change that reads no body asks
	hasSlack                     //
	mayWait                      // nothing follows
	hasPriority
	hasCalendar
	onSchedule  // nothing follows
	knownFields = 1<<iota - 1
)

// The fields of an event, in the order in which they follow.
const (
	hasEventSource  = 1 << iota
	hasEventTime    //
	hasEventType    //
	hasEventSubject //
	hasContentType  //
	hasSchema       //
	hasExtensions   //
	hasData         // also when it is empty: nil is no data
	isBase64        // nothing follows
	knownEvent      = 1<<iota - 1
)

// The kinds of an extension's value.
const (
	extensionString = 's'
	extensionTrue   = 't'
	extensionFalse  = 'f'
	extensionInt    = 'i'
)

// smallBody is the size of an event's body up to which it is in the record: an outcome, which keeps the event, writes
// it again. A row of its own takes another write for each change, and another read for each delivery.
const smallBody = 512

// apart is the event of an entry whose body has a row of its own, nil if there is none.
func apart(e *schedule.Entry) *schedule.Event {
	if e == nil || e.Event == nil || e.Event.Body() <= smallBody {
		return nil
	}
	return e.Event
}

// appendRecord encodes an entry, without the body of an event that is apart.
func appendRecord(dst []byte, e *schedule.Entry) ([]byte, error) {
	fields := uint64(0)
	set := func(there bool, field uint64) {
		if there {
			fields |= field
		}
	}
	set(e.Occurrence != e.Revision, hasOccurrence)
	set(!e.ScheduledAt.IsZero(), hasScheduledAt)
	set(!e.DueAt.IsZero(), hasDueAt)
	set(!e.RetryAt.IsZero(), hasRetryAt)
	set(!e.ExpiresAt.IsZero(), hasExpiresAt)
	set(!e.UnfinishedAt.IsZero(), hasUnfinishedAt)
	set(e.Attempt != 0, hasAttempt)
	set(e.Tries != 0, hasTries)
	set(e.MaxInterval != nil, hasMaxInterval)
	set(e.UID != "", hasUID)
	set(e.Reason != "", hasReason)
	set(e.TraceParent != "", hasTraceParent)
	set(e.TraceState != "", hasTraceState)
	set(e.Event != nil, hasEvent)
	set(e.Event != nil && e.Event.ID != "", hasEventID)
	set(e.DeadLetter != nil, hasDeadLetter)
	set(e.LastFailure != nil, hasLastFailure)
	set(!e.PreviousDueAt.IsZero(), hasPreviousDueAt)
	set(e.Event.Ends(), endsKey)
	set(e.Slack != nil, hasSlack)
	set(e.MayWait, mayWait)
	set(e.Priority != schedule.NormalPriority, hasPriority)
	set(e.Calendar != nil, hasCalendar)
	set(e.OnSchedule, onSchedule)

	dst = append(dst, recordVersion)
	dst = binary.AppendUvarint(dst, fields)
	dst = binary.AppendUvarint(dst, e.Revision)
	if fields&hasOccurrence != 0 {
		dst = binary.AppendUvarint(dst, e.Occurrence)
	}
	for _, t := range [...]time.Time{e.ScheduledAt, e.DueAt, e.RetryAt, e.ExpiresAt, e.UnfinishedAt} {
		if !t.IsZero() {
			dst = appendInstant(dst, t)
		}
	}
	for _, n := range [...]uint32{e.Attempt, e.Tries} {
		if n != 0 {
			dst = binary.AppendUvarint(dst, uint64(n))
		}
	}
	if e.MaxInterval != nil {
		dst = binary.AppendVarint(dst, int64(*e.MaxInterval))
	}
	for _, s := range [...]string{e.UID, e.Reason, e.TraceParent, e.TraceState} {
		if s != "" {
			dst = appendString(dst, s)
		}
	}
	if e.Event != nil {
		dst = binary.AppendUvarint(dst, uint64(e.Event.Body()))
	}
	if fields&hasEventID != 0 {
		dst = appendString(dst, e.Event.ID)
	}
	if e.DeadLetter != nil {
		dst = appendDeadLetter(dst, e.DeadLetter)
	}
	if f := e.LastFailure; f != nil {
		dst = binary.AppendVarint(appendInstant(dst, f.At), int64(f.Code))
		dst = append(binary.AppendUvarint(dst, uint64(len(f.Data))), f.Data...)
	}
	if !e.PreviousDueAt.IsZero() {
		dst = appendInstant(dst, e.PreviousDueAt)
	}
	if e.Slack != nil {
		dst = binary.AppendVarint(dst, int64(*e.Slack))
	}
	if e.Priority != schedule.NormalPriority {
		dst = append(dst, bandMark(e.Priority))
	}
	if e.Calendar != nil {
		dst = appendCalendar(dst, e.Calendar)
	}
	if e.Event != nil && apart(e) == nil {
		return appendEvent(dst, e.Event)
	}
	return dst, nil
}

// appendEvent encodes the body of an event. It fails only on an extension of a type that an
// event cannot have.
func appendEvent(dst []byte, e *schedule.Event) ([]byte, error) {
	fields := uint64(0)
	set := func(there bool, field uint64) {
		if there {
			fields |= field
		}
	}
	set(e.Source != "", hasEventSource)
	set(!e.Time.IsZero(), hasEventTime)
	set(e.Type != "", hasEventType)
	set(e.Subject != "", hasEventSubject)
	set(e.DataContentType != "", hasContentType)
	set(e.DataSchema != "", hasSchema)
	set(len(e.Extensions) > 0, hasExtensions)
	set(e.Data != nil, hasData)
	set(e.DataBase64, isBase64)

	dst = binary.AppendUvarint(dst, fields)
	if e.Source != "" {
		dst = appendString(dst, e.Source)
	}
	if !e.Time.IsZero() {
		dst = appendAnyTime(dst, e.Time)
	}
	for _, s := range [...]string{e.Type, e.Subject, e.DataContentType, e.DataSchema} {
		if s != "" {
			dst = appendString(dst, s)
		}
	}
	if len(e.Extensions) > 0 {
		dst = binary.AppendUvarint(dst, uint64(len(e.Extensions)))
		for _, name := range slices.Sorted(maps.Keys(e.Extensions)) {
			dst = appendString(dst, name)
			switch v := e.Extensions[name].(type) {
			case string:
				dst = appendString(append(dst, extensionString), v)
			case bool:
				kind := byte(extensionFalse)
				if v {
					kind = extensionTrue
				}
				dst = append(dst, kind)
			case int32:
				dst = binary.AppendVarint(append(dst, extensionInt), int64(v))
			default:
				return nil, fmt.Errorf("store: encoding an event: extension %q is a %T", name, v)
			}
		}
	}
	if e.Data != nil {
		dst = append(binary.AppendUvarint(dst, uint64(len(e.Data))), e.Data...)
	}
	return dst, nil
}

// appendDeadLetter writes all fields: dead letters are few.
func appendDeadLetter(dst []byte, d *schedule.DeadLetter) []byte {
	dst = appendString(dst, d.Key)
	dst = appendAnyTime(dst, d.Due)
	dst = appendString(dst, d.ID)
	dst = binary.AppendUvarint(dst, uint64(d.Attempt))
	dst = binary.AppendUvarint(dst, uint64(d.Tries))
	dst = binary.AppendUvarint(dst, d.Revision)
	dst = appendString(dst, d.Failure.Dest)
	dst = binary.AppendVarint(dst, int64(d.Failure.Code))
	return append(binary.AppendUvarint(dst, uint64(len(d.Failure.Data))), d.Failure.Data...)
}

func appendCalendar(dst []byte, c *schedule.Calendar) []byte {
	dst = appendString(appendString(dst, c.Cron), c.TimeZone)
	dst = binary.AppendUvarint(dst, math.Float64bits(c.Jitter))
	return appendInstant(dst, c.Until) // without an end the earliest one
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// appendAnyTime writes an instant of any year and its offset from UTC: an
// event's time is the sender's, and leaves as it came.
func appendAnyTime(dst []byte, t time.Time) []byte {
	_, offset := t.Zone()
	dst = binary.AppendVarint(dst, t.Unix())
	dst = binary.AppendUvarint(dst, uint64(t.Nanosecond()))
	return binary.AppendVarint(dst, int64(offset))
}
