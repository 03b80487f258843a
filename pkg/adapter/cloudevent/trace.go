package cloudevent

import (
	"context"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/propagation"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// maxTracestate is the least that W3C Trace Context requires a program to propagate.
const maxTracestate = 512

// TraceContext returns the W3C trace context of a call, "" where it has none
// or one that is not valid: a broken trace must not break a call. A version
// that is not known yet is passed on as far as version 00 goes.
func TraceContext(h http.Header) (parent, state string) {
	return traceContext(h["Traceparent"], h["Tracestate"])
}

// TraceOf returns the trace context to store with an event's request: the context
// of the call, else of the CloudEvents distributed tracing extension.
func TraceOf(h http.Header, e *schedule.Event) (parent, state string) {
	if parent, state = TraceContext(h); parent != "" {
		return parent, state
	}
	text := func(name string) []string {
		s, _ := e.Extensions[name].(string)
		return []string{s}
	}
	return traceContext(text("traceparent"), text("tracestate"))
}

// traceContext reads and writes the context once, so that a sink receives only text
// that OpenTelemetry understands.
func traceContext(parents, states []string) (parent, state string) {
	if len(parents) != 1 || parents[0] == "" || len(parents[0]) > maxTracestate {
		return "", ""
	}
	call, stored := propagation.MapCarrier{"traceparent": parents[0]}, propagation.MapCarrier{}
	if state = strings.Join(states, ","); len(state) <= maxTracestate {
		call["tracestate"] = state
	}
	w3c := propagation.TraceContext{}
	w3c.Inject(w3c.Extract(context.Background(), call), stored)
	return stored["traceparent"], stored["tracestate"]
}
