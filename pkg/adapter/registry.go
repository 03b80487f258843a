package adapter

import (
	"context"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch"
)

// registry is the set of sources as an origin drives it.
type registry struct{ *Adapter }

// SetSource implements sources.Registry.
func (r registry) SetSource(s *schedule.Source) error {
	r.events.Set(s)
	q, err := r.queue.Set(s)
	if err == nil && r.watches != nil {
		r.watches.Set(s, q)
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
func (r registry) Counts(uid string) (pending int64, nextDueAt time.Time, ok bool) {
	s, ok := r.queue.Find(uid)
	if !ok {
		return 0, time.Time{}, false
	}
	counts, err := s.Counts()
	return counts.Pending, counts.NextDueAt, err == nil
}

// WatchStatus implements sources.Registry.
func (r registry) WatchStatus(uid string) (schedule.WatchStatus, bool) {
	if r.watches == nil {
		return schedule.WatchStatus{}, false
	}
	return r.watches.Status(uid)
}

// watchChanged says that the watch status of a source has changed.
func (a *Adapter) watchChanged(uid string) {
	if s, ok := a.queue.Find(uid); ok {
		a.origin.WatchChanged(s.Settings())
	}
}

// resync schedules the objects that a source watches.
func (a *Adapter) resync(ctx context.Context, uid, prefix string, over *time.Duration) (int, error) {
	if a.watches == nil {
		return 0, watch.ErrNoWatch
	}
	return a.watches.Resync(ctx, uid, prefix, over)
}

// watched is how many objects a source watches.
func (a *Adapter) watched(uid string) int64 {
	s, _ := registry{a}.WatchStatus(uid)
	return s.Objects
}

// fill purges what the store has of sources that do not exist any more, and puts the
// wanted ones in force. The unusable ones keep their schedules.
func (r registry) fill(ctx context.Context, wanted []*schedule.Source, unusable []string) error {
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
