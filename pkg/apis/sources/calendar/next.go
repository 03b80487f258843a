package calendar

import (
	"math/bits"
	"time"
)

// horizon is more than the longest pause of a calendar: February 29 is 8 years apart around 2100, and may be skipped
// for a while by a zone whose clocks change on that day.
const horizon = 40 * 366 * 24 * time.Hour

// Next returns the first instant of the calendar that is strictly after another one. It is zero if there is none
// within forty years, which no zone that exists leads to.
func (c *Calendar) Next(after time.Time) time.Time {
	t, last := after.In(c.zone), after.Add(horizon)
	for from := wall(t).Truncate(time.Minute).Add(time.Minute); t.Before(last); {
		start, end := t.ZoneBounds()
		if !end.IsZero() && !end.After(t) { // on the last day of a leap year, where a zone's rules end the year a day too soon
			end = t.Add(time.Hour)
		}
		_, offset := t.Zone()
		shift := time.Duration(offset) * time.Second
		if !c.realTime && !start.IsZero() {
			// What the wall clock showed before the span began is there for the second time.
			if shown := wall(start.Add(-1)).Add(1); from.Before(shown) {
				from = upToMinute(shown)
			}
		}
		until := last.UTC().Add(shift)
		if !end.IsZero() && end.Before(last) {
			until = end.UTC().Add(shift)
		}
		if found := c.first(from, until); !found.IsZero() {
			return found.Add(-shift).In(after.Location())
		}
		if end.IsZero() {
			break
		}
		t = end
		from = upToMinute(wall(t))
	}
	return time.Time{}
}

// wall is what the wall clock shows at an instant, as if it were UTC, where each day has 24 hours.
func wall(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

func upToMinute(t time.Time) time.Time {
	if full := t.Truncate(time.Minute); !full.Equal(t) {
		return full.Add(time.Minute)
	}
	return t
}

// first is the first matching time of a wall clock that runs from a full minute until before another time; zero if
// there is none.
func (c *Calendar) first(from, until time.Time) time.Time {
	const day = 24 * time.Hour
	minute := from.Hour()*60 + from.Minute()
	for date := from.Truncate(day); date.Before(until); minute = 0 {
		year, month, dom := date.Date()
		if c.month&(1<<month) == 0 {
			date = time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC)
			continue
		}
		if c.hasDay(dom, date.Weekday()) {
			if m, ok := c.minuteFrom(minute); ok {
				if found := date.Add(time.Duration(m) * time.Minute); found.Before(until) {
					return found
				}
				return time.Time{}
			}
		}
		date = date.Add(day)
	}
	return time.Time{}
}

// hasDay is the rule of cron: a day of the month or a day of the week, if both are given, else both.
func (c *Calendar) hasDay(day int, weekday time.Weekday) bool {
	dom, dow := c.dom&(1<<day) != 0, c.dow&(1<<weekday) != 0
	if (c.dom|c.dow)&star != 0 {
		return dom && dow
	}
	return dom || dow
}

// minuteFrom is the first matching minute of a day that is not before the given one.
func (c *Calendar) minuteFrom(from int) (int, bool) {
	hours := c.hour &^ star >> (from / 60) << (from / 60)
	for ; hours != 0; hours &= hours - 1 {
		hour, minutes := bits.TrailingZeros64(hours), c.minute&^star
		if hour == from/60 {
			minutes = minutes >> (from % 60) << (from % 60)
		}
		if minutes != 0 {
			return hour*60 + bits.TrailingZeros64(minutes), true
		}
	}
	return 0, false
}
