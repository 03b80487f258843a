package sink

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// counting counts the bytes that come in on the connections of a listener.
type counting struct {
	net.Listener
	bytes *atomic.Int64
}

type countingConn struct {
	net.Conn
	bytes *atomic.Int64
}

func (l counting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countingConn{c, l.bytes}, err
}

func (c countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.bytes.Add(int64(n))
	return n, err
}

// An attempt that is called off before it begins sends no request, over new and used connections, with and without TLS.
func TestAttempt_CalledOffSendsNoRequest(t *testing.T) {
	t.Parallel()
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		var requests, read atomic.Int64
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			io.Copy(io.Discard, r.Body)
		}))
		if secure {
			srv.StartTLS()
		} else {
			srv.Listener = counting{srv.Listener, &read}
			srv.Start()
		}
		defer srv.Close()
		s, _ := newSender(t)
		if secure {
			s.Trust(srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs)
		}
		gate := func(ok bool) func(*schedule.Attempt) {
			return func(a *schedule.Attempt) { a.Begin = func() (func(), bool) { return func() {}, ok } }
		}
		big := withEvent(&schedule.Event{Data: bytes.Repeat([]byte("1"), schedule.MaxDataBytes)})
		for i, ok := range []bool{false, true, false, true} {
			before, had := requests.Load(), read.Load()
			o := send(t, s, attempt(srv.URL, gate(ok), big))
			want := schedule.Outcome{Kind: schedule.Succeeded}
			if !ok {
				want.Kind = schedule.Aborted
			}
			if d := cmp.Diff(want, o, butStatus); d != "" {
				t.Errorf("%s, attempt %d: %s", name, i, d)
			}
			if !ok && (requests.Load() != before || read.Load() != had) {
				t.Errorf("%s, attempt %d: the sink got %d bytes", name, i, read.Load()-had)
			}
		}
		if n := requests.Load(); n != 2 {
			t.Errorf("%s: the sink got %d requests", name, n)
		}
	}
}

// The end of an attempt ends its dial, because attempts that end early could otherwise leave any number of dials.
func TestDialling_EndsWithItsAttempt(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"its context ends", "it is called off"} {
		ctx, end := context.WithCancel(context.Background())
		a := attempt("http://127.0.0.1:1")
		if how == "it is called off" {
			ctx, a.OnCallOff = context.Background(), func(callOff func()) { end = callOff }
		}
		ended := make(chan error, 1)
		s, _ := newSender(t, func(c *Config) {
			c.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
				end() // the attempt
				<-ctx.Done()
				ended <- ctx.Err()
				return nil, ctx.Err()
			}
		})
		if o := s.Send(ctx, a); o.Kind != schedule.Aborted {
			t.Errorf("%s: %+v", how, o)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", how, err)
		}
	}
}

// A proxy gets no requests to names of the cluster.
func TestProxy_NotForNamesOfTheCluster(t *testing.T) {
	// Events and tokens for sinks that only the cluster can reach go to no proxy.
	const proxy = "http://proxy:3128"
	asked := ""
	of := proxyOf(func(r *http.Request) (*url.URL, error) {
		asked = r.URL.String()
		return url.Parse(proxy)
	})
	for sink, compared := range map[string]string{
		"http://op.ops.svc": "", "http://op.ops.svc.cluster.local.:8080/": "", "http://bob:secret@OP.ops.SVC./": "",
		"http://example.com/x": "http://example.com/x",
		// NO_PROXY is compared with the name alone, however it is spelled.
		"https://Example.COM.:8443/x": "https://example.com:8443/x", "http://LocalHost./": "http://localhost/", "http://[::1]/": "http://[::1]/",
	} {
		u, err := url.Parse(sink)
		must(t, err)
		asked = ""
		if got, err := of(&http.Request{URL: u}); asked != compared || (got == nil) != (compared == "") || err != nil || u.String() != sink {
			t.Errorf("%s: %v %v, compared as %s", sink, got, err, asked)
		}
	}
}
