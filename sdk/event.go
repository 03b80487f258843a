package sdk

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"time"
	"unicode/utf8"

	"github.com/reschedule-dev/reschedule/sdk/internal/cloudevent"
)

// Event is the event that a key's delivery carries, as far as a caller set it:
// attributes of a CloudEvent, and data.
type Event struct {
	Type       string // default dev.reschedule.due
	Subject    string // default: the key
	DataSchema string // an absolute URI
	// DataContentType is the media type of Data; none is application/json.
	DataContentType string
	// Data is delivered byte for byte. It is JSON, unless DataContentType is another
	// type.
	Data []byte
	// Base64 sends Data in base64, also where its type says JSON and it is not. An answer
	// with such data sets it.
	Base64 bool
	// Extensions are attributes by name, of a to z and 0 to 9. A value is a string,
	// a bool or an integer of 32 bits.
	Extensions map[string]any

	// ID, Source and Time are set for an event that came in as a CloudEvent. A request
	// cannot set them.
	ID, Source string
	Time       time.Time
}

// check finds a mistake that only the sink would find.
func (e *Event) check() error {
	if e != nil && !e.Base64 && len(e.Data) > 0 && e.isJSON() && !json.Valid(e.Data) {
		return &Error{Code: ErrInvalid, Field: "event.data", Detail: "event.data: is not JSON: set DataContentType, or send JSON"}
	}
	return nil
}

// isJSON reports whether the data is JSON, by its content type.
func (e *Event) isJSON() bool { return cloudevent.IsJSON(e.DataContentType) }

// MarshalJSON writes the event as the schedule API has it. The data comes in at the
// end, as it is.
func (e Event) MarshalJSON() ([]byte, error) {
	members := make(map[string]any, len(e.Extensions)+8)
	maps.Copy(members, e.Extensions)
	for name, value := range map[string]string{
		"id": e.ID, "source": e.Source, "type": e.Type, "subject": e.Subject,
		"datacontenttype": e.DataContentType, "dataschema": e.DataSchema,
	} {
		if value != "" {
			members[name] = value
		}
	}
	if !e.Time.IsZero() {
		members["time"] = e.Time
	}
	isJSON := e.isJSON()
	switch {
	case e.Base64:
		members["data_base64"] = e.Data
	case len(e.Data) == 0 && (isJSON || e.Data == nil):
	case isJSON && !json.Valid(e.Data), !utf8.Valid(e.Data):
		members["data_base64"] = e.Data // which encoding/json writes so
	case !isJSON:
		members["data"] = string(e.Data)
	}
	b, err := marshal(members)
	if err != nil || members["data_base64"] != nil || !isJSON || len(e.Data) == 0 {
		return b, err
	}
	return withMember(b, "data", e.Data), nil
}

// UnmarshalJSON reads an event from an answer or a request.
func (e *Event) UnmarshalJSON(b []byte) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(b, &members); err != nil {
		return err
	}
	var read Event
	known := map[string]any{
		"id": &read.ID, "source": &read.Source, "time": &read.Time, "type": &read.Type, "subject": &read.Subject,
		"datacontenttype": &read.DataContentType, "dataschema": &read.DataSchema, "data_base64": &read.Data,
	}
	data := members["data"]
	delete(members, "data")
	for name, raw := range members {
		into, ok := known[name]
		if !ok {
			into = new(any)
		}
		if err := json.Unmarshal(raw, into); err != nil {
			return err
		}
		if value, extension := into.(*any); extension && *value != nil {
			if read.Extensions == nil {
				read.Extensions = map[string]any{}
			}
			read.Extensions[name] = integer(*value)
		}
	}
	if len(data) > 0 && !bytes.Equal(data, []byte("null")) {
		read.Data = data
		var text string
		if !read.isJSON() && json.Unmarshal(data, &text) == nil {
			read.Data = []byte(text)
		}
	}
	read.Base64 = len(members["data_base64"]) > 0 && read.isJSON() && !json.Valid(read.Data)
	*e = read
	return nil
}

// integer gives a whole number the type that CloudEvents have for it.
func integer(value any) any {
	if f, ok := value.(float64); ok && f == math.Trunc(f) && math.Abs(f) <= math.MaxInt32 {
		return int32(f)
	}
	return value
}
