package blackbox

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// Reloading adds changes and removes sources.
func TestReload_AddsChangesAndRemovesSources(t *testing.T) {
	t.Parallel()
	stays, goes, comes := &source{name: "reload-stays"}, &source{name: "reload-goes"}, &source{name: "reload-comes"}
	o := alone(t, nil, stays, goes)
	stays.put(t, "k", `{"delay":"1h"}`)
	goes.put(t, "k", `{"delay":"1h"}`)
	at := time.Now().Add(3 * time.Second) // after the reload, on a busy machine too
	goes.put(t, "soon", `{"dueAt":"`+at.UTC().Format(time.RFC3339Nano)+`"}`)

	moved := *stays
	moved.spec = "delay: 2h\ndelivery: {format: json}\nceOverrides: {extensions: {team: new}}"
	moved.inbox = "reload-moved"
	o.reload(t, &moved, comes)
	problem(t, goes.call(t, http.MethodGet, "", ""), http.StatusNotFound, "not_found")
	problem(t, goes.call(t, http.MethodPut, "/schedules/k", ""), http.StatusNotFound, "not_found")
	if v := stays.put(t, "defaults", ""); v.DueAt.Sub(v.ScheduledAt) != 2*time.Hour {
		t.Errorf("a changed source is in force for the next request: %+v", v)
	}
	stays.put(t, "k", `{"delay":0}`)
	if d := sink.Next(t, "reload-moved", "k"); d.Attr("team") != "new" || d.Attr("source") != "/apis/sources.reschedule.dev/v1alpha1/namespaces/tests/reschedulesources/reload-stays" {
		t.Errorf("and for the next delivery: %v", d.Attributes)
	}
	comes.put(t, "k", "")
	comes.next(t, "k")
	comes.passes(t, at.Add(200*time.Millisecond))
	if n := len(sink.Of("reload-goes", "")); n != 0 {
		t.Errorf("%d deliveries of a removed source", n)
	}

	// Added again it starts empty, also after a restart.
	o.reload(t, &moved, goes)
	if c := goes.counts(t); c.Pending != 0 || len(goes.pages(t, "")) != 0 {
		t.Errorf("added again: %+v", c)
	}
	goes.put(t, "new", `{"delay":"1h"}`)
	o.terminate(t)
	o.restart(t)
	if all := goes.pages(t, ""); len(all) != 1 || all[0].Key != "new" {
		t.Errorf("after a restart: %v", keysOf(all))
	}
	stays.get(t, "defaults")
	// One that is removed while the adapter is down is lost as well.
	o.terminate(t)
	o.write(t, goes)
	o.restart(t)
	o.reload(t, stays, goes)
	if c := stays.counts(t); c.Pending != 0 {
		t.Errorf("%+v", c)
	}
}

// A bad file, or one that is being written, changes nothing, and the log says why; the start is refused with it.
func TestReload_BadFileChangesNothing(t *testing.T) {
	t.Parallel()
	s := &source{name: "badfile"}
	o := alone(t, nil, s)
	s.put(t, "k", `{"delay":"1h"}`)
	good := s.manifest()
	for text, why := range map[string]string{
		"": "no RescheduleSource", strings.TrimSuffix(good, "\n"): "no end", good + "  delay: 5 minutes\n": "spec.delay",
		good + "  ingest: {authentication: required}\n": "spec.ingest.authentication is required, and there are no tokens: give --token-file",
	} {
		write(t, o.file, text)
		ok, log := o.Reload(t)
		if ok || !strings.Contains(log, why) {
			t.Errorf("%q was loaded: %t, and the log does not name %q: %s", text, ok, why, log)
		}
		if out := harness.Refused(t, harness.Flags(o.file, t.TempDir())...); !strings.Contains(out, why) {
			t.Errorf("at start the adapter does not name %q: %s", why, out)
		}
	}
	must(t, os.Remove(o.file))
	if ok, _ := o.Reload(t); ok {
		t.Error("a missing file was loaded")
	}
	s.get(t, "k")
	o.terminate(t)
	o.write(t, s)
	o.restart(t)
	s.get(t, "k")
}

