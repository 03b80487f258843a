package watch

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// reasonResync is the reason of an occurrence that a resync made.
const reasonResync = "resync"

// maxResyncWait is the longest wait of a resync that exceeds a quota: deliveries free a part of it.
const maxResyncWait = 30 * time.Second

// Resync schedules the keys with the prefix of all objects once, spread over a time
// (nil: the source's), and returns how many. It reads the marks page by page. After an
// error some are scheduled.
func (m *Manager) Resync(ctx context.Context, uid, prefix string, over *time.Duration) (int, error) {
	s := m.find(uid)
	if s == nil {
		return 0, ErrNoWatch
	}
	w := s.settings.Load().Watch
	if w == nil {
		return 0, ErrNoWatch
	}
	over = cmp.Or(over, w.ResyncOver)
	if !s.resyncing.TryLock() {
		return 0, &schedule.Error{Code: schedule.CodeUnavailable, Detail: "a resync of the source is under way: nothing was scheduled; try again later", RetryAfter: 10 * time.Second}
	}
	defer s.resyncing.Unlock()
	return s.resync(ctx, prefix, over, func(error) bool { return false })
}

// ErrNoWatch means that the source has no spec.watch.
var ErrNoWatch = schedule.Refuse(schedule.CodePrecondition, "the source watches nothing: a resync needs spec.watch")

// resync asks again, when the queue refuses, whether to try the same keys once more.
func (s *source) resync(ctx context.Context, prefix string, over *time.Duration, again func(error) bool) (int, error) {
	s.mu.Lock()
	resources := s.resources
	s.mu.Unlock()
	n := 0
	for _, r := range resources {
		scheduled, err := r.resync(ctx, prefix, over, again)
		n += scheduled
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func (r *resource) resync(ctx context.Context, prefix string, over *time.Duration, again func(error) bool) (n int, err error) {
	marks := cursor{r: r}
	named := objects.Resource{Group: r.cfg.Group, Version: r.cfg.Version, Kind: r.cfg.Kind} // the kind may be looked for now
	jitter := r.s.settings.Load().Jitter
	var items []queue.Item
	for {
		if ctx.Err() != nil {
			return n, context.Cause(ctx)
		}
		m, err := marks.next()
		if err != nil {
			return n, err
		}
		if m != nil {
			targets := marked(r.cfg.Kind, m)
			if err := r.known(targets); err != nil {
				return n, err
			}
			for _, t := range targets {
				if !strings.HasPrefix(t.key, prefix) || t.watched { // by its own mark
					continue
				}
				var event *schedule.Event
				if t.final {
					event = causedEvent(named, &observed{path: m.Object}, true)
				}
				it := item(t, r.s.pace.delay(t.key, over), schedule.LowPriority, event, reasonResync)
				it.Request.EventIfNone = true // a resync is no news: the key keeps the event that it has
				it.Request.Jitter = jitter
				items = append(items, it)
			}
		}
		if len(items) >= batchItems || m == nil {
			scheduled, err := r.s.schedule(items, again)
			if n += scheduled; err != nil {
				return n, err
			}
			items = items[:0]
		}
		if m == nil {
			return n, nil
		}
	}
}

// schedule schedules items, and returns how many. Of a batch that exceeds a quota it
// schedules what fits, and goes on behind it when it shall try again: keys that were
// scheduled may have been delivered since, and are not scheduled twice.
func (s *source) schedule(items []queue.Item, again func(error) bool) (n int, err error) {
	for len(items) > 0 {
		take := len(items)
		for take > 0 {
			err = s.marks.Report(items[:take], nil)
			var refused *schedule.Error
			if err == nil || !errors.As(err, &refused) || refused.Code != schedule.CodeQuota {
				break
			}
			take /= 2
		}
		if err == nil {
			n, items = n+take, items[take:]
		} else if !again(err) {
			return n, err
		}
	}
	return n, nil
}

// followRevision resyncs once for each new revision of the sink, until ctx ends. The
// first revision that is learned is no new one.
func (s *source) followRevision(ctx context.Context) {
	taken := ""
	for failures := 0; ; {
		w := s.settings.Load().Watch
		var again <-chan time.Time
		if w != nil && w.Revision != "" && w.Revision != taken {
			if err := s.takeRevision(ctx, w); err == nil {
				taken, failures = w.Revision, 0
			} else {
				if ctx.Err() != nil || s.removed(err) {
					return
				}
				failures++
				again = time.After(s.m.backoff(failures))
				s.warn(reasonRefused, "the resync for revision %s is not complete and is tried again: %v", w.Revision, err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-s.revised:
		}
	}
}

// takeRevision resyncs for a revision that differs from the stored one, and stores it.
func (s *source) takeRevision(ctx context.Context, w *schedule.Watch) error {
	states, err := s.marks.States()
	if err != nil {
		return err
	}
	last := ""
	for _, state := range states {
		if state.Watch == revisionID {
			last = state.Revision
		}
	}
	if last == w.Revision {
		return nil
	}
	if last != "" && w.ResyncOnRevision {
		s.resyncing.Lock()
		defer s.resyncing.Unlock()
		failures := 0
		n, err := s.resync(ctx, "", w.ResyncOver, func(err error) bool {
			if s.removed(err) {
				return false
			}
			failures++
			s.warn(reasonRefused, "the resync for revision %s waits, because the source may not schedule more: %v", w.Revision, err)
			return pause(ctx, min(s.m.backoff(failures), maxResyncWait))
		})
		if err != nil {
			return err
		}
		s.m.cfg.Log.Info("a new revision of the sink is ready: every object is scheduled once",
			"source", s.settings.Load().Path(), "revision", w.Revision, "objects", n)
	}
	return s.marks.SetState(store.WatchState{Watch: revisionID, Scope: revisionScope, Revision: w.Revision})
}
