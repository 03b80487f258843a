package watch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// The metrics count objects, watches, lists and changes of a source, and end with it.
func TestMetrics_FollowTheSource(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		reader := sdk.NewManualReader()
		w.meter = sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test")
		w.api.put("Website", "ops/a", true)
		w.start()
		w.settle(time.Minute)
		w.api.put("Website", "ops/a", true)
		w.settle(10 * time.Second)
		read := func() []string {
			var all metricdata.ResourceMetrics
			if err := reader.Collect(t.Context(), &all); err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, scope := range all.ScopeMetrics {
				for _, m := range scope.Metrics {
					name := strings.TrimPrefix(m.Name, "reschedule_watch_")
					switch data := m.Data.(type) {
					case metricdata.Sum[int64]:
						for _, p := range data.DataPoints {
							result, _ := p.Attributes.Value("result")
							lines = append(lines, fmt.Sprint(name, " ", result.AsString(), " ", p.Value))
						}
					case metricdata.Gauge[int64]:
						for _, p := range data.DataPoints {
							lines = append(lines, fmt.Sprint(name, " ", p.Value))
						}
					case metricdata.Gauge[float64]:
						for _, p := range data.DataPoints {
							lines = append(lines, fmt.Sprint(name, " ", p.Value))
						}
					}
				}
			}
			slices.Sort(lines)
			return lines
		}
		want := []string{"changes add 1", "changes update 1", "event_age 10", "lists complete 1", "objects 1", "open 1"}
		if got := read(); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		w.m.Remove(w.src.UID)
		if got := read(); len(got) > 0 {
			t.Errorf("of a source that is gone: %q", got)
		}
	})
}
