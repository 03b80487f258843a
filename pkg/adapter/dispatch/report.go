package dispatch

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// metrics are the dispatcher's instruments. Labels are the source's namespace
// and name and the disposition, never a key.
type metrics struct {
	deliveries metric.Int64Counter
	lateness   metric.Float64Histogram
	duration   metric.Float64Histogram
}

func newMetrics(meter metric.Meter) (*metrics, error) {
	if meter == nil {
		meter = noop.Meter{}
	}
	var m metrics
	var err error
	if m.deliveries, err = meter.Int64Counter("reschedule_deliveries",
		metric.WithDescription("Attempts to deliver, by what became of them: delivered, retrying, dead_lettered, dropped, expired, superseded, aborted.")); err != nil {
		return nil, err
	}
	if m.lateness, err = meter.Float64Histogram("reschedule_lateness", metric.WithUnit("s"),
		metric.WithDescription("How long after its time an attempt was started."),
		metric.WithExplicitBucketBoundaries(.001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30, 300)); err != nil {
		return nil, err
	}
	m.duration, err = meter.Float64Histogram("reschedule_delivery_duration", metric.WithUnit("s"),
		metric.WithDescription("How long an attempt took, until the sink's answer was read."),
		metric.WithExplicitBucketBoundaries(.001, .005, .01, .05, .1, .5, 1, 5, 30, 60, 300, 600))
	return &m, err
}

// labels are a lane's, made once.
type labels struct {
	source metric.MeasurementOption
	result map[schedule.Disposition]metric.MeasurementOption
}

func newLabels(s *schedule.Source) labels {
	set := queue.Labels(s)
	l := labels{source: metric.WithAttributeSet(set), result: map[schedule.Disposition]metric.MeasurementOption{}}
	for _, what := range schedule.Dispositions {
		l.result[what] = metric.WithAttributeSet(attribute.NewSet(append(set.ToSlice(), attribute.String("result", string(what)))...))
	}
	return l
}

// Loss is an event that its sink will not get.
type Loss struct {
	Source       *schedule.Source
	Key          string
	DeadLettered bool   // it goes to the dead letter sink; else it is gone
	Dest         string // who refused it, without a password
	Code         int    // the status of the last answer, 0 when there was none
}

// report counts an attempt, and logs what an operator should know of.
func (d *Dispatcher) report(l *lane, t *queue.Delivery, o schedule.Outcome, what schedule.Disposition, took time.Duration) {
	ctx := context.Background()
	d.metrics.lateness.Record(ctx, t.Lateness.Seconds(), l.labels.source)
	d.metrics.duration.Record(ctx, took.Seconds(), l.labels.source)
	d.metrics.deliveries.Add(ctx, 1, l.labels.result[what])
	if d.cfg.Lost != nil && (what == schedule.Dropped || what == schedule.DeadLettered) {
		d.cfg.Lost(Loss{Source: t.Source, Key: t.Key, DeadLettered: what == schedule.DeadLettered, Dest: o.Failure.Dest, Code: o.Failure.Code})
	}
	switch what {
	case schedule.Dropped:
		d.cfg.Log.Warn("an event was dropped: it was refused or its retries are used up, and there is no dead letter sink for it",
			"source", t.Source.Path(), "key", t.Key, "revision", t.Revision(), "attempt", t.Number(), "deadLetter", t.Entry.DeadLetter != nil,
			"dest", o.Failure.Dest, "code", o.Failure.Code)
	case schedule.DeadLettered:
		d.cfg.Log.Warn("an event goes to the dead letter sink", "source", t.Source.Path(), "key", t.Key, "revision", t.Revision(),
			"attempt", t.Number(), "dest", o.Failure.Dest, "code", o.Failure.Code)
	}
}
