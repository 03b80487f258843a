package schedule

import (
	"maps"
	"strings"
	"time"
)

// DefaultEventType is the type of an event for which a request sets none.
const DefaultEventType = "dev.reschedule.due"

// MaxDataBytes is the most data that an event may carry. The schedule API,
// ingested events and replies of sinks have the same limit, so that each of them can
// return an event that another one accepted.
const MaxDataBytes = 256 << 10

// Event is what a key's delivery carries: the attributes and data of a
// CloudEvent, as far as the caller set them. The rest follows from the occurrence
// when it is sent. An Event is immutable once it is part of a request or an entry.
type Event struct {
	// ID is set for an ingested event until an outcome makes a new occurrence
	// of it; otherwise the id follows from the occurrence.
	ID string
	// Source and Time are set for an ingested event (Source also by a reply).
	Source string
	Time   time.Time

	Type, Subject, DataContentType, DataSchema string

	// Extensions are attributes by name; a value is a string, a bool or an
	// int32, so that the JSON format gives back the type that came in.
	Extensions map[string]any

	// Data is the payload as it goes over the wire; nil is no data.
	Data []byte
	// DataBase64: the JSON format must carry the data as data_base64, because it
	// came so.
	DataBase64 bool

	// Omitted: of a stored event only the ID was read, how large its body is, all but the ID,
	// and whether it ends its key. It stands for the event in a change that keeps it.
	Omitted     bool  `json:"-"`
	BodySize    int64 `json:"-"` // only of an omitted one
	OmittedEnds bool  `json:"-"` // only of an omitted one: what Ends says of the whole one
}

// again is the event for a further occurrence, which an outcome or a request after
// an attempt made. It has an id of its own, so that a sink that drops repeats does
// not drop it.
func (e *Event) again() *Event {
	if e == nil || e.ID == "" {
		return e
	}
	c := *e
	c.ID = ""
	return &c
}

// size is the size of the body, and of the id without its start: a new occurrence of an
// ingested event has another id.
func (e *Event) size() int64 {
	if e == nil {
		return 0
	}
	return int64(max(len(e.ID)-idBytes, 0)) + e.Body()
}

// Body is the size of the body: all attributes but the ID, and the data.
func (e *Event) Body() int64 {
	if e.Omitted {
		return e.BodySize
	}
	n := len(e.Source) + len(e.Type) + len(e.Subject) + len(e.DataContentType) + len(e.DataSchema) + len(e.Data)
	for name, value := range e.Extensions {
		n += len(name) + 8
		if s, ok := value.(string); ok {
			n += len(s) - 8
		}
	}
	return int64(n)
}

// Equal compares all attributes and the data.
func (e *Event) Equal(o *Event) bool {
	if e == nil || o == nil {
		return e == o
	}
	return e.ID == o.ID && e.SameBody(o)
}

// SameBody compares all attributes but the ID, and the data.
func (e *Event) SameBody(o *Event) bool {
	return e.Omitted == o.Omitted && e.BodySize == o.BodySize && e.OmittedEnds == o.OmittedEnds && e.Source == o.Source && e.Time.Equal(o.Time) && e.Type == o.Type &&
		e.Subject == o.Subject && e.DataContentType == o.DataContentType && e.DataSchema == o.DataSchema &&
		e.DataBase64 == o.DataBase64 && (e.Data == nil) == (o.Data == nil) && string(e.Data) == string(o.Data) &&
		maps.Equal(e.Extensions, o.Extensions)
}

// IsJSON reports whether the data is JSON by its content type: no type, a json
// subtype or a +json suffix.
func (e *Event) IsJSON() bool {
	if e.DataContentType == "" || e.DataContentType == "application/json" {
		return true
	}
	media := MediaType(e.DataContentType)
	return media == "" || strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json")
}

// MediaType is the lower-case media type of a content type, without its parameters.
func MediaType(contentType string) string {
	media, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(media))
}

// Ends reports that a success ends the key, which maxInterval does not bring back: the event announces a
// deleted object, or is final.
func (e *Event) Ends() bool {
	return e.final() || e != nil && e.OmittedEnds || e != nil && e.Source != "" &&
		(e.Type == "dev.knative.apiserver.ref.delete" || e.Type == "dev.knative.apiserver.resource.delete")
}

// final reports that the event is of a watch that knows no object of the key.
func (e *Event) final() bool {
	return e != nil && e.Source == "" && e.Extensions[FinalAttribute] == true
}

// without is the event without an extension.
func (e *Event) without(name string) *Event {
	c := *e
	c.Extensions = maps.Clone(e.Extensions)
	delete(c.Extensions, name)
	return &c
}
