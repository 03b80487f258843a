package command

import (
	"io"

	"github.com/reschedule-dev/reschedule/pkg/printable"
)

// escaped is where lines of JSON are written to. It escapes what JSON may have in a text as it is, and
// what a terminal obeys or shows as nothing: keys of callers and answers of sinks are in the lines.
// Programs read the same text.
type escaped struct{ io.Writer }

// Write implements io.Writer.
func (w escaped) Write(line []byte) (int, error) {
	if _, err := w.Writer.Write(printable.JSON(line, printable.Hidden)); err != nil {
		return 0, err
	}
	return len(line), nil
}
