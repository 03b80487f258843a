package ingest

import "testing"

// FuzzTraceContext wants what is passed on to be valid and bounded.
func FuzzTraceContext(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1")
	f.Add("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x", "")
	f.Fuzz(func(t *testing.T, parent, state string) {
		p, s := TraceContext(map[string][]string{"Traceparent": {parent}, "Tracestate": {state}})
		if p != "" && (len(p) != traceparentBytes || !validTraceparent(p)) || p == "" && s != "" || len(s) > maxTracestate {
			t.Fatalf("%q %q", p, s)
		}
	})
}
