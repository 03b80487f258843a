package page

import (
	"fmt"
	"html"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// markup is HTML that is safe to send.
type markup string

// constant is text of this package: only a literal converts to it by itself.
type constant string

// write fills values into HTML. All verbs are %s; in an attribute the verb stands between
// double quotes. A value that is not markup is escaped.
func write(format constant, values ...any) markup {
	safe := make([]any, len(values))
	for i, v := range values {
		if m, ok := v.(markup); ok {
			safe[i] = string(m)
		} else {
			safe[i] = html.EscapeString(fmt.Sprint(v))
		}
	}
	return markup(fmt.Sprintf(string(format), safe...))
}

func join(parts []markup) markup {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(string(p))
	}
	return markup(b.String())
}

// when returns the markup if the condition holds.
func when(condition bool, m markup) markup {
	if condition {
		return m
	}
	return ""
}

// shapeless says whether a character has no shape of its own: it could reorder or hide the
// text around it.
func shapeless(r rune) bool {
	return unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) || unicode.IsControl(r) && r != '\n' && r != '\t'
}

// text shows what a tenant supplied. Characters without a shape become visible names.
func text(s string) markup {
	s = strings.ToValidUTF8(s, "\uFFFD")
	var b strings.Builder
	b.WriteString("<bdi>")
	start := 0
	for i, r := range s {
		if shapeless(r) {
			b.WriteString(html.EscapeString(s[start:i]))
			fmt.Fprintf(&b, `<span class="escape">U+%04X</span>`, r)
			start = i + utf8.RuneLen(r)
		}
	}
	b.WriteString(html.EscapeString(s[start:]))
	b.WriteString("</bdi>")
	return markup(b.String())
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

// href is the relative address of a view: names and keys are in the query alone.
func href(view constant, pairs ...string) string {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	if len(q) == 0 {
		return string(view)
	}
	return string(view) + "?" + q.Encode()
}

// hidden are the fields of a form that a user does not see.
func hidden(pairs ...string) markup {
	var fields []markup
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fields = append(fields, write(`<input type="hidden" name="%s" value="%s">`, pairs[i], pairs[i+1]))
		}
	}
	return join(fields)
}
