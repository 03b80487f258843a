package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Local serves only requests for a loopback host, and refuses other sites: no web page calls through a browser.
func TestWebPage_CannotCallALocalAdapter(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		host    string
		headers []string
		status  int
	}{
		{"127.0.0.1:8080", nil, 200},
		{"localhost", nil, 200},
		{"LOCALHOST:1", nil, 200},
		{"localhost.", nil, 200},
		{"localhost.:8080", nil, 200},
		{"localhost..", nil, 403},
		{"localhost.evil.example", nil, 403},
		{"[::1]:8080", nil, 200},
		{"127.1.2.3", nil, 200},
		{"", nil, 200},
		{"evil.example", nil, 403},
		{"127.0.0.1.evil.example:8080", nil, 403},
		{"10.0.0.1:8080", nil, 403},
		{"localhost", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"localhost", []string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"localhost", []string{"Sec-Fetch-Site", "none"}, 200},
		{"localhost", []string{"Origin", "https://evil.example"}, 403},
		{"localhost", []string{"Origin", "null"}, 403},
		{"localhost", []string{"Origin", "http://localhost:3000"}, 200},
	} {
		for _, local := range []bool{true, false} {
			e := newEdge(t, func(c *Config) { c.Local = local })
			r := httptest.NewRequest("GET", base, nil)
			r.Host = tt.host
			for i := 0; i < len(tt.headers); i += 2 {
				r.Header.Set(tt.headers[i], tt.headers[i+1])
			}
			w := httptest.NewRecorder()
			e.ServeHTTP(w, r)
			want := tt.status
			if !local {
				want = http.StatusOK
			}
			if w.Code != want || want == 403 && problemOf(t, w.Body.Bytes()).Code != "permission_denied" {
				t.Errorf("host %q, %q, local %t: %d %s", tt.host, tt.headers, local, w.Code, w.Body)
			}
		}
	}
}

// A bulk call of a browser needs its Content-Type: without one a page of another site could send it.
func TestBulk_OfABrowserNeedsItsContentType(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	const body = `{"items":[]}`
	for _, header := range []string{"Origin", "Sec-Fetch-Site", "Sec-Fetch-Mode"} {
		if w := e.do("POST", base+"/schedules", body, header, "x"); w.Code != http.StatusUnsupportedMediaType || !strings.Contains(w.Body.String(), "browser") {
			t.Errorf("%s without Content-Type: %d %s", header, w.Code, w.Body)
		}
		if w := e.do("POST", base+"/schedules", body, header, "x", "Content-Type", "application/json"); w.Code != http.StatusOK {
			t.Errorf("%s with Content-Type: %d %s", header, w.Code, w.Body)
		}
	}
	if w := e.do("POST", base+"/schedules", body); w.Code != http.StatusOK {
		t.Errorf("no browser: %d %s", w.Code, w.Body)
	}
}
