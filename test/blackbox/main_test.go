package blackbox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
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

// declare adds a source to the shared adapter. The spec is YAML without the sink, SINK in it stands for the sink's URL.
func declare(name, spec string) *source {
	s := &source{name: name, spec: spec, at: func() string { return shared.URL }}
	declared = append(declared, s)
	return s
}

// plain is a source without settings: tests that need none share it, under keys of their own.
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

// pages reads a list to its end.
func (s *source) pages(t testing.TB, query string) (all []harness.Schedule) {
	t.Helper()
	next := ""
	for {
		r := s.call(t, http.MethodGet, "/schedules?"+query+next, "")
		var page harness.Schedule
		if r.Into(t, &page); r.Status != http.StatusOK || page.Items == nil || page.Continue == nil {
			t.Fatalf("%s%s: %d %s", query, next, r.Status, r.Body)
		}
		all = append(all, page.Items...)
		if *page.Continue == "" {
			return all
		}
		next = "&continue=" + url.QueryEscape(*page.Continue)
	}
}

func keysOf(all []harness.Schedule) (keys []string) {
	for _, v := range all {
		keys = append(keys, v.Key)
	}
	return keys
}

// send sends an event in binary mode.
func (s *source) send(t testing.TB, headers ...string) *harness.Reply {
	t.Helper()
	return s.call(t, http.MethodPost, "", `{"x":1}`, append([]string{"Ce-Id", "1", "Ce-Type", "t", "Ce-Source", "/s", "Ce-Specversion", "1.0"}, headers...)...)
}

// must ends the test with an error of its own steps.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write writes a file of a test, and returns its path.
func write(t testing.TB, path, text string) string {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// command runs a command of the adapter, which must end with the status, and returns what it says.
func command(t testing.TB, want int, args ...string) string {
	t.Helper()
	code, out := harness.Run(args...)
	if code != want {
		t.Errorf("adapter %q: %d %s", args, code, out)
	}
	return out
}

// own is an adapter of a test's own, with a sources file that it may rewrite.
type own struct {
	*harness.Adapter
	file, data string
}

// alone starts an adapter for the sources.
func alone(t *testing.T, flags []string, sources ...*source) *own {
	t.Helper()
	return aloneIn(t, t.TempDir(), flags, sources...)
}

// aloneIn is alone with its data below a directory.
func aloneIn(t *testing.T, dir string, flags []string, sources ...*source) *own {
	t.Helper()
	o := &own{file: filepath.Join(t.TempDir(), "sources.yaml"), data: filepath.Join(dir, "data")}
	o.write(t, sources...)
	o.restart(t, flags...)
	return o
}

// write rewrites the file, and points the sources at this adapter.
func (o *own) write(t *testing.T, sources ...*source) {
	t.Helper()
	for _, s := range sources {
		s.at = func() string { return o.URL }
	}
	write(t, o.file, manifests(sources...))
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
	must(t, err)
	if status != 0 || took > 15*time.Second {
		t.Errorf("SIGTERM ended the adapter with status %d after %s:\n%s", status, took, o.Log())
	}
}

func (o *own) restart(t *testing.T, flags ...string) {
	t.Helper()
	o.Adapter = harness.Start(t, harness.Flags(o.file, o.data, flags...)...)
}
