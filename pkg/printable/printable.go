// Package printable makes text of callers, tenants and sinks fit for a terminal. A terminal obeys control
// characters, and marks that reorder text hide a part of a line. A text for people gets replacements; JSON and
// YAML get escapes, and programs read the same values. All functions are safe for concurrent use.
package printable

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
)

// Line is a text as one line: white space is a space, and each other character that cannot be printed is U+FFFD.
func Line(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// Hidden is a character that cannot be printed, and that encoders do not escape by themselves.
func Hidden(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }

// IsTerminalControl reports a hidden character that a terminal obeys.
func IsTerminalControl(r rune) bool { return r >= 0x7f && unicode.IsControl(r) }

// JSON escapes these characters in an encoded JSON text. They must be hidden ones, which stand only in its strings.
func JSON(text []byte, these func(rune) bool) []byte {
	return escape(text, these, func(r rune) string {
		high, low := utf16.EncodeRune(r)
		return fmt.Sprintf(`\u%04x\u%04x`, high, low)
	})
}

// YAML escapes hidden characters in a YAML text, which must have them in double quotes only.
func YAML(text []byte) []byte {
	return escape(text, Hidden, func(r rune) string { return fmt.Sprintf(`\U%08x`, r) })
}

// escape escapes characters, and characters beyond the first plane with long.
func escape(text []byte, these func(rune) bool, long func(rune) string) []byte {
	if !bytes.ContainsFunc(text, these) {
		return text
	}
	var b bytes.Buffer
	for _, r := range string(text) {
		switch {
		case !these(r):
			b.WriteRune(r)
		case r > 0xffff:
			b.WriteString(long(r))
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.Bytes()
}
