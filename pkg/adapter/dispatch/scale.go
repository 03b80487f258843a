package dispatch

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// scale makes the lane have the workload of its settings. The caller holds the lock.
func (d *Dispatcher) scale(l *lane, s *schedule.Spec) {
	switch {
	case d.keeper == nil:
	case l.workload != nil:
		l.workload.Set(s)
	case hasWorkload(s):
		l.workload = d.keeper.Join(s, l.begun, func() { d.Wake(l.source) }, func(within time.Duration) bool {
			if l.source.Spec().Suspend {
				return false
			}
			due, err := l.source.KeyDueBy(d.cfg.Now().Round(0).Add(within))
			return due || err != nil
		})
	}
}

// next tells the workload of the lane when the next key is due, if one is scheduled.
func (d *Dispatcher) next(l *lane, scheduled bool) {
	if l.workload == nil {
		return
	}
	if l.inFlight == 0 && (scheduled || l.source.Spec().Suspend) { // else keys may have to be read first
		l.workload.NoneDue()
	}
	at, _ := l.source.NextKeyAt()
	if !scheduled || at.IsZero() {
		l.workload.Next(-1, at)
		return
	}
	l.workload.Next(max(at.Sub(d.cfg.Now().Round(0)), 0), at)
}

// overdue is for how long something is due that was due then; zero: it is due now.
func (d *Dispatcher) overdue(at time.Time) time.Duration {
	if at.IsZero() {
		return 0
	}
	return max(d.cfg.Now().Round(0).Sub(at), 0)
}

// awake reports whether a delivery may start, because the workload is awake, or without a sink because the
// key has ended.
func (d *Dispatcher) awake(l *lane) bool {
	if ahead := d.ahead(); (ahead - l.ahead).Abs() >= time.Second { // keys may seem to be due since before a failure
		l.ahead = ahead
		l.workload.NoneDue()
	}
	_, due := l.source.NextKeyAt()
	return l.workload.Admit(d.overdue(due))
}

// ahead is by how much the wall clock was set since the start.
func (d *Dispatcher) ahead() time.Duration {
	return d.cfg.Now().Round(0).Sub(d.began.Round(0)) - time.Since(d.began)
}

// isSent reports whether an event is sent for a delivery. For a key of a source without a sink none is.
func isSent(delivery *queue.Delivery) bool {
	return !delivery.Source.Scale.Sinkless || delivery.Entry.DeadLetter != nil
}

// send makes the attempt. Without a sink the workload's state is its outcome.
func (d *Dispatcher) send(l *lane, delivery *queue.Delivery) schedule.Outcome {
	if isSent(delivery) {
		attempt := delivery.Attempt
		attempt.OnCallOff = delivery.OnCallOff
		return d.cfg.Sender.Send(l.ctx, attempt)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.workload == nil {
		return schedule.Outcome{Kind: schedule.Aborted}
	}
	return l.workload.Settle(d.overdue(delivery.Entry.At()), d.overdue(neededAt(delivery.Entry, d.cfg.Now())))
}

// neededAt is when the workload was needed last for the key: it was due, or was changed again, of which the workload may
// know nothing yet. A clock that was set back says nothing.
func neededAt(e *schedule.Entry, now time.Time) time.Time {
	if e.ScheduledAt.After(e.At()) && !e.ScheduledAt.After(now) {
		return e.ScheduledAt
	}
	return e.At()
}

// begin notes that the delivery of a key begins.
func (l *lane) begin() {
	if l.begun++; l.workload != nil {
		l.workload.Begin()
	}
}

// end notes that one has ended, and whether the sink has answered.
func (l *lane) end(answered bool) {
	if l.begun--; l.workload != nil {
		l.workload.End(answered)
	}
}

// awaits reports whether a delivery that could not connect is no attempt: its key waits until the
// workload accepts a connection.
func (d *Dispatcher) awaits(l *lane, p *permit) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !p.letter && l.workload != nil && l.workload.Unreached()
}

// Workload returns the state of the source's workload. It is false while the source has one that the
// Dispatcher does not know yet.
func (d *Dispatcher) Workload(s *queue.Source) (schedule.ScaleStatus, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.lanes[s]; l != nil && l.workload != nil {
		return l.workload.Status(), true
	}
	return schedule.ScaleStatus{}, !hasWorkload(s.Spec())
}

func hasWorkload(s *schedule.Spec) bool { return s.Scale.Mode != "" || s.Scale.Held.Name != "" }

// workloadMetrics are the instruments of workloads.
type workloadMetrics struct {
	starts         metric.Int64ObservableCounter
	seconds        metric.Float64ObservableCounter
	asleep, failed metric.Int64ObservableGauge
}

func newWorkloadMetrics(meter metric.Meter) (m workloadMetrics, err error) {
	var failed [4]error
	m.starts, failed[0] = meter.Int64ObservableCounter("reschedule_workload_starts",
		metric.WithDescription("How often the workload of spec.scale was woken, since the source exists."))
	m.seconds, failed[1] = meter.Float64ObservableCounter("reschedule_workload_awake_seconds",
		metric.WithDescription("How long the workload of spec.scale was not asleep, since the source exists."))
	m.asleep, failed[2] = meter.Int64ObservableGauge("reschedule_workload_asleep",
		metric.WithDescription("1 while the workload of spec.scale is asleep, else 0. Absent until it is known."))
	m.failed, failed[3] = meter.Int64ObservableGauge("reschedule_workload_problem",
		metric.WithDescription("1 while the workload of spec.scale cannot be scaled or does not start, by the reason of the condition Scaled."))
	return m, errors.Join(failed[:]...)
}

func (m *workloadMetrics) all() []metric.Observable {
	return []metric.Observable{m.starts, m.seconds, m.asleep, m.failed}
}

func (m *workloadMetrics) observe(o metric.Observer, src *schedule.Spec, s schedule.ScaleStatus) {
	labels := metric.WithAttributeSet(queue.Labels(src))
	if s.State != "" {
		o.ObserveInt64(m.starts, s.Starts, labels)
		o.ObserveFloat64(m.seconds, s.Awake.Seconds(), labels)
		sleeps := int64(0)
		if s.State == "Asleep" {
			sleeps = 1
		}
		o.ObserveInt64(m.asleep, sleeps, labels)
	}
	if s.Reason != "" {
		o.ObserveInt64(m.failed, 1, metric.WithAttributeSet(queue.Labels(src, attribute.String("reason", s.Reason))))
	}
}

// started records how long a start of a workload took.
func (m *metrics) started(namespace string, took time.Duration) {
	m.start.Record(context.Background(), took.Seconds(), m.namespace(namespace))
}
