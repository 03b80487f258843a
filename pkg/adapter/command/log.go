package command

import (
	"bytes"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
)

// escaped is where lines of JSON are written to. It escapes what JSON may have in a text as it is, and
// what a terminal obeys or shows as nothing: keys of callers and answers of sinks are in the lines.
// Programs read the same text.
type escaped struct{ io.Writer }

// Write implements io.Writer.
func (w escaped) Write(line []byte) (int, error) {
	if !bytes.ContainsFunc(line, hidden) {
		return w.Writer.Write(line)
	}
	var b bytes.Buffer
	for _, r := range string(line) {
		switch {
		case !hidden(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	if _, err := w.Writer.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(line), nil
}

// hidden is a character beyond ASCII that cannot be printed.
func hidden(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }
