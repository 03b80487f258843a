package ingest

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
)

// The results of events.
const (
	accepted = iota
	filtered
	refused
)

var results = [...]string{accepted: "accepted", filtered: "filtered", refused: "refused"}

// tally counts the events of a source by result, since the start.
type tally [len(results)]atomic.Int64

// Observe shows the events of each source.
func (r *Receiver) Observe(meter metric.Meter) error {
	_, err := meter.Int64ObservableCounter("reschedule_ingested_events",
		metric.WithDescription("CloudEvents sent to sources: accepted, filtered (accepted and dropped by spec.ingest.when), refused. A request that cannot be read counts as one event."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			r.mu.RLock()
			all := slices.Collect(maps.Values(r.rules))
			r.mu.RUnlock()
			for _, rules := range all {
				for i, result := range results {
					if n := rules.tally[i].Load(); n > 0 {
						o.Observe(n, metric.WithAttributeSet(queue.Labels(rules.src, attribute.String("result", result))))
					}
				}
			}
			return nil
		}))
	return err
}
