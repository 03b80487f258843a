package group

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
)

// memberPaths are what members ask each other for.
var memberPaths = []string{viewPath, sealPath, admissionPath, clockPath}

// A caller without a token read the views of all tenants, and sealed the group, through a standby: it forwarded the
// members' own paths with its certificate, and the owner answered them before the API saw the call. With the URL
// http:@host it had the standby call any host. A forwarded call reaches the API of an owner, whatever it is.
func TestForwarded_ReachesTheAPIAlone(t *testing.T) {
	t.Parallel()
	owner, _ := starting(t, Settings{Member: "a", peers: map[string]string{"a": "a.example:1", "b": "b.example:1", "c": "c.example:1"}})
	t.Cleanup(func() { _ = owner.Close() })
	var calls atomic.Int64
	r, address := newSending(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		answer := httptest.NewRecorder()
		owner.routePeers(nil).ServeHTTP(answer, r)
		if answer.Code != http.StatusServiceUnavailable || answer.Header().Get(notOwner) != "true" { // it has no tenure
			t.Errorf("%s %s: the owner answers %d %q %v", r.Method, r.RequestURI, answer.Code, answer.Body, answer.Header())
		}
	})
	standby := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, call *http.Request) {
		if o := r.send(t, w, call, address); o != answered {
			t.Error(call.RequestURI, o)
		}
	}))
	defer standby.Close()
	stranger := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the standby calls a host of its caller's: %s", r.RequestURI)
	}))
	defer stranger.Close()
	host := strings.TrimPrefix(stranger.URL, "http://")
	targets := []string{"http:@" + host + "/x", "http:@" + address + viewPath, "http:.example/", "http://" + host, "http:" + viewPath}
	for _, path := range memberPaths {
		for _, form := range []string{
			"%s", "%s?above=0", "/%s", "/x/..%s", "/.%s", "%s/", "http://x%s", "http://" + host + "%s", "http://u:p@x%s", "http:%s", "http:///%s",
		} {
			targets = append(targets, fmt.Sprintf(form, path))
		}
		name := strings.TrimPrefix(path, "/-/")
		targets = append(targets, "/%2D/"+name, "/-%2F"+name, fmt.Sprintf("/-/%%%x%s", name[0], name[1:]), "/%2D%2f"+name, "/%2e"+path, "/é/.."+path)
	}
	for _, target := range targets {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodHead, http.MethodPut, http.MethodOptions, http.MethodTrace} {
			before := calls.Load()
			if status := callRaw(t, standby.Listener.Addr().String(), method, target); status != http.StatusOK || calls.Load() != before+1 {
				t.Errorf("%s %s: %d, %d calls at the owner", method, target, status, calls.Load()-before)
			}
		}
	}
}

// callRaw calls with headers that only a member may set, and with a target that net/http would not send.
func callRaw(t *testing.T, address, method, target string) int {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nreschedule-member: c\r\nreschedule-caller: \r\nreschedule-secured: true\r\n"+
		"Connection: close, Reschedule-Caller, Reschedule-Member\r\n\r\n", method, target); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode
}

// What members ask each other for is answered to a member. A page in a browser on the same machine could seal a group
// on loopback: its POST says nothing of a member.
func TestPeers_AnswerMembersAlone(t *testing.T) {
	t.Parallel()
	m, _ := starting(t, Settings{Member: "a", peers: map[string]string{"a": "a.example:1", "b": "b.example:1", "c": "c.example:1"}})
	t.Cleanup(func() { _ = m.Close() })
	for _, path := range memberPaths {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			r, err := m.peers.request(t.Context(), method, "http://a"+path)
			if err != nil {
				t.Fatal(err)
			}
			r.URL = &url.URL{Path: path}
			answer := httptest.NewRecorder()
			m.routePeers(nil).ServeHTTP(answer, r)
			if is := answer.Code != http.StatusNotFound; is != (path != sealPath || method == http.MethodPost) {
				t.Errorf("%s %s of a member: %d", method, path, answer.Code)
			}
			r.Header.Del(asker)
			answer = httptest.NewRecorder()
			m.routePeers(nil).ServeHTTP(answer, r)
			if answer.Code != http.StatusNotFound {
				t.Errorf("%s %s: %d", method, path, answer.Code)
			}
		}
	}
}
