package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/reschedule-dev/reschedule/sdk/internal/cloudevent"
)

// deadlines records the read deadlines.
type deadlines struct {
	httptest.ResponseRecorder
	of []time.Time
}

// SetReadDeadline implements what http.ResponseController looks for.
func (d *deadlines) SetReadDeadline(at time.Time) error {
	d.of = append(d.of, at)
	return nil
}

// TestServe_ReadDeadlineIsForTheBody says that a body that does not come ends, and
// that a long run does not.
func TestServe_ReadDeadlineIsForTheBody(t *testing.T) {
	t.Parallel()
	var d deadlines
	Handler(&play{}).ServeHTTP(&d, request("ConfigMap/ns/a", playEvent))
	if len(d.of) != 2 || time.Until(d.of[0]) > readTimeout || time.Until(d.of[0]) < readTimeout-patience || !d.of[1].IsZero() {
		t.Errorf("deadlines %v", d.of)
	}
}

// TestReads_AfterTheRunDoNotCount is about goroutines that a run left behind.
func TestReads_AfterTheRunDoNotCount(t *testing.T) {
	t.Parallel()
	q := newQueue("q", nil)
	q.kind, _ = kindOf(&corev1.ConfigMap{}, scheme.Scheme)
	r := q.join(q.target(playRequest))
	ctx := context.WithValue(t.Context(), runContextKey{}, runContext{r, q})
	in := &informers{scheme: scheme.Scheme}
	gone := apierrors.NewNotFound(corev1.Resource("configmaps"), "a")
	for _, step := range []struct {
		err     error
		ended   bool
		missing bool
	}{{gone, false, true}, {nil, false, false}, {gone, true, false}} {
		r.ended = step.ended
		if in.noteGet(ctx, playRequest.NamespacedName, &corev1.ConfigMap{}, step.err); r.missing != step.missing {
			t.Errorf("after %v, ended %t: missing is %t", step.err, step.ended, r.missing)
		}
	}
}

// TestChange_IgnoresOtherFields says that the fields beside the metadata may have any
// type.
func TestChange_IgnoresOtherFields(t *testing.T) {
	t.Parallel()
	e := event{&cloudevent.Event{Attributes: map[string]string{"type": "dev.knative.apiserver.resource.add"}, Data: []byte(`{"apiVersion":"x/v1","kind":"X","name":{"a":1},"namespace":7,"metadata":{"name":"a"}}`)}}
	if c, err := readChange(e); err != nil || c.name.Name != "a" {
		t.Errorf("%v, %v", c, err)
	}
}

// TestMemory_IsBounded is about objects, answers, and the messages that are logged
// once.
func TestMemory_IsBounded(t *testing.T) {
	t.Parallel()
	m := objectMemory{byKey: map[objectKey]rememberedObject{}}
	remember := func(v verb, name string, bytes int) {
		o := configMap(name, 1)
		o.ResourceVersion = "1"
		m.keep(&feed{verb: v, objects: []fedObject{{name: client.ObjectKeyFromObject(o), new: o, bytes: bytes}}})
	}
	for i := range 100 {
		remember(added, fmt.Sprint(i), maxObjects/10)
		remember(updated, fmt.Sprint(i), maxObjects/10)
	}
	o := configMap("99", 2)
	o.ResourceVersion = "0"
	m.keep(&feed{verb: updated, objects: []fedObject{{name: client.ObjectKeyFromObject(o), new: o, bytes: 1}}})
	if last, _ := m.last(objectKey{NamespacedName: client.ObjectKeyFromObject(o)}); last.GetGeneration() != 1 {
		t.Error("something older was remembered")
	}
	if len(m.byKey) != 10 || m.bytes != 10*(maxObjects/10) {
		t.Errorf("%d objects of %d bytes", len(m.byKey), m.bytes)
	}
	for i := range 100 {
		remember(deleted, fmt.Sprint(i), 1)
	}
	if len(m.byKey) != 0 || m.bytes != 0 {
		t.Errorf("%d objects of %d bytes after they were deleted", len(m.byKey), m.bytes)
	}
	s := newServer(nil)
	for i := range 2 * maxOnce {
		s.once("it happened", "number", i)
	}
	if n := s.lines.Load(); n != maxOnce {
		t.Errorf("%d lines", n)
	}
	for i := range 2 * maxAnswers {
		s.answers.begin(fmt.Sprint(i), "")
	}
	if n := len(s.answers.byKey); n != maxAnswers {
		t.Errorf("%d answers", n)
	}
}

