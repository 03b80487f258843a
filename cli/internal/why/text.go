package why

import (
	"fmt"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/printable"
)

// answer is an Answer that is being made.
type answer struct{ Answer }

// say makes the answer. Healthy says that it is as it should be.
func (a *answer) say(c Cause, healthy bool, format string, args ...any) *answer {
	a.Cause, a.Problem, a.Sentence = c, !healthy, plain(fmt.Sprintf(format, args...))
	return a
}

// add adds evidence, unless the value is empty.
func (a *answer) add(name, value string) *answer {
	if value = plain(value); value != "" {
		a.Evidence = append(a.Evidence, Evidence{name, value})
	}
	return a
}

func (a *answer) time(name string, now, at time.Time) *answer {
	if at.IsZero() {
		return a
	}
	return a.add(name, at.UTC().Format(time.RFC3339Nano)+" ("+When(now, at)+")")
}

func (a *answer) number(name string, n int64) *answer { return a.add(name, fmt.Sprint(n)) }

// When is an instant seen from now: "in 4m12s", "in less than 1s", "now", "just now", "3h0m ago".
func When(now, at time.Time) string {
	switch d := at.Sub(now); {
	case d >= time.Second:
		return "in " + Short(d)
	case d > 0:
		return "in less than 1s"
	case d <= -time.Second:
		return Short(-d) + " ago"
	case d < 0:
		return "just now"
	}
	return "now"
}

// Short is a duration with two units at most.
func Short(d time.Duration) string {
	if d >= 10*time.Second {
		d = d.Round(time.Second)
	}
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return d.Round(time.Millisecond).String()
}

// plain is a text as one line that a terminal shows as it is: tenants and sinks supply parts of it.
func plain(s string) string { return strings.TrimSpace(printable.Line(s)) }

// Plural is a count with its noun, in the singular for 1.
func Plural[N int | int64](n N, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}
