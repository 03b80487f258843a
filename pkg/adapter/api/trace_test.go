package api

import (
	"context"
	"net/http"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/ingest"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
)

// What a request schedules continues its span. An event keeps a context of its own, unless its call has one.
func TestSpan_OfARequest(t *testing.T) {
	t.Parallel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	spans := tracetest.NewSpanRecorder()
	e := newEdge(t, func(c *Config) {
		c.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("")
	})
	last := func() sdktrace.ReadOnlySpan { ended := spans.Ended(); return ended[len(ended)-1] }
	for _, called := range []string{"", parent} {
		headers := []string{"Content-Type", "application/json"}
		if called != "" {
			headers = append(headers, "Traceparent", called)
		}
		e.do("PUT", base+"/schedules/k", `{"delay":1}`, headers...)
		span := last()
		if span.Name() != "PUT /{namespace}/{name}/schedules/{key}" || span.Parent().IsValid() != (called != "") {
			t.Errorf("span %q, parent %v", span.Name(), span.Parent())
		}
		want := "00-" + span.SpanContext().TraceID().String() + "-" + span.SpanContext().SpanID().String() + "-01"
		if got := e.requests[len(e.requests)-1].TraceParent; got != want {
			t.Errorf("the schedule has the context %q, want %q", got, want)
		}
		attributes := map[string]string{}
		for _, a := range span.Attributes() {
			attributes[string(a.Key)] = a.Value.String()
		}
		if !strings.HasPrefix(attributes["http.response.status_code"], "20") || attributes["kn.source.name"] != "demo" || attributes["http.request.method"] != "PUT" {
			t.Errorf("attributes %v", attributes)
		}
	}
	var header http.Header
	e.ingest = func(_ context.Context, _ ingest.Source, h http.Header, _ []byte, _ access.Judge) ([]queue.Item, error) {
		header = h
		return nil, nil
	}
	e.do("POST", base, `{}`)
	if got := header.Get("Traceparent"); got != "" {
		t.Errorf("a call without a context brings %q, which hides the event's own", got)
	}
	e.do("POST", base, `{}`, "Traceparent", parent)
	if got := header.Get("Traceparent"); got[36:52] != last().SpanContext().SpanID().String() || last().Name() != "POST /{namespace}/{name}" {
		t.Errorf("span %q, context %q", last().Name(), got)
	}
}
