package adapter

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"knative.dev/pkg/observability/metrics"
	"knative.dev/pkg/observability/tracing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

type succeeding chan<- struct{}

func (s succeeding) Send(context.Context, schedule.Attempt) schedule.Outcome {
	s <- struct{}{}
	return schedule.Outcome{Kind: schedule.Succeeded}
}

// series counts the series of each metric that have the label, by value "" the
// overflow's.
func series(t *testing.T, tm *telemetry, metric, label string) map[string]float64 {
	t.Helper()
	families, err := tm.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "otel_metric_overflow" {
					t.Errorf("%s has too many series for its limit", f.GetName())
				}
				if f.GetName() == metric && l.GetName() == label {
					values[l.GetValue()] += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
				}
			}
		}
	}
	return values
}

func TestMetrics_SeriesFollowTheSources(t *testing.T) {
	t.Parallel()
	// Above 2000 label sets sources were not distinguished any more, and the
	// series of removed sources stayed for ever.
	const n = 2100
	tm := newTelemetry()
	if err := tm.start(t.Context(), metrics.Config{}, tracing.Config{}); err != nil {
		t.Fatal(err)
	}
	fatal := func(err error) { t.Error(err) }
	db, err := store.Open(store.Options{Dir: "data", FS: vfs.NewMem(), Fatal: fatal})
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan struct{}, n)
	d, err := dispatch.New(dispatch.Config{Sender: succeeding(sent), Meter: tm.meter})
	if err != nil {
		t.Fatal(err)
	}
	q, err := queue.Open(queue.Config{Store: db, Wake: d.Wake, Fatal: fatal, Meter: tm.meter})
	if err != nil {
		t.Fatal(err)
	}
	sources := make([]*queue.Source, n)
	now := time.Duration(0)
	for i := range sources {
		sources[i], err = q.Set(&schedule.Source{UID: fmt.Sprint("u", i), Namespace: fmt.Sprint("ns", i), Name: fmt.Sprint("s", i), MaxInFlight: 1, MaxPending: 10})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sources[i].Schedule("k", &schedule.Request{Delay: &now}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for range n {
		<-sent
	}
	d.Stop(t.Context()) // until all are counted
	for _, metric := range []string{"reschedule_deliveries_total", "reschedule_pending"} {
		if got := series(t, tm, metric, "name"); len(got) != n || metric == "reschedule_deliveries_total" && got["s2099"] != 1 {
			t.Errorf("%s of %d sources, %g of the last", metric, len(got), got["s2099"])
		}
	}
	if got := series(t, tm, "reschedule_lateness_seconds", "namespace"); len(got) != 1001 || got[""] != n-1000 {
		t.Errorf("lateness of %d namespaces, %g of the ones that are not distinguished", len(got), got[""])
	}
	for i, s := range sources[1:] {
		if err := q.Remove(fmt.Sprint("u", i+1)); err != nil {
			t.Fatal(err)
		}
		d.Remove(s)
	}
	for _, metric := range []string{"reschedule_deliveries_total", "reschedule_pending"} {
		if got := series(t, tm, metric, "name"); len(got) != 1 {
			t.Errorf("%s of %d sources, where there is one", metric, len(got))
		}
	}
	q.Close()
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}
