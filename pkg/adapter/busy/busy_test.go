package busy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/scale"
)

const idle = `# HELP workqueue_depth Current depth of workqueue
# TYPE workqueue_depth gauge
workqueue_depth{controller="website",name="website",priority=""} 0
workqueue_depth{controller="other, with \"quotes\" {",name="other"} 0
# TYPE workqueue_unfinished_work_seconds gauge
workqueue_unfinished_work_seconds{name="website"} 0
# TYPE controller_runtime_active_workers gauge
controller_runtime_active_workers{controller="website"} 0
workqueue_depth_of_somebody_else 7
`

func none() (string, error) { return "", errors.New("no token was to be asked for") }

func secret() (string, error) { return "secret", nil }

func read(t *testing.T, s *httptest.Server, token func() (string, error)) (scale.Work, error) {
	t.Helper()
	t.Cleanup(s.Close)
	return NewReader().Read(context.Background(), s.Listener.Addr().String(), "/metrics", token)
}

func serve(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
}

// guarded answers 401 without the token.
func guarded(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, text)
	})
}

// A workload works while any queue or worker has something. It has not begun before it leads, and before the first item.
func TestRead_WhatMetricsSay(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]scale.Work{
		"":                    {},
		idle:                  {Known: true},
		"workqueue_depth 0\n": {Known: true},
		idle + "workqueue_depth{name=\"late\"} 1\n":                                       {Known: true, Busy: true},
		idle + "workqueue_unfinished_work_seconds{name=\"late\"} 0.002\n":                 {Known: true, Busy: true},
		idle + "controller_runtime_active_workers{controller=\"late\"} 1\n":               {Known: true, Busy: true},
		idle + "workqueue_depth{name=\"late\"} NaN\n":                                     {Known: true, Busy: true},
		idle + "workqueue_adds_total{name=\"a\"} 0\nworkqueue_adds_total{name=\"b\"} 0\n": {Known: true, Fresh: true},
		idle + "workqueue_adds_total{name=\"a\"} 0\nworkqueue_adds_total{name=\"b\"} 1\n": {Known: true},
		idle + "leader_election_master_status{name=\"lock\"} 0\n":                         {Known: true, Waits: true},
		idle + "leader_election_master_status{name=\"lock\"} 1\n":                         {Known: true},
		idle + "controller_runtime_reconcile_total{controller=\"w\",result=\"success\"} 3\ncontroller_runtime_reconcile_total{controller=\"w\",result=\"requeue_after\"} 2\ncontroller_runtime_reconcile_total{controller=\"x\",result=\"error\"} 1\n": {Known: true, Reconciles: 6, Requeues: 2, Errors: 1},
		"go_goroutines 12\nprocess_cpu_seconds_total 3\n":                          {},
		"controller_runtime_active_workers{controller=\"website\"} 0 1700000000\n": {Known: true},
	} {
		if got, err := read(t, httptest.NewServer(serve(text)), none); got != want || err != nil {
			t.Errorf("%s\n%+v, %v; want %+v", text, got, err, want)
		}
	}
}

// The token goes to https, or after a 401; metrics without a token are read without one.
func TestRead_SendsTheTokenOnlyToWhoAsks(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*httptest.Server{
		"https": httptest.NewTLSServer(guarded(idle)), "http": httptest.NewServer(guarded(idle)),
	} {
		if got, err := read(t, s, secret); !got.Known || err != nil {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// A port that speaks https is tried with http once: each time is a line in its log. Another one may have its address later.
func TestRead_RemembersHTTPS(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := httptest.NewUnstartedServer(guarded(idle))
	s.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(&log, nil), slog.LevelError)
	s.StartTLS()
	r, address := NewReader(), s.Listener.Addr().String()
	for range 3 {
		if got, err := r.Read(t.Context(), address, "/metrics", secret); !got.Known || err != nil {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	s.Close()
	if n := strings.Count(log.String(), "TLS handshake error"); n != 1 {
		t.Errorf("%d lines in its log:\n%s", n, &log)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	plain := &httptest.Server{Listener: listener, Config: &http.Server{Handler: serve(idle), ReadHeaderTimeout: Timeout}}
	plain.Start()
	defer plain.Close()
	_, _ = r.Read(t.Context(), address, "/metrics", secret)
	if got, err := r.Read(t.Context(), address, "/metrics", none); !got.Known || err != nil {
		t.Errorf("another one with its address: %+v, %v", got, err)
	}
}

// An answer that cannot be used is an error that says why, within bounds.
func TestRead_ErrorsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	closed := httptest.NewServer(serve(idle))
	closed.Close()
	for want, s := range map[string]*httptest.Server{
		"answered 401":       httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) })),
		"answered 302":       httptest.NewServer(http.RedirectHandler("http://elsewhere.example", http.StatusFound)),
		"cannot be read":     httptest.NewServer(serve("workqueue_depth{name=\"x} 1\n")),
		"token too long":     httptest.NewServer(serve(strings.Repeat("x", maxLine+1))),
		"more than 16777216": httptest.NewServer(serve(strings.Repeat(strings.Repeat("x", 1023)+"\n", 17<<10))),
		"refused":            closed,
	} {
		if got, err := read(t, s, secret); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v, %v; want an error with %q", got, err, want)
		}
	}
}

// A port that accepts and does not answer ends with the context.
func TestRead_APortThatDoesNotAnswerEndsInTime(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(func() { close(release) })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := NewReader().Read(ctx, s.Listener.Addr().String(), "/", secret); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// A read costs bounded memory and processor time, whatever the workload answers: a line of 2000 labels took the parser of
// Prometheus a third of a second.
func TestRead_ManyLabelsCostNoSeconds(t *testing.T) {
	var line bytes.Buffer
	line.WriteString("workqueue_depth{")
	for i := range 2000 {
		line.Write([]byte{'a' + byte(i%26), 'a' + byte(i/26%26), 'a' + byte(i/676), '=', '"', '"', ','})
	}
	line.WriteString("} 0\n")
	answer := bytes.Repeat(line.Bytes(), (1<<20)/line.Len())
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(answer) }))
	defer s.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	_, err := NewReader().Read(context.Background(), strings.TrimPrefix(s.URL, "http://"), "/metrics", func() (string, error) { return "", errors.New("no token") })
	runtime.ReadMemStats(&after)
	if took, mib := time.Since(began), (after.TotalAlloc-before.TotalAlloc)>>20; took > Timeout+time.Second || mib > 64 {
		t.Errorf("one read of %d bytes took %s and allocated %d MiB: %v", len(answer), took, mib, err)
	}
}
