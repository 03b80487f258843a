package cloudevent

import (
	"bytes"
	"net/http"
	"strings"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// MaxBatch is the number of events that one batch may hold.
const MaxBatch = 1000

const (
	mediaEvent      = "application/cloudevents+json"
	mediaBatch      = "application/cloudevents-batch+json"
	mediaAnyEvent   = "application/cloudevents"
	headerPrefix    = "Ce-"
	contentType     = "Content-Type"
	dataContentType = "datacontenttype" // the attribute that Content-Type has
	headerSpec      = "Ce-Specversion"
	defaultDataType = "application/json"
)

// IsEvent reports whether the headers announce a CloudEvent, of any mode and format,
// readable or not.
func IsEvent(h http.Header) bool {
	return len(h[headerSpec]) > 0 || IsMedia(h.Get(contentType))
}

// IsMedia reports whether a content type is one of CloudEvents, in any format.
func IsMedia(contentType string) bool {
	return strings.HasPrefix(schedule.MediaType(contentType), mediaAnyEvent)
}

// IsForeign reports whether a content type is one of CloudEvents, in a format that is not read here.
func IsForeign(contentType string) bool {
	media := schedule.MediaType(contentType)
	return IsMedia(contentType) && media != mediaEvent && media != mediaBatch
}

// Read returns the CloudEvents of an HTTP message in binary, structured or
// batched mode; only a batch may hold none or several. The events do not share the
// memory of body. Its error is an *schedule.Error.
func Read(h http.Header, body []byte) ([]*schedule.Event, error) {
	switch media := schedule.MediaType(h.Get(contentType)); {
	case media == mediaEvent:
		e, err := readStructured(body)
		if err != nil {
			return nil, err
		}
		return []*schedule.Event{e}, nil
	case media == mediaBatch:
		return readBatch(body)
	case IsForeign(media):
		return nil, schedule.Refuse(schedule.CodeMediaType, "Content-Type: %.128q is not read here; %s and %s are", media, mediaEvent, mediaBatch)
	case len(h[headerSpec]) == 0:
		return nil, schedule.Invalid("specversion", "is missing: neither a Ce-Specversion header nor one of the media types of structured CloudEvents")
	}
	e, err := readBinary(h, body)
	if err != nil {
		return nil, err
	}
	return []*schedule.Event{e}, nil
}

func readBinary(h http.Header, body []byte) (*schedule.Event, error) {
	p := parts{attributes: make(map[string]any, len(h))}
	for name, values := range h {
		if len(name) <= len(headerPrefix) || !strings.EqualFold(name[:len(headerPrefix)], headerPrefix) || len(values) == 0 {
			continue
		}
		attribute := strings.ToLower(name[len(headerPrefix):])
		value, err := DecodeHeader(values[0])
		if err != nil {
			return nil, schedule.Invalid(attribute, "the header %v", err)
		}
		if attribute == dataContentType {
			continue // the binding has no such header
		}
		if err := p.set(attribute, value); err != nil {
			return nil, err
		}
	}
	declared := h.Get(contentType)
	if p.untyped = declared == ""; len(body) > 0 {
		p.data = bytes.Clone(body)
	}
	if declared != "" {
		if err := p.set(dataContentType, declared); err != nil {
			return nil, err
		}
	}
	if encoding, _ := p.attributes["datacontentencoding"].(string); strings.EqualFold(encoding, "base64") && p.version() == "0.3" {
		p.base64, p.data = string(body), nil
		p.isBase64 = true
	}
	return p.event()
}

// Coding is the content coding of a body, "" when the body is as it was.
func Coding(h http.Header) string {
	all := strings.Join(h["Content-Encoding"], ", ")
	for name := range strings.SplitSeq(all, ",") {
		if name = strings.TrimSpace(name); name != "" && !strings.EqualFold(name, "identity") {
			return all
		}
	}
	return ""
}

// isJSONMedia reports whether every implementation carries data of the type as a
// JSON value in the JSON format. For a +json suffix the Go SDK does not: it reads
// and writes such data as a string.
func isJSONMedia(media string) bool {
	return media == "" || media == "application/json" || media == "text/json"
}

// IsBatch reports whether the headers announce a batch.
func IsBatch(h http.Header) bool { return schedule.MediaType(h.Get(contentType)) == mediaBatch }
