package cloudevent

import (
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The bounds of the attributes of one event together: of their names and values, percent-encoded, and of the lines that
// they are in headers. Every event that is accepted can be sent: with the adapter's own headers, and a token, it has
// less than the 16 KiB that Node.js takes.
const (
	MaxAttributeBytes = 8 << 10
	MaxHeaderBytes    = 9 << 10
)

// CheckSize refuses an event with too many bytes of attributes. Its error names the largest one, behind prefix.
func CheckSize(prefix string, e *schedule.Event) error {
	total, lines, largest, name := 0, 0, 0, ""
	add := func(attribute, value string) {
		if value == "" && e.Extensions[attribute] == nil {
			return
		}
		n := len(attribute) + len(value) + 2*escapes(value)
		total += n
		lines += len("Ce-: \r\n") + n
		if n > largest || n == largest && attribute < name {
			largest, name = n, attribute
		}
	}
	add("id", e.ID)
	add("source", e.Source)
	add("type", e.Type)
	add("subject", e.Subject)
	add(dataContentType, e.DataContentType)
	add("dataschema", e.DataSchema)
	if !e.Time.IsZero() {
		add("time", e.Time.Format(time.RFC3339Nano))
	}
	for attribute, value := range e.Extensions {
		add(attribute, Canonical(value))
	}
	switch {
	case total > MaxAttributeBytes:
		return schedule.Invalid(prefix+name, "the names and values of the event's attributes have %d bytes together, percent-encoded, more than %d; this one, the largest, has %d", total, MaxAttributeBytes, largest)
	case lines > MaxHeaderBytes:
		return schedule.Invalid(prefix+name, "the attributes of the event have %d bytes together, as header lines, more than %d; this one, the largest, has %d", lines, MaxHeaderBytes, largest)
	}
	return nil
}
