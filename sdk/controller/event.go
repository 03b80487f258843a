package controller

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

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// maxBody is more than an object can have: the API server takes 3 MiB in a
// request.
const maxBody = 8 << 20

// errUnreadable marks what no repetition mends.
var errUnreadable = errors.New("this is no event that can be read")

// event is a CloudEvent: its attributes by name, and its data.
type event struct {
	attributes map[string]string
	data       []byte
}

func (e *event) typ() string { return e.attributes["type"] }

// key is that of a delivery of a RescheduleSource, "" if this is none.
func (e *event) key() string { return e.attributes["reschedulekey"] }

// retried says that the run of this delivery failed before.
func (e *event) retried() bool {
	n, err := strconv.Atoi(e.attributes["rescheduleattempt"])
	return err == nil && n > 0
}

// readEvent reads an event in the binary or the structured mode.
func readEvent(r *http.Request) (*event, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return nil, fmt.Errorf("reading the request: %w", err)
	}
	if len(body) > maxBody {
		return nil, fmt.Errorf("%w: it has more than %d bytes; let the ApiServerSource send references", errUnreadable, maxBody)
	}
	e := &event{attributes: map[string]string{}}
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media == "application/cloudevents+json" {
		err = e.structured(body)
	} else {
		e.data = body
		err = e.binary(r.Header)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errUnreadable, err)
	case e.typ() == "":
		return nil, fmt.Errorf("%w: it has no type; CloudEvents in the binary and the structured mode are read", errUnreadable)
	}
	return e, nil
}

func (e *event) binary(h http.Header) error {
	for header, values := range h {
		name, ok := strings.CutPrefix(header, "Ce-")
		if !ok {
			continue
		}
		value := percentDecode(values[0])
		if len(values) > 1 || !utf8.ValidString(value) {
			return fmt.Errorf("header %s is there twice, or not UTF-8", header)
		}
		e.attributes[strings.ToLower(name)] = value
	}
	return nil
}

func (e *event) structured(body []byte) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return err
	}
	e.data = members["data"]
	for name, raw := range members {
		text := string(raw) // of a number or a boolean
		if raw[0] == '"' && json.Unmarshal(raw, &text) != nil {
			return fmt.Errorf("attribute %s is not a string", name)
		}
		switch name {
		case "data":
		case "data_base64":
			data, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				return fmt.Errorf("data_base64: %w", err)
			}
			e.data = data
		default:
			e.attributes[name] = text
		}
	}
	return nil
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

// percentEncode is its reverse.
func percentEncode(s string) string {
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

// verb is what happened to an object.
type verb string

const (
	added   verb = "add"
	updated verb = "update"
	deleted verb = "delete"
)

// change is what an ApiServerSource tells.
type change struct {
	verb
	gvk  schema.GroupVersionKind
	name types.NamespacedName // a cluster-scoped object has no namespace
	// object is the object as JSON, nil if only its name was sent.
	object, metadata json.RawMessage
}

// apiServerTypes are the events of an ApiServerSource, in its two modes.
var apiServerTypes = map[string]struct {
	verb
	whole bool
}{
	"dev.knative.apiserver.resource.add":    {added, true},
	"dev.knative.apiserver.resource.update": {updated, true},
	"dev.knative.apiserver.resource.delete": {deleted, true},
	"dev.knative.apiserver.ref.add":         {added, false},
	"dev.knative.apiserver.ref.update":      {updated, false},
	"dev.knative.apiserver.ref.delete":      {deleted, false},
}

// readChange reads the event of an ApiServerSource, nil if it is none.
func readChange(e *event) (*change, error) {
	t, ok := apiServerTypes[e.typ()]
	if !ok {
		return nil, nil
	}
	// An object has its name in its metadata, and may have anything beside them; an
	// ObjectReference is its name.
	var object struct {
		APIVersion string
		Kind       string
		Metadata   json.RawMessage
	}
	var name struct{ Namespace, Name string }
	err := json.Unmarshal(e.data, &object)
	if err == nil && t.whole && object.Metadata != nil {
		err = json.Unmarshal(object.Metadata, &name)
	} else if err == nil && !t.whole {
		err = json.Unmarshal(e.data, &name)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the data of a %s: %w", errUnreadable, e.typ(), err)
	}
	c := &change{
		verb: t.verb,
		gvk:  schema.FromAPIVersionAndKind(object.APIVersion, object.Kind),
		name: types.NamespacedName{Namespace: name.Namespace, Name: name.Name},
	}
	if t.whole {
		c.object, c.metadata = e.data, object.Metadata
	}
	if c.gvk.Kind == "" || c.gvk.Version == "" || c.name.Name == "" {
		return nil, fmt.Errorf("%w: the data of a %s has no apiVersion, kind or name", errUnreadable, e.typ())
	}
	return c, nil
}
