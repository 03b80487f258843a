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
	"sync"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/internal/certs"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// inPod is [alone] in the memory of the adapter's pod.
func inPod(t *testing.T, flags []string, sources ...*source) *own {
	t.Helper()
	o := &own{dir: t.TempDir()}
	o.file = filepath.Join(o.dir, "sources.yaml")
	o.write(t, sources...)
	o.Adapter = harness.Pod().Start(t, harness.Flags(o.file, filepath.Join(o.dir, "data"), flags...)...)
	return o
}

// below fails the test when the adapter took more memory, or is gone.
func (o *own) below(t *testing.T, mib int64) {
	t.Helper()
	if verdict := o.Verdict(); verdict != "" {
		t.Fatalf("the adapter is gone: %s\n%s", verdict, o.Log())
	}
	if harness.RaceEnabled {
		mib = 1000
	}
	peak := o.PeakMemory(t) >> 20
	t.Logf("%d MiB at most", peak)
	if peak > mib {
		t.Errorf("%d MiB at most, want %d", peak, mib)
	}
}

// from opens a connection to the address from an address of this machine.
func from(t *testing.T, url string, peer net.IP) (net.Conn, error) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: peer}, Timeout: harness.Patience}
	return d.DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
}

// probed makes a request on a connection of its own, as a kubelet does.
func probed(t *testing.T, url, path string) {
	t.Helper()
	conn, err := from(t, url, net.IPv4(127, 0, 0, 1))
	if err != nil {
		t.Errorf("a probe of %s: %v", path, err)
		return
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(harness.Patience)); err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path)
	line, readErr := bufio.NewReader(conn).ReadString('\n')
	if err != nil || readErr != nil || !strings.Contains(line, " 200 ") {
		t.Errorf("a probe of %s: %q, %v, %v", path, line, err, readErr)
	}
}

