package cloudevent

import (
	"bytes"
	"net/http"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// RequestedTime returns when an event that comes in asks to be delivered: after a delay, at an
// instant, or neither.
func RequestedTime(e *schedule.Event, now time.Time) (delay *time.Duration, at time.Time, err error) {
	return requestedTime(e.Extensions, now, schedule.ParseDuration, schedule.ParseInstant)
}

// RequestedCalendar returns the calendar that an event which comes in asks for, nil without one.
func RequestedCalendar(e *schedule.Event) (*schedule.Calendar, error) {
	cron, hasCron := e.Extensions[CronAttribute]
	zone, hasZone := e.Extensions[TimeZoneAttribute]
	switch {
	case !hasCron && !hasZone:
		return nil, nil
	case !hasCron:
		return nil, schedule.Invalid(TimeZoneAttribute, "is given without %s", CronAttribute)
	}
	for _, name := range [...]string{AfterAttribute, AtAttribute} {
		if _, ok := e.Extensions[name]; ok {
			return nil, schedule.Invalid(CronAttribute, "stands beside %s: one of the two", name)
		}
	}
	expression, ok := cron.(string)
	if !ok {
		return nil, schedule.Invalid(CronAttribute, "%v is not a cron expression such as 0 9 * * MON", cron)
	}
	name, ok := zone.(string)
	if hasZone && !ok {
		return nil, schedule.Invalid(TimeZoneAttribute, "%v is not the name of a time zone such as Europe/Berlin", zone)
	}
	return schedule.NewCalendar(expression, name, CronAttribute, TimeZoneAttribute)
}

// AnsweredTime returns when the extensions of a sink's reply ask for the key; nil without
// a time.
func AnsweredTime(extensions map[string]any, now time.Time) (*schedule.RescheduleAfter, error) {
	delay, at, err := requestedTime(extensions, now, schedule.ParseWait, schedule.ParseWaitUntil)
	switch {
	case err != nil:
		return nil, err
	case delay != nil:
		return &schedule.RescheduleAfter{After: *delay}, nil
	case !at.IsZero():
		return &schedule.RescheduleAfter{At: at}, nil
	}
	return nil, nil
}

// timeHeaders are the headers of the attributes of [AnsweredTime]. Every answer is asked for them.
var timeHeaders = [...]struct{ header, attribute string }{
	{http.CanonicalHeaderKey(headerPrefix + AfterAttribute), AfterAttribute},
	{http.CanonicalHeaderKey(headerPrefix + AtAttribute), AtAttribute},
}

// TimeExtensions are the extensions of [AnsweredTime] in the headers of an answer, also
// where the rest of its event cannot be read; nil without any.
func TimeExtensions(h http.Header) (extensions map[string]any) {
	for _, t := range timeHeaders {
		values := h[t.header]
		if len(values) == 0 {
			continue
		}
		if extensions == nil {
			extensions = map[string]any{}
		}
		text := OneLine(values)
		if decoded, err := DecodeHeader(text); err == nil {
			text = decoded
		}
		extensions[t.attribute] = text
	}
	return extensions
}

// OneLine is the value of a header that came in several lines, which a proxy may have joined.
// Equal lines are one: a framework and a handler may both set it.
func OneLine(lines []string) string {
	all := strings.Join(lines, ", ")
	first, rest, _ := strings.Cut(all, ", ")
	for line := range strings.SplitSeq(rest, ", ") {
		if strings.TrimSpace(line) != strings.TrimSpace(first) {
			return all
		}
	}
	return first
}

// MayAsk reports whether a body in structured mode that is no event may ask for the key: it breaks
// off, or names an attribute for it. An ordinary reply that is slightly wrong asks for nothing.
func MayAsk(body []byte) bool {
	text := bytes.ToLower(body)
	return !isJSONText(body) || bytes.Contains(text, []byte(AfterAttribute)) || bytes.Contains(text, []byte(AtAttribute))
}

func requestedTime(
	extensions map[string]any, now time.Time, parseDelay func(field, s string) (time.Duration, error), parseInstant func(field, s string, now time.Time) (time.Time, error),
) (delay *time.Duration, at time.Time, err error) {
	after, hasAfter := extensions[AfterAttribute]
	instant, hasAt := extensions[AtAttribute]
	switch {
	case hasAfter && hasAt:
		return nil, at, schedule.Invalid(AfterAttribute, "stands beside %s: one of the two", AtAttribute)
	case hasAfter:
		text, ok := after.(string)
		if !ok {
			return nil, at, schedule.Invalid(AfterAttribute, "%v is not a duration such as 5m30s or PT5M30S", after)
		}
		d, err := parseDelay(AfterAttribute, text)
		return &d, at, err
	case hasAt:
		text, ok := instant.(string)
		if !ok {
			return nil, at, schedule.Invalid(AtAttribute, "%v is not an instant such as 2026-11-21T09:00:00Z", instant)
		}
		at, err = parseInstant(AtAttribute, text, now)
	}
	return nil, at, err
}
