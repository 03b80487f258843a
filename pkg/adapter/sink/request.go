package sink

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/net/http/httpguts"

	"github.com/reschedule-dev/reschedule/pkg/adapter/cloudevent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/loglimit"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// constants are the headers that depend on a source alone, and the limit of its warnings.
type constants struct {
	eventSource string
	overrides   []line // spec.ceOverrides, binary mode
	warnings    loglimit.Limit
}

const (
	contentType = "Content-Type"
	userAgent   = "RescheduleSource"
)

func (s *Sender) constants(src *schedule.Spec) *constants {
	c, _ := s.sources.get(weak.Make(src), func() (*constants, error) {
		c := &constants{
			eventSource: src.EventSource(),
			warnings:    loglimit.Limit{Lines: warningLines, Per: time.Second},
		}
		for name, value := range src.Extensions {
			c.overrides = append(c.overrides, line{headerName(name), cloudevent.EncodeHeader(value)})
		}
		return c, nil
	})
	return c
}

// unsendableError is the error of an event that HTTP cannot carry: a retry would fail
// too.
type unsendableError struct{ reason string }

func (e *unsendableError) Error() string { return "sink: the event cannot be sent: " + e.reason }

// tokenError is the error of a token that could not be had, which is no fault of the sink's.
type tokenError struct{ error }

func (e *tokenError) Unwrap() error { return e.error }

// message is a request but for what its route decides.
type message struct {
	source *schedule.Spec
	method string
	header header
	body   []byte
}

// header is what stands between the Host header and the body, in this order.
type header []line

type line struct{ name, value string } // the name is canonical

// add appends a line whose name is not there.
func (h *header) add(name, value string) { *h = append(*h, line{name, value}) }

// set appends a line, or replaces the one with its name.
func (h *header) set(name, value string) {
	for i := range *h {
		if (*h)[i].name == name {
			(*h)[i].value = value
			return
		}
	}
	h.add(name, value)
}

// messages are for later requests: their lines are 20 and more.
var messages = sync.Pool{New: func() any { return new(message) }}

func (m *message) free() {
	clear(m.header)
	*m = message{header: m.header[:0]}
	messages.Put(m)
}

// request makes m the request of an attempt.
func (s *Sender) request(ctx context.Context, m *message, a *schedule.Attempt, r *route) error {
	c, h := s.constants(a.Source), &m.header
	d := cloudevent.Describe(a, c.eventSource)
	m.source, m.method, m.body = a.Source, http.MethodPost, d.Data
	// A sink would take data of the type of an event for the event itself.
	if a.Source.Delivery.Structured || cloudevent.IsMedia(d.DataContentType) {
		var err error
		if m.body, err = writeStructured(a); err != nil {
			return &unsendableError{err.Error()}
		}
		h.add(contentType, event.ApplicationCloudEventsJSON)
	} else if err := writeBinary(h, a, &d, c); err != nil {
		return err
	}
	h.add("Kn-Namespace", a.Source.Namespace)
	h.add("Prefer", "reply")
	h.add("User-Agent", userAgent)
	h.add("Accept-Encoding", "identity") // the body of a reply is read as it comes
	if trace.SpanContextFromContext(ctx).IsValid() {
		traced := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(ctx, traced)
		for name, value := range traced {
			h.add(http.CanonicalHeaderKey(name), value)
		}
	}
	if err := s.authorize(ctx, h, r, a.Source, a.Target); err != nil {
		return err
	}
	h.add("Content-Length", strconv.Itoa(len(m.body)))
	return nil
}

// authorize adds the source's token, or else the user of the route's URL.
func (s *Sender) authorize(ctx context.Context, h *header, r *route, src *schedule.Spec, target schedule.Target) error {
	if s.needsToken(src, target) {
		token, err := s.cfg.Token(ctx, src, target)
		if err != nil {
			return &tokenError{fmt.Errorf("sink: token for audience %q: %w", target.Audience, err)}
		}
		h.add("Authorization", "Bearer "+token)
	} else if r.authorization != "" {
		h.add("Authorization", r.authorization)
	}
	return nil
}

func (s *Sender) needsToken(src *schedule.Spec, target schedule.Target) bool {
	return s.cfg.Token != nil && target.Audience != "" && src.ServiceAccount != ""
}

func writeStructured(a *schedule.Attempt) ([]byte, error) {
	e := cloudevent.ToSDK(a)
	var b bytes.Buffer
	b.Grow(4096 + base64.StdEncoding.EncodedLen(len(e.DataEncoded))) // without this, doubling would take twice as much
	// json.Marshal would rewrite the data.
	if err := event.WriteJson(&e, &b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// writeBinary writes the attributes as the HTTP binding says.
func writeBinary(h *header, a *schedule.Attempt, d *schedule.Event, c *constants) error {
	add := func(header, value string) { h.add(header, cloudevent.EncodeHeader(value)) }
	set := func(attribute, value string) { h.set(headerName(attribute), cloudevent.EncodeHeader(value)) }
	add("Ce-Specversion", event.CloudEventsVersionV1)
	add("Ce-Id", d.ID)
	add("Ce-Source", d.Source)
	add("Ce-Type", d.Type)
	add("Ce-Subject", d.Subject)
	if !d.Time.IsZero() {
		add("Ce-Time", types.FormatTime(d.Time))
	}
	if d.DataSchema != "" {
		add("Ce-Dataschema", d.DataSchema)
	}
	if d.DataContentType != "" {
		value := strings.TrimSpace(d.DataContentType)
		if !httpguts.ValidHeaderFieldValue(value) {
			return &unsendableError{"datacontenttype is not a header value"}
		}
		h.add(contentType, value)
	}
	for name, value := range d.Extensions { // there may be hundreds, so each is added without a look at the others
		header := headerName(name)
		switch v := value.(type) {
		case string:
			add(header, v)
		case bool:
			add(header, strconv.FormatBool(v))
		case int32:
			add(header, strconv.Itoa(int(v)))
		}
	}
	cloudevent.DeliveryExtensions(a, set)
	for _, o := range c.overrides {
		h.set(o.name, o.value)
	}
	return nil
}

// headerName is the canonical header of an attribute. The attributes of every delivery
// cost no allocation.
func headerName(attribute string) string {
	if name, ok := ownHeaders[attribute]; ok {
		return name
	}
	b := slices.Concat([]byte("Ce-"), []byte(attribute))
	if 'a' <= b[3] && b[3] <= 'z' {
		b[3] -= 'a' - 'A'
	}
	return string(b)
}

var ownHeaders = map[string]string{
	cloudevent.KeyAttribute:      "Ce-Reschedulekey",
	cloudevent.RevisionAttribute: "Ce-Reschedulerevision",
	cloudevent.DueAtAttribute:    "Ce-Rescheduledueat",
	cloudevent.NumberAttribute:   "Ce-Rescheduleattempt",
}
