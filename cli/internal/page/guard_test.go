package page

import (
	"net/http"
	"testing"
)

// opened is a page, and the cookie of the browser that has opened it.
func opened(t *testing.T, next http.Handler) (page http.Handler, session string) {
	t.Helper()
	page = Loopback("once", next)
	cookies := do(page, "GET", "/?secret=once", "").Result().Cookies()
	if len(cookies) != 1 {
		t.Fatalf("the cookies are %v", cookies)
	}
	c := cookies[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Name != "reschedule-page-9090" {
		t.Errorf("the cookie is %v", c)
	}
	return page, c.Name + "=" + c.Value
}

// A name that leads here by DNS is not the page's: only loopback names and addresses are.
func TestLoopback_OtherHosts(t *testing.T) {
	page, session := opened(t, serve(t, trouble("k", "x")))
	for host, want := range map[string]int{
		"127.0.0.1:9090": 200, "localhost:9090": 200, "localhost.:9090": 200, "[::1]:9090": 200, "127.5.6.7:9090": 200,
		"evil.example:9090": 421, "localhost.evil.example:9090": 421, "10.0.0.1:9090": 421, "127.0.0.1.evil.example:9090": 421, "0.0.0.0:9090": 421, "": 421,
	} {
		if w := do(page, "GET", "/", "", "Host", host, "Cookie", session); w.Code != want {
			t.Errorf("Host %q: status %d, want %d", host, w.Code, want)
		}
	}
}

// The secret works once, and its session is of one browser.
func TestLoopback_SecretWorksOnce(t *testing.T) {
	api := trouble("k", "x")
	page := Loopback("once", serve(t, api))
	for _, target := range []string{"/", "/source?ns=ops&name=repos", "/events?ns=ops&name=repos", "/?secret=", "/?secret=other"} {
		if w := do(page, "GET", target, "", "Cookie", "reschedule-page-9090="); w.Code != http.StatusUnauthorized && w.Code != http.StatusForbidden {
			t.Errorf("%s without a session: status %d", target, w.Code)
		}
	}
	if len(api.calls) > 0 {
		t.Errorf("the API had %d calls without a session", len(api.calls))
	}
	page, session := opened(t, serve(t, api))
	for _, c := range []struct {
		target, cookie string
		want           int
	}{{"/?secret=once", "", 403}, {"/", "reschedule-page-9090=other", 401}, {"/", session, 200}, {"/?secret=once", session, 200}, {"/style.css", "", 200}} {
		if w := do(page, "GET", c.target, "", "Cookie", c.cookie); w.Code != c.want || len(w.Result().Cookies()) > 0 {
			t.Errorf("%s with %q: status %d, want %d", c.target, c.cookie, w.Code, c.want)
		}
	}
}
