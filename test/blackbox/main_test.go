package blackbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

const namespace = "tests"

// shared is the adapter of nearly all tests, and the sink of all.
var (
	shared *harness.Adapter
	sink   = harness.NewSink()
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(dir string) (func() error, error) {
		file := filepath.Join(dir, "sources.yaml")
		if err := os.WriteFile(file, []byte(manifests(declared...)), 0o600); err != nil {
			return nil, err
		}
		var err error
		shared, err = harness.Launch(harness.Flags(file, filepath.Join(dir, "data"))...)
		return func() error {
			// Deliveries that a test left hanging end with the sink.
			sink.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
			defer cancel()
			status, _, err := shared.Terminate(ctx)
			if err == nil && status != 0 {
				err = fmt.Errorf("the shared adapter ended with status %d:\n%s", status, shared.Log())
			}
			return err
		}, err
	}))
}

// source is a RescheduleSource whose deliveries come to its own inbox.
type source struct {
	name, spec string
	inbox      string        // its deliveries', default its name
	at         func() string // the adapter's URL
}

// declared are the sources of the shared adapter.
var declared []*source

// declare adds a source to the shared adapter. The spec is YAML without the
// sink, SINK in it stands for the sink's URL.
func declare(name, spec string) *source {
	s := &source{name: name, spec: spec, at: func() string { return shared.URL }}
	declared = append(declared, s)
	return s
}

// plain is a source without settings: tests that need none share it, under keys
// of their own.
var plain = declare("plain", "")

func (s *source) manifest() string {
	spec := strings.ReplaceAll(strings.Trim(s.spec, "\n"), "SINK", sink.URL)
	var text strings.Builder
	fmt.Fprintf(&text, "apiVersion: sources.reschedule.dev/v1alpha1\nkind: RescheduleSource\nmetadata: {name: %s, namespace: %s}\nspec:\n  sink: {uri: %q}\n",
		s.name, namespace, sink.URL+"/"+cmp.Or(s.inbox, s.name))
	for line := range strings.Lines(spec) {
		text.WriteString("  " + strings.TrimRight(line, "\n") + "\n")
	}
	return text.String()
}

func manifests(of ...*source) string {
	var all []string
	for _, s := range of {
		all = append(all, s.manifest())
	}
	return strings.Join(all, "---\n")
}

func (s *source) url() string { return s.at() + "/" + namespace + "/" + s.name }

// call makes a call below the source's address.
func (s *source) call(t testing.TB, method, below, body string, headers ...string) *harness.Reply {
	t.Helper()
	r, err := harness.Do(t.Context(), method, s.url()+below, body, headers...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, below, err)
	}
	return r
}

// put makes a PUT that is accepted.
func (s *source) put(t testing.TB, key, body string, headers ...string) harness.Schedule {
	t.Helper()
	r := s.call(t, http.MethodPut, harness.KeyPath(key), body, headers...)
	if r.Status != http.StatusOK && r.Status != http.StatusCreated {
		t.Fatalf("PUT %q %s: %d %s", key, body, r.Status, r.Body)
	}
	var v harness.Schedule
	r.Into(t, &v)
	if created := v.Result == "created"; created != (r.Status == http.StatusCreated) {
		t.Errorf("PUT %q: status %d with result %q", key, r.Status, v.Result)
	}
	if tag := fmt.Sprintf("%q", fmt.Sprint(v.Revision)); r.Header.Get("ETag") != tag {
		t.Errorf("PUT %q: ETag %s of revision %s", key, r.Header.Get("ETag"), tag)
	}
	return v
}

// get reads a key that is there.
func (s *source) get(t testing.TB, key string) harness.Schedule {
	t.Helper()
	v, ok := s.look(t, key)
	if !ok {
		t.Fatalf("GET %q: not found", key)
	}
	return v
}

func (s *source) look(t testing.TB, key string) (v harness.Schedule, ok bool) {
	t.Helper()
	r := s.call(t, http.MethodGet, harness.KeyPath(key), "")
	if r.Status == http.StatusNotFound {
		problem(t, r, http.StatusNotFound, "not_found")
		return v, false
	}
	if r.Status != http.StatusOK {
		t.Fatalf("GET %q: %d %s", key, r.Status, r.Body)
	}
	r.Into(t, &v)
	if tag := fmt.Sprintf("%q", fmt.Sprint(v.Revision)); r.Header.Get("ETag") != tag {
		t.Errorf("GET %q: ETag %s of revision %s", key, r.Header.Get("ETag"), tag)
	}
	return v, true
}

