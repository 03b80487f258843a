package cloudevent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// parts are an event as it came: attributes by lower-case name, of type
// string, bool or int32, and the data.
type parts struct {
	attributes map[string]any
	size       int // of the attributes, see set
	data       []byte
	base64     string
	isBase64   bool
	untyped    bool // the data is bytes, and has no type
}

func (p *parts) version() string {
	s, _ := p.attributes["specversion"].(string)
	return s
}

// maxText bounds the attributes as they come: a hundred thousand small ones take three times the
// memory of their text. Which of them count is known when all are read.
const maxText = 64 << 10

// set adds an attribute.
func (p *parts) set(name string, value any) error {
	text, _ := value.(string)
	if p.size += len(name) + len(text); p.size > maxText {
		return schedule.Invalid(name, "the attributes up to this one have more than %d bytes together", maxText)
	}
	p.attributes[name] = value
	return nil
}

// Canonical is the text of an attribute's value: a string, a bool or an int32.
func Canonical(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	}
	return fmt.Sprint(value)
}

// event validates the parts through the SDK and makes them one event.
func (p *parts) event() (*schedule.Event, error) {
	version := spec.VS.Version(p.version())
	if version == nil {
		if _, ok := p.attributes["specversion"]; !ok {
			return nil, schedule.Invalid("specversion", "is missing: not a CloudEvent")
		}
		return nil, schedule.Invalid("specversion", "%.64q is neither 1.0 nor 0.3", fmt.Sprint(p.attributes["specversion"]))
	}
	if version == spec.V03 {
		delete(p.attributes, "datacontentencoding") // the data is decoded below
		if _, ok := p.attributes["dataschema"]; ok {
			return nil, schedule.Invalid("dataschema", "is not part of version 0.3, which has schemaurl")
		}
	}
	if _, ok := p.attributes["data"]; ok {
		return nil, schedule.Invalid("data", "is not an attribute: the JSON format has the data under this name")
	}
	if p.isBase64 {
		data, err := decodeBase64(p.base64)
		if err != nil {
			return nil, err
		}
		p.data = data
	}
	if p.untyped && len(p.data) > 0 && !isJSONText(p.data) {
		// Without a type it would be delivered as application/json, which it is not.
		p.attributes[dataContentType] = "application/octet-stream"
	}
	ec := version.NewContext()
	for _, name := range slices.Sorted(maps.Keys(p.attributes)) {
		value, err := checked(name, p.attributes[name])
		if err != nil {
			return nil, err
		}
		if err := setAttribute(version, ec, name, value); err != nil {
			return nil, schedule.Invalid(name, "%v", err)
		}
	}
	sdk := event.Event{Context: ec, DataEncoded: p.data, DataBase64: p.isBase64}
	if err := validate(sdk); err != nil {
		return nil, err
	}
	e, err := FromSDK(sdk)
	if err != nil {
		return nil, err
	}
	p.restore(e)
	return e, nil
}

// checked is the value of an attribute. It refuses what the SDK lets through, and what cannot be stored or
// sent as it came. Other texts can: headers carry them percent-encoded.
func checked(name string, value any) (any, error) {
	s, ok := value.(string)
	if !ok || s == "" {
		return value, nil
	}
	switch name {
	case "time":
		return schedule.ParseTime(name, s) // which reads all of RFC 3339, the SDK a part
	case dataContentType:
		return value, schedule.ValidateContentType(name, strings.TrimSpace(s))
	case "subject", "dataschema", "schemaurl":
		if strings.TrimSpace(s) == "" { // some readers ignore it, others refuse it
			return nil, schedule.Invalid(name, "is blank")
		}
	}
	return value, nil
}

// isName reports whether a header can carry the name. The SDK accepts every letter of
// Unicode.
func isName(name string) bool {
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !(c >= '0' && c <= '9') {
			return false
		}
	}
	return event.IsExtensionNameValid(name)
}

func setAttribute(version spec.Version, ec event.EventContext, name string, value any) error {
	if a := version.Attribute(name); a != nil {
		if s, ok := value.(string); ok && s == "" && !a.Kind().IsRequired() {
			return nil // as if absent
		}
		return a.Set(ec, value)
	}
	if !isName(name) {
		return errors.New("is not the name of an attribute: letters and digits only")
	}
	return ec.SetExtension(name, value)
}

// restore gives the attributes their exact text, which the SDK trims and, for URIs,
// parses and prints again.
func (p *parts) restore(e *schedule.Event) {
	text := func(name string) string {
		s, _ := p.attributes[name].(string)
		return s
	}
	e.ID, e.Source, e.Type = text("id"), text("source"), text("type")
	e.Subject = text("subject")
	if e.DataSchema != "" {
		if e.DataSchema = text("dataschema"); e.DataSchema == "" {
			e.DataSchema = text("schemaurl")
		}
	}
}

// validate applies the SDK's validations and names one bad attribute.
func validate(e event.Event) error {
	err := e.Validate()
	if err == nil {
		return nil
	}
	var fields event.ValidationError
	if !errors.As(err, &fields) || len(fields) == 0 {
		return schedule.Invalid("event", "%v", err)
	}
	name := slices.Min(slices.Collect(maps.Keys(fields)))
	return schedule.Invalid(name, "%v", fields[name])
}

// FromSDK converts an event of the SDK, to version 1.0. An
// extension whose type is neither string, bool nor int32 becomes its canonical
// string. The data is shared, not copied.
func FromSDK(in event.Event) (*schedule.Event, error) {
	if in.Context == nil {
		return nil, schedule.Invalid("specversion", "is missing")
	}
	ec := in.Context.AsV1()
	e := &schedule.Event{
		ID: ec.GetID(), Source: ec.GetSource(), Type: ec.GetType(), Time: ec.GetTime(),
		Subject: ec.GetSubject(), DataContentType: ec.GetDataContentType(), DataSchema: ec.GetDataSchema(),
		Data: in.DataEncoded, DataBase64: in.DataBase64,
	}
	for name, value := range ec.Extensions {
		if name == event.DataContentEncodingKey && in.SpecVersion() == event.CloudEventsVersionV03 {
			continue // the SDK's data is decoded
		}
		v, err := plain(value)
		if err != nil {
			return nil, schedule.Invalid(name, "%v", err)
		}
		if e.Extensions == nil {
			e.Extensions = make(map[string]any, len(ec.Extensions))
		}
		e.Extensions[strings.ToLower(name)] = v
	}
	return e, nil
}

func plain(value any) (any, error) {
	v, err := types.Validate(value)
	if err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case string, bool, int32:
		return v, nil
	default:
		return types.Format(v)
	}
}
