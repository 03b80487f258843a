package sink

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// listen serves each connection with f, and closes it then. It tells of each new connection.
func listen(t testing.TB, f func(net.Conn)) (address string, opened <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	news := make(chan struct{}, 10_000)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			news <- struct{}{}
			go func() {
				defer c.Close()
				f(c)
			}()
		}
	}()
	return l.Addr().String(), news
}

// receive reads a request.
func receive(in *bufio.Reader) (*http.Request, bool) {
	r, err := http.ReadRequest(in)
	if err != nil {
		return nil, false
	}
	_, _ = io.Copy(io.Discard, r.Body)
	return r, true
}

func large(a *schedule.Attempt) {
	a.Entry.Event = &schedule.Event{DataContentType: "text/plain", Data: bytes.Repeat([]byte("x"), schedule.MaxDataBytes)}
}

// A sink that answers before it has read the request, and closes the connection or reads no more, has answered.
func TestAnswer_BeforeTheRequestIsRead(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]func(net.Conn){
		"and closes":     func(net.Conn) {},
		"and never ends": func(c net.Conn) { _, _ = c.Read(make([]byte, 1)); select {} },
	} {
		address, _ := listen(t, func(c net.Conn) {
			_ = c.(*net.TCPConn).SetReadBuffer(4096)
			_, _ = c.Read(make([]byte, 1))
			io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nlarge")
			after(c)
		})
		s, _ := newSender(t)
		big := func(a *schedule.Attempt) { large(a); a.Entry.Event.Data = bytes.Repeat([]byte("x"), 16<<20) }
		o := send(t, s, attempt("http://"+address, big))
		if o.Kind != schedule.Rejected || o.Status != 413 || string(o.Failure.Data) != "large" {
			t.Errorf("%s: %+v %s", name, o, o.Failure.Data)
		}
		if n := s.pool.idle.Len(); n != 0 {
			t.Errorf("%s: %d connections with half a request are kept", name, n)
		}
	}
}

// A sink that answers each connection at once and resets it has answered, although no request was written.
func TestAnswer_BeforeTheRequestIsWritten(t *testing.T) {
	t.Parallel()
	dialled, reset := make(chan struct{}), make(chan struct{})
	address, _ := listen(t, func(c net.Conn) {
		<-dialled
		io.WriteString(c, "HTTP/1.1 503 Overloaded\r\nRetry-After: 7\r\n\r\n")
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
		close(reset)
	})
	s, _ := newSender(t)
	o := send(t, s, attempt("http://"+address, func(a *schedule.Attempt) {
		a.Begin = func() (func(), bool) {
			close(dialled)
			<-reset
			return func() {}, true
		}
	}))
	if o.Status != 503 || o.RetryAfter != 7*time.Second {
		t.Errorf("%+v %s", o, o.Failure.Data)
	}
}

// A connection that the sink closed while it was idle, or on which it sent something, gets no request: the sink might
// read it and close the connection, which would be a failed attempt.
func TestIdleConnection_NotSilentGetsNoRequest(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]string{
		"closed": "", "with another answer": "HTTP/1.1 500 Oops\r\n\r\n", "with a 408": "HTTP/1.1 408 Timeout\r\n\r\n",
	} {
		went := make(chan struct{})
		address, opened := listen(t, func(c net.Conn) {
			in := bufio.NewReader(c)
			receive(in)
			io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
			<-went
			if io.WriteString(c, more); more == "" {
				return
			}
			if _, ok := receive(in); ok {
				t.Error(name, "gets a request")
			}
		})
		s, _ := newSender(t)
		a, begun := attempt("http://"+address), 0
		a.Begin = func() (func(), bool) { begun++; return func() {}, true }
		send(t, s, a)
		idle := onlyIdle(t, s)
		went <- struct{}{}
		for idle.silent() { // it has not come yet
			runtime.Gosched()
		}
		go func() { went <- struct{}{} }()
		if o := send(t, s, a); o.Kind != schedule.Succeeded || begun != 2 || len(opened) != 2 {
			t.Errorf("%s: %+v, begun %d times, over %d connections", name, o, begun, len(opened))
		}
	}
}

