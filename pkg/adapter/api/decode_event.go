package api

import (
	"bytes"
	"encoding/base64"
	"mime"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/reschedule-dev/reschedule/pkg/adapter/cloudevent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The members of an event that are not extensions.
const (
	eventType = iota
	eventSubject
	eventContentType
	eventSchema
	eventData
	eventBase64
	eventSettable // a caller cannot set the members from here on
)

var (
	eventFields = names{
		eventType: "type", eventSubject: "subject", eventContentType: "datacontenttype", eventSchema: "dataschema",
		eventData: "data", eventBase64: "data_base64", eventSettable: "id", "source", "specversion", "time",
	}
	eventPaths = eventFields.below("event.")
)

// event reads the object of that name.
func (d *decoder) event(r *schedule.Request) error {
	inside, err := d.enter("event")
	if !inside {
		return err
	}
	e := &schedule.Event{}
	r.Event = e
	var seen uint32
	var data jsontext.Value // a copy of the member as it was sent
	for {
		name, more, err := d.member()
		if err != nil {
			return err
		}
		if !more {
			d.data(e, data)
			d.refuse(cloudevent.CheckSize("event.", e))
			return nil
		}
		i := eventFields.lookup(name)
		if i < 0 {
			if err := d.extension(e, string(name)); err != nil {
				return err
			}
			continue
		}
		d.once(&seen, i, eventPaths[i])
		v, err := d.value()
		if err != nil {
			return err
		}
		switch {
		case v == nil:
		case i >= eventSettable:
			d.refuse(schedule.Invalid(eventPaths[i], "cannot be set"))
		case i == eventData:
			data = d.copyData(v)
		case i == eventBase64:
			d.base64(e, v)
		default:
			d.attribute(e, i, v)
		}
	}
}

func (d *decoder) attribute(e *schedule.Event, i int, v jsontext.Value) {
	field := eventPaths[i]
	s, ok := d.text(field, v)
	if !ok {
		return
	}
	if strings.TrimSpace(s) == "" {
		d.refuse(schedule.Invalid(field, "is empty"))
		return
	}
	d.refuse(validAttribute(field, s))
	if i == eventContentType {
		// As a header it would lose its blanks on the way, and a caller who reads it
		// before that would see another type than the sink.
		s = strings.TrimSpace(s)
	}
	switch i {
	case eventType:
		e.Type = s
	case eventSubject:
		e.Subject = s
	case eventContentType:
		e.DataContentType = s
		if s == contentJSON {
			return
		}
		if t, _, err := mime.ParseMediaType(s); err != nil || !strings.Contains(t, "/") {
			d.refuse(schedule.Invalid(field, "%.64q is not a media type such as application/json", s))
		}
	case eventSchema:
		e.DataSchema = s
		if u, err := url.Parse(s); err != nil || !u.IsAbs() {
			d.refuse(schedule.Invalid(field, "%.64q is not an absolute URI", s))
		}
	}
}

// extension reads an extension attribute: a string, a boolean or an integer.
func (d *decoder) extension(e *schedule.Event, name string) error {
	field := "event." + shown(name)
	d.refuse(extensionName(field, name))
	v, err := d.value()
	if v == nil {
		return err
	}
	if _, twice := e.Extensions[name]; twice {
		d.refuse(schedule.Invalid(field, "is given twice"))
	}
	if d.fault == nil { // else it is read to be passed over
		d.extensionValue(e, name, field, v)
	}
	return nil
}

func (d *decoder) extensionValue(e *schedule.Event, name, field string, v jsontext.Value) {
	var value any
	switch v.Kind() {
	case '"':
		s := string(d.unquote(v))
		d.refuse(validAttribute(field, s))
		value = s
	case 't', 'f':
		value = v.Kind() == 't'
	case '0':
		n, err := strconv.ParseInt(string(v), 10, 32)
		if err != nil {
			d.refuse(schedule.Invalid(field, "%s is not an integer of 32 bits", clip(v)))
			return
		}
		value = int32(n)
	default:
		d.refuse(schedule.Invalid(field, "is not a string, a boolean or an integer"))
		return
	}
	if e.Extensions == nil {
		e.Extensions = make(map[string]any, 4)
	}
	e.Extensions[name] = value
}

func extensionName(field, name string) error {
	switch {
	case name == "":
		return schedule.Invalid("event", "has an attribute without a name")
	case len(name) > maxExtensionName:
		return schedule.Invalid(field, "has a name of more than %d characters", maxExtensionName)
	case slices.Contains(cloudevent.Reserved, name):
		return schedule.Invalid(field, "is set by the adapter and cannot be given")
	}
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return schedule.Invalid(field, "is not an attribute name: use only a to z and 0 to 9")
		}
	}
	return nil
}

// copyData keeps the data as it was sent: the value is valid until the next
// read, and what it means depends on a content type that may come behind it.
func (d *decoder) copyData(v jsontext.Value) jsontext.Value {
	if len(v) > schedule.MaxDataBytes && (v.Kind() != '"' || len(v) > 6*schedule.MaxDataBytes+2) { // \u0000 is six bytes for one
		d.dataTooLarge("event.data")
		return nil
	}
	return bytes.Clone(v)
}

// data settles what the event carries, once all of it was read.
func (d *decoder) data(e *schedule.Event, v jsontext.Value) {
	switch {
	case v == nil:
		return
	case e.DataBase64:
		d.refuse(schedule.Invalid("event.data", "cannot be given together with event.data_base64"))
		return
	case v.Kind() == '"' && !e.IsJSON():
		e.Data = []byte{} // not nil: an empty text is data
		e.Data, _ = jsontext.AppendUnquote(e.Data, v)
	case (v.Kind() == '{' || v.Kind() == '[') && !v.IsValid():
		// It was read as JSON already, so it can only be this.
		d.refuse(schedule.Invalid("event.data", "has an object with the same name twice"))
	default:
		e.Data = v
	}
	if len(e.Data) > schedule.MaxDataBytes {
		d.dataTooLarge("event.data")
	}
}

func (d *decoder) base64(e *schedule.Event, v jsontext.Value) {
	const field = "event.data_base64"
	if v.Kind() != '"' {
		d.refuse(schedule.Invalid(field, "is not a string"))
		return
	}
	s := d.unquote(v)
	if base64.StdEncoding.DecodedLen(len(s)) > schedule.MaxDataBytes+2 {
		d.dataTooLarge(field)
		return
	}
	data := make([]byte, base64.StdEncoding.DecodedLen(len(s)))
	n, err := base64.StdEncoding.Strict().Decode(data, s)
	if err != nil || bytes.ContainsAny(s, "\r\n") { // which Go's decoder passes over
		d.refuse(schedule.Invalid(field, "is not base64 with padding"))
		return
	}
	e.Data, e.DataBase64 = data[:n], true
	if n > schedule.MaxDataBytes {
		d.dataTooLarge(field)
	}
}

func (d *decoder) dataTooLarge(field string) {
	d.refuse(&schedule.Error{
		Code: schedule.CodeTooLarge, Field: field,
		Detail: field + ": has more than " + strconv.Itoa(schedule.MaxDataBytes) + " bytes of decoded data",
	})
}
