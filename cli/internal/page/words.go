package page

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// span says how long, in at most two units.
func span(d time.Duration) string {
	d = max(d, -d)
	switch {
	case d == 0:
		return "0 ms"
	case d < time.Millisecond:
		return "<1 ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", d.Seconds()), ".0") + " s"
	}
	units := []struct {
		size time.Duration
		name string
	}{{365 * 24 * time.Hour, "y"}, {24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}}
	for i, u := range units {
		if d < u.size {
			continue
		}
		s := strconv.FormatInt(int64(d/u.size), 10) + u.name
		if i+1 < len(units) {
			if rest := d % u.size / units[i+1].size; rest > 0 {
				s += " " + strconv.FormatInt(int64(rest), 10) + units[i+1].name
			}
		}
		return s
	}
	return "0 ms"
}

// relative says when, seen from now.
func relative(t, now time.Time) string {
	switch d := t.Sub(now); {
	case d > time.Second:
		return "in " + span(d.Round(time.Second))
	case d < -time.Second:
		return span((-d).Round(time.Second)) + " ago"
	}
	return "now"
}

// instant shows a time as seen from now; the whole of it is in the title.
func instant(t, now time.Time) markup {
	if t.IsZero() {
		return `<span class="none">–</span>`
	}
	t = t.UTC()
	return write(`<time datetime="%s" title="%s" data-relative>%s</time>`, t.Format(time.RFC3339Nano), t.Format("2006-01-02 15:04:05.000 UTC"), relative(t, now))
}

// number writes a count with thin groups of three.
func number(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return number(n) + " " + many
}
