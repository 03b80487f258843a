package adapter

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"knative.dev/pkg/observability/metrics"
	"knative.dev/pkg/observability/tracing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/ingest"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

type succeeding chan<- struct{}

func (s succeeding) Send(context.Context, schedule.Attempt) schedule.Outcome {
	s <- struct{}{}
	return schedule.Outcome{Kind: schedule.Succeeded}
}

type failing chan<- struct{}

func (f failing) Send(context.Context, schedule.Attempt) schedule.Outcome {
	f <- struct{}{}
	return schedule.Outcome{Kind: schedule.Failed}
}

// series sums up a metric by the values of a label.
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
					values[l.GetValue()] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
				}
			}
		}
	}
	return values
}

// startCore starts a queue over a store in memory, and deliveries, until the test ends. Their
// metrics are in the telemetry.
func startCore(tb testing.TB, sender dispatch.Sender, now func() time.Time) (*telemetry, *dispatch.Dispatcher, *queue.Queue) {
	tb.Helper()
	tm := newTelemetry()
	if err := tm.start(tb.Context(), metrics.Config{}, tracing.Config{}); err != nil {
		tb.Fatal(err)
	}
	fatal := func(err error) { tb.Error(err) }
	db, err := store.Open(store.Options{Dir: "data", FS: vfs.NewMem(), Fatal: fatal})
	if err != nil {
		tb.Fatal(err)
	}
	d, err := dispatch.New(dispatch.Config{Sender: sender, Meter: tm.meter})
	if err != nil {
		tb.Fatal(err)
	}
	q, err := queue.Open(queue.Config{Store: db, Wake: d.Wake, Fatal: fatal, Meter: tm.meter, Now: now})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		q.Close()
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	return tm, d, q
}

// Each source has series of its own, also above 2,000 sources, until it is removed. The histogram of lateness
// distinguishes 1,000 namespaces.
func TestMetrics_SeriesFollowTheSources(t *testing.T) {
	t.Parallel()
	const n = 2100
	sent := make(chan struct{}, n)
	tm, d, q := startCore(t, succeeding(sent), nil)
	sources := make([]*queue.Source, n)
	now := time.Duration(0)
	for i := range sources {
		var err error
		sources[i], err = q.Set(&schedule.Spec{UID: fmt.Sprint("u", i), Namespace: fmt.Sprint("ns", i), Name: fmt.Sprint("s", i), Limits: schedule.Limits{MaxInFlight: 1, MaxPending: 10}})
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
		if got := series(t, tm, metric, "kn_source_name"); len(got) != n || metric == "reschedule_deliveries_total" && got["s2099"] != 1 {
			t.Errorf("%s of %d sources, %g of the last", metric, len(got), got["s2099"])
		}
	}
	if got := series(t, tm, "reschedule_lateness_seconds", "kn_source_namespace"); len(got) != 1001 || got[""] != n-1000 {
		t.Errorf("lateness of %d namespaces, %g of namespaces that are not distinguished", len(got), got[""])
	}
	for i, s := range sources[1:] {
		if err := q.Remove(fmt.Sprint("u", i+1)); err != nil {
			t.Fatal(err)
		}
		d.Remove(s)
	}
	for _, metric := range []string{"reschedule_deliveries_total", "reschedule_pending"} {
		if got := series(t, tm, metric, "kn_source_name"); len(got) != 1 {
			t.Errorf("%s of %d sources, where there is one", metric, len(got))
		}
	}
}

