package cloudevent

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

func newDecoder(body []byte) *jsontext.Decoder {
	// Only the names of the first level are checked for repeats, and lone surrogates
	// pass, because data is kept byte for byte and not validated.
	return jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

func readStructured(body []byte) (*schedule.Event, error) {
	if !utf8.Valid(body) {
		return nil, malformed(errNotUTF8)
	}
	d := newDecoder(body)
	e, err := readEvent(d)
	if err != nil {
		return nil, err
	}
	return e, atEnd(d)
}

func readBatch(body []byte) ([]*schedule.Event, error) {
	if !utf8.Valid(body) {
		return nil, malformed(errNotUTF8)
	}
	d := newDecoder(body)
	if t, err := d.ReadToken(); err != nil {
		return nil, malformed(err)
	} else if t.Kind() != '[' {
		return nil, schedule.Invalid("events", "a batch is a JSON array")
	}
	events := []*schedule.Event{}
	for d.PeekKind() != ']' {
		if len(events) == MaxBatch {
			return nil, schedule.Invalid("events", "a batch holds at most %d", MaxBatch)
		}
		e, err := readEvent(d)
		if err != nil {
			return nil, WithEventIndex(len(events), err)
		}
		events = append(events, e)
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, malformed(err)
	}
	return events, atEnd(d)
}

// WithEventIndex adds to an error which event of a batch it is about.
func WithEventIndex(index int, err error) error {
	var refused *schedule.Error
	if !errors.As(err, &refused) {
		return fmt.Errorf("events[%d]: %w", index, err)
	}
	e := *refused
	e.Detail = fmt.Sprintf("events[%d]: %s", index, e.Detail)
	return &e
}

func atEnd(d *jsontext.Decoder) error {
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return schedule.Invalid("event", "something follows the JSON value")
	}
	return nil
}

func malformed(err error) error {
	return schedule.Invalid("event", "cannot be read as JSON: %v", err)
}

func readEvent(d *jsontext.Decoder) (*schedule.Event, error) {
	if t, err := d.ReadToken(); err != nil {
		return nil, malformed(err)
	} else if t.Kind() != '{' {
		return nil, schedule.Invalid("event", "is not a JSON object")
	}
	p := parts{attributes: make(map[string]any, 16)}
	var data, encoded jsontext.Value
	for d.PeekKind() != '}' {
		t, err := d.ReadToken()
		if err != nil {
			return nil, malformed(err)
		}
		name := t.String()
		v, err := d.ReadValue()
		if err != nil {
			return nil, malformed(err)
		}
		if err := p.add(name, v, &data, &encoded); err != nil {
			return nil, err
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, malformed(err)
	}
	if err := p.setData(data, encoded); err != nil {
		return nil, err
	}
	return p.event()
}

func (p *parts) add(name string, v jsontext.Value, data, encoded *jsontext.Value) error {
	into := (*jsontext.Value)(nil)
	switch name {
	case "data":
		into = data
	case "data_base64":
		into = encoded
	}
	lower := strings.ToLower(name)
	if into != nil && *into != nil {
		return schedule.Invalid(lower, "is there twice")
	}
	if first, twice := p.attributes[lower]; twice {
		return schedule.Invalid(lower, "is there twice: %.64q and %.64s", Canonical(first), v)
	}
	if into != nil {
		*into = v.Clone()
		return nil
	}
	value, err := attributeValue(lower, v)
	if err != nil || value == nil {
		return err // a null is an absent attribute
	}
	return p.set(lower, value)
}

func attributeValue(name string, v jsontext.Value) (any, error) {
	switch v.Kind() {
	case 'n':
		return nil, nil
	case 't', 'f':
		return v.Kind() == 't', nil
	case '"':
		s, err := jsontext.AppendUnquote(nil, []byte(v))
		if err != nil {
			return nil, schedule.Invalid(name, "%.64s is not a string of Unicode characters", v)
		}
		return string(s), nil
	case '0':
		if name == AfterAttribute { // seconds in a reply, with a fraction or an exponent
			return string(v), nil
		}
		f, err := strconv.ParseFloat(string(v), 64)
		if err != nil || f != math.Trunc(f) || f < math.MinInt32 || f > math.MaxInt32 {
			return nil, schedule.Invalid(name, "%.64s is not an integer of 32 bits", v)
		}
		return int32(f), nil
	default:
		return nil, schedule.Invalid(name, "%.64s is neither a string, a boolean nor an integer", v)
	}
}

// setData reads the members data and data_base64.
func (p *parts) setData(data, encoded jsontext.Value) error {
	old := p.version() == "0.3"
	if old && encoded != nil {
		return schedule.Invalid("data_base64", "is not part of version 0.3, which has datacontentencoding")
	}
	if encoding, ok := p.attributes["datacontentencoding"]; old && ok {
		if s, _ := encoding.(string); !strings.EqualFold(s, "base64") {
			return schedule.Invalid("datacontentencoding", "is not base64")
		}
		data, encoded = nil, data
	}
	if encoded.Kind() == 'n' {
		encoded = nil
	}
	switch {
	case encoded != nil && data != nil:
		return schedule.Invalid("data_base64", "stands beside data")
	case encoded != nil:
		s, err := jsontext.AppendUnquote(nil, []byte(encoded))
		if encoded.Kind() != '"' || err != nil {
			return schedule.Invalid("data_base64", "is not a string")
		}
		p.isBase64, p.base64 = true, string(s)
		p.untyped = p.attributes[dataContentType] == nil || p.attributes[dataContentType] == ""
	case data != nil:
		return p.setJSON(data)
	}
	return nil
}

func (p *parts) setJSON(data jsontext.Value) error {
	declared, _ := p.attributes[dataContentType].(string)
	media := schedule.MediaType(declared)
	switch {
	case isJSONMedia(media):
		p.data = data
	case data.Kind() == 'n':
	case data.Kind() == '"':
		s, err := jsontext.AppendUnquote(nil, []byte(data))
		if err != nil {
			return schedule.Invalid("data", "is not a string of Unicode characters")
		}
		p.data = s
	case strings.HasSuffix(media, "+json"):
		p.data = data
	default:
		return schedule.Invalid("data", "is not a string, which %.64q wants", media)
	}
	return nil
}

func decodeBase64(s string) ([]byte, error) {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return nil, schedule.Invalid("data_base64", "%v", err)
	}
	return b, nil
}

func isText(b []byte) bool { return utf8.Valid(b) }

func isJSONText(b []byte) bool {
	return utf8.Valid(b) && jsontext.Value(b).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}