// An occurrence that became due while the adapter was down is delivered at once under its id.
func TestRestart_DeliversTheOverdueUnderTheirIDs(t *testing.T) {
	t.Parallel()
	s := &source{name: "restart"}
	o := alone(t, nil, s)
	s.answer("retried", script(status(503, "Retry-After", "1"), status(204)))
	s.put(t, "retried", "")
	first := s.next(t, "retried")
	s.settled(t, "retried")
	missed := s.put(t, "missed", `{"delay":"300ms","event":{"type":"x"}}`)
	ahead := s.put(t, "ahead", `{"delay":"3s"}`)
	o.terminate(t)
	eventually(t, "the time has come", func() bool { return time.Now().After(missed.DueAt) })
	o.restart(t)
	for _, v := range []harness.Schedule{missed, ahead} {
		if d := s.next(t, v.Key); !d.DueAt.Equal(v.DueAt) || d.Revision != v.Revision {
			t.Errorf("%s: due at %s, %v", v.Key, v.DueAt, d.Attributes)
		}
	}
	if d := s.next(t, "retried"); d.Attr("id") != first.Attr("id") || d.Attempt != 1 {
		t.Errorf("%v after %v", d.Attributes, first.Attributes)
	}
}

// SIGTERM ends the adapter with status 0 within 15 seconds, whatever hangs.
func TestSIGTERM_EndsWithin15Seconds(t *testing.T) {
	t.Parallel()
	s := &source{name: "hanging"}
	o := alone(t, nil, s)
	s.answer("", func(_ http.ResponseWriter, r *http.Request, _ *harness.Delivery) { <-r.Context().Done() })
	for i := range 20 {
		s.put(t, fmt.Sprint(i), "")
	}
	sink.Find(t, "20 deliveries", func([]*harness.Delivery) bool { return len(sink.Of("hanging", "")) == 20 })
	for _, half := range []string{"", "PUT /tests", "PUT /tests/hanging/schedules/half HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", "GET /tests/hanging HTTP/1.1\r\nHost: localhost\r\n\r\n"} {
		_, err := io.WriteString(dial(t, o.URL), half)
		must(t, err)
	}
	o.terminate(t)
	// What was cut off is delivered again, as the same attempt.
	s.answer("", harness.Status(204))
	o.restart(t)
	for i := range 20 {
		key := fmt.Sprint(i)
		first, again := s.next(t, key), s.next(t, key)
		if again.Attr("id") != first.Attr("id") || again.Revision != first.Revision {
			t.Errorf("%v after %v", again.Attributes, first.Attributes)
		}
	}
	o.terminate(t)
	if code, out := harness.Run("verify", o.data); code != 0 {
		t.Errorf("verify: %d %s", code, out)
	}
}

func dial(t *testing.T, url string) net.Conn {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// Two adapters cannot use one data directory.
func TestDataDir_IsForOneAdapter(t *testing.T) {
	t.Parallel()
	s := &source{name: "twice"}
	o := alone(t, nil, s)
	if out := harness.Refused(t, harness.Flags(o.file, o.data)...); !strings.Contains(out, o.data) {
		t.Errorf("%s", out)
	}
	for _, tool := range []string{"inspect", "verify"} {
		if code, out := harness.Run(tool, o.data); code == 0 {
			t.Errorf("%s of a directory in use: %s", tool, out)
		}
	}
	s.put(t, "k", "")
	s.next(t, "k")
}

// It does not listen beyond loopback without tokens, nor with flags that are not complete.
func TestListen_BeyondLoopbackNeedsTokens(t *testing.T) {
	t.Parallel()
	s := &source{name: "beyond"}
	file := write(t, filepath.Join(t.TempDir(), "sources.yaml"), s.manifest())
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "example.com:80", "10.1.2.3:0"} {
		if out := harness.Refused(t, harness.Flags(file, t.TempDir(), "--listen", address)...); !strings.Contains(out, "--token-file") {
			t.Errorf("%s: %s", address, out)
		}
	}
	tokens := write(t, filepath.Join(t.TempDir(), "tokens"), "two words\n")
	harness.Refused(t, harness.Flags(file, t.TempDir(), "--token-file", tokens)...)
	write(t, tokens, "good\n")
	harness.Start(t, harness.Flags(file, t.TempDir(), "--listen", "0.0.0.0:0", "--token-file", tokens)...)
	for _, flags := range [][]string{
		{}, {"--standalone"}, {"--standalone", "--sources", file}, {"--no-such-flag"}, {"--sources", file, "--data-dir", t.TempDir()}, append(harness.Flags(file, t.TempDir()), "more"),
	} {
		harness.Refused(t, flags...)
	}
	// Without a directory there is never a certificate, and no handshake succeeds.
	if out := harness.Refused(t, harness.Flags(file, t.TempDir(), "--tls-listen", "127.0.0.1:0")...); !strings.Contains(out, "--tls-dir") {
		t.Errorf("--tls-listen alone: %s", out)
	}
}

