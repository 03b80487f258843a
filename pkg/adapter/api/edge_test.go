package api

import (
	"io"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
)

// A bearer token is required where there are tokens.
func TestToken_IsRequired(t *testing.T) {
	t.Parallel()
	e := newEdge(t, func(c *Config) { c.Guard = access.NewTokens("one", "two+/=._~-") })
	for header, status := range map[string]int{
		"": 401, "Bearer one": 200, "bearer  one": 200, "BEARER two+/=._~-": 200,
		"Bearer": 401, "Bearer ": 401, "Bearer on": 401, "Bearer onee": 401, "Bearer one two+/=._~-": 401, "Basic one": 401, "one": 401, "Bearerone": 401,
	} {
		w := e.do("GET", base, "", "Authorization", header)
		if w.Code != status {
			t.Errorf("%q: %d", header, w.Code)
		}
		if status == 401 && (!strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer") || problemOf(t, w.Body.Bytes()).Code != "unauthenticated") {
			t.Errorf("%q: %v %s", header, w.Header(), w.Body)
		}
	}
	if w := e.do("GET", base, "", "Authorization", "Bearer one", "Authorization", "Bearer one"); w.Code != 401 {
		t.Errorf("two headers: %d", w.Code)
	}
	for _, target := range []string{"/", "/nowhere", base, base + "/schedules/k"} {
		for _, method := range []string{"GET", "POST", "PUT", "DELETE", "PATCH"} {
			if w := e.do(method, target, ""); w.Code != 401 {
				t.Errorf("%s %s: %d", method, target, w.Code)
			}
		}
	}
	if w := e.do("GET", "/openapi.json", ""); w.Code != 200 {
		t.Errorf("the description: %d", w.Code)
	}
	e.cfg.Guard = new(access.Tokens)
	if w := e.do("GET", base, "", "Authorization", "Bearer "); w.Code != 401 {
		t.Errorf("no tokens at all: %d", w.Code)
	}
}

// A body must be JSON by its headers.
func TestBody_MustBeJSON(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		headers []string
		body    string
		status  int
	}{
		{nil, "{}", 201},
		{[]string{"Content-Type", "application/json"}, "{}", 201},
		{[]string{"Content-Type", "Application/JSON; Charset=UTF-8"}, "{}", 201},
		{[]string{"Content-Type", "application/json;charset=utf8"}, "{}", 201},
		{[]string{"Content-Type", `application/json; charset="Utf-8"; x=y`}, "{}", 201},
		{[]string{"Content-Type", "application/json; charset=latin1"}, "{}", 415},
		{[]string{"Content-Type", "application/merge-patch+json"}, "{}", 415},
		{[]string{"Content-Type", "application/x-www-form-urlencoded"}, "{}", 415},
		{[]string{"Content-Type", "application/x-www-form-urlencoded"}, "", 201},
		{[]string{"Content-Type", ""}, "{}", 415},
		{[]string{"Content-Type", "application/json", "Content-Type", "text/plain"}, "{}", 415},
		{[]string{"Content-Encoding", "gzip"}, "{}", 415},
		{[]string{"Content-Encoding", "identity"}, "{}", 201},
		{[]string{"Content-Encoding", " Identity , identity"}, "{}", 201},
		{[]string{"Content-Encoding", ""}, "{}", 201},
		{[]string{"Content-Encoding", "identity", "Content-Encoding", "br"}, "{}", 415},
	} {
		w := newEdge(t).do("PUT", base+"/schedules/k", tt.body, tt.headers...)
		if w.Code != tt.status || tt.status == 415 && problemOf(t, w.Body.Bytes()).Code != "unsupported_media_type" {
			t.Errorf("%q: %d %s", tt.headers, w.Code, w.Body)
		}
	}
}

// body makes a call with a body that says its length or does not.
func (e *edge) body(length int64, r io.Reader) *httptest.ResponseRecorder {
	req := httptest.NewRequest("PUT", base+"/schedules/k", r)
	req.ContentLength = length
	w := httptest.NewRecorder()
	e.ServeHTTP(w, req)
	return w
}

// unread fails the test when it is read.
type unread struct{ *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.Error("the body was read")
	return 0, io.EOF
}

