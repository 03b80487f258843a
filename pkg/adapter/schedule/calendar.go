package schedule

import (
	"cmp"
	"errors"
	"math"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/calendar"
)

// Calendar makes a key due at each instant of a cron expression: of the key itself, or, without one, of its source.
// Each occurrence is followed by the first instant after its last attempt began, so the instants that passed before
// are one occurrence, and a run that outlasts the next instant is followed by one at once.
//
// What happens beside a calendar, Reschedule-After, maxInterval, an event or run, only adds occurrences that are
// sooner. It ends with a request that replaces the key, with DELETE, with the answer that ends the key, and at Until.
type Calendar struct {
	Cron, TimeZone string
	// Jitter is the share of the time to the following instant that is added at most; 0: the source's.
	Jitter float64
	// Until is the expiry of its occurrences, only of a key's own calendar. An event that comes between has none.
	Until time.Time
}

// NewCalendar checks the texts. The error names the field as the caller knows it.
func NewCalendar(cron, zone, cronField, zoneField string) (*Calendar, error) {
	_, err := calendar.Parse(cron, zone)
	wrong, bad := errors.AsType[*calendar.Error](err)
	switch {
	case bad && wrong.Field == calendar.FieldTimeZone:
		return nil, Invalid(zoneField, "%s", wrong.Detail)
	case err != nil:
		return nil, Invalid(cronField, "%s", wrong.Detail)
	}
	return &Calendar{Cron: cron, TimeZone: zone}, nil
}

// Next is the first instant after another one, without jitter.
func (c *Calendar) Next(after time.Time) time.Time {
	next, _ := c.following(after)
	return next
}

// following returns the first instant after another one, and the one that follows it.
func (c *Calendar) following(after time.Time) (first, second time.Time) {
	parsed, err := calendar.Parse(c.Cron, c.TimeZone)
	if err != nil { // an older program does not know the zone: a wrong hour is better than a lost key
		parsed, err = calendar.Parse(c.Cron, "")
	}
	if err != nil {
		return first, second
	}
	first = parsed.Next(after)
	return first, parsed.Next(first)
}

// due is when the calendar is due after an instant, with jitter: before the following instant, and not before the
// least wait from now. It is zero without a calendar.
func (c *Calendar) due(in *Inputs, after time.Time, least time.Duration) time.Time {
	if c == nil {
		return time.Time{}
	}
	at, following := c.following(after)
	if at.IsZero() {
		return at
	}
	pause := following.Sub(at)
	share := cmp.Or(c.Jitter, in.Source.Jitter)
	at = at.Add(min(time.Duration(math.Ceil(float64(pause)*share*in.Random)), max(pause-1, 0)))
	return later(at, in.Now.Add(least))
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// calendar is the calendar that the key follows: its own, or the source's, or nil.
func (e *Entry) calendar(src *Spec) *Calendar {
	if e.Calendar != nil {
		return e.Calendar
	}
	return src.Calendar
}

// keepCalendar completes the calendar of an entry that a request made: the request's, or, with no policy but
// replace, the one that the key has. own: the request came during a delivery, whose expiry is the calendar's alone.
func (e *Entry) keepCalendar(r *Request, cur *Entry, own bool) {
	switch {
	case r.Calendar != nil:
		c := *r.Calendar
		c.Jitter = r.Jitter
		if cur != nil && cur.Calendar != nil { // what is absent stays as it was
			c.Jitter = cmp.Or(c.Jitter, cur.Calendar.Jitter)
			if e.ExpiresAt.IsZero() && !r.Ingested {
				e.ExpiresAt = cur.Calendar.Until
			}
		}
		c.Until = e.ExpiresAt
		e.Calendar = &c
	case cur == nil || cur.Calendar == nil:
	case !r.ExpiresAt.IsZero():
		c := *cur.Calendar
		c.Until = r.ExpiresAt
		e.Calendar = &c
	default:
		e.Calendar = cur.Calendar
		if own && (!r.Ingested || r.Run) {
			e.ExpiresAt = e.Calendar.Until
		}
	}
}

// until is the expiry of the occurrences of the calendar that the key follows; zero without one. The expiry of a time of
// its own, on a source with a schedule, is of that occurrence alone.
func (e *Entry) until() time.Time {
	switch {
	case e.Calendar != nil:
		return e.Calendar.Until
	case e.OnSchedule:
		return e.ExpiresAt
	}
	return time.Time{}
}

// isOver reports that an occurrence would expire before it is due.
func isOver(at, until time.Time) bool { return !until.IsZero() && !at.Before(until) }

// tick is when the key's calendar is due after an attempt that began at an instant; zero without a calendar. over:
// the calendar has ended, because its next occurrence would expire.
func (f *Flight) tick(in *Inputs) (at, until time.Time, over bool) {
	e := f.Entry
	until = e.until()
	if e.Calendar != nil && !f.Own { // a newer request has ended it
		return at, until, true
	}
	at = e.calendar(in.Source).due(in, f.Started, max(in.Source.Ceilings.MinDelay, MinWait))
	if isOver(at, until) {
		return time.Time{}, until, true
	}
	return at, until, false
}

// follow puts an occurrence that an outcome made on the calendar of e: it is due at the sooner time.
func (e *Entry) follow(old *Entry, tick, until time.Time) {
	e.Calendar, e.ExpiresAt = old.Calendar, until
	e.OnSchedule = old.Calendar == nil && tick.Equal(e.DueAt)
	if tick.Before(e.DueAt) {
		e.DueAt = tick
	}
}

// Moved returns the entry at the next instant of its source's schedule, if its time came from an earlier schedule and
// has not come yet; else nil, also when it is at that instant already: then there is nothing to write. A key that has
// got a calendar of its own stays: it would lose instants of that.
func (e *Entry) Moved(in Inputs) *Entry {
	if !e.OnSchedule || e.Calendar != nil || in.Source.Calendar == nil || !e.At().After(in.Now) || !e.RetryAt.IsZero() || !e.dueAgainAt().IsZero() {
		return nil
	}
	n := *e
	n.Revision, n.PreviousDueAt = in.Revision, e.DueAt
	if n.DueAt = in.Source.Calendar.due(&in, in.Now, in.Source.Ceilings.MinDelay); n.DueAt.Equal(e.DueAt) {
		return nil
	}
	return &n
}
