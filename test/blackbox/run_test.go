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

// own is an adapter of a test's own, with a sources file that it may rewrite.
type own struct {
	*harness.Adapter
	dir, file string
}

// alone starts an adapter for the sources.
func alone(t *testing.T, flags []string, sources ...*source) *own {
	t.Helper()
	o := &own{dir: t.TempDir()}
	o.file = filepath.Join(o.dir, "sources.yaml")
	o.write(t, sources...)
	o.Adapter = harness.Start(t, harness.Flags(o.file, filepath.Join(o.dir, "data"), flags...)...)
	return o
}

// write rewrites the file, and points the sources at this adapter.
func (o *own) write(t *testing.T, sources ...*source) {
	t.Helper()
	for _, s := range sources {
		s.at = func() string { return o.URL }
	}
	if err := os.WriteFile(o.file, []byte(manifests(sources...)), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (o *own) reload(t *testing.T, sources ...*source) {
	t.Helper()
	o.write(t, sources...)
	if ok, log := o.Reload(t); !ok {
		t.Fatalf("the file is good: %s", log)
	}
}

func (o *own) terminate(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	status, took, err := o.Terminate(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if status != 0 || took > 15*time.Second {
		t.Errorf("SIGTERM ended the adapter with status %d after %s:\n%s", status, took, o.Log())
	}
}

func (o *own) restart(t *testing.T) {
	t.Helper()
	o.Adapter = harness.Start(t, harness.Flags(o.file, filepath.Join(o.dir, "data"))...)
}

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
	o.reload(t, &moved, comes)
	problem(t, goes.call(t, http.MethodGet, "", ""), http.StatusNotFound, "not_found")
	problem(t, goes.call(t, http.MethodPut, "/schedules/k", ""), http.StatusNotFound, "not_found")
	stays.get(t, "k")
	if v := stays.put(t, "defaults", ""); v.DueAt.Sub(v.ScheduledAt) != 2*time.Hour {
		t.Errorf("a changed source is in force for the next request: %+v", v)
	}
	stays.put(t, "k", `{"delay":0}`)
	if d := stays.next(t, "k"); d.Attr("team") != "new" || !strings.HasPrefix(d.Header.Get("Content-Type"), "application/cloudevents+json") {
		t.Errorf("and for the next delivery: %v", d.Attributes)
	}
	moved.inbox = "reload-moved"
	o.reload(t, &moved, comes)
	stays.put(t, "k", `{"delay":0}`)
	if d := sink.Next(t, "reload-moved", "k"); d.Attr("source") != "/apis/sources.reschedule.dev/v1alpha1/namespaces/tests/reschedulesources/reload-stays" {
		t.Errorf("at the new sink: %v", d.Attributes)
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

// A bad file changes nothing, and the log says why.
func TestReload_BadFileChangesNothing(t *testing.T) {
	t.Parallel()
	s := &source{name: "badfile"}
	o := alone(t, nil, s)
	s.put(t, "k", `{"delay":"1h"}`)
	good := s.manifest()
	for text, why := range map[string]string{
		"": "no RescheduleSource", "# all gone\n": "no RescheduleSource", strings.TrimSuffix(good, "\n"): "no end", "apiVersion: v1\nkind: List\nitems:\n": "items",
		"{": "", strings.Replace(good, "RescheduleSource", "CronJob", 1): "CronJob", good + "  delay: 5 minutes\n": "spec.delay", good + "  unknown: 1\n": "unknown",
		good + "---\n" + good: "badfile", good + "  ingest: {key: \"event.\"}\n": "spec.ingest.key", good + "  ingest: {when: \"1\"}\n": "spec.ingest.when",
		strings.Replace(good, "uri:", "urn:", 1): "urn", good + "  conflictPolicy: newest\n": "newest", good + "  limits: {maxInFlight: -1}\n": "maxInFlight",
		good + "  ceOverrides: {extensions: {id: x}}\n": "id", good + "  delivery: {retry: -1}\n": "retry", good + "  delivery: {backoffDelay: 1s}\n": "backoffDelay",
		strings.Replace(good, "sink: {uri", "sink: {", 1): "", good + "  ingest: {authentication: required}\n": "spec.ingest.authentication is required, and there are no tokens: give --token-file",
	} {
		if err := os.WriteFile(o.file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		ok, log := o.Reload(t)
		if ok || !strings.Contains(log, why) {
			t.Errorf("%q was loaded: %t, and the log does not name %q: %s", text, ok, why, log)
		}
		s.get(t, "k")
		if out := harness.Refused(t, harness.Flags(o.file, t.TempDir())...); !strings.Contains(out, why) {
			t.Errorf("at start the adapter does not name %q: %s", why, out)
		}
	}
	if err := os.Remove(o.file); err != nil {
		t.Fatal(err)
	}
	if ok, _ := o.Reload(t); ok {
		t.Error("a missing file was loaded")
	}
	s.get(t, "k")
	harness.Refused(t, harness.Flags(o.file, t.TempDir())...)
}

// A suspended source accepts, does not deliver, and still expires.
func TestSuspend_AcceptsAndExpiresOnly(t *testing.T) {
	t.Parallel()
	s, other := &source{name: "suspend", spec: "suspend: true"}, &source{name: "suspend-not"}
	o := alone(t, nil, s, other)
	s.put(t, "due", "")
	s.put(t, "expires", `{"expiresAt":"`+in(500*time.Millisecond)+`"}`)
	other.passes(t, time.Now().Add(300*time.Millisecond))
	if v := s.get(t, "due"); v.State != "due" {
		t.Errorf("%+v", v)
	}
	s.gone(t, "expires")
	delivered := func(want int) {
		t.Helper()
		all := sink.Of("suspend", "")
		if len(all) == want {
			return
		}
		for _, d := range all {
			t.Errorf("delivered at %s: %v", d.At.Format(time.StampMicro), d.Attributes)
		}
		t.Errorf("%d deliveries, want %d; the adapter said:\n%s", len(all), want, o.Log())
	}
	delivered(0)
	awake := *s
	awake.spec = ""
	o.reload(t, &awake, other)
	s.next(t, "due")
	o.reload(t, s, other)
	s.put(t, "again", "")
	other.passes(t, time.Now().Add(200*time.Millisecond))
	delivered(1)
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
		conn := dial(t, o.URL)
		if _, err := io.WriteString(conn, half); err != nil {
			t.Fatal(err)
		}
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
	if code, out := harness.Run("verify", filepath.Join(o.dir, "data")); code != 0 {
		t.Errorf("verify: %d %s", code, out)
	}
}

func dial(t *testing.T, url string) net.Conn {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// Two adapters cannot use one data directory.
func TestDataDir_IsForOneAdapter(t *testing.T) {
	t.Parallel()
	s := &source{name: "twice"}
	o := alone(t, nil, s)
	if out := harness.Refused(t, harness.Flags(o.file, filepath.Join(o.dir, "data"))...); !strings.Contains(out, filepath.Join(o.dir, "data")) {
		t.Errorf("%s", out)
	}
	for _, tool := range []string{"inspect", "verify"} {
		if code, out := harness.Run(tool, filepath.Join(o.dir, "data")); code == 0 {
			t.Errorf("%s of a directory in use: %s", tool, out)
		}
	}
	s.put(t, "k", "")
	s.next(t, "k")
}

// It does not listen beyond loopback without tokens.
func TestListen_BeyondLoopbackNeedsTokens(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "sources.yaml")
	s := &source{name: "beyond"}
	if err := os.WriteFile(file, []byte(s.manifest()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "example.com:80", "10.1.2.3:0"} {
		if out := harness.Refused(t, harness.Flags(file, t.TempDir(), "--listen", address)...); !strings.Contains(out, "--token-file") {
			t.Errorf("%s: %s", address, out)
		}
	}
	tokens := filepath.Join(t.TempDir(), "tokens")
	for _, text := range []string{"", "\n\n", "two words\n"} {
		if err := os.WriteFile(tokens, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		harness.Refused(t, harness.Flags(file, t.TempDir(), "--token-file", tokens)...)
	}
	if err := os.WriteFile(tokens, []byte("good\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	harness.Start(t, harness.Flags(file, t.TempDir(), "--listen", "0.0.0.0:0", "--token-file", tokens)...)
	for _, flags := range [][]string{{}, {"--standalone"}, {"--standalone", "--sources", file}, {"--no-such-flag"}, {"--sources", file, "--data-dir", t.TempDir()}, append(harness.Flags(file, t.TempDir()), "more")} {
		harness.Refused(t, flags...)
	}
}

// Tokens guard the schedule API and ingress also on loopback.
func TestToken_GuardsAPIAndIngress(t *testing.T) {
	t.Parallel()
	tokens := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(tokens, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first-token\nsecond.token\n")
	s := &source{name: "guarded"}
	o := alone(t, []string{"--token-file", tokens}, s)
	calls := [][2]string{{http.MethodPut, "/schedules/k"}, {http.MethodGet, "/schedules/k"}, {http.MethodDelete, "/schedules/k"}, {http.MethodGet, "/schedules"},
		{http.MethodPost, "/schedules"}, {http.MethodDelete, "/schedules?all=true"}, {http.MethodGet, ""}, {http.MethodPost, ""}, {http.MethodGet, "/none"}}
	for _, auth := range []string{"", "Bearer wrong", "Bearer", "Basic first-token", "first-token", "Bearer first-token second.token", "Bearer first-toke"} {
		for _, c := range calls {
			r := s.call(t, c[0], c[1], "", "Authorization", auth)
			problem(t, r, http.StatusUnauthorized, "unauthenticated")
			if !strings.HasPrefix(r.Header.Get("WWW-Authenticate"), "Bearer") {
				t.Errorf("WWW-Authenticate: %q", r.Header.Get("WWW-Authenticate"))
			}
		}
	}
	let := func(token string, in bool) {
		t.Helper()
		if r := s.call(t, http.MethodPut, "/schedules/k", "", "Authorization", "Bearer "+token); (r.Status < 300) != in {
			t.Errorf("%s: %d %s", token, r.Status, r.Body)
		}
		if r := s.send(t, "Authorization", "Bearer "+token); (r.Status < 300) != in {
			t.Errorf("ingress, %s: %d %s", token, r.Status, r.Body)
		}
	}
	let("first-token", true)
	let("second.token", true)
	write("third\n")
	o.reload(t, s)
	let("first-token", false)
	let("third", true)
	write("")
	if ok, _ := o.Reload(t); ok {
		t.Error("a token file without tokens was loaded")
	}
	let("third", true)
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		if r, err := harness.Do(t.Context(), http.MethodGet, o.Admin+path, ""); err != nil || r.Status != http.StatusOK {
			t.Errorf("%s: %v %v", path, r, err)
		}
	}
}

// Probes and metrics are on the admin address.
func TestAdmin_HasProbesAndMetrics(t *testing.T) {
	t.Parallel()
	plain.put(t, "metrics", "")
	plain.next(t, "metrics")
	plain.gone(t, "metrics")
	plain.put(t, "metrics", `{"expiresAt":"2001-01-01T00:00:00Z"}`)
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		r, err := harness.Do(t.Context(), http.MethodGet, shared.Admin+path, "")
		if err != nil || r.Status != http.StatusOK {
			t.Errorf("%s: %v %v", path, r, err)
		}
		if path != "/metrics" {
			continue
		}
		for _, name := range []string{"reschedule_deliveries_total", "reschedule_lateness_seconds_bucket", "reschedule_delivery_duration_seconds_bucket", "reschedule_pending", "reschedule_due", "reschedule_retrying", "reschedule_source_suspended", "reschedule_oldest_due_age_seconds", "reschedule_in_flight", "reschedule_expired_total", "reschedule_storage_sync_duration_seconds_bucket", "process_resident_memory_bytes"} {
			if !strings.Contains(string(r.Body), "\n"+name) {
				t.Errorf("no metric %s", name)
			}
		}
		if !strings.Contains(string(r.Body), `kn_source_name="plain",kn_source_namespace="tests",result="delivered"`) {
			t.Error("no count of deliveries of this source")
		}
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		if r, err := harness.Do(t.Context(), http.MethodGet, shared.URL+path, ""); err != nil || r.Status != http.StatusNotFound {
			t.Errorf("%s on the API's address: %v %v", path, r, err)
		}
	}
	for _, path := range []string{"/tests/plain", "/debug/pprof/"} {
		if r, err := harness.Do(t.Context(), http.MethodGet, shared.Admin+path, ""); err != nil || r.Status != http.StatusNotFound {
			t.Errorf("%s on the admin address: %v %v", path, r, err)
		}
	}
}

// It prints one line when it is ready.
func TestStart_PrintsOneLineWhenReady(t *testing.T) {
	t.Parallel()
	o := alone(t, nil, &source{name: "one-line"})
	r, err := harness.Do(t.Context(), http.MethodGet, o.Admin+"/readyz", "")
	if err != nil || r.Status != http.StatusOK {
		t.Errorf("/readyz right after the line: %v %v", r, err)
	}
	o.reload(t, &source{name: "one-line"})
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
		if err := o.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-o.Exited():
	case <-time.After(15 * time.Second):
		t.Fatal("it still runs after 15 s")
	}
}

// The ready line has the address with TLS, which is unknown otherwise with port 0.
func TestReady_NamesTheAddressWithTLS(t *testing.T) {
	t.Parallel()
	s, dir := &source{name: "ready-tls"}, t.TempDir()
	roots := certify(t, dir)
	o := alone(t, []string{"--tls-listen", "127.0.0.1:0", "--tls-dir", dir}, s)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer client.CloseIdleConnections()
	resp, err := client.Get(o.TLS + "/" + namespace + "/" + s.name)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("%s: %s", o.TLS, resp.Status)
	}
	// Without a directory there is never a certificate, and no handshake succeeds.
	out := harness.Refused(t, harness.Flags(o.file, t.TempDir(), "--tls-listen", "127.0.0.1:0")...)
	if !strings.Contains(out, "--tls-dir") {
		t.Errorf("--tls-listen alone: %s", out)
	}
}
