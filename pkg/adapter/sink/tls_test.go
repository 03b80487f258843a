package sink

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// What follows an answer within TLS, which has read it already, is not the answer to the next request.
func TestTLS_WithMoreThanAnAnswerIsClosed(t *testing.T) {
	t.Parallel()
	authority, with := signed()
	long := "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + strings.Repeat("x", 5000)
	for name, c := range map[string]struct {
		records []string
		used    int
	}{
		"no more":          {[]string{long}, 1},
		"in one record":    {[]string{long + "HTTP/1.1 500 Forged\r\n\r\n"}, 3},
		"in a record more": {[]string{"HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 500 Forged\r\n\r\n"}, 3},
	} {
		address, opened := listen(t, func(raw net.Conn) {
			at := &atOnce{Conn: raw}
			secured := tls.Server(at, &tls.Config{Certificates: []tls.Certificate{with(0, 0)}})
			for in := bufio.NewReader(secured); ; at.flush() {
				if _, ok := receive(in); !ok {
					return
				}
				at.hold = true
				for _, record := range c.records {
					_, _ = io.WriteString(secured, record)
				}
			}
		})
		s, _ := newSender(t)
		for range 3 {
			delivers(t, s, attempt("https://"+address, func(a *schedule.Attempt) { a.Target.CACerts = authority }))
		}
		if len(opened) != c.used {
			t.Errorf("%s: %d connections", name, len(opened))
		}
	}
}

// atOnce is a connection that can hold back what is written.
type atOnce struct {
	net.Conn
	hold bool
	held []byte
}

func (c *atOnce) Write(b []byte) (int, error) {
	if !c.hold {
		return c.Conn.Write(b)
	}
	c.held = append(c.held, b...)
	return len(b), nil
}

func (c *atOnce) flush() {
	c.hold = false
	_, _ = c.Write(c.held)
	c.held = nil
}

// An idle connection with TLS whose sink reads nothing, for which Close waits 5 s, is closed beside all deliveries.
func TestIdleConnection_CloseDelaysNoDelivery(t *testing.T) {
	t.Parallel()
	authority, with := signed()
	s, _ := newSender(t, func(c *Config) {
		c.MaxIdle = 1
		c.Dial = func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe() // a write waits for its reader
			go func() {
				secured := tls.Server(theirs, &tls.Config{Certificates: []tls.Certificate{with(0, 0)}, SessionTicketsDisabled: true})
				receive(bufio.NewReader(secured))
				_, _ = io.WriteString(secured, "HTTP/1.1 204 No Content\r\n\r\n")
			}()
			return ours, nil
		}
	})
	begin := time.Now()
	for _, url := range []string{"https://127.0.0.1:1", "https://127.0.0.1:2"} { // the second one takes the place of the first
		if o := send(t, s, attempt(url, func(a *schedule.Attempt) { a.Target.CACerts = authority })); o.Status != 204 {
			t.Fatalf("%+v %s", o, o.Failure.Data)
		}
	}
	s.Trust(nil)
	if took := time.Since(begin); took >= 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// The idle connections of all sinks are bounded: above MaxIdle the oldest ones are closed. One with TLS counts as four.
func TestIdleConnections_WithTLSCountAsFour(t *testing.T) {
	t.Parallel()
	authority, with := signed()
	s, _ := newSender(t, func(c *Config) { c.MaxIdle = 7 })
	closed := make(chan struct{}, 8)
	for _, c := range []struct{ secure, idle int }{{1, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 4}, {1, 4}, {1, 1}, {0, 2}} {
		address, _ := listen(t, func(raw net.Conn) {
			if c.secure == 1 {
				raw = tls.Server(raw, &tls.Config{Certificates: []tls.Certificate{with(0, 0)}})
			}
			if _, ok := receive(bufio.NewReader(raw)); ok {
				_, _ = io.WriteString(raw, "HTTP/1.1 204 No Content\r\n\r\n")
				_, _ = io.Copy(io.Discard, raw) // it stays open
				closed <- struct{}{}
			}
		})
		url := []string{"http://", "https://"}[c.secure] + address
		if o := send(t, s, attempt(url, func(a *schedule.Attempt) { a.Target.CACerts = authority })); o.Status != 204 {
			t.Fatalf("%+v %s", o, o.Failure.Data)
		}
		s.pool.mu.Lock()
		if n := s.pool.idle.Len(); n != c.idle {
			t.Errorf("%d connections are idle, want %d", n, c.idle)
		}
		s.pool.mu.Unlock()
	}
	for range 8 - 2 {
		<-closed
	}
}

// A sink that does not go on with TLS ends with the delivery's timeout.
func TestTLS_HandshakeThatHangsTimesOut(t *testing.T) {
	t.Parallel()
	address, _ := listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	s, _ := newSender(t)
	if o := send(t, s, attempt("https://"+address, withTimeout(100*time.Millisecond))); !o.TimedOut {
		t.Errorf("%+v %s", o, o.Failure.Data)
	}
}
