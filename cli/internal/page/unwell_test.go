package page

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
)

// The list called a source idle whose events are lost, or that refuses new keys.
func TestSources_IdleOnlyIfAllIsWell(t *testing.T) {
	const labels = `{kn_source_namespace="ops",kn_source_name="repos",`
	for metrics, want := range map[string]string{
		"": "idle",
		"reschedule_dead_letters_pending" + labels + "} 51\n": "giving up",
		"reschedule_deliveries_total" + labels + `result="dropped"} 1` + "\nreschedule_given_up_timestamp_seconds" + labels + `result="dropped"} 1.7952e+09` + "\n": "giving up",
		"reschedule_storage_free_bytes 1\nreschedule_storage_reserve_bytes 2\n":                                                                                     "full",
	} {
		api := &fakeAPI{answers: map[string]string{"GET /ops/repos": noCounts}}
		server := httptest.NewServer(api)
		t.Cleanup(server.Close)
		page := Handler(Backend{
			Base: server.URL, Now: func() time.Time { return time.Unix(1795200060, 0) },
			Sources: func(context.Context) ([]Source, error) { return []Source{ops}, nil },
			Metrics: func(context.Context, string, string) *why.Metrics { return why.ReadMetrics(strings.NewReader(metrics)) },
		})
		if w := do(page, "GET", "/", ""); !strings.Contains(w.Body.String(), ">"+want+"</span>") {
			t.Errorf("with %q not %s: %s", metrics, want, w.Body)
		}
	}
}

// The view of a source called it healthy while its deliveries hung for minutes.
func TestSource_HangsIsNotHealthy(t *testing.T) {
	api := trouble("k", "x")
	api.answers["GET /ops/repos"] = `{"pending":0,"due":0,"inFlight":9,"retrying":0,"deadLetters":0,"nextDueAt":null,"oldestDueAt":null,"watched":0}`
	api.answers["GET /ops/repos/schedules"] = `{"items":[{"key":"k","revision":1,"state":"inFlight","inFlight":true,"dueAt":"2026-11-22T02:59:10Z"}],"continue":""}`
	api.answers["GET /ops/repos/events"] = ": following\nid: e-1\n\nid: e-1\nevent: started\ndata: {\"key\":\"k\",\"at\":\"2026-11-22T02:59:10Z\",\"attempt\":0}\n\n"
	if w := do(serve(t, api), "GET", "/source?ns=ops&name=repos", ""); !strings.Contains(w.Body.String(), "the delivery began 50s ago, and delivery.timeout is 1m0s.") {
		t.Error(w.Body)
	}
}

// Live events named the third attempt the second one, and the second one not at all.
func TestLive_SecondAttemptIsNamed(t *testing.T) {
	api := trouble("k", "x")
	api.answers["GET /ops/repos/events"] = ": following\nid: e-1\n\nid: e-1\nevent: started\ndata: {\"key\":\"k\",\"at\":\"2026-11-22T02:59:10Z\",\"attempt\":1}\n\n"
	if w := do(serve(t, api), "GET", "/live?ns=ops&name=repos", ""); !strings.Contains(w.Body.String(), "after 1 failure in a row") {
		t.Error(w.Body)
	}
}
