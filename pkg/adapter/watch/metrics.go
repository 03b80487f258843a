package watch

import (
	"context"
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
	resultRefused   = "refused"
	resultKeyFailed = "keyFailed"
	resultTooLarge  = "tooLarge"
)

// metrics are the instruments. Their labels are [queue.Labels] and a result.
type metrics struct {
	lists, changes metric.Int64Counter
	observing      metric.Registration
}

func newMetrics(meter metric.Meter, m *Manager) (*metrics, error) {
	if meter == nil {
		meter = noop.Meter{}
	}
	var all metrics
	var err error
	counter := func(name, help string) metric.Int64Counter {
		c, e := meter.Int64Counter(name, metric.WithDescription(help))
		if err == nil {
			err = e
		}
		return c
	}
	gauge := func(name, help string) metric.Int64ObservableGauge {
		g, e := meter.Int64ObservableGauge(name, metric.WithDescription(help))
		if err == nil {
			err = e
		}
		return g
	}
	all.lists = counter("reschedule_watch_lists", "Lists of watched objects, by result: complete, gone (a version had expired) or failed.")
	all.changes = counter("reschedule_watch_changes",
		"Changes of watched objects that were reported (add, update, delete), or that could not be (refused, keyFailed, tooLarge).")
	watched := gauge("reschedule_watch_objects", "Watched objects.")
	open := gauge("reschedule_watch_open", "Watches that are open.")
	age, e := meter.Float64ObservableGauge("reschedule_watch_event_age", metric.WithUnit("s"),
		metric.WithDescription("How long ago the last event of a watch came, since the adapter started; absent before the first."))
	if err == nil {
		err = e
	}
	if err != nil {
		return nil, err
	}
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
				count, watches = count+r.objects.Load(), watches+r.open.Load()
			}
			o.ObserveInt64(watched, count, labels)
			o.ObserveInt64(open, watches, labels)
			if at := s.event.Load(); at != 0 {
				o.ObserveFloat64(age, time.Since(time.Unix(0, at)).Seconds(), labels)
			}
		}
		return nil
	}, watched, open, age)
	return &all, err
}

func (m *metrics) close() {
	_ = m.observing.Unregister() // it was registered, which is all that can go wrong
}

func (m *metrics) list(s *source, result string)   { count(m.lists, s, result) }
func (m *metrics) change(s *source, result string) { count(m.changes, s, result) }

func count(c metric.Int64Counter, s *source, result string) {
	c.Add(context.Background(), 1, metric.WithAttributeSet(queue.Labels(s.settings.Load())),
		metric.WithAttributes(attribute.String("result", result)))
}
