package cloudevent

import (
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// RequestedTime returns when an event asks to be delivered: after a delay, at an instant, or
// neither.
func RequestedTime(e *schedule.Event, now time.Time) (delay *time.Duration, at time.Time, err error) {
	after, hasAfter := e.Extensions[AfterAttribute]
	instant, hasAt := e.Extensions[AtAttribute]
	switch {
	case hasAfter && hasAt:
		return nil, at, schedule.Invalid(AfterAttribute, "stands beside %s: one of the two", AtAttribute)
	case hasAfter:
		text, ok := after.(string)
		if !ok {
			return nil, at, schedule.Invalid(AfterAttribute, "%v is not a duration such as 5m30s or PT5M30S", after)
		}
		d, err := schedule.ParseDuration(AfterAttribute, text)
		return &d, at, err
	case hasAt:
		text, ok := instant.(string)
		if !ok {
			return nil, at, schedule.Invalid(AtAttribute, "%v is not an instant such as 2026-11-21T09:00:00Z", instant)
		}
		at, err = schedule.ParseInstant(AtAttribute, text, now)
	}
	return nil, at, err
}