// Probes and callers are answered while a flood of connections fills the limits. Metrics and the log report the flood.
func TestConnectionFlood_OthersAreAnswered(t *testing.T) {
	t.Parallel()
	// 5,000 connections, idle or half-open, of one peer or of many, to the API
	// and to the admin address, keep neither probes nor callers from an answer.
	s := &source{name: "connections"}
	o := inPod(t, nil, s)
	opened := 0
	for i := range 5000 {
		peer := net.IPv4(127, 0, 0, 2)
		if i%2 == 1 {
			peer = net.IPv4(127, 1, byte(i>>8), byte(i)|1)
		}
		for _, url := range []string{o.URL, o.Admin} {
			conn, err := from(t, url, peer)
			if err != nil {
				continue // no more ports or files here: what there is will do
			}
			opened++
			defer conn.Close()
			switch i % 4 {
			case 0, 1:
				_, _ = io.WriteString(conn, "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
			case 2:
				_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHo")
			}
		}
		if i%500 == 499 {
			probed(t, o.Admin, "/healthz")
			probed(t, o.Admin, "/readyz")
			probed(t, o.URL, "/tests/connections")
		}
	}
	if opened < 5000 {
		t.Errorf("%d connections only", opened)
	}
	s.put(t, "k", "")
	s.next(t, "k")
	metrics, err := harness.Do(t.Context(), http.MethodGet, o.Admin+"/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{`reschedule_connections{address="admin"}`, `reschedule_connections_limit{address="api"} 2048`, `reschedule_connections_ended_total{address="admin",why="idle"}`} {
		if !bytes.Contains(metrics.Body, []byte(line)) {
			t.Errorf("no metric %s", line)
		}
	}
	if !strings.Contains(o.Log(), "the limit of connections is reached") {
		t.Errorf("the log says nothing:\n%s", o.Log())
	}
	o.below(t, 400)
}

// Bodies that arrive slowly hold little memory, so that a large body of another source is accepted meanwhile.
func TestSlowBodies_TakeNothingFromOthers(t *testing.T) {
	t.Parallel()
	// Callers that announce 16 MiB, or no length, and then send next to nothing
	// hold no memory; a large body of another source goes through meanwhile.
	slow, other := &source{name: "slow"}, &source{name: "slow-other"}
	o := inPod(t, nil, slow, other)
	for i := range 200 {
		conn := dial(t, o.URL)
		length := "Content-Length: 16777216"
		if i%2 == 1 {
			length = "Transfer-Encoding: chunked"
		}
		if _, err := fmt.Fprintf(conn, "POST /tests/slow/schedules HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n10000\r\n{%s", length, strings.Repeat(" ", 60<<10)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		body := `{"items":[{"key":"` + fmt.Sprint(i) + `","delay":"1h"}` + strings.Repeat(" ", 1<<20) + `]}`
		if r := other.call(t, http.MethodPost, "/schedules", body); r.Status != http.StatusOK {
			t.Errorf("a large body: %d %s", r.Status, r.Body)
		}
	}
	o.below(t, 300)
}

// A body that stops arriving is answered with 400 and its connection ends. A small body may arrive slowly.
func TestSlowBody_IsGivenUp(t *testing.T) {
	t.Parallel()
	s := &source{name: "stops"}
	o := alone(t, nil, s)
	stops := dial(t, o.URL)
	if _, err := io.WriteString(stops, "PUT /tests/stops/schedules/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16777216\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	drips := dial(t, o.URL)
	if _, err := io.WriteString(drips, "PUT /tests/stops/schedules/drips HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	for _, b := range []byte(`{"delay": "1h" }`) {
		<-time.After(100 * time.Millisecond)
		if _, err := drips.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	if line, err := bufio.NewReader(drips).ReadString('\n'); !strings.Contains(line, " 201 ") {
		t.Errorf("a slow small body: %q %v", line, err)
	}
	if err := stops.SetReadDeadline(time.Now().Add(2 * harness.Patience)); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(stops)
	if err != nil || !bytes.Contains(answer, []byte(" 400 ")) || !bytes.Contains(answer, []byte("did not arrive in time")) {
		t.Errorf("%q %v", answer, err)
	}
}

// Many lists and reads of large events at once stay within the memory of the pod: calls without memory get 503.
func TestListsOfLargeEvents_FitTheirBudget(t *testing.T) {
	t.Parallel()
	// 120 lists at once of 32 keys with events of 255 KiB, and as many reads of
	// one key, stay in the memory of the pod.
	s := &source{name: "lists"}
	o := inPod(t, nil, s)
	event := `{"delay":"1h","event":{"data":"` + strings.Repeat("x", 255<<10) + `"}}`
	for i := range 32 {
		s.put(t, fmt.Sprint(i), event)
	}
	o.flood(t, 120, s.url()+"/schedules")
	o.flood(t, 500, s.url()+"/schedules/7")
	o.below(t, 500)
}

// flood makes calls at once, each on a connection of its own, and accepts 200
// and 503.
func (o *own) flood(t *testing.T, calls int, target string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 4 * harness.Patience}
	var all sync.WaitGroup
	var mu sync.Mutex
	answered := map[int]int{}
	for range calls {
		all.Go(func() {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := client.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			_, err = io.Copy(io.Discard, resp.Body)
			mu.Lock()
			defer mu.Unlock()
			answered[resp.StatusCode]++
			if err != nil || resp.StatusCode != 200 && resp.StatusCode != 503 {
				t.Errorf("%d %v", resp.StatusCode, err)
			}
		})
	}
	all.Wait()
	t.Logf("%d calls of %s: %v", calls, target, answered)
	if answered[200] == 0 {
		t.Errorf("no call of %s was answered: %v", target, answered)
	}
}

// HTTP/2 requests whose bodies do not arrive hold little memory, and other callers are answered.
func TestHTTP2_StalledBodiesHoldLittle(t *testing.T) {
	t.Parallel()
	// 60 connections of HTTP/2 with 200 requests each, whose bodies were
	// announced and do not come, hold little.
	s := &source{name: "streams"}
	tlsDir := t.TempDir()
	roots := certify(t, tlsDir)
	address, err := harness.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	o := inPod(t, []string{"--tls-listen", address, "--tls-dir", tlsDir}, s)
	var all sync.WaitGroup
	defer all.Wait()
	more := make(chan struct{})
	defer close(more)
	for range 60 {
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true, MaxConnsPerHost: 1,
			DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext,
		}}
		for range 200 {
			body, write := io.Pipe()
			all.Go(func() {
				_, _ = write.Write([]byte("{"))
				<-more
				_ = write.Close()
			})
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "https://"+address+"/tests/streams/schedules/k", body)
			if err != nil {
				t.Fatal(err)
			}
			r.ContentLength = 64 << 10
			all.Go(func() {
				defer body.Close()
				if resp, err := client.Do(r); err == nil {
					if resp.ProtoMajor != 2 {
						t.Errorf("answered with %s", resp.Proto)
					}
					resp.Body.Close()
				}
			})
		}
	}
	// What these hold does not keep others from an answer.
	for range 3 {
		s.put(t, "other", `{"delay":"1h"}`)
		probed(t, o.Admin, "/healthz")
	}
	o.below(t, 400)
}

// Peers whose slow bodies take all connections do not prevent calls of another peer, over HTTP or HTTPS.
func TestSlowPeers_DoNotShutOutANeighbour(t *testing.T) {
	t.Parallel()
	// 540 TLS connections of one peer, and 600 plain ones of each of four, whose
	// bodies do not come, keep no neighbour from an answer.
	s := &source{name: "shut-out"}
	dir := t.TempDir()
	roots := certify(t, dir)
	port, err := net.Listen("tcp", "127.0.0.9:0") // no other test's connection takes the port meanwhile
	if err != nil {
		t.Fatal(err)
	}
	secured := port.Addr().String()
	port.Close()
	o := inPod(t, []string{"--tls-listen", secured, "--tls-dir", dir}, s)
	slow := func(conn net.Conn) {
		_, _ = io.WriteString(conn, "POST /tests/shut-out HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
			"Ce-Specversion: 1.0\r\nCe-Id: 1\r\nCe-Source: /s\r\nCe-Type: t\r\nContent-Length: 2000\r\n\r\n{")
	}
	for range 540 {
		conn, err := from(t, secured, net.IPv4(127, 0, 0, 3))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		encrypted := tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"})
		if encrypted.HandshakeContext(t.Context()) == nil { // refused at the limit, else
			slow(encrypted)
		}
	}
	for i := range 4 * 600 {
		conn, err := from(t, o.URL, net.IPv4(127, 0, 0, 3+byte(i%4)))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		slow(conn)
	}
	neighbour := &http.Client{Timeout: harness.Patience, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"},
		DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext,
	}}
	for i := range 40 {
		url := o.URL
		if i%2 == 1 {
			url = "https://" + secured
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url+"/tests/shut-out/schedules/k", strings.NewReader(`{"delay":"1h"}`))
		if err != nil {
			t.Fatal(err)
		}
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
}

