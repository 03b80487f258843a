package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/ingest"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// watchman notes what it is asked.
type watchman struct {
	asked []access.Request
	user  string
	judge access.Judge
	err   error
}

func (w *watchman) Admit(_ *http.Request, a access.Request) (access.Caller, error) {
	w.asked = append(w.asked, a)
	return access.Caller{User: w.user, Judge: w.judge}, w.err
}

// The guard receives verbs and resources in the words of RBAC.
func TestGuard_GetsRBACAttributes(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]access.Request{
		"GET /ns/src":                   {Namespace: "ns", Name: "src", Verb: access.VerbGet},
		"HEAD /ns/src":                  {Namespace: "ns", Name: "src", Verb: access.VerbGet},
		"POST /ns/src":                  {Namespace: "ns", Name: "src", Verb: access.VerbIngest},
		"GET /ns/src/schedules":         {Namespace: "ns", Name: "src", Verb: access.VerbList},
		"POST /ns/src/schedules":        {Namespace: "ns", Name: "src", Verb: access.VerbCreate},
		"DELETE /ns/src/schedules":      {Namespace: "ns", Name: "src", Verb: access.VerbDelete},
		"GET /ns/src/schedules/k":       {Namespace: "ns", Name: "src", Verb: access.VerbGet},
		"PUT /ns/src/schedules/k%2Fl":   {Namespace: "ns", Name: "src", Verb: access.VerbCreate},
		"DELETE /ns/src/schedules/k":    {Namespace: "ns", Name: "src", Verb: access.VerbDelete},
		"PATCH /ns/src/schedules/k":     {Namespace: "ns", Name: "src", Verb: access.VerbGet},
		"GET /no/such/path/there/is/no": {},
	} {
		method, path, _ := strings.Cut(target, " ")
		w := &watchman{err: schedule.Refuse(schedule.CodeDenied, "no")}
		e := newEdge(t, func(c *Config) { c.Guard = w })
		if got := e.do(method, path, ""); got.Code != http.StatusForbidden {
			t.Errorf("%s: %d", target, got.Code)
		}
		if d := cmp.Diff([]access.Request{want}, w.asked); d != "" {
			t.Errorf("%s: %s", target, d)
		}
	}
}

// The receiver of events gets the guard's decision for each event.
func TestGuard_AdmitsEachEvent(t *testing.T) {
	t.Parallel()
	w := &watchman{judge: func(*schedule.Event) error { return schedule.Refuse(schedule.CodeDenied, "not this one") }}
	e := newEdge(t, func(c *Config) { c.Guard = w })
	if got := e.do("POST", base, "{}", "Ce-Specversion", "1.0"); got.Code != http.StatusForbidden || len(e.ingested) > 0 {
		t.Errorf("%d, ingested %d", got.Code, len(e.ingested))
	}
}

// The context of a request ends the evaluation of its events, so that no work is done for a caller who is gone.
func TestEvents_AreJudgedUntilTheCallerHangsUp(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	ctx, hangUp := context.WithCancel(t.Context())
	e.ingest = func(judging context.Context, _ ingest.Source, _ http.Header, _ []byte, _ access.Judge) ([]queue.Item, error) {
		hangUp()
		return nil, judging.Err()
	}
	r := httptest.NewRequestWithContext(ctx, "POST", base, strings.NewReader("{}"))
	r.Header.Set("Ce-Specversion", "1.0")
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	if w.Code < 500 {
		t.Errorf("%d: the caller is gone and its event is judged", w.Code)
	}
}
