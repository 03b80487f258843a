package group

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// The results of a call that this member did not answer itself.
const (
	resultAnswered = "answered" // by the owner, with any status
	resultNoOwner  = "no_owner" // 503: nothing was changed
	resultUnknown  = "unknown"  // 503: the owner went away during the call
	resultBusy     = "busy"     // 503: too many are on their way
	resultGone     = "gone"     // the caller went away
)

// observe shows who owns the group, how far the view is, and how the members' clocks differ.
func (m *Member) observe(e *engine) error {
	meter := m.cfg.Meter
	var failed error
	observed := func(value func() int64) metric.Int64ObservableOption {
		return metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(value())
			return nil
		})
	}
	gauge := func(name, description string, value func() int64) {
		_, err := meter.Int64ObservableGauge(name, metric.WithDescription(description), observed(value))
		failed = errors.Join(failed, err)
	}
	counter := func(name, description string, value func() int64) {
		_, err := meter.Int64ObservableCounter(name, metric.WithDescription(description), observed(value))
		failed = errors.Join(failed, err)
	}
	seconds := func(name, description string, observe func(metric.Float64Observer)) {
		_, err := meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(description), metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			observe(o)
			return nil
		}))
		failed = errors.Join(failed, err)
	}
	gauge("reschedule_group_owner", "1 while this adapter owns the group, else 0.", func() int64 {
		_, own, _ := e.group.Owner()
		return one(own)
	})
	gauge("reschedule_group_majority", "1 while this adapter's log has a majority, by what it knows, else 0.", func() int64 { return one(e.log.HasMajority()) })
	gauge("reschedule_group_applied", "The number of the last entry of the replicated log that this adapter has applied.", func() int64 { return int64(m.view.Applied()) })
	gauge("reschedule_group_trimmed", "The number of the last entry of the replicated log that this adapter has removed, 0: none.", func() int64 { return int64(e.group.Trimmed()) })
	gauge("reschedule_group_log_bytes", "Bytes that the replicated log takes in this adapter's file.", func() int64 { return e.entries.Size() })
	gauge("reschedule_group_differing", "Other adapters whose views differ from this adapter's, by their hashes; 0 unless a disk is damaged.", func() int64 { return int64(e.group.Differing()) })
	counter("reschedule_group_tenures", "How often this adapter became the owner of the group.", e.group.Tenures)
	counter("reschedule_group_copied", "Copies of another member's view that took the place of this adapter's.", m.copies.taken.Load)
	counter("reschedule_group_sent", "Copies of its view that this adapter began to send to other members.", m.copies.sent.Load)
	seconds("reschedule_group_behind", "For how long this adapter may have missed changes of the group; 0: it is the owner.", func(o metric.Float64Observer) { o.Observe(e.group.Behind().Seconds()) })
	seconds("reschedule_group_clock_held", "How far this adapter, as the owner, holds its clock back, so that nothing is early.", func(o metric.Float64Observer) { o.Observe(e.group.ClockHoldback().Seconds()) })
	seconds("reschedule_clock_offset", "How far the wall clock of another member is ahead of this adapter's, as measured in the last seconds.", func(o metric.Float64Observer) {
		for peer, offset := range e.clocks.Offsets() {
			o.Observe(offset.By.Seconds(), metric.WithAttributes(attribute.String("peer", peer)))
		}
	})
	failed = errors.Join(failed, m.peers.observe(meter))
	var err error
	m.router.counter, err = meter.Int64Counter("reschedule_forwarded", metric.WithDescription("Calls that this adapter did not answer itself, by what became of them."))
	if err = errors.Join(failed, err); err != nil {
		return fmt.Errorf("group: metrics: %w", err)
	}
	return nil
}

func one(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

// count counts a call that this member does not answer itself.
func (c *routed) count(result string) {
	c.counter.Add(context.WithoutCancel(c.r.Context()), 1, metric.WithAttributes(attribute.String("result", result)))
}