// A caller who asks for the metrics and does not read them is disconnected.
func TestMetrics_SlowReaderIsCutOff(t *testing.T) {
	t.Parallel()
	o := alone(t, nil, &source{name: "metrics"})
	conn := dial(t, o.Admin)
	if err := conn.(*net.TCPConn).SetReadBuffer(2048); err != nil {
		t.Fatal(err)
	}
	requests := strings.Repeat("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 100)
	for { // until the adapter no longer reads, and then until it has ended the connection
		if err := conn.SetWriteDeadline(time.Now().Add(harness.Patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, requests); err != nil {
			break
		}
	}
	// The kernel may not show the end before there is space for what was sent before it.
	if err := conn.SetReadDeadline(time.Now().Add(harness.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the connection stays")
	}
	probed(t, o.Admin, "/metrics")
}

// certify writes a certificate for the loopback address, and returns the pool
// that trusts it.
func certify(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	own := certs.Own()
	for name, text := range own.Files() {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	roots.AddCert(own.Certificate)
	return roots
}

// An adapter without tokens refuses the call of a web page of another site.
func TestWebPage_IsRefusedWithoutTokens(t *testing.T) {
	t.Parallel()
	for header, value := range map[string]string{"Host": "evil.example", "Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, plain.url()+"/schedules", strings.NewReader(`{"items":[{"key":"page"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(header, value)
		if header == "Host" {
			r.Host = value
		}
		resp, err := harness.Client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s is answered with %d", header, value, resp.StatusCode)
		}
	}
	if _, there := plain.look(t, "page"); there {
		t.Error("the page has written a key")
	}
}

// SIGHUP reads the tokens also when the file of sources is bad, so that a revoked token ends at once. The log names
// each file that failed.
func TestToken_IsRevokedBesideABadFile(t *testing.T) {
	t.Parallel()
	s := &source{name: "revoke"}
	tokens := filepath.Join(t.TempDir(), "tokens")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(tokens, "old\n")
	o := alone(t, []string{"--token-file", tokens}, s)
	write(tokens, "new\n")
	write(o.file, "no: manifest")
	if ok, log := o.Reload(t); ok || !strings.Contains(log, "the sources stay as they were") {
		t.Errorf("a bad file of sources: %s", log)
	}
	for token, status := range map[string]int{"old": http.StatusUnauthorized, "new": http.StatusOK} {
		if r := s.call(t, http.MethodGet, "", "", "Authorization", "Bearer "+token); r.Status != status {
			t.Errorf("token %s: %d", token, r.Status)
		}
	}
	write(tokens, "")
	if ok, log := o.Reload(t); ok || !strings.Contains(log, "the tokens stay as they were") || !strings.Contains(log, "the sources stay as they were") {
		t.Errorf("both files are bad: %s", log)
	}
}

// A source with spec.audit logs each change once, with the line of the token, never the token. Others log nothing.
func TestAudit_SaysWhoDidWhat(t *testing.T) {
	t.Parallel()
	s, silent := &source{name: "audited", spec: "audit: true"}, &source{name: "unaudited"}
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("# who\nsecret-of-ours\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := alone(t, []string{"--token-file", tokens}, s, silent)
	auth := []string{"Authorization", "Bearer secret-of-ours"}
	s.put(t, "Repo/a", `{"delay":"1h"}`, auth...)
	silent.put(t, "k", `{"delay":"1h"}`, auth...)
	s.call(t, http.MethodPost, "", `{"specversion":"1.0","id":"1","source":"/s","type":"t","subject":"sent"}`, append(auth, "Content-Type", "application/cloudevents+json")...)
	s.call(t, http.MethodDelete, harness.KeyPath("Repo/a"), "", auth...)
	const user = `audit.user="token in line 2" audit.verb=`
	wants := []string{
		user + "schedule audit.source=tests/audited audit.key=Repo/a audit.result=created",
		user + "event audit.source=tests/audited audit.key=sent audit.result=accepted",
		user + "cancel audit.source=tests/audited audit.key=Repo/a audit.result=cancelled",
	}
	log := o.AwaitLog(t, wants...)
	for _, want := range wants {
		if strings.Count(log, want) != 1 {
			t.Errorf("not once: %s", want)
		}
	}
	if strings.Contains(log, "secret-of-ours") || strings.Contains(log, "tests/unaudited audit.key") {
		t.Errorf("too much in the log:\n%s", log)
	}
}