// A body is bounded.
func TestBody_IsBounded(t *testing.T) {
	t.Parallel()
	const most = maxBody
	padded := func(n int) io.Reader { return strings.NewReader("{}" + strings.Repeat(" ", n-2)) }
	for name, tt := range map[string]struct {
		length int64
		body   io.Reader
		status int
	}{
		"of the most, announced":     {most, padded(most), 201},
		"of the most, unannounced":   {-1, padded(most), 201},
		"of little, unannounced":     {-1, padded(10), 201},
		"of nothing, unannounced":    {-1, strings.NewReader(""), 201},
		"of 64 KiB, unannounced":     {-1, padded(bodyStep), 201},
		"of a step, announced":       {smallBody + bodyStep, padded(smallBody + bodyStep), 201},
		"of a step, unannounced":     {-1, padded(smallBody + bodyStep), 201},
		"that is small":              {smallBody, padded(smallBody), 201},
		"that is small, unannounced": {-1, padded(smallBody), 201},
		"of a byte more":             {-1, padded(most + 1), 413},
		"of a byte, then its end":    {-1, iotest.DataErrReader(padded(most + 1)), 413},
		"of many more":               {-1, padded(most + 2<<20), 413},
		"announced too large":        {10 << 30, unread{t}, 413},
		"that ends early":            {100, padded(99), 400},
		"that never begins":          {100, strings.NewReader(""), 400},
		"that breaks, announced":     {100, iotest.ErrReader(io.ErrUnexpectedEOF), 400},
		"that breaks, unannounced":   {-1, iotest.ErrReader(io.ErrUnexpectedEOF), 400},
		"that breaks late":           {-1, io.MultiReader(padded(bodyStep+1), iotest.ErrReader(io.ErrUnexpectedEOF)), 400},
		"that the client is late to": {-1, iotest.ErrReader(os.ErrDeadlineExceeded), 400},
	} {
		e := newEdge(t)
		w := e.body(tt.length, tt.body)
		if w.Code != tt.status {
			t.Errorf("a body %s: %d %s", name, w.Code, w.Body)
		}
		if w.Code == 413 && w.Header().Get("Connection") != "close" {
			t.Errorf("a body %s: the connection stays open", name)
		}
		if e.bytes.Used() != 0 || e.shares.Used() != 0 {
			t.Errorf("a body %s kept %d of the budget, and %d as a request", name, e.bytes.Used(), e.shares.Used())
		}
	}
}

// Large bodies wait for their share.
func TestBody_LargeWaitsForItsShare(t *testing.T) {
	t.Parallel()
	for _, length := range []int64{smallBody + 1, -1} {
		e := newEdge(t)
		all := e.bytes.Claim("another", "source")
		if !all.TryGrow(e.cfg.Budget) {
			t.Fatal("the budget is not empty")
		}
		w := e.body(length, strings.NewReader("{}"+strings.Repeat(" ", smallBody-1)))
		if w.Code != 503 || w.Header().Get("Retry-After") == "" || problemOf(t, w.Body.Bytes()).Code != "unavailable" {
			t.Errorf("%d: %d %s", length, w.Code, w.Body)
		}
		if w := e.body(2, strings.NewReader("{}")); w.Code != 201 {
			t.Errorf("a small one: %d %s", w.Code, w.Body)
		}
	}
}

// A trace context is carried when it is valid.
func TestTraceContext_CarriedWhenValid(t *testing.T) {
	t.Parallel()
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, tt := range []struct {
		headers       []string
		parent, state string
	}{
		{nil, "", ""},
		{[]string{"traceparent", good}, good, ""},
		{[]string{"traceparent", good, "tracestate", "a=1", "tracestate", "b=2"}, good, "a=1,b=2"},
		{[]string{"traceparent", good, "tracestate", "bad value"}, good, ""},
		{[]string{"traceparent", good, "tracestate", "a=" + strings.Repeat("x", 600)}, good, ""},
		{[]string{"tracestate", "a=1"}, "", ""},
		{[]string{"traceparent", "01" + good[2:] + "-extra"}, good, ""},
		{[]string{"traceparent", "01" + good[2:] + "extra"}, "", ""},
		{[]string{"traceparent", good + "-extra"}, "", ""},
		{[]string{"traceparent", "ff" + good[2:]}, "", ""},
		{[]string{"traceparent", strings.ToUpper(good)}, "", ""},
		{[]string{"traceparent", good[:54]}, "", ""},
		{[]string{"traceparent", "00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01"}, "", ""},
		{[]string{"traceparent", "00-0af7651916cd43dd8448eb211c80319c-" + strings.Repeat("0", 16) + "-01"}, "", ""},
		{[]string{"traceparent", good, "traceparent", good}, "", ""},
	} {
		r := newEdge(t).put(t, "k", "", tt.headers...)
		if r.TraceParent != tt.parent || r.TraceState != tt.state {
			t.Errorf("%q: %q %q", tt.headers, r.TraceParent, r.TraceState)
		}
	}
}

// The server has bounds.
func TestServer_HasBounds(t *testing.T) {
	t.Parallel()
	s := Server(newEdge(t))
	if s.ReadHeaderTimeout <= 0 || s.ReadTimeout <= 0 || s.WriteTimeout <= s.ReadTimeout || s.IdleTimeout <= 0 || s.MaxHeaderBytes <= 0 {
		t.Errorf("%+v", s)
	}
}
