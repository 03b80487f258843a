package adapter

import (
	"context"
	"fmt"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch"
)

// registry is the set of sources as an origin drives it.
type registry struct{ *Adapter }

// SetSource implements sources.Registry.
func (r registry) SetSource(s *schedule.Spec) error {
	r.events.Set(s)
	return r.host.SetSource(s)
}

// RemoveSource implements sources.Registry.
func (r registry) RemoveSource(uid string) error {
	err := r.host.RemoveSource(uid)
	if err == nil {
		r.events.Remove(uid)
	}
	return err
}

// Counts implements sources.Registry.
func (r registry) Counts(uid string) (sources.Counts, bool) {
	q, d, _ := r.host.Serving()
	if q == nil || d == nil {
		return sources.Counts{}, false
	}
	s, ok := q.Find(uid)
	if !ok {
		return sources.Counts{}, false
	}
	n, err := s.Counts()
	c := sources.Counts{
		Pending: n.Pending, InFlight: n.InFlight, Retrying: n.Retrying, NextDueAt: n.NextDueAt, OldestDueAt: n.OldestDueAt,
		Delivering: delivering(d.Health(s)),
	}
	if !c.NextDueAt.After(time.Now()) { // it may come from a count that is some seconds old
		c.NextDueAt = time.Time{}
	}
	return c, err == nil
}

// delivering is the condition Delivering of a source.
func delivering(h dispatch.Health) sources.Delivering {
	switch h.State {
	case dispatch.Succeeding:
		return sources.Delivering{Status: "True", Reason: "Delivered"}
	case dispatch.Failing:
		return sources.Delivering{Status: "False", Reason: "DeliveryFailing", Message: failureSentence(&h)}
	}
	return sources.Delivering{Status: "Unknown", Reason: "NoDelivery", Message: "Nothing was delivered since the adapter started."}
}

// failureSentence is the sentence about deliveries that fail.
func failureSentence(h *dispatch.Health) string {
	text := "The last delivery failed at " + h.At.UTC().Format(time.RFC3339)
	if h.Code != 0 {
		text += fmt.Sprintf(" with status %d", h.Code)
	}
	if h.Text != "" {
		text += ": " + h.Text
	}
	return text
}

// WatchStatus implements sources.Registry.
func (r registry) WatchStatus(uid string) (schedule.WatchStatus, bool) {
	q, _, watches := r.host.Serving()
	if q == nil {
		return schedule.WatchStatus{}, false
	}
	if _, ok := q.Find(uid); !ok || watches == nil {
		return schedule.WatchStatus{}, ok
	}
	status, _ := watches.Status(uid)
	return status, true
}

// Workload implements sources.Registry.
func (r registry) Workload(uid string) (schedule.ScaleStatus, bool) {
	q, d, _ := r.host.Serving()
	if q == nil || d == nil {
		return schedule.ScaleStatus{}, false
	}
	s, ok := q.Find(uid)
	if !ok {
		return schedule.ScaleStatus{}, false
	}
	return d.Workload(s)
}

// Serves implements sources.Registry.
func (r registry) Serves() bool {
	q, _, _ := r.host.Serving()
	return q != nil
}

// watchChanged reports that the watch status of a source has changed.
func (a *Adapter) watchChanged(uid string) {
	q, _, _ := a.host.Serving()
	if q == nil {
		return
	}
	if s, ok := q.Find(uid); ok {
		a.origin.WatchChanged(s.Spec())
	}
}

// resync schedules the objects that a source watches.
func (a *Adapter) resync(ctx context.Context, uid, prefix string, over *time.Duration) (int, error) {
	q, _, watches := a.host.Serving()
	switch {
	case q == nil:
		return 0, &schedule.Error{Code: schedule.CodeUnavailable, RetryAfter: time.Second, Detail: "this adapter no longer owns the source: nothing was scheduled; try again"}
	case watches == nil:
		return 0, watch.ErrNoWatch
	}
	return watches.Resync(ctx, uid, prefix, over)
}

// workload is the state of a source's workload.
func (a *Adapter) workload(uid string) schedule.ScaleStatus {
	s, _ := registry{a}.Workload(uid)
	return s
}

// watched is how many objects a source watches.
func (a *Adapter) watched(uid string) int64 {
	s, _ := registry{a}.WatchStatus(uid)
	return s.Objects
}
