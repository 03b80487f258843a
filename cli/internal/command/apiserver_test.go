package command

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A look takes time, and things happen meanwhile: why said of a delivery that it was "in 8s".
func TestWhy_WhatWasIsNotInTheFuture(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	begin := time.Now()
	c.answers["GET /ops/web/schedules/k"] = notFound
	c.answers["GET /ops/web/schedules/k/history"] = fmt.Sprintf(`200 {"since":"2026-01-01T00:00:00Z","items":[{"at":%q,"result":"delivered","status":204}]}`,
		begin.Add(15*time.Second).UTC().Format(time.RFC3339Nano))
	var out strings.Builder
	e := c.program(false, &out, io.Discard)
	var looks atomic.Int64
	e.now = func() time.Time { return begin.Add(time.Duration(looks.Add(1)) * 10 * time.Second) }
	if code := e.run(t.Context(), []string{"why", "web", "k", "-n", "ops", "--kubeconfig", c.kubeconfig()}); code != 0 || !strings.Contains(out.String(), "s ago") || strings.Contains(out.String(), "(in ") {
		t.Errorf("%d: %s", code, out.String())
	}
}

// A namespace that is being deleted gets no tokens, whatever rights a user has. Administrators
// were told to grant themselves one.
func TestWhy_NamespaceEnds(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.ending = "ops"
	code, out, errs := c.run(false, "why", "web")
	if code != exitProblem || !strings.Contains(out, "it is being terminated") || !strings.Contains(out, "Unauthenticated") || strings.Contains(out, "may not") {
		t.Errorf("%d: %s%s", code, out, errs)
	}
}

// An API server that is not there is no answer.
func TestExit_NoAPIServer(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.api.Close()
	for _, args := range [][]string{{"why", "web"}, {"list"}, {"doctor"}, {"token", "web"}} {
		if code, out, errs := c.run(false, args...); code != exitUnavailable || !strings.Contains(errs, "connection refused") {
			t.Errorf("%v: %d: %s%s", args, code, out, errs)
		}
	}
}

// Calls wait for no limiter of this process: with a deadline it answered at once, in its own
// words, that the wait would be too long.
func TestDoctor_ManyNamespaces(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for i := range 150 {
		c.source(fmt.Sprint("n", i), "web", nil)
	}
	if _, out, errs := c.run(false, "doctor", "-A", "--timeout", "2s"); strings.Contains(out+errs, "limiter") {
		t.Errorf("%s%s", out, errs)
	}
}