// A key between two attempts has been tried, and the keys of a suspended
// source wait because the user wants it. Neither counts as not woken.
func TestMetrics_RetryingAndSuspended(t *testing.T) {
	t.Parallel()
	sent := make(chan struct{}, 1)
	var later atomic.Int64 // how far the wall clock is ahead
	tm, d, q := startCore(t, failing(sent), func() time.Time { return time.Now().Add(time.Duration(later.Load())) })
	settings := schedule.Spec{UID: "u", Namespace: "ns", Name: "s", Limits: schedule.Limits{MaxInFlight: 1, MaxPending: 10},
		Ceilings: schedule.Ceilings{MaxPending: 50, MaxPerSecond: 7},
		Delivery: schedule.Delivery{BackoffDelay: 10 * time.Hour, Linear: true}}
	s, err := q.Set(&settings)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Duration(0)
	put := func(key string) {
		t.Helper()
		if _, err := s.Schedule(key, &schedule.Request{Delay: &now}, nil); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when string, due, retrying, suspended float64, waits bool) {
		t.Helper()
		for metric, want := range map[string]float64{"reschedule_due": due, "reschedule_retrying": retrying, "reschedule_source_suspended": suspended} {
			if got := series(t, tm, metric, "kn_source_name")["s"]; got != want {
				t.Errorf("%s: %s is %g, want %g", when, metric, got, want)
			}
		}
		if age := series(t, tm, "reschedule_oldest_due_age_seconds", "kn_source_name")["s"]; waits && age < 60 || !waits && age != 0 {
			t.Errorf("%s: the oldest due key waits for %g s", when, age)
		}
	}
	put("tried")
	<-sent
	d.Stop(t.Context()) // until the outcome is applied
	for metric, want := range map[string]map[string]float64{
		"reschedule_delivery_failures_total": {"no_answer": 1}, "reschedule_changes_total": {"created": 1},
		"reschedule_limit": {"limits.maxInFlight": 1, "limits.maxPending": 10}, "reschedule_namespace_limit": {"max-pending": 50, "max-per-second": 7},
		"reschedule_stored_keys": {"s": 1},
	} {
		label := map[string]string{
			"reschedule_delivery_failures_total": "error_type", "reschedule_changes_total": "result", "reschedule_limit": "limit",
			"reschedule_namespace_limit": "limit", "reschedule_stored_keys": "kn_source_name",
		}[metric]
		if got := series(t, tm, metric, label); !maps.Equal(got, want) {
			t.Errorf("%s is %v, want %v", metric, got, want)
		}
	}
	later.Add(int64(time.Minute))
	check("after a failed attempt", 1, 1, 0, false)
	put("untried")
	later.Add(int64(time.Minute))
	check("with another key", 2, 1, 0, true)
	paused := settings
	paused.Suspend = true
	if _, err := q.Set(&paused); err != nil {
		t.Fatal(err)
	}
	check("suspended", 2, 1, 1, false)
	if _, err := q.Set(&settings); err != nil {
		t.Fatal(err)
	}
	check("resumed", 2, 1, 0, true)
}

// damaged is a disk on which corrupt places were met.
type damaged struct{ host }

func (damaged) Corrupt() int64                     { return 3 }
func (damaged) Usage() (int64, int64, int64, bool) { return 0, 0, 0, false }

// crowded is an origin without memory for seven sources.
type crowded struct{ sources.Origin }

func (crowded) Refused() int64 { return 7 }

// The corrupt places that the store has met are what the metric says, and so are the sources without memory.
func TestMetrics_CorruptPlacesAreCounted(t *testing.T) {
	t.Parallel()
	tm := newTelemetry()
	if err := tm.start(t.Context(), metrics.Config{}, tracing.Config{}); err != nil {
		t.Fatal(err)
	}
	a := &Adapter{telemetry: tm, host: damaged{}, origin: crowded{}, events: new(ingest.Receiver)}
	if err := a.observe(); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	promhttp.HandlerFor(tm.registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if text := w.Body.String(); !strings.Contains(text, "\nreschedule_storage_corrupt_total 3\n") {
		t.Errorf("the metric does not say 3:\n%s", text)
	} else if !strings.Contains(text, "\nreschedule_sources_refused 7\n") {
		t.Errorf("the metric does not say 7:\n%s", text)
	}
}

// A scrape with 10,000 sources, each with a pending key, delivered and failed attempts:
// its time, its bytes, and its series.
func BenchmarkScrape_TenThousandSources(b *testing.B) {
	const n = 10_000
	sent := make(chan struct{}, 2*n)
	tm, d, q := startCore(b, succeeding(sent), nil)
	now, later := time.Duration(0), time.Hour
	for i := range n {
		s, err := q.Set(&schedule.Spec{UID: fmt.Sprint("u", i), Namespace: fmt.Sprint("ns", i%100), Name: fmt.Sprint("s", i), Limits: schedule.Limits{MaxInFlight: 1, MaxPending: 10}})
		if err != nil {
			b.Fatal(err)
		}
		items := []queue.Item{{Key: "now", Request: schedule.Request{Delay: &now}}, {Key: "later", Request: schedule.Request{Delay: &later}}}
		if err := s.ScheduleTogether(items); err != nil {
			b.Fatal(err)
		}
	}
	for range n {
		<-sent
	}
	d.Stop(b.Context())
	handler := promhttp.HandlerFor(tm.registry, promhttp.HandlerOpts{})
	before := processorTime(b)
	for b.Loop() {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		b.ReportMetric(float64(w.Body.Len()), "bytes")
		b.ReportMetric(float64(bytes.Count(w.Body.Bytes(), []byte("\nreschedule_"))), "series")
	}
	b.ReportMetric((processorTime(b)-before).Seconds()*1000/float64(b.N), "cpu-ms/op")
}

// processorTime is what the process has used: the machine may be busy.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
