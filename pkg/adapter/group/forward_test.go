package group

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/reschedule-dev/reschedule/pkg/adapter/loglimit"
)

// A forwarded call has the path that its caller sent. The keys of callers that leave characters
// as they are, which should be encoded, lost their %2F: the owner saw another path.
func TestForwarded_KeepsThePath(t *testing.T) {
	t.Parallel()
	var got *http.Request
	r, owner := newSending(t, func(_ http.ResponseWriter, r *http.Request) { got = r })
	for _, target := range []string{
		"/n/s/schedules/k", "/n/s/schedules/k?limit=1&x=%2F", "/n/s/schedules/GitRepo%2Fteam%2Fsite", "/n/s/schedules/GitRepo%2Fteam%2Fsité",
		"/n/s/schedules/é%2Fhistory", "/n/s/schedules/a|b^{c}%2F\"d\"", "/n/s/schedules/%C3%A9", "/n/s/schedules/%252F", "/n/s/schedules//é%2F",
	} {
		sent := httptest.NewRequest(http.MethodPut, target, strings.NewReader("{}"))
		answer := httptest.NewRecorder()
		if o := r.send(t, answer, sent, owner); o != answered || answer.Code != http.StatusOK {
			t.Fatalf("%s: %v: %d %s", target, o, answer.Code, answer.Body)
		}
		if got.URL.Path != sent.URL.Path || got.URL.RawPath != sent.URL.RawPath || got.URL.RawQuery != sent.URL.RawQuery {
			t.Errorf("%s came as %q, %q, query %q", target, got.URL.Path, got.URL.RawPath, got.URL.RawQuery)
		}
	}
}

// A forwarded body that breaks off is 400, as at the owner. It was 503: callers sent it again.
func TestForwarded_BodyBreaksOff(t *testing.T) {
	t.Parallel()
	r, _ := newFar(t)
	server := httptest.NewServer(r)
	defer server.Close()
	for name, text := range map[string]string{
		"small":   "Content-Length: 9\r\n\r\n{",
		"chunked": "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
		"large":   "Content-Length: 999999\r\n\r\n" + strings.Repeat(" ", 2*maxReplay),
	} {
		status, body := half(t, server, text)
		if status != http.StatusBadRequest || !strings.Contains(body, `"field":"body"`) {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
}

// A caller that closes its side behind the request waits for the answer. It was 200, without a
// body, before the owner had done anything.
func TestForwarded_HalfClosed(t *testing.T) {
	t.Parallel()
	r, f := newFar(t)
	server := httptest.NewServer(r)
	defer server.Close()
	for _, late := range []time.Duration{100 * time.Millisecond, 2 * patience} {
		still := make(chan struct{})
		f.set(func() { f.still = still })
		goOn := sync.OnceFunc(func() { close(still) })
		answers := time.AfterFunc(late, goOn)
		status, body := half(t, server, "Content-Length: 2\r\n\r\n{}")
		answers.Stop()
		goOn()
		switch {
		case late < patience && (status != http.StatusOK || body != "2"):
			t.Errorf("an answer after %s: %d %q", late, status, body)
		case late > patience && (status != http.StatusServiceUnavailable || !strings.Contains(body, "unknown")):
			t.Errorf("no answer: %d %q", status, body)
		}
	}
	f.set(func() { f.owner = -1 })
	f.name(-1)
	if status, body := half(t, server, "Content-Length: 2\r\n\r\n{}"); status != http.StatusServiceUnavailable || !strings.Contains(body, "nothing was changed") {
		t.Errorf("no owner: %d %q", status, body)
	}
}

// leaving is an owner that is gone when it is asked for a second time.
type leaving struct{ asked bool }

func (o *leaving) here() (*tenure, <-chan struct{}) { return nil, nil }
func (o *leaving) isSealed() bool                   { return false }
func (o *leaving) elsewhere() (string, <-chan struct{}) {
	if o.asked {
		return "", nil
	}
	o.asked = true
	return "127.0.0.1:1", nil
}

// A call whose owner goes while the head of a large body comes waits for the next one. It was answered
// that its outcome is unknown, without having been sent.
func TestForwarded_OwnerGoneMeanwhile(t *testing.T) {
	t.Parallel()
	r, _ := newSending(t, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })
	r.ownership = &leaving{}
	answer := httptest.NewRecorder()
	c := routed{router: r.router, w: answer, deadline: time.NewTimer(patience),
		r: httptest.NewRequest(http.MethodPut, "/n/s/schedules/k", strings.NewReader(strings.Repeat(" ", 2*maxReplay)))}
	defer c.end()
	if _, _, o := c.try(); o != untouched {
		t.Errorf("%v: %d %s", o, answer.Code, answer.Body)
	}
}

// half sends a PUT, closes its side of the connection, and reads the answer.
func half(t *testing.T, server *httptest.Server, text string) (status int, body string) {
	t.Helper()
	c, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "PUT /n/s/schedules/k HTTP/1.1\r\nHost: x\r\n"+text); err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).CloseWrite() //nolint:forcetypeassert // it is one
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	b, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(b)
}