func onlyIdle(t *testing.T, s *Sender) *conn {
	t.Helper()
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if n := s.pool.idle.Len(); n != 1 {
		t.Fatalf("%d connections are idle", n)
	}
	return s.pool.idle.Front().Value.(*conn)
}

// Connections that their sinks have closed are closed soon, and all others after the idle timeout.
func TestIdleConnections_AreSwept(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	address, _ := listen(t, func(c net.Conn) {
		receive(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
		<-end
	})
	s, _ := newSender(t)
	for _, old := range []bool{false, true} {
		send(t, s, attempt("http://"+address))
		idle := onlyIdle(t, s)
		s.pool.sweep()
		onlyIdle(t, s) // stays
		if old {
			idle.since = idle.since.Add(-idleTimeout)
		} else {
			end <- struct{}{}
			for idle.silent() {
				runtime.Gosched()
			}
		}
		s.pool.sweep()
		if n := s.pool.idle.Len(); n != 0 {
			t.Errorf("%d are idle", n)
		}
		if _, err := idle.raw.Write([]byte("x")); err == nil {
			t.Error("it is not closed")
		}
	}
	close(end)
}

// What follows an answer is not the answer to the next request, and neither is the rest of a long one that is not waited for.
func TestConnection_WithMoreThanAnAnswerIsClosed(t *testing.T) {
	t.Parallel()
	for _, head := range []string{
		"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 500 Forged\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 500 Forged\r\n\r\n",
		"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\r\n\r\nto the end", fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", 2*maxDrain, strings.Repeat("x", maxDrain+1)),
	} {
		address, opened := listen(t, func(c net.Conn) {
			receive(bufio.NewReader(c))
			io.WriteString(c, head)
		})
		s, _ := newSender(t)
		for i := range 3 {
			if o := send(t, s, attempt("http://"+address)); o.Kind != schedule.Succeeded || len(opened) != i+1 || s.pool.idle.Len() != 0 {
				t.Errorf("%q: %+v, %d connections", head, o, len(opened))
			}
		}
	}
}

// An answer that began on a connection that was used before is not asked for again.
func TestReusedConnection_HalfAnAnswerIsAFailure(t *testing.T) {
	t.Parallel()
	address, opened := listen(t, func(c net.Conn) {
		in := bufio.NewReader(c)
		receive(in)
		io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
		receive(in)
		io.WriteString(c, "H")
	})
	s, _ := newSender(t)
	send(t, s, attempt("http://"+address))
	if o := send(t, s, attempt("http://"+address)); o.Kind != schedule.Failed || len(opened) != 1 {
		t.Errorf("%+v over %d connections", o, len(opened))
	}
}

// Answers of 1xx are skipped, within one bound for all headers.
func TestInformational_SkippedWithinABound(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 500)
	for times, want := range map[int]schedule.OutcomeKind{0: schedule.Succeeded, 3: schedule.Succeeded, 1 << 20: schedule.Failed} {
		address, _ := listen(t, func(c net.Conn) {
			receive(bufio.NewReader(c))
			for range times {
				if _, err := io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: </"+long+">\r\n\r\n"); err != nil {
					return
				}
			}
			io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
		})
		s, _ := newSender(t)
		o := send(t, s, attempt("http://"+address))
		if o.Kind != want || want == schedule.Failed && !strings.Contains(string(o.Failure.Data), "more than 16384 bytes") {
			t.Errorf("%d: %+v %s", times, o, o.Failure.Data)
		}
	}
}

// through has all requests of a sender go through a proxy.
func through(t *testing.T, s *Sender, raw string) {
	u, err := url.Parse(raw)
	must(t, err)
	s.proxy = func(*http.Request) (*url.URL, error) { return u, nil }
}

// join copies between two connections until one of them ends.
func join(a, b net.Conn) {
	go func() { io.Copy(a, b); a.Close() }()
	io.Copy(b, a)
	b.Close()
}

const proxyUser = "me:pass word"

