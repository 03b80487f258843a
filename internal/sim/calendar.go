package sim

import (
	"math"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The calendars of the histories, stated once more without package calendar: a walk over the instants, and what the
// wall clock of the zone shows at each.

// rhythm is when an expression comes.
type rhythm struct {
	// each: the instants are multiples of it, in all of the zones.
	each  time.Duration
	comes func(wall time.Time) bool
	// named: the hours are named, so an instant that the clock shows for the second time is none.
	named bool
}

var rhythms = map[string]rhythm{
	"* * * * *":   {time.Minute, func(time.Time) bool { return true }, false},
	"*/5 * * * *": {5 * time.Minute, func(time.Time) bool { return true }, false},
	"@hourly":     {30 * time.Minute, func(wall time.Time) bool { return wall.Minute() == 0 }, false},
	"0 */6 * * *": {30 * time.Minute, func(wall time.Time) bool { return wall.Minute() == 0 && wall.Hour()%6 == 0 }, false},
	"30 1-3 * * *": {30 * time.Minute, func(wall time.Time) bool {
		return wall.Minute() == 30 && wall.Hour() >= 1 && wall.Hour() <= 3
	}, true},
	"30 2 * * MON-FRI": {30 * time.Minute, func(wall time.Time) bool {
		return wall.Minute() == 30 && wall.Hour() == 2 && wall.Weekday() != time.Saturday && wall.Weekday() != time.Sunday
	}, true},
}

// zones have offsets of full half hours, and change their clocks by an hour.
var zones = func() map[string]*time.Location {
	all := map[string]*time.Location{}
	for _, name := range []string{"", "Europe/Berlin", "America/New_York", "Asia/Kolkata"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			panic(err)
		}
		all[name] = zone
	}
	return all
}()

// calendar is what a key follows: its own, or its source's.
type calendar struct {
	cron, zone string
	jitter     float64
	until      time.Time // its occurrences expire then; only of a key's own
}

// pace is where an occurrence has its time from, and what its key follows.
type pace struct {
	calendar *calendar          // the key's own
	on       *schedule.Calendar // the schedule of the source that gave the time, if nothing asked for another
}

// following judges what follows from calendars.
type following struct{ *judge }

// next is the first instant after another one.
func (c *calendar) next(after time.Time) time.Time {
	r, zone := rhythms[c.cron], zones[c.zone]
	for t := after.Truncate(r.each).Add(r.each); ; t = t.Add(r.each) {
		wall := t.In(zone)
		if r.comes(wall) && !(r.named && t.Add(-time.Hour).In(zone).Hour() == wall.Hour()) {
			return t
		}
	}
}

// due is when a key is due that follows it after an instant, at the soonest then: with jitter, but before the
// instant after the next. It is zero without a calendar.
func (c *calendar) due(after, soonest time.Time, random float64) time.Time {
	if c == nil {
		return time.Time{}
	}
	at := c.next(after)
	pause := c.next(at).Sub(at)
	return latest(at.Add(min(time.Duration(math.Ceil(float64(pause)*c.jitter*random)), pause-1)), soonest)
}

// schedule is the calendar of the keys that name no time, nil if there is none.
func (s *source) schedule() *calendar {
	if c := s.settings.Calendar; c != nil {
		return &calendar{cron: c.Cron, zone: c.TimeZone}
	}
	return nil
}

// follows is the calendar of an occurrence's key, and the schedule that gives its time, if that is the source's.
func (s *source) follows(o *occurrence) (c *calendar, on *schedule.Calendar) {
	if o.calendar != nil {
		return o.calendar, nil
	}
	return s.schedule(), s.settings.Calendar
}

// until is when the calendar of an occurrence's key ends. The expiry of a time of its own is of that occurrence alone.
func (o *occurrence) until() time.Time {
	switch {
	case o.calendar != nil:
		return o.calendar.until
	case o.on != nil:
		return o.expiresAt
	}
	return time.Time{}
}

// late reports that an instant is too late for a calendar that ends.
func late(at, until time.Time) bool { return !until.IsZero() && !at.Before(until) }