func (s *source) cancel(t testing.TB, key string) {
	t.Helper()
	if r := s.call(t, http.MethodDelete, harness.KeyPath(key), ""); r.Status != http.StatusNoContent || len(r.Body) != 0 {
		t.Fatalf("DELETE %q: %d %s", key, r.Status, r.Body)
	}
}

func (s *source) counts(t testing.TB) (c harness.Counts) {
	t.Helper()
	r := s.call(t, http.MethodGet, "", "")
	if r.Status != http.StatusOK {
		t.Fatalf("counts: %d %s", r.Status, r.Body)
	}
	r.Into(t, &c)
	return c
}

func (s *source) answer(key string, a harness.Answer) { sink.Answer(s.name, key, a) }

// next is the next delivery of the key, which must not be early.
func (s *source) next(t testing.TB, key string) *harness.Delivery {
	t.Helper()
	d := sink.Next(t, s.name, key)
	if d.At.Before(d.DueAt) {
		t.Errorf("%q was delivered %s early", key, d.DueAt.Sub(d.At))
	}
	return d
}

// gone waits until nothing waits and nothing is in flight.
func (s *source) gone(t testing.TB, key string) {
	t.Helper()
	eventually(t, "GET "+key+" is 404", func() bool { _, ok := s.look(t, key); return !ok })
}

// settled waits until the key waits and is not in flight, and returns it.
func (s *source) settled(t testing.TB, key string) (v harness.Schedule) {
	t.Helper()
	eventually(t, key+" waits", func() bool {
		v = s.get(t, key)
		return !*v.InFlight
	})
	return v
}

// passes waits until an occurrence of this source that was due at the instant
// has been delivered: what was to come before has come.
func (s *source) passes(t testing.TB, at time.Time) {
	t.Helper()
	key := "sentinel of " + t.Name() + " at " + at.Format(time.RFC3339Nano)
	s.put(t, key, `{"dueAt":"`+at.Format(time.RFC3339Nano)+`"}`)
	s.next(t, key)
}

// eventually asks until it is so.
func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	deadline := time.After(harness.Patience)
	for !so() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			t.Fatalf("not within %s: %s", harness.Patience, what)
		}
	}
}

// problem checks an error answer.
func problem(t testing.TB, r *harness.Reply, status int, code string) {
	t.Helper()
	var p struct {
		Type, Title, Code, Detail string
		Status                    int
	}
	if err := json.Unmarshal(r.Body, &p); err != nil {
		t.Errorf("status %d, body %q: %v", r.Status, r.Body, err)
		return
	}
	if r.Status != status || p.Code != code || p.Status != status || p.Detail == "" {
		t.Errorf("status %d, problem %s; want %d %s", r.Status, r.Body, status, code)
	}
	if ct := r.Header.Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("%d %s: Content-Type %q", status, code, ct)
	}
}

// in is an instant from now on, as JSON wants it.
func in(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339Nano) }

// hold is an answer that waits: it tells when a delivery is there and answers
// it with what is sent.
func hold() (harness.Answer, chan<- func(http.ResponseWriter)) {
	release := make(chan func(http.ResponseWriter))
	return func(w http.ResponseWriter, r *http.Request, _ *harness.Delivery) {
		select {
		case answer := <-release:
			answer(w)
		case <-r.Context().Done():
		}
	}, release
}

func status(code int, headers ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(code)
	}
}

// script answers the first deliveries one by one, and then as the last.
func script(answers ...func(http.ResponseWriter)) harness.Answer {
	left := make(chan func(http.ResponseWriter), len(answers))
	for _, a := range answers {
		left <- a
	}
	last := answers[len(answers)-1]
	return func(w http.ResponseWriter, _ *http.Request, _ *harness.Delivery) {
		select {
		case a := <-left:
			a(w)
		default:
			last(w)
		}
	}
}

func body(b []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(b)) }