// Each kind of proxy delivers to http and https sinks. Neither the sink nor a failure shows the proxy's password.
func TestProxy_Kinds(t *testing.T) {
	t.Parallel()
	sinkOf := func(secure bool) (*httptest.Server, string) {
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Proxy-Authorization") != "" {
				t.Error("the sink sees the proxy's password")
			}
			w.WriteHeader(http.StatusNoContent)
		}))
		if secure {
			srv.StartTLS()
		} else {
			srv.Start()
		}
		t.Cleanup(srv.Close)
		return srv, srv.Listener.Addr().String()
	}
	authorized := func(r *http.Request) bool {
		return r.Header.Get("Proxy-Authorization") == "Basic "+base64.StdEncoding.EncodeToString([]byte(proxyUser))
	}
	httpProxy := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !authorized(r) {
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		if r.Method != http.MethodConnect {
			if r.RequestURI != "http://"+r.Host+"/p?q=1" {
				t.Errorf("the proxy is asked for %q", r.RequestURI)
			}
			w.WriteHeader(http.StatusNoContent)
			return
		}
		to, err := net.Dial("tcp", r.Host)
		if err != nil {
			t.Error(err)
			return
		}
		c, _, _ := w.(http.Hijacker).Hijack()
		io.WriteString(c, "HTTP/1.1 200 Go on\r\n\r\n")
		join(c, to)
	})
	plain, secure := httptest.NewServer(httpProxy), httptest.NewTLSServer(httpProxy)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	socks, _ := listen(t, socks5(t))
	for _, proxy := range []string{"http://" + plain.Listener.Addr().String(), "https://" + secure.Listener.Addr().String(), "socks5://" + socks, "socks5h://" + socks} {
		for _, overTLS := range []bool{false, true} {
			srv, address := sinkOf(overTLS)
			s, _ := newSender(t)
			through(t, s, strings.Replace(proxy, "://", "://me:pass%20word@", 1))
			target := strings.Replace(srv.URL, srv.Listener.Addr().String(), address, 1) + "/p?q=1"
			ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}) // of all test servers
			for range 2 {
				o := send(t, s, attempt(target, func(a *schedule.Attempt) { a.Target.CACerts = string(ca) }))
				if o.Kind != schedule.Succeeded {
					t.Errorf("%s, TLS %v: %+v %s", proxy, overTLS, o, o.Failure.Data)
				}
			}
			onlyIdle(t, s)
			through(t, s, strings.Replace(proxy, "://", "://me:wrong@", 1))
			o := send(t, s, attempt(target+"&again", func(a *schedule.Attempt) { a.Target.CACerts = string(ca) }))
			if o.Kind == schedule.Succeeded || strings.Contains(string(o.Failure.Data), "wrong") {
				t.Errorf("%s, TLS %v, with a wrong password: %+v %s", proxy, overTLS, o, o.Failure.Data)
			}
		}
	}
}

// socks5 is a proxy for SOCKS that wants a user.
func socks5(t *testing.T) func(net.Conn) {
	return func(c net.Conn) {
		in := bufio.NewReader(c)
		read := func(n int) []byte {
			b := make([]byte, n)
			_, _ = io.ReadFull(in, b)
			return b
		}
		read(int(read(2)[1])) // the methods
		c.Write([]byte{5, 2})
		user := string(read(int(read(2)[1])))
		password := string(read(int(read(1)[0])))
		if user+":"+password != proxyUser {
			c.Write([]byte{1, 1})
			return
		}
		c.Write([]byte{1, 0})
		head := read(4)
		if head[3] != 1 {
			t.Errorf("address type %d", head[3])
			return
		}
		b := read(6)
		to, err := net.Dial("tcp", fmt.Sprintf("%d.%d.%d.%d:%d", b[0], b[1], b[2], b[3], int(b[4])<<8|int(b[5])))
		if err != nil {
			t.Error(err)
			return
		}
		c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
		join(c, to)
	}
}