// calendarOf is the calendar after a request, which also says when the occurrence expires. was is the key before it,
// kept says that the policy keeps what is absent, and inDelivery that nothing waits.
func (n *occurrence) calendarOf(r *schedule.Request, was *occurrence, kept, inDelivery bool) {
	old := was.calendar
	if !kept {
		old = nil
	}
	switch {
	case r.Calendar != nil:
		c := calendar{cron: r.Calendar.Cron, zone: r.Calendar.TimeZone, jitter: r.Jitter}
		if old != nil {
			if c.jitter == 0 {
				c.jitter = old.jitter
			}
			if n.expiresAt.IsZero() && !r.Ingested {
				n.expiresAt = old.until
			}
		}
		c.until, n.calendar = n.expiresAt, &c
	case old != nil:
		c := *old
		if !r.ExpiresAt.IsZero() {
			c.until = r.ExpiresAt
		} else if inDelivery && !r.Ingested {
			n.expiresAt = c.until
		}
		n.calendar = &c
	}
}

// asks is the calendar from which a request has its time, and the schedule of the source if it is that; nil if it has
// its time from elsewhere.
func (s *source) asks(r *schedule.Request, was, n *occurrence) (*calendar, *schedule.Calendar) {
	switch {
	case r.Calendar != nil:
		return n.calendar, nil
	case exhausted(r, was) && s.resync(r, was) == 0:
		return s.follows(n)
	case r.Backoff == nil && r.Delay == nil && r.DueAt.IsZero():
		c := s.schedule()
		if c != nil {
			c.jitter = r.Jitter // of this occurrence
		}
		return c, s.settings.Calendar
	}
	return nil, nil
}

// tick is the calendar's next occurrence after a run: at the first instant after its last attempt began, however many
// have passed since. over: that would be too late for its expiry, or a newer request has ended the calendar.
func (j following) tick(d *delivery) (at, until time.Time, over bool) {
	if until = d.of.until(); d.of.calendar != nil && d.overtaken {
		return at, until, true
	}
	c, _ := d.source.follows(d.of)
	at = c.due(d.began, j.wall.Add(least), j.random)
	if over = !at.IsZero() && late(at, until); over {
		at = time.Time{}
	}
	return at, until, over
}

// edited moves the keys that wait for an instant of another schedule of their source to its schedule. The others are
// done with it.
func (j following) edited(s *source) {
	for _, k := range s.keys {
		if n := j.moved(s, k.newest); n != nil && n.rev != k.newest.rev && !k.own() {
			j.move(k, n)
		} else {
			k.stays(s)
		}
	}
}

// stays notes that the key is done with an edit of its source's schedule, though it has not moved.
func (k *key) stays(s *source) {
	if o := k.newest; o != nil && o.on != nil && s.settings.Calendar != nil {
		same := *o
		same.on, k.newest = s.settings.Calendar, &same
	}
}

// moved is an occurrence at the next instant of its source's schedule, nil if it does not wait for one, or has a calendar
// of its own. One that is there already keeps its revision.
func (j following) moved(s *source, o *occurrence) *occurrence {
	if o == nil || o.on == nil || o.calendar != nil || s.settings.Calendar == nil || !o.at().After(j.wall) || !o.retryAt.IsZero() || !o.owedAt.IsZero() || o.expired(j.wall) {
		return nil
	}
	n := *o
	n.on = s.settings.Calendar
	if n.dueAt = s.schedule().due(j.wall, j.wall, j.random); !n.dueAt.Equal(o.dueAt) {
		n.rev, n.previousDueAt = j.mark(), o.dueAt
	}
	return &n
}

// restarted notes the keys that a restart has moved to the schedule of their source. Another crash may take that back.
func (j following) restarted(f found) {
	for uid, s := range j.sources {
		for _, v := range f.views[uid] {
			k := s.key(v.Key)
			if n := j.moved(s, k.newest); n != nil && n.differs(j.judge, v, true) == "" {
				j.move(k, n)
			} else {
				k.stays(s)
			}
		}
	}
}

// move is set for a move to the schedule of the source.
func (j following) move(k *key, o *occurrence) {
	j.set(k, o)
	j.changes[len(j.changes)-1].to = o.rev
}

// shown is what GET shows of it.
func (c *calendar) shown() calendar {
	if c == nil {
		return calendar{}
	}
	return calendar{cron: c.cron, zone: c.zone, jitter: c.jitter}
}

func calendarIn(e *schedule.Entry) calendar {
	if e.Calendar == nil {
		return calendar{}
	}
	return calendar{cron: e.Calendar.Cron, zone: e.Calendar.TimeZone, jitter: e.Calendar.Jitter}
}

func sameCalendar(a, b *schedule.Calendar) bool {
	return a == b || a != nil && b != nil && *a == *b
}