// TestMemory_AnswersAreTrueUntilAnEvent says when the last answer to a key is known to
// be everything that waits under it.
func TestMemory_AnswersAreTrueUntilAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := answerMemory{byKey: map[string]rememberedAnswer{}}
		is := answer{outcome: outcome{after: time.Minute}}
		begin := func(about, eventTime string, want bool, after time.Duration) uint64 {
			t.Helper()
			last, known, version := m.begin("k", eventTime)
			if known != want || last.after != after {
				t.Errorf("%s: known %t, after %s, want %t, %s", about, known, last.after, want, after)
			}
			return version
		}
		first := begin("the first event", "1", false, 0)
		begin("while that is under way", "2", false, 0)
		m.keep("k", first, "1", is)
		v := begin("after another event has come", "3", false, 0)
		m.forget("k")
		m.keep("k", v, "3", is)
		v = begin("after a call scheduled it", "4", false, 0)
		m.keep("k", v, "4", is)
		time.Sleep(time.Second)
		v = begin("later", "5", true, 59*time.Second)
		begin("after that has failed", "6", false, 59*time.Second)
		m.keep("k", v, "5", is)
		v = begin("after an answer to an older event", "7", false, 59*time.Second)
		m.keep("k", v, "7", is)
		v = begin("the same event", "7", false, time.Minute)
		m.keep("k", v, "7", is)
		v = begin("an event without a time", "", false, time.Minute)
		m.keep("k", v, "8", is)
		time.Sleep(time.Hour)
		begin("when its time has come", "9", true, 0)
	})
}

// TestAnswer_WaitIsASCII because it is a header.
func TestAnswer_WaitIsASCII(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	q := newQueue("é", nil)
	answer{outcome: outcome{after: 3 * time.Microsecond}, again: []delayed{{target: q.target(playRequest)}, {target: q.target(playRequest)}}}.write(w, "é", 0)
	if h := w.Header(); h.Get("Reschedule-After") != "3us" || h.Get("Ce-Rescheduleafter") != "3us" || h.Get("Ce-Source") != "/controllers/%C3%A9" || h.Get("Ce-Subject") != "%C3%A9" {
		t.Errorf("%v", h)
	}
	if !slices.Contains(w.Header()["Content-Type"], "application/json") {
		t.Errorf("%v", w.Header())
	}
	if h := w.Header(); h.Get("Ce-Reschedulepolicy") != "" {
		t.Errorf("a source that a Broker hands it to refuses the policy: %v", h)
	}
}

// TestServe_AnswersProbes with a GET on the port of events, which is open when all
// controllers work.
func TestServe_AnswersProbes(t *testing.T) {
	t.Parallel()
	h := Handler(&play{})
	for method, want := range map[string]int{"GET": 200, "HEAD": 200, "PUT": 405} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "/healthz", nil))
		if w.Code != want || (w.Header().Get("Allow") == "GET, HEAD, POST") != (want == 405) {
			t.Errorf("%s: %d %v", method, w.Code, w.Header())
		}
	}
}

// TestReads_OfARunAreNotAnEvents says that a failed read of a run does not fail the
// event that is fed meanwhile.
func TestReads_OfARunAreNotAnEvents(t *testing.T) {
	t.Parallel()
	in := &informers{}
	in.noteFailure(context.WithValue(t.Context(), runContextKey{}, runContext{}), errBoom)
	if err := in.readFailure(); err != nil {
		t.Error(err)
	}
	in.noteFailure(t.Context(), errBoom)
	if err := in.readFailure(); !errors.Is(err, errBoom) || in.readFailure() != nil {
		t.Error(err)
	}
}

// TestMemory_OlderVersions compares resource versions, which must be numbers.
func TestMemory_OlderVersions(t *testing.T) {
	t.Parallel()
	for versions, want := range map[[2]string]bool{{"9", "10"}: true, {"10", "9"}: false, {"9", "9"}: false, {"", "9"}: false, {"9", ""}: false, {"9", "x"}: false} {
		a, b := configMap("a", 1), configMap("a", 1)
		a.ResourceVersion, b.ResourceVersion = versions[0], versions[1]
		if older(a, b) != want {
			t.Errorf("%q: %t", versions, !want)
		}
	}
}

// TestAnswer_OfAFailedRun is its error, as far as it is known. A sender without a token does not learn it.
func TestAnswer_OfAFailedRun(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]step{"boom": fails, errRequeue.Error(): requeue, errPanicked.Error(): panics, strings.Repeat("é", 512): {err: errors.New(strings.Repeat("é", 600))}} {
		for want, opts := range map[string][]Option{want: {trusting}, errRunFailed.Error(): nil} {
			w := httptest.NewRecorder()
			if Handler(&play{steps: []step{s}}, opts...).ServeHTTP(w, request("ConfigMap/ns/a", playEvent)); w.Code != 503 || strings.TrimSpace(w.Body.String()) != want {
				t.Errorf("answered with %d %q, want %q", w.Code, w.Body, want)
			}
		}
	}
}
