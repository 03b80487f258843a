package blackbox

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/internal/certs"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// from opens a connection to the address from an address of this machine.
func from(t *testing.T, url string, peer net.IP) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: peer}, Timeout: harness.Patience}
	conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// probed makes a request on a connection of its own, as a kubelet does.
func probed(t *testing.T, url, path string) {
	t.Helper()
	conn := from(t, url, net.IPv4(127, 0, 0, 1))
	must(t, conn.SetDeadline(time.Now().Add(harness.Patience)))
	_, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path)
	line, readErr := bufio.NewReader(conn).ReadString('\n')
	if err != nil || readErr != nil || !strings.Contains(line, " 200 ") {
		t.Errorf("a probe of %s: %q, %v, %v", path, line, err, readErr)
	}
}

// Peers whose slow bodies take all connections keep neither probes nor the calls of another peer from an answer, over
// HTTP or HTTPS. Metrics and the log tell of it.
func TestSlowPeers_DoNotShutOutANeighbour(t *testing.T) {
	t.Parallel()
	s := &source{name: "shut-out"}
	dir := t.TempDir()
	roots := certify(t, dir)
	port, err := net.Listen("tcp", "127.0.0.9:0") // no other test's connection takes the port meanwhile
	must(t, err)
	secured := port.Addr().String()
	port.Close()
	o := alone(t, []string{"--tls-listen", secured, "--tls-dir", dir}, s)
	slow := func(conn net.Conn) {
		_, _ = io.WriteString(conn, "POST /tests/shut-out HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
			"Ce-Specversion: 1.0\r\nCe-Id: 1\r\nCe-Source: /s\r\nCe-Type: t\r\nContent-Length: 2000\r\n\r\n{")
	}
	for range 540 { // of one peer with TLS
		encrypted := tls.Client(from(t, secured, net.IPv4(127, 0, 0, 3)), &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"})
		if encrypted.HandshakeContext(t.Context()) == nil { // refused at the limit, else
			slow(encrypted)
		}
	}
	for i := range 4 * 600 { // of each of four
		slow(from(t, o.URL, net.IPv4(127, 0, 0, 3+byte(i%4))))
	}
	neighbour := &http.Client{Timeout: harness.Patience, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"},
		DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext,
	}}
	for i := range 40 {
		url := []string{o.URL, "https://" + secured}[i%2]
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url+"/tests/shut-out/schedules/k", strings.NewReader(`{"delay":"1h"}`))
		must(t, err)
		resp, err := neighbour.Do(r)
		if err != nil {
			t.Errorf("call %d of the neighbour: %v", i, err)
			continue
		}
		resp.Body.Close()
		if resp.StatusCode/100 != 2 {
			t.Errorf("call %d of the neighbour: %s", i, resp.Status)
		}
	}
	probed(t, o.Admin, "/healthz")
	metrics, err := harness.Do(t.Context(), http.MethodGet, o.Admin+"/metrics", "")
	must(t, err)
	for _, line := range []string{`reschedule_connections{address="admin"}`, `reschedule_connections_limit{address="api"} 2048`, `reschedule_connections_ended_total{address="api",why="`} {
		if !bytes.Contains(metrics.Body, []byte(line)) {
			t.Errorf("no metric %s", line)
		}
	}
	if !strings.Contains(o.Log(), "the limit of connections is reached") {
		t.Errorf("the log says nothing:\n%s", o.Log())
	}
}

// A client that misbehaves harms no other.
func TestClient_MisbehavingHarmsNoOther(t *testing.T) {
	t.Parallel()
	s := &source{name: "hostile"}
	o := alone(t, nil, s)
	// Half requests and drips, held open until the end.
	for range 100 {
		_, err := io.WriteString(dial(t, o.URL), "PUT /tests/hostile/schedules/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16000000\r\n\r\n{")
		must(t, err)
	}
	for name, c := range map[string]struct{ request, status string }{
		"10 GB announced":    {"PUT /tests/hostile/schedules/k HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10000000000\r\n\r\n{}", " 413 "},
		"a negative length":  {"PUT /tests/hostile/schedules/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", " 400 "},
		"two lengths":        {"PUT /tests/hostile/schedules/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", " 400 "},
		"a bad chunk":        {"PUT /tests/hostile/schedules/k HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", " 400 "},
		"thousands of lines": {"GET /tests/hostile HTTP/1.1\r\nHost: localhost\r\n" + strings.Repeat("X-Header: value value value value\r\n", 5000) + "\r\n", " 431 "},
		"one long line":      {"GET /" + strings.Repeat("a", 100_000) + " HTTP/1.1\r\nHost: localhost\r\n\r\n", " 431 "},
		"no HTTP":            {"hello\r\n\r\n", " 400 "},
		"TLS":                {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", " 400 "},
		"OPTIONS *":          {"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", " 404 "},
	} {
		conn := dial(t, o.URL)
		go func() { _, _ = io.WriteString(conn, c.request) }() // the answer may come before the end
		must(t, conn.SetReadDeadline(time.Now().Add(harness.Patience)))
		line, err := bufio.NewReader(conn).ReadString('\n')
		if !strings.Contains(line, c.status) {
			t.Errorf("%s: %q %v, want%s", name, line, err, c.status)
		}
	}
	start := time.Now()
	s.put(t, "k", "")
	s.next(t, "k")
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the others waited %s", took)
	}
	most := int64(300 << 20)
	if harness.RaceEnabled {
		most *= 5
	}
	if peak := o.PeakMemory(t); peak > most {
		t.Errorf("%d MiB resident", peak>>20)
	}
}

// A caller who asks for the metrics and does not read them is disconnected.
func TestMetrics_SlowReaderIsCutOff(t *testing.T) {
	t.Parallel()
	o := alone(t, nil, &source{name: "metrics"})
	conn := dial(t, o.Admin)
	must(t, conn.(*net.TCPConn).SetReadBuffer(2048))
	requests := strings.Repeat("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 100)
	for { // until the adapter no longer reads, and then until it has ended the connection
		must(t, conn.SetWriteDeadline(time.Now().Add(harness.Patience)))
		if _, err := io.WriteString(conn, requests); err != nil {
			break
		}
	}
	// The kernel may not show the end before there is space for what was sent before it.
	must(t, conn.SetReadDeadline(time.Now().Add(harness.Patience)))
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the connection stays")
	}
	probed(t, o.Admin, "/metrics")
}

// certify writes a certificate for the loopback address, and returns the pool that trusts it.
func certify(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	own := certs.Own()
	for name, text := range own.Files() {
		write(t, filepath.Join(dir, name), string(text))
	}
	roots := x509.NewCertPool()
	roots.AddCert(own.Certificate)
	return roots
}
