package page

import (
	"cmp"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
)

// functions are what templates call.
var functions = template.FuncMap{
	"text": text, "plain": plain, "instant": instant, "number": number, "plural": plural, "span": span, "href": href, "form": newForm, "stamp": stamp,
	"status": status, "state": state, "member": memberBadge,
	"calendar": why.Calendar, "priority": why.Priority, "priorities": why.Priorities,
}

// shapeless says whether a character has no shape of its own: it could reorder or hide the
// text around it.
func shapeless(r rune) bool {
	return unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) || unicode.IsControl(r) && r != '\n' && r != '\t'
}

// text shows what a tenant supplied. Characters without a shape become visible names.
func text(s string) template.HTML {
	s = strings.ToValidUTF8(s, "\uFFFD")
	var b strings.Builder
	b.WriteString("<bdi>")
	start := 0
	for i, r := range s {
		if shapeless(r) {
			template.HTMLEscape(&b, []byte(s[start:i]))
			fmt.Fprintf(&b, `<span class="escape">U+%04X</span>`, r)
			start = i + utf8.RuneLen(r)
		}
	}
	template.HTMLEscape(&b, []byte(s[start:]))
	b.WriteString("</bdi>")
	return template.HTML(b.String())
}

// plain is text for places that take no markup.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if shapeless(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// href is the relative address of a view, of a source if it is not nil: names and keys are in
// the query alone. A value that is "" is left out.
func href(view string, s *Source, pairs ...any) string {
	q := url.Values{}
	if s != nil {
		pairs = append(pairs, "ns", s.Namespace, "name", s.Name)
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if value := fmt.Sprint(pairs[i+1]); value != "" {
			q.Set(fmt.Sprint(pairs[i]), value)
		}
	}
	if len(q) == 0 {
		return view
	}
	return view + "?" + q.Encode()
}

// form is a button that makes a change.
type form struct {
	Action, Label, Class, About string
	Fields                      []any // names and values in turn
}

func newForm(s *Source, action, label, class, about string, fields ...any) form {
	return form{action, label, class, about, append([]any{"ns", s.Namespace, "name", s.Name}, fields...)}
}

// Hidden are the fields that the user does not see.
func (f form) Hidden() (all [][2]any) {
	for i := 0; i+1 < len(f.Fields); i += 2 {
		all = append(all, [2]any{f.Fields[i], f.Fields[i+1]})
	}
	return all
}

// status is the answer of a sink in words.
func status(code int, failure string) string {
	if code != 0 && failure != "bad_answer" {
		failure = strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code)))
	}
	return cmp.Or(failure, "no answer")
}

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
func instant(now, t time.Time) template.HTML {
	if t.IsZero() {
		return `<span class="none">–</span>`
	}
	t = t.UTC()
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s" data-relative>%s</time>`, // a time has nothing to escape
		t.Format(time.RFC3339Nano), t.Format("2006-01-02 15:04:05.000 UTC"), relative(t, now)))
}

// number writes a count with thin groups of three.
func number(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return number(n) + " " + many
}
