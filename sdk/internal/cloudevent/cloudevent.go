// Package cloudevent reads CloudEvents from HTTP requests, in the binary and the
// structured mode: their attributes as text, in every version, and their data. It has
// the names of a RescheduleSource's attributes. It leaves their meaning to others.
package cloudevent

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ErrUnreadable marks a request that is not an event, also when it is repeated.
var ErrUnreadable = errors.New("this is no event that can be read")

// Event is an event: its attributes by name, and its data. In the binary mode
// datacontenttype is the Content-Type.
type Event struct {
	Attributes map[string]string
	Data       []byte
}

// Read reads the event of a request. Its body may have that many bytes.
func Read(r *http.Request, limit int) (*Event, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, int64(limit)+1))
	if err != nil {
		return nil, fmt.Errorf("reading the request: %w", err)
	}
	e := &Event{Attributes: map[string]string{}}
	contentType := r.Header.Get("Content-Type")
	media, _, _ := mime.ParseMediaType(contentType)
	switch {
	case len(body) > limit:
		err = fmt.Errorf("it has more than %d bytes", limit)
	case media == "application/cloudevents+json":
		err = e.structured(body)
	default:
		e.Data = body
		if contentType != "" {
			e.Attributes["datacontenttype"] = contentType
		}
		err = e.binary(r.Header)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return e, nil
}

func (e *Event) binary(h http.Header) error {
	for header, values := range h {
		name, ok := strings.CutPrefix(header, HeaderPrefix)
		if !ok {
			continue
		}
		value := percentDecode(values[0])
		if len(values) > 1 || !utf8.ValidString(value) {
			return fmt.Errorf("header %s is there twice, or is not UTF-8", header)
		}
		e.Attributes[strings.ToLower(name)] = value
	}
	return nil
}

func (e *Event) structured(body []byte) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return err
	}
	data, encoded := members["data"], members["data_base64"]
	delete(members, "data")
	delete(members, "data_base64")
	for name, raw := range members {
		text := string(raw) // of a number or a boolean
		if raw[0] == '"' {
			if err := json.Unmarshal(raw, &text); err != nil {
				return fmt.Errorf("attribute %s: %w", name, err)
			}
		}
		if text != "null" || raw[0] == '"' {
			e.Attributes[name] = text
		}
	}
	var text string
	switch {
	case encoded != nil:
		err := json.Unmarshal(encoded, &text)
		if err == nil {
			e.Data, err = base64.StdEncoding.DecodeString(text)
		}
		if err != nil {
			return fmt.Errorf("data_base64: %w", err)
		}
	case data != nil && !IsJSON(e.Attributes["datacontenttype"]) && json.Unmarshal(data, &text) == nil:
		e.Data = []byte(text)
	default:
		e.Data = data
	}
	return nil
}

// IsJSON reports whether data of a content type is JSON. Data without one is.
func IsJSON(contentType string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	return media == "" || strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json")
}

// percentDecode decodes a header as the HTTP binding of CloudEvents says. A
// percent sign without two hex digits is itself: not every sender encodes.
func percentDecode(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
				b = append(b, byte(v))
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}

// PercentEncode encodes a text as the value of a header, as the HTTP binding of
// CloudEvents says.
func PercentEncode(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' || c == '"' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
