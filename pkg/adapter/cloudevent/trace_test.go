package cloudevent

import (
	"regexp"
	"testing"
)

var traceparent = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-9a-f]$`)

// FuzzTraceContext requires that what is passed on is valid and bounded.
func FuzzTraceContext(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1")
	f.Add("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x", "")
	f.Fuzz(func(t *testing.T, parent, state string) {
		p, s := TraceContext(map[string][]string{"Traceparent": {parent}, "Tracestate": {state}})
		if p != "" && !traceparent.MatchString(p) || p == "" && s != "" || len(s) > maxTracestate {
			t.Fatalf("%q %q", p, s)
		}
	})
}
