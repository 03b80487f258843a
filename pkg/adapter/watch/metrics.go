package watch

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
)

// The results of lists, and of changes beside their verbs.
const (
	resultComplete  = "complete"
	resultGone      = "gone"
	resultFailed    = "failed"
	resultOlder     = "older"
	resultRefused   = "refused"
	resultKeyFailed = "keyFailed"
	resultTooLarge  = "tooLarge"
)

var (
	listResults   = [...]string{resultComplete, resultGone, resultOlder, resultFailed}
	changeResults = [...]string{string(added), string(updated), string(deleted), resultRefused, resultKeyFailed, resultTooLarge}
)

// tally counts the lists and changes of a source, by result.
type tally struct {
	lists   [len(listResults)]atomic.Int64
	changes [len(changeResults)]atomic.Int64
}

func (t *tally) list(result string)   { t.lists[slices.Index(listResults[:], result)].Add(1) }
func (t *tally) change(result string) { t.changes[slices.Index(changeResults[:], result)].Add(1) }

// metrics are the instruments. Their labels are [queue.Labels] and a result; the series
// of a source end with it.
type metrics struct {
	observing metric.Registration
}

func newMetrics(meter metric.Meter, m *Manager) (*metrics, error) {
	if meter == nil {
		meter = noop.Meter{}
	}
	var failed error
	counter := func(name, help string) metric.Int64ObservableCounter {
		c, err := meter.Int64ObservableCounter(name, metric.WithDescription(help))
		failed = errors.Join(failed, err)
		return c
	}
	gauge := func(name, help string) metric.Int64ObservableGauge {
		g, err := meter.Int64ObservableGauge(name, metric.WithDescription(help))
		failed = errors.Join(failed, err)
		return g
	}
	lists := counter("reschedule_watch_lists", "Lists of watched objects, by result: complete, gone (a version had expired), older (etcd was put back to an older state) or failed.")
	changes := counter("reschedule_watch_changes",
		"Changes of watched objects that were reported (add, update, delete), or that could not be (refused, keyFailed, tooLarge).")
	watched := gauge("reschedule_watch_objects", "Watched objects.")
	open := gauge("reschedule_watch_open", "Watches that are open.")
	age, err := meter.Float64ObservableGauge("reschedule_watch_event_age", metric.WithUnit("s"),
		metric.WithDescription("How long ago the last event of a watch came, since the adapter started; absent before the first."))
	if err = errors.Join(failed, err); err != nil {
		return nil, err
	}
	var all metrics
	all.observing, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, s := range m.all() {
			src := s.settings.Load()
			if src.Watch == nil {
				continue
			}
			labels := metric.WithAttributeSet(queue.Labels(src))
			s.mu.Lock()
			resources := s.resources
			s.mu.Unlock()
			count, watches := int64(0), int64(0)
			for _, r := range resources {
				count, watches = count+r.marked(), watches+r.open.Load()
			}
			o.ObserveInt64(watched, count, labels)
			o.ObserveInt64(open, watches, labels)
			for i, result := range listResults {
				if n := s.tally.lists[i].Load(); n > 0 {
					o.ObserveInt64(lists, n, labels, metric.WithAttributes(attribute.String("result", result)))
				}
			}
			for i, result := range changeResults {
				if n := s.tally.changes[i].Load(); n > 0 {
					o.ObserveInt64(changes, n, labels, metric.WithAttributes(attribute.String("result", result)))
				}
			}
			if at := s.event.Load(); at != 0 {
				o.ObserveFloat64(age, time.Since(time.Unix(0, at)).Seconds(), labels)
			}
		}
		return nil
	}, watched, open, age, lists, changes)
	return &all, err
}

func (m *metrics) close() {
	_ = m.observing.Unregister() // it was registered, which is all that can go wrong
}