// OPTIONS * is about the server: it was 503, since no member owns its source.
func TestForwarded_NotTheWholeServer(t *testing.T) {
	t.Parallel()
	m := &Member{stage: &stage{}}
	answer := httptest.NewRecorder()
	m.Route(http.NotFoundHandler()).ServeHTTP(answer, httptest.NewRequest(http.MethodOptions, "*", http.NoBody))
	if answer.Code != http.StatusNotFound {
		t.Error(answer.Code, answer.Body)
	}
}

// A caller that was told to go on sees the refusal of a large body that the owner did not read.
func TestForwarded_ExpectsContinue(t *testing.T) {
	t.Parallel()
	far, _ := newFar(t)
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }))
	defer refusing.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		far.send(t, w, r, strings.TrimPrefix(refusing.URL, "http://"))
	}))
	defer server.Close()
	c, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	size := 4 << 20
	if _, err := fmt.Fprintf(c, "PUT / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", size); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatal(line, err)
	}
	_, _ = in.ReadString('\n')
	if _, err := io.WriteString(c, strings.Repeat(" ", size)); err != nil {
		t.Fatal("the connection was closed before the last byte was sent:", err)
	}
	answer, err := http.ReadResponse(in, nil)
	if err != nil || answer.StatusCode != http.StatusNotFound {
		t.Fatal(answer, err)
	}
	_ = answer.Body.Close()
}

// The log says why the outcome of a call is unknown, and once for many calls: only the caller was told.
func TestForwarded_UnknownOutcomeIsLogged(t *testing.T) {
	t.Parallel()
	r, owner := newSending(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	var log bytes.Buffer
	r.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	r.outcomes = loglimit.Limit{Lines: 1, Per: time.Hour}
	for range 3 {
		if o := r.send(t, httptest.NewRecorder(), httptest.NewRequest(http.MethodPut, "/n/s/schedules/k", strings.NewReader("{}")), owner); o != unknown {
			t.Error(o)
		}
	}
	if lines := log.String(); strings.Count(lines, "\n") != 1 || !strings.Contains(lines, "EOF") || !strings.Contains(lines, owner) {
		t.Errorf("the log is %q", lines)
	}
}

// A call with a key of idempotency is sent once, as any other one. The transport sent it again by itself, over a new
// connection. Where that failed, the call counted as not sent, though the owner had carried it out.
func TestForwarded_IdempotencyKey(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		var calls atomic.Int64
		r, owner := newSending(t, func(_ http.ResponseWriter, r *http.Request) {
			if r.Header.Get(key) != "" {
				t.Error("the owner sees", key)
			}
			if calls.Add(1) == 2 { // over a connection that was used before
				panic(http.ErrAbortHandler)
			}
		})
		r.client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) { //nolint:forcetypeassert // forwarder's
			if calls.Load() == 2 {
				return nil, &net.OpError{Op: "dial", Err: io.EOF}
			}
			return dialer().DialContext(ctx, network, address)
		}
		for n := range 2 {
			sent := httptest.NewRequest(http.MethodPut, "/n/s/schedules/k", strings.NewReader("{}"))
			sent.Header.Set(key, "x")
			if o := r.send(t, httptest.NewRecorder(), sent, owner); n == 1 && (o != unknown || calls.Load() != 2) {
				t.Errorf("%s: %v, %d calls", key, o, calls.Load())
			}
		}
	}
}

// sending is a router of a member that does not own the group.
type sending struct{ *router }

// ServeHTTP routes a call.
func (s sending) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.answer(nil, w, r) }

// send forwards a call once.
func (s sending) send(t *testing.T, w http.ResponseWriter, r *http.Request, owner string) outcome {
	t.Helper()
	f, err := newForwarding(w, r)
	if err != nil {
		t.Error(err)
		return answered
	}
	return (&routed{router: s.router, w: w, r: r, f: f}).forward(owner, nil)
}

// newSending returns a router, and the address of an owner that answers so.
func newSending(t *testing.T, answer http.HandlerFunc) (r sending, owner string) {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return newRouting(t, nil), strings.TrimPrefix(server.URL, "http://")
}

func newRouting(t *testing.T, o ownership) sending {
	t.Helper()
	r := newRouter(&Config{Log: slog.New(slog.DiscardHandler)}, o, forwarder(nil))
	r.counter, _ = noop.Meter{}.Int64Counter("forwarded")
	t.Cleanup(r.client.CloseIdleConnections)
	return sending{r}
}
