package sink

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/reschedule-dev/reschedule/internal/certs"
	"github.com/reschedule-dev/reschedule/internal/heap"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// counted is what dispatch counts for a delivery without an event.
const counted = 40 << 10

// headOf is the beginning of headers as long as they may be, in lines with a value.
func headOf(value string) string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	var b strings.Builder
	b.WriteString("HTTP/1.1 200 OK\n")
	for i := 0; b.Len() < maxResponseHeader-len(value)-5; i++ {
		fmt.Fprintf(&b, "%c%c%c:%s\n", letters[i/36/36%36], letters[i/36%36], letters[i%36], value)
	}
	return b.String()
}

// each is the memory that each of n deliveries takes while its sink, which serves connections with
// f, says and reads no more.
func each(t *testing.T, n int, secure func(net.Conn) net.Conn, change func(*schedule.Attempt), f func(net.Conn)) int64 {
	t.Helper()
	var said sync.WaitGroup
	said.Add(n)
	address, _ := listen(t, func(c net.Conn) {
		secured := secure(c)
		_, err := secured.Read(make([]byte, 4096)) // the request
		if err == nil {
			f(secured)
		}
		said.Done()
		_, _ = c.Read(make([]byte, 1)) // the end
	})
	s, _ := newSender(t)
	ctx, cancel := context.WithCancel(t.Context())
	before := heap.WithStacks()
	var all sync.WaitGroup
	for range n {
		all.Go(func() { s.Send(ctx, attempt("http://"+address, change)) })
	}
	said.Wait()
	last := heap.WithStacks()
	for steady := 0; steady < 5; steady++ { // until the sender has read what was said
		now := heap.WithStacks()
		if max(now-last, last-now) > int64(n)<<8 {
			steady = 0
		}
		last = now
	}
	cancel()
	all.Wait()
	return (last - before) / int64(n)
}

// Headers of many short lines take no more memory than is counted for a delivery.
func TestHeaders_OfManyLinesTakeNoMoreMemory(t *testing.T) {
	for _, value := range []string{"", strings.Repeat("x", maxResponseHeader/maxResponseLines)} {
		got := each(t, 100, func(c net.Conn) net.Conn { return c }, func(*schedule.Attempt) {}, func(c net.Conn) {
			_, _ = io.WriteString(c, headOf(value))
		})
		t.Logf("a delivery with values of %d bytes takes %d", len(value), got)
		if got > counted+16<<10 { // with the sink's end
			t.Errorf("it may take %d", counted+16<<10)
		}
	}
}

// Headers have at most 128 lines and 16 KiB, with 1xx ones.
func TestHeaders_LinesAreBounded(t *testing.T) {
	t.Parallel()
	hint := func(n int) string { return strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", n) }
	body := strings.Repeat("\n", 1000)
	for name, answer := range map[string]string{
		"as many as may be":        "HTTP/1.1 200 OK\r\n" + strings.Repeat("a: b\r\n", maxResponseLines-2) + "\r\n",
		"with informational ones":  hint(maxResponseLines/2-1) + "HTTP/1.1 200 OK\r\n\r\n",
		"the body has more":        "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + body,
		"the body has more, by LF": "HTTP/1.1 200 OK\nContent-Length: 1000\n\n" + body,
		"long lines":               "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Junk: "+strings.Repeat("j", 4000)+"\r\n", 5) + "\r\n",
		"one more":                 "HTTP/1.1 200 OK\r\n" + strings.Repeat("a: b\r\n", maxResponseLines-1) + "\r\n",
		"one more by LF":           "HTTP/1.1 200 OK\n" + strings.Repeat("a: b\n", maxResponseLines-1) + "\n",
		"one more, informational":  hint(maxResponseLines/2) + "HTTP/1.1 200 OK\r\n\r\n",
	} {
		address, _ := listen(t, func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4096))
			_, _ = io.WriteString(c, answer)
		})
		s, _ := newSender(t)
		o := send(t, s, attempt("http://"+address))
		bound := ""
		switch {
		case strings.HasPrefix(name, "one more"):
			bound = "more than 128 lines"
		case name == "long lines":
			bound = "more than 16384 bytes"
		}
		if (bound != "") != (o.Kind == schedule.Failed) || !strings.Contains(string(o.Failure.Data), bound) {
			t.Errorf("%s: %+v %s", name, o, o.Failure.Data)
		}
	}
}

// signed are an authority, and a certificate by it for 127.0.0.1 that is sent with n others, each of which is new.
func signed() (authority string, with func(n, size int) tls.Certificate) {
	root := certs.Authority("authority")
	leaf := certs.New(&x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, root)
	return string(root.PEM()), func(n, size int) tls.Certificate {
		others := make([]*certs.Certificate, n)
		for i := range others {
			others[i] = certs.New(&x509.Certificate{Subject: pkix.Name{CommonName: strings.Repeat("x", size)}}, root)
		}
		return leaf.TLS(others...)
	}
}

// Many certificates take little more memory than a few.
func TestCertificates_TakeLittleMemory(t *testing.T) {
	authority, with := signed()
	for _, c := range []struct{ more, size int }{{0, 0}, {9, 1200}, {50, 0}, {800, 0}, {1, 200_000}} {
		got := each(t, 20, func(raw net.Conn) net.Conn {
			return tls.Server(raw, &tls.Config{Certificates: []tls.Certificate{with(c.more, c.size)}})
		}, func(a *schedule.Attempt) {
			a.Target.CACerts, a.Target.URL = authority, strings.Replace(a.Target.URL, "http", "https", 1)
		}, func(net.Conn) {})
		t.Logf("a delivery with %d more certificates, each with a name of %d bytes: %d", c.more, c.size, got)
		if got > 160<<10 { // with the sink's end, some 20 KB
			t.Error("it may take 160 KiB")
		}
	}
}

// A sink may send ten certificates, and 16 KiB in all before the connection is there.
func TestCertificates_AreBounded(t *testing.T) {
	t.Parallel()
	authority, with := signed()
	for _, c := range []struct {
		more, size int
		want       string
	}{
		{maxCertificates - 1, 1200, ""}, {maxCertificates, 0, "more than 10 certificates"}, {1, maxHandshake, "more than 16384 bytes"},
	} {
		address, _ := listen(t, func(raw net.Conn) {
			secured := tls.Server(raw, &tls.Config{Certificates: []tls.Certificate{with(c.more, c.size)}})
			if _, ok := receive(bufio.NewReader(secured)); ok {
				_, _ = io.WriteString(secured, "HTTP/1.1 204 No Content\r\n\r\n")
			}
		})
		s, _ := newSender(t)
		o := send(t, s, attempt("https://"+address, func(a *schedule.Attempt) { a.Target.CACerts = authority }))
		if got := string(o.Failure.Data); (o.Status == 204) != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %d %s", c, o.Status, got)
		}
	}
}
