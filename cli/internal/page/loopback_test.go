package page

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// A name that leads here by DNS is not the page's: only loopback names and addresses are.
func TestLoopback_OtherHosts(t *testing.T) {
	page := Loopback(Guard{}, serve(t, trouble("k", "x")))
	for host, want := range map[string]int{
		"127.0.0.1:9090": 200, "localhost:9090": 200, "[::1]:9090": 200, "LOCALHOST": 200, "127.5.6.7": 200,
		"evil.example": 421, "evil.example:9090": 421, "localhost.evil.example": 421, "10.0.0.1:9090": 421, "127.0.0.1.evil.example": 421, "0.0.0.0:9090": 421, "": 421,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = host
		w := httptest.NewRecorder()
		page.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("Host %q: status %d, want %d", host, w.Code, want)
		}
	}
}

// Another page may link here. It may not read, embed or call.
func TestLoopback_OtherPages(t *testing.T) {
	page := Loopback(Guard{}, serve(t, trouble("k", "x")))
	for _, c := range []struct {
		headers []string
		want    int
	}{
		{[]string{"Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 200},
		{[]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 200},
		{[]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, 403},
		{[]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}, 403},
		{[]string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"}, 403},
		{[]string{"Origin", "http://evil.example"}, 403},
		{[]string{"Origin", "null"}, 403},
		{[]string{"Origin", "http://127.0.0.1:9090", "Sec-Fetch-Site", "same-origin"}, 200},
	} {
		if w := do(page, "GET", "/", "", c.headers...); w.Code != c.want {
			t.Errorf("%q: status %d, want %d", c.headers, w.Code, c.want)
		}
	}
}

// The secret works once. Its cookie is for this page alone, and its session has the token
// of the guard, which the browser never sees.
func TestLoopback_SecretWorksOnce(t *testing.T) {
	api := trouble("k", "x")
	page := Loopback(Guard{Secret: "once", Bearer: "process-token"}, serve(t, api))
	for _, target := range []string{"/", "/source?ns=ops&name=repos", "/events?ns=ops&name=repos", "/?secret=", "/?secret=other"} {
		if w := do(page, "GET", target, ""); w.Code != http.StatusUnauthorized && w.Code != http.StatusForbidden {
			t.Errorf("%s without a session: status %d", target, w.Code)
		}
	}
	if len(api.calls) > 0 {
		t.Errorf("the API had %d calls without a session", len(api.calls))
	}
	w := do(page, "GET", "/?secret=once", "")
	cookies := w.Result().Cookies()
	if w.Code != http.StatusOK || len(cookies) != 1 {
		t.Fatalf("status %d, cookies %v", w.Code, cookies)
	}
	c := cookies[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Name != "reschedule-page-9090" || strings.Contains(c.Value, "token") {
		t.Errorf("the cookie is %v", c)
	}
	if w := do(page, "GET", "/?secret=once", ""); w.Code != http.StatusForbidden || len(w.Result().Cookies()) > 0 {
		t.Errorf("the second time: status %d, cookies %v", w.Code, w.Result().Cookies())
	}
	w = do(page, "GET", "/", "", "Cookie", c.Name+"="+c.Value)
	if w.Code != http.StatusOK || strings.Contains(w.Body.String(), "process-token") {
		t.Errorf("with the cookie: status %d: %s", w.Code, w.Body)
	}
	if got := api.last(t, "GET").Header.Get("Authorization"); got != "Bearer process-token" {
		t.Errorf("the call has %q", got)
	}
	if w := do(page, "GET", "/", "", "Cookie", c.Name+"=other"); w.Code != http.StatusUnauthorized {
		t.Errorf("another cookie: status %d", w.Code)
	}
	if w := do(page, "GET", "/?secret=once", "", "Cookie", c.Name+"="+c.Value); w.Code != http.StatusSeeOther {
		t.Errorf("the address again, with the cookie: status %d", w.Code)
	}
}

// A user may sign in with a token. The calls of the session have it, so that a token that
// was revoked ends what the session may do.
func TestLoopback_TokenSignsIn(t *testing.T) {
	api := trouble("k", "x")
	var mine atomic.Value
	mine.Store("mine")
	page := Loopback(Guard{Secret: "once", Bearer: "process-token", Token: func(_ context.Context, token string) bool { return token == mine.Load() }}, serve(t, api))
	if w := do(page, "GET", "/", ""); w.Code != http.StatusUnauthorized || !strings.Contains(w.Body.String(), `action="login"`) {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	if w := do(page, "POST", "/login", "token=other"); w.Code != http.StatusUnauthorized || len(w.Result().Cookies()) > 0 {
		t.Errorf("another token: status %d", w.Code)
	}
	if w := do(page, "POST", "/login", "token=mine", "Sec-Fetch-Site", "cross-site"); w.Code != http.StatusForbidden {
		t.Errorf("from another site: status %d", w.Code)
	}
	w := do(page, "POST", "/login", "token=mine")
	if w.Code != http.StatusOK || len(w.Result().Cookies()) != 1 {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	c := w.Result().Cookies()[0]
	do(page, "GET", "/", "", "Cookie", c.Name+"="+c.Value)
	if got := api.last(t, "GET").Header.Get("Authorization"); got != "Bearer mine" {
		t.Errorf("the call has %q", got)
	}
	api.status = map[string]int{"GET /ops/repos": http.StatusUnauthorized}
	if w := do(page, "GET", "/source?ns=ops&name=repos", "", "Cookie", c.Name+"="+c.Value); w.Code != http.StatusUnauthorized || !strings.Contains(w.Body.String(), `href="login"`) {
		t.Errorf("with a token that was revoked: status %d: %s", w.Code, w.Body)
	}
	api.status = nil
	mine.Store("another")
	for range 2 {
		if w := do(page, "GET", "/", "", "Cookie", c.Name+"="+c.Value); w.Code != http.StatusUnauthorized || strings.Contains(w.Body.String(), "repos") {
			t.Errorf("a session of a revoked token: status %d: %s", w.Code, w.Body)
		}
		mine.Store("mine") // it came too late: the session has ended
	}
}

// There is a bounded number of sessions: the oldest one ends.
func TestLoopback_BoundedSessions(t *testing.T) {
	page := Loopback(Guard{Token: func(context.Context, string) bool { return true }}, serve(t, trouble("k", "x")))
	var cookies []string
	for range maxSessions + 1 {
		c := do(page, "POST", "/login", "token=t").Result().Cookies()[0]
		cookies = append(cookies, c.Name+"="+c.Value)
	}
	for i, want := range map[int]int{0: 401, 1: 200, maxSessions: 200} {
		if w := do(page, "GET", "/", "", "Cookie", cookies[i]); w.Code != want {
			t.Errorf("session %d: status %d, want %d", i, w.Code, want)
		}
	}
}
