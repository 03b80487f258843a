package api

import (
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/trace"
)

const (
	traceparentBytes = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	maxTracestate    = 512 // what W3C Trace Context asks to propagate at least
)

// traceContext returns the request's W3C trace context, "" where it has none
// or one that is not valid: a broken trace must not break a call. A version
// that is not known yet is passed on as far as version 00 goes.
func traceContext(h http.Header) (parent, state string) {
	lines := h["Traceparent"]
	if len(lines) != 1 {
		return "", ""
	}
	parent = lines[0]
	if !validTraceparent(parent) {
		return "", ""
	}
	if parent[:2] != "00" {
		parent = "00" + parent[2:traceparentBytes]
	}
	if lines := h["Tracestate"]; len(lines) > 0 {
		state = strings.Join(lines, ",")
		if len(state) > maxTracestate {
			return parent, ""
		}
		if _, err := trace.ParseTraceState(state); err != nil {
			return parent, ""
		}
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
