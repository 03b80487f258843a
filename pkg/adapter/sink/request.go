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

// constants are the headers that depend on a source alone, and the limit of its warnings. All its
// requests share the slices, which must not be modified.
type constants struct {
	eventSource string
	namespace   []string
	overrides   []field // spec.ceOverrides, binary mode
	warnings    loglimit.Limit
}

type field struct {
	header string
	value  []string
}

var (
	version1   = []string{event.CloudEventsVersionV1}
	preferOne  = []string{"reply"}
	identity   = []string{"identity"} // the body of a reply is read as it comes
	userAgent  = []string{"RescheduleSource"}
	structured = []string{event.ApplicationCloudEventsJSON}
)

const contentType = "Content-Type"

func (s *Sender) constants(src *schedule.Spec) *constants {
	c, _ := s.sources.get(weak.Make(src), func() (*constants, error) {
		c := &constants{
			eventSource: src.EventSource(), namespace: []string{src.Namespace},
			warnings: loglimit.Limit{Lines: warningLines, Per: time.Second},
		}
		for name, value := range src.Extensions {
			c.overrides = append(c.overrides, field{headerName(name), []string{cloudevent.EncodeHeader(value)}})
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
	header http.Header
	body   []byte
}

// request makes the request of an attempt.
func (s *Sender) request(ctx context.Context, a *schedule.Attempt, r *route) (*message, error) {
	c := s.constants(a.Source)
	d := cloudevent.Describe(a, c.eventSource)
	h := make(http.Header, 20+len(d.Extensions)+len(c.overrides))
	body := d.Data
	// A sink would take data of the type of an event for the event itself.
	if a.Source.Delivery.Structured || cloudevent.IsMedia(d.DataContentType) {
		var err error
		if body, err = writeStructured(a); err != nil {
			return nil, &unsendableError{err.Error()}
		}
		h[contentType] = structured
	} else if err := writeBinary(h, a, &d, c); err != nil {
		return nil, err
	}
	h["Kn-Namespace"], h["Prefer"], h["User-Agent"], h["Accept-Encoding"] = c.namespace, preferOne, userAgent, identity
	if trace.SpanContextFromContext(ctx).IsValid() {
		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
	}
	if err := s.authorize(ctx, h, r, a.Source, a.Target); err != nil {
		return nil, err
	}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	return &message{source: a.Source, method: http.MethodPost, header: h, body: body}, nil
}

// authorize adds the source's token, or else the user of the route's URL.
func (s *Sender) authorize(ctx context.Context, h http.Header, r *route, src *schedule.Spec, target schedule.Target) error {
	if s.needsToken(src, target) {
		token, err := s.cfg.Token(ctx, src, target)
		if err != nil {
			return &tokenError{fmt.Errorf("sink: token for audience %q: %w", target.Audience, err)}
		}
		h["Authorization"] = []string{"Bearer " + token}
	} else if r.authorization != nil {
		h["Authorization"] = r.authorization
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
func writeBinary(h http.Header, a *schedule.Attempt, d *schedule.Event, c *constants) error {
	values := make([]string, 0, 14+len(d.Extensions)) // one allocation for all
	put := func(header, value string) {
		values = append(values, cloudevent.EncodeHeader(value))
		h[header] = values[len(values)-1 : len(values) : len(values)]
	}
	h["Ce-Specversion"] = version1
	put("Ce-Id", d.ID)
	put("Ce-Source", d.Source)
	put("Ce-Type", d.Type)
	put("Ce-Subject", d.Subject)
	if !d.Time.IsZero() {
		put("Ce-Time", types.FormatTime(d.Time))
	}
	if d.DataSchema != "" {
		put("Ce-Dataschema", d.DataSchema)
	}
	if d.DataContentType != "" {
		values = append(values, strings.TrimSpace(d.DataContentType)) // as the transport would
		h[contentType] = values[len(values)-1 : len(values) : len(values)]
	}
	for name, value := range d.Extensions {
		switch v := value.(type) {
		case string:
			put(headerName(name), v)
		case bool:
			put(headerName(name), strconv.FormatBool(v))
		case int32:
			put(headerName(name), strconv.Itoa(int(v)))
		}
	}
	cloudevent.DeliveryExtensions(a, func(name, value string) { put(headerName(name), value) })
	for _, o := range c.overrides {
		h[o.header] = o.value
	}
	if ct := h[contentType]; ct != nil && !httpguts.ValidHeaderFieldValue(ct[0]) {
		return &unsendableError{"datacontenttype is not a header value"}
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
