package ingest

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// traceContext is the W3C trace context to store with a request: the one of
// the HTTP call, else the one of the CloudEvents distributed tracing
// extension. One that is not valid is as if absent.
func traceContext(h http.Header, e *schedule.Event) (parent, state string) {
	if parent, state = validTrace(h.Get("Traceparent"), h.Get("Tracestate")); parent != "" {
		return parent, state
	}
	text := func(name string) string {
		s, _ := e.Extensions[name].(string)
		return s
	}
	return validTrace(text("traceparent"), text("tracestate"))
}

func validTrace(parent, state string) (string, string) {
	if parent == "" {
		return "", ""
	}
	carrier := propagation.MapCarrier{"traceparent": parent, "tracestate": state}
	ctx := propagation.TraceContext{}.Extract(context.Background(), carrier)
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return "", ""
	}
	clean := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, clean)
	return clean["traceparent"], clean["tracestate"]
}

// canonical is the string form of an extension's value.
func canonical(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	}
	return fmt.Sprint(value)
}

func sizes(got, limit int) string {
	return fmt.Sprintf("has %d bytes, more than %d", got, limit)
}
