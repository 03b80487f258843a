package sink

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

var dueAt = time.Date(2026, 11, 21, 9, 0, 0, 123000000, time.UTC)

// attempt is one of key K to url, changed by the given functions.
func attempt(url string, change ...func(*schedule.Attempt)) schedule.Attempt {
	src := &schedule.Spec{
		UID: "u1", Namespace: "ops", Name: "git-repos", Targets: schedule.Targets{Sink: schedule.Target{URL: url}},
		Delivery: schedule.Delivery{Timeout: time.Minute},
	}
	a := schedule.Attempt{
		Source: src, Target: src.Sink, Key: "GitRepo/team-a/site", ID: "store-7",
		Entry: &schedule.Entry{Revision: 9, Occurrence: 7, DueAt: dueAt, Attempt: 2},
	}
	for _, f := range change {
		f(&a)
	}
	return a
}

func withEvent(e *schedule.Event) func(*schedule.Attempt) {
	return func(a *schedule.Attempt) { a.Entry.Event = e }
}

func structuredMode(a *schedule.Attempt) { a.Source.Delivery.Structured = true }

func withTimeout(d time.Duration) func(*schedule.Attempt) {
	return func(a *schedule.Attempt) { a.Source.Delivery.Timeout = d }
}

// logs collects what is logged, and what owners of sources are told.
type logs struct {
	mu   sync.Mutex
	b    bytes.Buffer
	told []string
}

func (l *logs) ignored(_ *schedule.Spec, key, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, key+": "+why)
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) warnings() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := strings.Count(l.b.String(), "level=WARN")
	if n != len(l.told) {
		return -1 // each warning is for the owner too
	}
	return n
}

func newSender(t testing.TB, change ...func(*Config)) (*Sender, *logs) {
	t.Helper()
	l := &logs{}
	cfg := Config{Log: slog.New(slog.NewTextHandler(l, nil)), Ignored: l.ignored}
	for _, f := range change {
		f(&cfg)
	}
	s := New(cfg)
	t.Cleanup(s.Close)
	return s, l
}

// request is what a sink saw.
type request struct {
	*http.Request
	body []byte
}

// sinkOf starts a sink that answers with h, and tells of each request.
func sinkOf(t testing.TB, h http.HandlerFunc) (string, <-chan request) {
	t.Helper()
	seen := make(chan request, 16)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		select {
		case seen <- request{r, body}:
		default:
		}
		if h != nil {
			h(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL, seen
}

func send(t testing.TB, s *Sender, a schedule.Attempt) schedule.Outcome {
	t.Helper()
	return s.Send(context.Background(), a)
}

// delivers sends an attempt that must succeed.
func delivers(t testing.TB, s *Sender, a schedule.Attempt) {
	t.Helper()
	if o := send(t, s, a); o.Kind != schedule.Succeeded {
		t.Fatalf("%+v %s", o, o.Failure.Data)
	}
}

// butStatus leaves out the status of the answer, which the Failure has too.
var butStatus = cmpopts.IgnoreFields(schedule.Outcome{}, "Status")

// must ends the test with an error of its own steps.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// errorOf is the error of a step whose value is not needed.
func errorOf[T any](_ T, err error) error { return err }
