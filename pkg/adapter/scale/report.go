package scale

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// figures are what is reported of a workload. They are under target.mu.
type figures struct {
	schedule.ScaleStatus
	counted time.Time // until when Awake and Observed are counted
}

// count adds the time since it was counted last.
func (f *figures) count(now time.Time) {
	if d := now.Sub(f.counted); f.State != "" {
		f.Observed += d
		if f.State != asleep {
			f.Awake += d
		}
	}
	f.counted = now
}

func (t *target) setState(state string, now time.Time) {
	if t.State == state {
		return
	}
	t.count(now)
	t.State, t.Since = state, now.Round(0)
	t.changed()
}

func (t *target) setProblem(reason, message string) {
	if t.Reason != reason || t.Message != message {
		t.Reason, t.Message = reason, message
		t.changed()
	}
}

func (t *target) changed() {
	for _, m := range t.members {
		t.keeper.cfg.Changed(m.src)
	}
}

// status is what is reported now.
func (t *target) status() schedule.ScaleStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count(time.Now())
	return t.ScaleStatus
}

// meters are the metrics of all workloads.
type meters struct {
	targets   atomic.Int64 // how many there are
	duration  metric.Float64Histogram
	observing metric.Registration

	mu         sync.Mutex
	namespaces map[string]metric.MeasurementOption
}

// maxNamespaces bounds the namespaces that are labels of the histogram. Further ones share
// an empty label.
const maxNamespaces = 1000

func newMeters(meter metric.Meter, k *Keeper) (*meters, error) {
	if meter == nil {
		meter = noop.Meter{}
	}
	m := &meters{namespaces: map[string]metric.MeasurementOption{}}
	var failed [5]error
	var starts metric.Int64ObservableCounter
	var seconds metric.Float64ObservableCounter
	var sleeping, problem metric.Int64ObservableGauge
	m.duration, failed[0] = meter.Float64Histogram("reschedule_workload_start_duration", metric.WithUnit("s"),
		metric.WithDescription("How long workloads took from scaling up to the first connection of their sink."),
		metric.WithExplicitBucketBoundaries(.25, .5, .75, 1, 1.5, 2, 3, 5, 10, 30, 60, 120))
	starts, failed[1] = meter.Int64ObservableCounter("reschedule_workload_starts",
		metric.WithDescription("How often the workload of spec.scale was woken, since the source exists."))
	seconds, failed[2] = meter.Float64ObservableCounter("reschedule_workload_awake_seconds", metric.WithUnit("s"),
		metric.WithDescription("How long the workload of spec.scale was not asleep, since the source exists."))
	sleeping, failed[3] = meter.Int64ObservableGauge("reschedule_workload_asleep",
		metric.WithDescription("1 while the workload of spec.scale is asleep, else 0. Absent until it is known."))
	problem, failed[4] = meter.Int64ObservableGauge("reschedule_workload_problem",
		metric.WithDescription("1 while the workload of spec.scale cannot be scaled or does not start, by the reason of the condition Scaled."))
	if err := errors.Join(failed[:]...); err != nil {
		return nil, err
	}
	var err error
	m.observing, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, w := range k.all() {
			labels := metric.WithAttributeSet(queue.Labels(w.src))
			o.ObserveInt64(starts, w.Starts, labels)
			o.ObserveFloat64(seconds, w.Awake.Seconds(), labels)
			if w.State != "" {
				n := int64(0)
				if w.State == asleep {
					n = 1
				}
				o.ObserveInt64(sleeping, n, labels)
			}
			if w.Reason != "" {
				o.ObserveInt64(problem, 1, metric.WithAttributeSet(queue.Labels(w.src, attribute.String("reason", w.Reason))))
			}
		}
		return nil
	}, starts, seconds, sleeping, problem)
	return m, err
}

// observed is a source with the state of its workload.
type observed struct {
	src *schedule.Spec
	schedule.ScaleStatus
}

// all are the workloads of all sources.
func (k *Keeper) all() (all []observed) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for m := range k.members {
		if m.given == nil {
			t := m.target
			t.mu.Lock()
			t.count(time.Now())
			all = append(all, observed{m.src, t.ScaleStatus})
			t.mu.Unlock()
		}
	}
	return all
}

// start records how long a start took.
func (m *meters) start(namespace string, took time.Duration) {
	m.mu.Lock()
	label, ok := m.namespaces[namespace]
	if !ok && len(m.namespaces) >= maxNamespaces {
		namespace = ""
		label, ok = m.namespaces[namespace]
	}
	if !ok {
		label = metric.WithAttributeSet(attribute.NewSet(queue.Namespace.String(namespace)))
		m.namespaces[namespace] = label
	}
	m.mu.Unlock()
	m.duration.Record(context.Background(), took.Seconds(), label)
}

func (m *meters) forget() { _ = m.observing.Unregister() } // it was registered, which is all that can go wrong
