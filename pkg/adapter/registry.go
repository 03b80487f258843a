package adapter

import (
	"context"
	"fmt"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch"
)

func (a *Adapter) registry() sources.Registry {
	if a.member != nil {
		return membership{registry{a}}
	}
	return registry{a}
}

// parts are what serves the sources here; nil: another member of the group does.
func (a *Adapter) parts() (*queue.Queue, *dispatch.Dispatcher, *watch.Manager) {
	if a.member != nil {
		return a.member.Serving()
	}
	return a.queue, a.dispatch, a.watches
}

// membership is the set of sources of one of a group.
type membership struct{ registry }

// SetSource implements sources.Registry.
func (r membership) SetSource(s *schedule.Spec) error {
	r.events.Set(s)
	return r.member.SetSource(s)
}

// RemoveSource implements sources.Registry.
func (r membership) RemoveSource(uid string) error {
	r.events.Remove(uid)
	return r.member.RemoveSource(uid)
}

// registry is the set of sources as an origin drives it.
type registry struct{ *Adapter }

// SetSource implements sources.Registry.
func (r registry) SetSource(s *schedule.Spec) error {
	r.events.Set(s)
	q, err := r.queue.Set(s)
	if err == nil && r.watches != nil {
		r.watches.Set(s, &q.Marks)
	}
	return err
}

// RemoveSource implements sources.Registry.
func (r registry) RemoveSource(uid string) error {
	if r.watches != nil {
		r.watches.Remove(uid)
	}
	s, registered := r.queue.Find(uid)
	err := r.queue.Remove(uid)
	if registered { // what is cut off before that would be delivered again
		r.dispatch.Remove(s)
	}
	if err != nil {
		return err
	}
	r.events.Remove(uid)
	r.cfg.Log.Info("source removed; its schedules are purged", "uid", uid)
	return nil
}

// Counts implements sources.Registry.
func (r registry) Counts(uid string) (sources.Counts, bool) {
	q, d, _ := r.parts()
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
	last := "no answer"
	if h.Code != 0 {
		last = fmt.Sprintf("status %d", h.Code)
	}
	text := fmt.Sprintf("The last delivery failed at %s with %s", h.At.UTC().Format(time.RFC3339), last)
	if h.Text != "" {
		text += ": " + h.Text
	}
	return text
}

// WatchStatus implements sources.Registry.
func (r registry) WatchStatus(uid string) (schedule.WatchStatus, bool) {
	q, _, watches := r.parts()
	if q == nil {
		return schedule.WatchStatus{}, false
	}
	if _, ok := q.Find(uid); !ok || watches == nil {
		return schedule.WatchStatus{}, ok
	}
	status, _ := watches.Status(uid)
	return status, true
}

// Serves implements sources.Registry.
func (r registry) Serves() bool {
	q, _, _ := r.parts()
	return q != nil
}

// watchChanged reports that the watch status of a source has changed.
func (a *Adapter) watchChanged(uid string) {
	q, _, _ := a.parts()
	if q == nil {
		return
	}
	if s, ok := q.Find(uid); ok {
		a.origin.WatchChanged(s.Spec())
	}
}

// resync schedules the objects that a source watches.
func (a *Adapter) resync(ctx context.Context, uid, prefix string, over *time.Duration) (int, error) {
	q, _, watches := a.parts()
	switch {
	case q == nil:
		return 0, &schedule.Error{Code: schedule.CodeUnavailable, RetryAfter: time.Second, Detail: "this adapter no longer owns the source: nothing was scheduled; try again"}
	case watches == nil:
		return 0, watch.ErrNoWatch
	}
	return watches.Resync(ctx, uid, prefix, over)
}

// watched is how many objects a source watches.
func (a *Adapter) watched(uid string) int64 {
	s, _ := registry{a}.WatchStatus(uid)
	return s.Objects
}

// fill purges what the store has of sources that do not exist any more, and puts the
// wanted ones in force. The unusable ones keep their schedules.
func (r registry) fill(ctx context.Context, wanted []*schedule.Spec, unusable []string) error {
	keep := make(map[string]bool, len(wanted)+len(unusable))
	for _, s := range wanted {
		keep[s.UID] = true
	}
	for _, uid := range unusable {
		keep[uid] = true
	}
	stored, err := r.store.Sources()
	if err != nil {
		return err
	}
	for _, uid := range stored {
		if keep[uid] {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := r.RemoveSource(uid); err != nil {
			return err
		}
	}
	for _, s := range wanted {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := r.SetSource(s); err != nil {
			return err
		}
	}
	return nil
}
