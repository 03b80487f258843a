package why

import (
	"fmt"
	"time"
)

// recently is for how long it is a problem that an event was given up: the alerts
// RescheduleEventsDropped and RescheduleDeadLetters have the same.
const recently = 10 * time.Minute

// Lost are the events of a source that were given up since the adapter started, and that
// are not kept.
type Lost struct {
	Dropped, DeadLettered     int64
	DroppedAt, DeadLetteredAt time.Time // the last one; zero = unknown
	// Waiting is how many wait for the dead letter sink, and Refused how many attempts to
	// deliver one there failed.
	Waiting, Refused int64
}

// evidence adds the events that were given up to the evidence.
func (l *Lost) evidence(a *answer, now time.Time) {
	add := func(name string, n int64, at time.Time) {
		if n > 0 {
			a.add(name, fmt.Sprintf("%d since the adapter started%s", n, lastOne(now, at)))
		}
	}
	add("dropped events", l.Dropped, l.DroppedAt)
	add("events for the dead letter sink", l.DeadLettered, l.DeadLetteredAt)
	if l.Waiting > 0 {
		a.number("events that wait for it", l.Waiting)
	}
	add("failed attempts at the dead letter sink", l.Refused, time.Time{})
}

// lastOne says when the last event was given up.
func lastOne(now, at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return ", the last one " + When(now, at)
}

// dropped: were events dropped of late?
func (l *Lost) dropped(a *answer, f *Facts) *answer {
	if l.Dropped == 0 || f.Now.Sub(l.DroppedAt) >= recently {
		return nil
	}
	return a.say(GivenUp, false, "Source %s has dropped %s since the adapter started%s: the sink refused them or their retries were used up, and there was no place to keep them.",
		f.Name, Plural(l.Dropped, "event", "events"), lastOne(f.Now, l.DroppedAt))
}

// deadLettered: does the dead letter sink refuse events, or did it get some of late?
func (l *Lost) deadLettered(a *answer, f *Facts) *answer {
	switch {
	case l.Waiting > 0 && l.Refused > 0:
		return a.say(GivenUp, false, "The dead letter sink of source %s refuses or does not answer (%s since the adapter started): %s for it.",
			f.Name, Plural(l.Refused, "failed attempt", "failed attempts"), Plural(l.Waiting, "event that was given up waits", "events that were given up wait"))
	case l.DeadLettered > 0 && f.Now.Sub(l.DeadLetteredAt) < recently:
		return a.say(GivenUp, false, "Source %s has given up %s since the adapter started%s: the sink refused them or their retries were used up, and they went to the dead letter sink.",
			f.Name, Plural(l.DeadLettered, "event", "events"), lastOne(f.Now, l.DeadLetteredAt))
	case l.Waiting > 0: // a restart forgets the failed attempts
		return a.say(GivenUp, false, "The dead letter sink of source %s has not got all events that were given up: %s for it.",
			f.Name, Plural(l.Waiting, "event waits", "events wait"))
	}
	return nil
}

// once is the end of the sentence about a healthy source that has dropped events.
func (l *Lost) once(now time.Time) string {
	if l.Dropped == 0 {
		return ""
	}
	return fmt.Sprintf("; %s dropped since the adapter started%s", Plural(l.Dropped, "event was", "events were"), lastOne(now, l.DroppedAt))
}

// stuck says that the dead letter sink may not have got an event.
func (l *Lost) stuck() string {
	if l.Waiting == 0 {
		return ""
	}
	refuses := ""
	if l.Refused > 0 {
		refuses = ", which refuses or does not answer"
	}
	return fmt.Sprintf("%s: %s for it", refuses, Plural(l.Waiting, "event that was given up waits", "events that were given up wait"))
}
