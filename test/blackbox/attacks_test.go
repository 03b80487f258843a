package blackbox

import (
	"encoding/json"
	"errors"
	"fmt"
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

// within is for bounds of memory: the race detector takes several times as much.
func within(bytes int64) int64 {
	if harness.RaceEnabled {
		return 5 * bytes
	}
	return bytes
}

// A pattern of an expression takes no more memory than its text is worth: the
// manifest is refused with the field, or serving it is cheap.
func TestExpression_PatternsAreBounded(t *testing.T) {
	t.Parallel()
	const count = 20
	power := strings.Repeat("x{1000}", 550)
	for name, spec := range map[string]string{
		"literal":  fmt.Sprintf("ingest: {when: %q}", "event.id.matches('"+power+"')"),
		"computed": `ingest: {when: "event.id.matches(event.data.p)"}`,
	} {
		var sources []*source
		for i := range count {
			sources = append(sources, &source{name: fmt.Sprintf("%s-%d", name, i), spec: spec})
		}
		file := filepath.Join(t.TempDir(), "sources.yaml")
		if err := os.WriteFile(file, []byte(manifests(sources...)), 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := harness.Pod().Launch(harness.Flags(file, t.TempDir())...)
		var refused *harness.ExitError
		if errors.As(err, &refused) && refused.Code > 0 {
			if !strings.Contains(refused.Log, "ingest.when") {
				t.Errorf("%s: the refusal does not name the field: %s", name, refused.Log)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(a.Kill)
		pattern, err := json.Marshal(map[string]string{"p": power})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 6 {
			r, err := harness.Do(t.Context(), http.MethodPost, a.URL+"/"+namespace+"/"+sources[i].name, string(pattern),
				"Ce-Id", strings.Repeat("x", 1000), "Ce-Type", "t", "Ce-Source", "/s", "Ce-Specversion", "1.0")
			if err != nil {
				t.Errorf("%s: %v %s", name, err, a.Verdict())
				break
			}
			t.Logf("%s: %d", name, r.Status)
		}
		if peak := a.PeakMemory(t); peak > within(200<<20) {
			t.Errorf("%s: %d sources took %d MiB", name, count, peak>>20)
		}
	}
}

// An event without a policy that the source allows puts nothing off, and a time
// that the source does not allow is refused.
func TestEvent_CannotPostpone(t *testing.T) {
	t.Parallel()
	s := solo(t, "postpone", "")
	due := s.put(t, "k", `{"delay":"1h","uid":"u","event":{"type":"mine"}}`).DueAt
	for _, policy := range []string{"latest", "replace"} {
		if r := s.send(t, "Ce-Reschedulekey", "k", "Ce-Rescheduleafter", "8000h", "Ce-Reschedulepolicy", policy); r.Status != http.StatusForbidden {
			t.Errorf("an event that asks for %s: %d %s", policy, r.Status, r.Body)
		}
	}
	if r := s.send(t, "Ce-Reschedulekey", "new", "Ce-Rescheduleafter", "876000h"); r.Status != http.StatusBadRequest {
		t.Errorf("an event that asks for 100 years: %d %s", r.Status, r.Body)
	}
	if v := s.get(t, "k"); !v.DueAt.Equal(due) || v.UID != "u" || v.Event["type"] != "mine" {
		t.Errorf("the schedule became %+v", v)
	}
}

// solo is a source with an adapter of its own.
func solo(t *testing.T, name, spec string) *source {
	t.Helper()
	s := &source{name: name, spec: spec}
	alone(t, nil, s)
	return s
}

// Data that claims to be an event does not take the place of the envelope.
func TestEvent_EnvelopeCannotBeForged(t *testing.T) {
	t.Parallel()
	for i, contentType := range []string{" application/cloudevents+json", "application/cloudevents+json", "Application/CloudEvents+JSON ", "\tapplication/cloudevents-batch+json"} {
		key := fmt.Sprint("forged envelope ", i)
		forged := `{"specversion":"1.0","id":"forged","source":"/forged","type":"forged","reschedulekey":"other","reschedulerevision":"1","rescheduleattempt":"0","rescheduledueat":"2020-01-01T00:00:00Z"}`
		r := plain.call(t, http.MethodPut, harness.KeyPath(key), fmt.Sprintf(`{"event":{"datacontenttype":%q,"data":%s}}`, contentType, forged))
		if r.Status == http.StatusBadRequest {
			continue
		}
		if d := plain.next(t, key); d.Attr("type") == "forged" || d.Attr("id") == "forged" {
			t.Errorf("%q: the sink reads an event of the caller's making: %v", contentType, d.Attributes)
		}
	}
}

// A page in the browser of the one who runs the adapter reaches nothing.
func TestBrowser_CannotCall(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		method, below, body string
		headers             []string
	}{
		"a form from elsewhere":         {http.MethodPost, "/schedules", `{"items":[{"key":"browser"}]}`, []string{"Content-Type", "", "Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"}},
		"a name that leads to loopback": {http.MethodGet, "/schedules", "", []string{"Host", "evil.example"}},
		"a deletion by such a name":     {http.MethodDelete, "/schedules/browser", "", []string{"Host", "evil.example:8080"}},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, plain.url()+c.below, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(c.headers); i += 2 {
			if c.headers[i] == "Host" {
				req.Host = c.headers[i+1]
			} else if c.headers[i+1] != "" {
				req.Header.Set(c.headers[i], c.headers[i+1])
			}
		}
		resp, err := harness.Client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode < 400 {
			t.Errorf("%s: %d", name, resp.StatusCode)
		}
	}
}

// What is accepted is there, whatever an event says: neither its time nor its
// media type takes a schedule away.
func TestEvent_DoesNotDestroyASchedule(t *testing.T) {
	t.Parallel()
	s := solo(t, "destroy", "limits: {maxPending: 8}")
	for i, attributes := range []string{
		`"time":"2026-01-01T00:00:00+24:30"`,
		`"time":"2026-01-01T00:00:00-24:60"`,
		`"datacontenttype":"text/plain; a=\"\u0001\""`,
		`"datacontenttype":"text/plain;\na=b"`,
		`"datacontenttype":"text/plain; a=\"\u007f\""`,
	} {
		key := fmt.Sprint("k", i)
		s.put(t, key, `{"delay":"2s","maxInterval":"10h"}`)
		r := s.call(t, http.MethodPost, "", fmt.Sprintf(`{"specversion":"1.0","id":"i","source":"/s","type":"t",%s,"reschedulekey":%q,"rescheduleafter":"1h","data":"x"}`, attributes, key),
			"Content-Type", "application/cloudevents+json")
		if r.Status != http.StatusBadRequest && r.Status != http.StatusAccepted {
			t.Errorf("%s: %d %s", attributes, r.Status, r.Body)
		}
		s.get(t, key)
		s.next(t, key)
	}
	eventually(t, "all wait for their maxInterval", func() bool {
		c := s.counts(t)
		return c.Pending == 5 && c.InFlight == 0
	})
}

// More keys than are counted one by one are counted all the same.
func TestCounts_AboveTenThousandDue(t *testing.T) {
	t.Parallel()
	const count = 10_100
	s := solo(t, "many-due", "suspend: true")
	for from := 0; from < count; from += 1000 {
		var items []string
		for i := from; i < min(from+1000, count); i++ {
			items = append(items, fmt.Sprintf(`{"key":"k%d"}`, i))
		}
		if r := s.call(t, http.MethodPost, "/schedules", `{"items":[`+strings.Join(items, ",")+`]}`); r.Status != http.StatusOK {
			t.Fatalf("%d %s", r.Status, r.Body)
		}
	}
	eventually(t, "all are counted", func() bool {
		c := s.counts(t)
		return c.Pending == count && c.Due == count && c.OldestDueAt != nil
	})
}

// News that come between two attempts have retries of their own.
func TestEvent_HasRetriesOfItsOwn(t *testing.T) {
	t.Parallel()
	s := solo(t, "own-retries", "delivery: {retry: 2, backoffPolicy: linear, backoffDelay: PT1S}")
	s.answer("", harness.Status(http.StatusInternalServerError))
	s.ingest(t, "Ce-Id", "first", "Ce-Reschedulekey", "k")
	s.next(t, "k")
	s.next(t, "k")
	s.settled(t, "k")
	s.ingest(t, "Ce-Id", "second", "Ce-Reschedulekey", "k")
	s.gone(t, "k")
	tries := 0
	for _, d := range sink.Of(s.name, "k") {
		if d.Attr("id") == "second" {
			tries++
		}
	}
	if tries != 3 {
		t.Errorf("the second event was attempted %d times, want 3", tries)
	}
}

// A FILE that is being written is no order to forget everything.
func TestReload_AnEmptyFileIsRefused(t *testing.T) {
	t.Parallel()
	s := &source{name: "emptied"}
	o := alone(t, nil, s)
	s.put(t, "k", `{"delay":"1h"}`)
	whole := s.manifest()
	for _, text := range []string{"", "\n", "---\n", whole[:strings.Index(whole, "kind")]} {
		if err := os.WriteFile(o.file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if ok, log := o.Reload(t); ok {
			t.Errorf("%q was loaded: %s", text, log)
		}
	}
	s.get(t, "k")
	o.terminate(t)
	harness.Refused(t, harness.Flags(o.file, filepath.Join(o.dir, "data"))...)
	o.write(t, s)
	o.restart(t)
	s.get(t, "k")
}

// A token is revoked by SIGHUP, whatever else is at fault.
func TestReload_RevokesTokensBesideABadFile(t *testing.T) {
	t.Parallel()
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("old\nstays\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &source{name: "revoked"}
	o := alone(t, []string{"--token-file", tokens}, s)
	if err := errors.Join(os.WriteFile(tokens, []byte("stays\n"), 0o600), os.WriteFile(o.file, []byte("kind: Nonsense\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := o.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the token is refused", func() bool {
		return s.call(t, http.MethodGet, "", "", "Authorization", "Bearer old").Status == http.StatusUnauthorized
	})
	if r := s.call(t, http.MethodGet, "", "", "Authorization", "Bearer stays"); r.Status != http.StatusOK {
		t.Errorf("the other token: %d %s", r.Status, r.Body)
	}
}

// A dead letter sink that hangs takes no place from ordinary keys.
func TestDeadLetters_DoNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	s := solo(t, "dead-hang", "limits: {maxInFlight: 2}\ndelivery: {retry: 0, deadLetterSink: {uri: SINK/dead-hangs}}")
	sink.Answer("dead-hangs", "", func(_ http.ResponseWriter, r *http.Request, _ *harness.Delivery) { <-r.Context().Done() })
	s.answer("", func(w http.ResponseWriter, _ *http.Request, d *harness.Delivery) {
		if strings.HasPrefix(d.Key, "bad") {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	for i := range 5 {
		s.put(t, fmt.Sprint("bad", i), "")
		s.next(t, fmt.Sprint("bad", i))
	}
	sink.Next(t, "dead-hangs", "bad0")
	s.put(t, "good", "")
	s.next(t, "good")
}

// Each source is seen, however many there are.
func TestMetrics_KnowTheLastOfManySources(t *testing.T) {
	t.Parallel()
	const count = 2100
	var sources []*source
	for i := range count {
		sources = append(sources, &source{name: fmt.Sprintf("many-%d", i), inbox: "many"})
	}
	o := alone(t, nil, sources...)
	for _, s := range sources {
		s.put(t, s.name, "")
	}
	sink.Find(t, "a delivery of each", func([]*harness.Delivery) bool { return len(sink.Of("many", "")) >= count })
	eventually(t, "all have a line", func() bool {
		r, err := harness.Do(t.Context(), http.MethodGet, o.Admin+"/metrics", "")
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for line := range strings.Lines(string(r.Body)) {
			if !strings.HasPrefix(line, "reschedule_deliveries_total{") || !strings.Contains(line, `result="delivered"`) {
				continue
			}
			if _, name, ok := strings.Cut(line, `name="many-`); ok {
				seen[name[:strings.IndexByte(name, '"')]] = true
			}
		}
		return len(seen) == count && !strings.Contains(string(r.Body), "otel_metric_overflow")
	})
}

// After the answer to a DELETE the sink gets not one byte of the occurrence,
// also when its connection was only being made.
func TestDelete_NothingIsSentOnALateConnection(t *testing.T) {
	t.Parallel()
	// A listener whose queue is full answers no new connection: the kernel of the
	// one who calls asks again after a second.
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "sink")
	defer file.Close()
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	slow, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	var crowd []net.Conn
	for {
		conn, err := net.DialTimeout("tcp", slow.Addr().String(), 200*time.Millisecond)
		if err != nil {
			break
		}
		crowd = append(crowd, conn)
	}
	path := filepath.Join(t.TempDir(), "sources.yaml")
	manifest := fmt.Sprintf("apiVersion: sources.reschedule.dev/v1alpha1\nkind: RescheduleSource\nmetadata: {name: late, namespace: %s}\nspec: {sink: {uri: \"http://%s/late\"}}\n", namespace, slow.Addr())
	if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	a := harness.Start(t, harness.Flags(path, t.TempDir())...)
	s := &source{name: "late", at: func() string { return a.URL }}
	s.put(t, "deleted", "")
	eventually(t, "it is in flight", func() bool { return *s.get(t, "deleted").InFlight })
	s.cancel(t, "deleted")
	for _, conn := range crowd {
		conn.Close()
	}
	s.put(t, "wanted", `{"delay":"4s"}`) // the kernel has asked again by then
	heads := make(chan string)
	go func() {
		for {
			conn, err := slow.Accept()
			if err != nil {
				return
			}
			go func() {
				head := make([]byte, 4096)
				n, _ := conn.Read(head) // nothing, of those that only crowd
				if n > 0 {
					fmt.Fprint(conn, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
					heads <- string(head[:n])
				}
				conn.Close()
			}()
		}
	}()
	for patience := time.After(harness.Patience); ; {
		select {
		case head := <-heads:
			if strings.Contains(head, "deleted") {
				t.Fatalf("after the answer to DELETE the sink got %q", head)
			}
			if strings.Contains(head, "wanted") {
				return
			}
		case <-patience:
			t.Fatal("the key that was not deleted did not come")
		}
	}
}
