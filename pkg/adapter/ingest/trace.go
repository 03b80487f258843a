package ingest

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/trace"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const (
	traceparentBytes = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	maxTracestate    = 512 // what W3C Trace Context asks to propagate at least
)

// TraceContext returns the W3C trace context of a call, "" where it has none
// or one that is not valid: a broken trace must not break a call. A version
// that is not known yet is passed on as far as version 00 goes.
func TraceContext(h http.Header) (parent, state string) {
	return traceContext(h["Traceparent"], h["Tracestate"])
}

// traceOf is the trace context to store with an event's request: the one of
// the call, else the one of the CloudEvents distributed tracing extension.
func traceOf(h http.Header, e *schedule.Event) (parent, state string) {
	if parent, state = TraceContext(h); parent != "" {
		return parent, state
	}
	text := func(name string) []string {
		s, _ := e.Extensions[name].(string)
		return []string{s}
	}
	return traceContext(text("traceparent"), text("tracestate"))
}

func traceContext(parents, states []string) (parent, state string) {
	if len(parents) != 1 || !validTraceparent(parents[0]) {
		return "", ""
	}
	parent = parents[0]
	if parent[:2] != "00" {
		parent = "00" + parent[2:traceparentBytes]
	}
	if state = strings.Join(states, ","); len(state) > maxTracestate {
		return parent, ""
	}
	if _, err := trace.ParseTraceState(state); err != nil {
		return parent, ""
	}
	return parent, state
}

func validTraceparent(s string) bool {
	if len(s) < traceparentBytes || len(s) > maxTracestate || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return false
	}
	version, id, span, flags := s[:2], s[3:35], s[36:52], s[53:55]
	switch {
	case !lowerHex(version) || !lowerHex(id) || !lowerHex(span) || !lowerHex(flags):
		return false
	case version == "ff" || version == "00" && len(s) != traceparentBytes:
		return false
	case len(s) > traceparentBytes && s[traceparentBytes] != '-':
		return false
	}
	return strings.Trim(id, "0") != "" && strings.Trim(span, "0") != ""
}

func lowerHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
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