// A proxy's refusal is in the outcome, and its answer is bounded like a sink's.
func TestProxy_RefusedOrEndlessFails(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		timeout time.Duration
		answer  func(net.Conn)
		want    string
	}{
		"refused": {time.Minute, func(c net.Conn) { io.WriteString(c, "HTTP/1.1 403 Not There\r\n\r\n") }, "403 Not There"},
		"endless": {time.Minute, func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			for {
				if _, err := io.WriteString(c, "X-Junk: "+strings.Repeat("j", 1000)+"\r\n"); err != nil {
					return
				}
			}
		}, "more than 16384 bytes"},
		"hangs": {500 * time.Millisecond, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, errTimeout.Error()},
	} {
		address, _ := listen(t, func(c net.Conn) {
			receive(bufio.NewReader(c))
			tt.answer(c)
		})
		s, _ := newSender(t)
		through(t, s, "http://me:secret@"+address)
		o := send(t, s, attempt("https://sink.example", withTimeout(tt.timeout)))
		if o.Kind != schedule.Failed || !strings.Contains(string(o.Failure.Data), tt.want) || strings.Contains(string(o.Failure.Data), "secret") {
			t.Errorf("%s: %+v %s", name, o, o.Failure.Data)
		}
	}
}

// A delivery that waits for its answer is one goroutine.
func TestDelivery_IsOneGoroutine(t *testing.T) {
	const hanging = 200
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	s, _ := newSender(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{}, hanging)
	before := runtime.NumGoroutine()
	for range hanging {
		go func() {
			s.Send(ctx, attempt("http://"+l.Addr().String()))
			ended <- struct{}{}
		}()
		c, err := l.Accept()
		must(t, err)
		defer c.Close()
		must(t, errorOf(http.ReadRequest(bufio.NewReader(c))))
	}
	if n := runtime.NumGoroutine() - before; n > hanging+hanging/10 {
		t.Errorf("%d goroutines for %d deliveries", n, hanging)
	}
	cancel()
	for range hanging {
		<-ended
	}
}

// Hosts are dialled, and named to the sink, as net/http does it.
func TestRoute_AddressAndHost(t *testing.T) {
	t.Parallel()
	s, _ := newSender(t)
	for raw, want := range map[string][2]string{
		"http://Sink.example":            {"Sink.example:80", "Sink.example"},
		"https://sink.example/a%20b?c=d": {"sink.example:443", "sink.example"},
		"http://[::1]:8080/":             {"[::1]:8080", "[::1]:8080"},
		"http://[fe80::1%25eth0]:8080/":  {"[fe80::1%eth0]:8080", "[fe80::1]:8080"},
		"http://bücher.example:81":       {"xn--bcher-kva.example:81", "xn--bcher-kva.example:81"},
	} {
		r, err := s.route(schedule.Target{URL: raw})
		must(t, err)
		u, _ := url.Parse(raw)
		if line := " " + u.RequestURI() + " HTTP/1.1\r\nHost: " + want[1] + "\r\n"; r.address != want[0] || r.start != line {
			t.Errorf("%s: %s, %q", raw, r.address, r.start)
		}
	}
}

// A delivery that is under way when the trust changes does not keep its connection for later ones.
func TestTrust_ConnectionUnderWayIsNotKept(t *testing.T) {
	t.Parallel()
	var s *Sender
	url, _ := sinkOf(t, func(http.ResponseWriter, *http.Request) { s.Trust(nil) })
	s, _ = newSender(t)
	if o := send(t, s, attempt(url)); o.Kind != schedule.Succeeded || s.pool.idle.Len() != 0 {
		t.Errorf("%+v, %d connections are idle", o, s.pool.idle.Len())
	}
}

// A token that is no header value is neither sent nor shown.
func TestToken_ThatIsNoHeaderValueIsNotSent(t *testing.T) {
	t.Parallel()
	url, seen := sinkOf(t, nil)
	s, _ := newSender(t, func(c *Config) {
		c.Token = func(context.Context, *schedule.Spec, schedule.Target) (string, error) { return "secret\r\nX: y", nil }
	})
	o := send(t, s, attempt(url, func(a *schedule.Attempt) { a.Target.Audience, a.Source.ServiceAccount = "sink", "account" }))
	if o.Kind != schedule.Failed || len(seen) != 0 || !strings.Contains(string(o.Failure.Data), `"Authorization"`) || strings.Contains(string(o.Failure.Data), "secret") {
		t.Errorf("%+v %s", o, o.Failure.Data)
	}
}