// Tokens guard the schedule API and ingress also on loopback, and not the probes. SIGHUP reads them also when the file
// of sources is bad, so that a revoked token ends at once. The log names each file that failed.
func TestToken_GuardsAndIsRevoked(t *testing.T) {
	t.Parallel()
	s := &source{name: "guarded"}
	tokens := write(t, filepath.Join(t.TempDir(), "tokens"), "old\n")
	o := alone(t, []string{"--token-file", tokens}, s)
	admits := func(token string, in bool) {
		t.Helper()
		auth := []string{"Authorization", token}
		for _, r := range []*harness.Reply{s.call(t, http.MethodPut, "/schedules/k", "", auth...), s.send(t, auth...)} {
			if !in {
				problem(t, r, http.StatusUnauthorized, "unauthenticated")
			} else if r.Status >= 300 {
				t.Errorf("%s: %d %s", token, r.Status, r.Body)
			}
		}
	}
	admits("", false)
	admits("Bearer new", false)
	admits("Bearer old", true)
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		if r, err := harness.Do(t.Context(), http.MethodGet, o.Admin+path, ""); err != nil || r.Status != http.StatusOK {
			t.Errorf("%s: %v %v", path, r, err)
		}
	}
	write(t, tokens, "new\n")
	write(t, o.file, "no: manifest")
	if ok, log := o.Reload(t); ok || !strings.Contains(log, "the sources stay as they were") {
		t.Errorf("a bad file of sources: %s", log)
	}
	admits("Bearer old", false)
	admits("Bearer new", true)
	write(t, tokens, "")
	if ok, log := o.Reload(t); ok || !strings.Contains(log, "the tokens stay as they were") || !strings.Contains(log, "the sources stay as they were") {
		t.Errorf("both files are bad: %s", log)
	}
	admits("Bearer new", true)
}

// Probes and metrics are on the admin address.
func TestAdmin_HasProbesAndMetrics(t *testing.T) {
	t.Parallel()
	plain.put(t, "metrics", "")
	plain.next(t, "metrics")
	plain.gone(t, "metrics")
	plain.put(t, "metrics", `{"expiresAt":"2001-01-01T00:00:00Z"}`)
	get := func(url string, status int) string {
		t.Helper()
		r, err := harness.Do(t.Context(), http.MethodGet, url, "")
		if err != nil || r.Status != status {
			t.Fatalf("%s: %v %v", url, r, err)
		}
		return string(r.Body)
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		get(shared.Admin+path, http.StatusOK)
		get(shared.URL+path, http.StatusNotFound)
	}
	get(shared.Admin+"/tests/plain", http.StatusNotFound)
	get(shared.Admin+"/debug/pprof/", http.StatusNotFound)
	metrics := get(shared.Admin+"/metrics", http.StatusOK)
	for _, text := range []string{"\nreschedule_deliveries_total", "\nreschedule_lateness_seconds_bucket", "\nreschedule_delivery_duration_seconds_bucket", "\nreschedule_pending", "\nreschedule_due", "\nreschedule_retrying", "\nreschedule_source_suspended", "\nreschedule_oldest_due_age_seconds", "\nreschedule_in_flight", "\nreschedule_expired_total", "\nreschedule_storage_sync_duration_seconds_bucket", "\nprocess_resident_memory_bytes", `kn_source_name="plain",kn_source_namespace="tests",result="delivered"`} {
		if !strings.Contains(metrics, text) {
			t.Errorf("no metric %s", text)
		}
	}
}

// It prints one line when it is ready, with the address with TLS, which is unknown otherwise with port 0.
func TestReady_IsOneLine(t *testing.T) {
	t.Parallel()
	s, dir := &source{name: "ready-tls"}, t.TempDir()
	roots := certify(t, dir)
	o := alone(t, []string{"--tls-listen", "127.0.0.1:0", "--tls-dir", dir}, s)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer client.CloseIdleConnections()
	for _, url := range []string{o.Admin + "/readyz", o.TLS + "/" + namespace + "/" + s.name} {
		resp, err := client.Get(url)
		must(t, err)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s right after the line: %s", url, resp.Status)
		}
	}
	o.reload(t, s)
	o.terminate(t)
	if n := strings.Count(o.Log(), "stdout: "); n != 1 {
		t.Errorf("%d lines on standard output:\n%s", n, o.Log())
	}
}

// A second SIGTERM or a hangup while it stops does no harm.
func TestSIGTERM_ASecondDoesNoHarm(t *testing.T) {
	t.Parallel()
	s := &source{name: "stopping"}
	o := alone(t, nil, s)
	s.answer("", func(_ http.ResponseWriter, r *http.Request, _ *harness.Delivery) { <-r.Context().Done() })
	s.put(t, "k", "")
	s.next(t, "k")
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGTERM} {
		must(t, o.Signal(sig))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	select {
	case <-o.Exited():
	case <-ctx.Done():
		t.Fatal("it still runs after 15 s")
	}
}
