package sink

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The name servers break for a minute. The name is found again within seconds: no failure is remembered for longer.
func TestHeals_NamesBrokenForAMinute(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	const soon = 2 * time.Second
	code := func(rcode dnsmessage.RCode) func(*dnsmessage.Message) bool {
		return func(m *dnsmessage.Message) bool {
			m.RCode = rcode
			return true
		}
	}
	for name, row := range map[string]struct {
		dial   error
		answer func(*dnsmessage.Message) bool // false: none
		within time.Duration
	}{
		"SERVFAIL":          {nil, code(dnsmessage.RCodeServerFailure), soon},
		"REFUSED":           {nil, code(dnsmessage.RCodeRefused), soon},
		"NXDOMAIN":          {nil, code(dnsmessage.RCodeNameError), soon},
		"no addresses":      {nil, code(dnsmessage.RCodeSuccess), soon},
		"an answer of junk": {nil, func(m *dnsmessage.Message) bool { m.Questions = nil; return true }, 7 * time.Second},
		"no answer":         {nil, func(*dnsmessage.Message) bool { return false }, 7 * time.Second}, // package net asks again after five
		"no name server":    {refused, nil, soon},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Package net makes its semaphore at the first lookup: not in the bubble.
			_, _ = newNames(func(context.Context, string, string) (net.Conn, error) { return nil, refused }).lookup(t.Context(), "first.test.")
			synctest.Test(t, func(t *testing.T) {
				var broken atomic.Bool
				n := newNames(func(context.Context, string, string) (net.Conn, error) {
					if broken.Load() && row.dial != nil {
						return nil, row.dial
					}
					here, there := net.Pipe()
					go func() {
						defer there.Close()
						question, err := readAnswer(there)
						if err != nil {
							return
						}
						var m dnsmessage.Message
						if err := m.Unpack(question[2:]); err != nil {
							t.Error(err)
							return
						}
						m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
						switch {
						case !broken.Load():
							m.Answers = addressed(1)(m.Questions[0])
						case !row.answer(&m):
							_, _ = io.Copy(io.Discard, there)
							return
						}
						answer, err := m.Pack()
						if err != nil {
							t.Error(err)
							return
						}
						_, _ = there.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
					}()
					return here, nil
				})
				find := func() ([]netip.Addr, error) {
					ctx, cancel := context.WithTimeout(t.Context(), dialTimeout)
					defer cancel()
					return n.find(ctx, sourceOf("a"), "x.test.")
				}
				if all, err := find(); err != nil || len(all) != 1 {
					t.Fatal(all, err)
				}
				time.Sleep(3 * time.Second)
				broken.Store(true)
				const lasts = 63 * time.Second // no multiple of what is remembered
				time.AfterFunc(lasts, func() { broken.Store(false) })
				failures := 0
				start := time.Now()
				for ; ; time.Sleep(500 * time.Millisecond) {
					all, err := find()
					if err == nil && len(all) == 1 && failures > 0 {
						break
					}
					if err != nil {
						failures++
					}
				}
				if late := time.Since(start) - lasts; late < 0 || late > row.within || failures < 3 {
					t.Errorf("the name is found %s after the repair, and was not found %d times", late, failures)
				}
				time.Sleep(2 * dialTimeout)
				synctest.Wait()
			})
		})
	}
}

// The proxy breaks for a minute: each attempt fails, and the first one after the repair is delivered.
func TestHeals_ProxyBrokenForAMinute(t *testing.T) {
	t.Parallel()
	secure := httptest.NewUnstartedServer(nil)
	secure.StartTLS()
	defer secure.Close()
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
	config := &tls.Config{Certificates: secure.TLS.Certificates}
	for name, row := range map[string]struct {
		dial   error
		answer string // then it closes; "": it hangs
	}{
		"is down":      {syscall.ECONNREFUSED, ""},
		"hangs":        {nil, ""},
		"closes":       {nil, "HTTP"},
		"answers 407":  {nil, "HTTP/1.1 407 Who Are You\r\nContent-Length: 0\r\n\r\n"},
		"answers 502":  {nil, "HTTP/1.1 502 No Sink\r\nContent-Length: 0\r\n\r\n"},
		"answers junk": {nil, "220 mail.test ESMTP\r\n"},
	} {
		for _, url := range []string{"http://example.com", "https://example.com"} {
			t.Run(name+" to "+url, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					var broken atomic.Bool
					s, _ := newSender(t, func(cfg *Config) {
						cfg.Dial = func(context.Context, string, string) (net.Conn, error) {
							if broken.Load() && row.dial != nil {
								return nil, row.dial
							}
							here, there := net.Pipe()
							go proxied(there, config, func() (string, bool) { return row.answer, broken.Load() })
							return here, nil
						}
					})
					defer s.Close()
					through(t, s, "http://proxy.test:3128")
					try := func() schedule.Outcome {
						return send(t, s, attempt(url, withTimeout(5*time.Second), func(a *schedule.Attempt) { a.Target.CACerts = ca }))
					}
					if o := try(); o.Kind != schedule.Succeeded {
						t.Fatalf("before: %+v %s", o, o.Failure.Data)
					}
					broken.Store(true)
					s.Close() // the proxy has ended, and its connections
					for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(time.Second) {
						if o := try(); o.Kind != schedule.Failed {
							t.Fatalf("broken: %+v %s", o, o.Failure.Data)
						}
					}
					broken.Store(false)
					for range 3 {
						if o := try(); o.Kind != schedule.Succeeded {
							t.Errorf("after the repair: %+v %s", o, o.Failure.Data)
						}
					}
				})
			})
		}
	}
}

// proxied answers at a proxy, and at the sink behind its tunnel, with 204, or what is broken.
func proxied(c net.Conn, sink *tls.Config, broken func() (answer string, now bool)) {
	defer c.Close()
	for in := bufio.NewReader(c); ; {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		if answer, now := broken(); now {
			_, _ = io.WriteString(c, answer)
			if answer == "" {
				_, _ = io.Copy(io.Discard, c)
			}
			return
		}
		if r.Method != http.MethodConnect {
			_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
			continue
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 Go On\r\n\r\n")
		secured := tls.Server(c, sink)
		defer secured.Close()
		c, in = secured, bufio.NewReader(secured)
	}
}
