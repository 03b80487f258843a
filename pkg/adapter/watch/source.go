package watch

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/expression"
)

const (
	// suspendedLife is how long the watches of a suspended source stay open.
	suspendedLife = 5 * time.Minute
	// changeGap is the least time from one begin of the watches of a source to the next: what an author changes
	// again and again costs the others no more.
	changeGap = time.Second
	// warnInterval is the least time between two warnings of a source for one reason.
	warnInterval = time.Minute
)

// source is a source with its watches. mu guards what is watched, the status that was reported last and the
// warnings; a resync, and then a publication, may hold its own lock when mu is taken.
type source struct {
	m      *Manager
	marks  Marks
	uid    string
	ctx    context.Context
	cancel context.CancelFunc

	settings atomic.Pointer[schedule.Spec]
	changed  chan struct{} // has a value after a change of the settings
	revised  chan struct{} // the same, for the resync

	tally tally

	paused    atomic.Bool // suspended for long: no watch is open
	resyncing sync.Mutex  // one resync at a time
	pace      pace

	mu sync.Mutex
	watched
	reported schedule.WatchStatus
	warned   map[string]time.Time // by reason

	event       atomic.Int64 // when the last event came, 0 = none did
	publication publication
}

// watched is what a source watches by the settings in force.
type watched struct {
	watch      *schedule.Watch
	resources  []*resource
	namespaces *namespaceSet // nil: the namespaces that the watch names
	fault      error         // nothing can be watched
}

func newSource(m *Manager, src *schedule.Spec, marks Marks) *source {
	s := &source{m: m, marks: marks, uid: src.UID, changed: make(chan struct{}, 1), revised: make(chan struct{}, 1), warned: map[string]time.Time{}}
	s.ctx, s.cancel = context.WithCancel(m.ctx)
	s.settings.Store(src)
	return s
}

func (s *source) set(src *schedule.Spec) {
	s.settings.Store(src)
	for _, c := range [...]chan struct{}{s.changed, s.revised} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (s *source) account() objects.Account {
	src := s.settings.Load()
	return objects.Account{Namespace: src.Namespace, Name: s.watch.Account}
}

// run watches until the source is removed, and begins anew when the settings of the
// watch change. What was watched before goes on where it was.
func (s *source) run() {
	defer s.cancel()
	var suspended time.Time // since when
	for s.ctx.Err() == nil {
		src, began := s.settings.Load(), time.Now()
		ctx, end := context.WithCancel(s.ctx)
		var serving sync.WaitGroup
		paused := src.Suspend && !suspended.IsZero() && time.Since(suspended) >= suspendedLife
		s.paused.Store(paused)
		if !paused {
			serving.Go(func() { s.serve(ctx, src) })
		}
		s.wait(src, paused, &suspended)
		end()
		serving.Wait()
		pause(s.ctx, time.Until(began.Add(changeGap)))
	}
}

// wait returns when the watches must begin anew, or end.
func (s *source) wait(served *schedule.Spec, paused bool, suspended *time.Time) {
	for {
		now := s.settings.Load()
		if !now.Suspend {
			*suspended = time.Time{}
		} else if suspended.IsZero() {
			*suspended = time.Now()
		}
		if !sameWatch(served.Watch, now.Watch) { // also a suspended source lists what it watches otherwise
			*suspended = time.Time{}
			return
		}
		if paused && !now.Suspend {
			return
		}
		s.publish()
		var pausing <-chan time.Time
		if now.Suspend && !paused {
			pausing = time.After(time.Until(suspended.Add(suspendedLife)))
		}
		select {
		case <-s.ctx.Done():
			return
		case <-pausing:
			return
		case <-s.changed:
		}
	}
}

// sameWatch reports that the watches can go on as they are.
func sameWatch(a, b *schedule.Watch) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, y := *a, *b
	x.Generation, y.Generation = 0, 0
	x.Revision, y.Revision = "", ""
	x.ResyncOnRevision, y.ResyncOnRevision = false, false
	x.ResyncOver, y.ResyncOver = nil, nil
	x.Since, y.Since = time.Time{}, time.Time{}
	return reflect.DeepEqual(x, y)
}

// serve watches until ctx ends.
func (s *source) serve(ctx context.Context, src *schedule.Spec) {
	var resources []*resource
	for failures := 1; ; failures++ {
		var err error
		if resources, err = s.plan(src.Watch); err == nil {
			break
		}
		if s.removed(err) || ctx.Err() != nil {
			return
		}
		s.m.cfg.Log.Error("the rows of a watching source cannot be read; trying again", "source", src.Path(), "error", err)
		if isOverShare(err) {
			s.mu.Lock()
			s.watched = watched{watch: src.Watch, fault: err}
			s.mu.Unlock()
			s.publish()
		}
		if !pause(ctx, s.m.wait(err, failures)) {
			return
		}
	}
	if src.Watch == nil {
		return
	}
	defer func() {
		for _, r := range resources {
			r.rows.release()
		}
	}()
	now := watched{watch: src.Watch, resources: resources}
	if !src.Watch.OwnNamespace && src.Watch.Namespaces != "" {
		now.namespaces, now.fault = newNamespaceSet(s, src.Watch.Namespaces)
	}
	s.mu.Lock()
	s.watched = now
	s.mu.Unlock()
	s.publish()
	if now.fault != nil {
		return
	}
	var running sync.WaitGroup
	if now.namespaces != nil {
		running.Go(func() { now.namespaces.run(ctx) })
	}
	for _, r := range resources {
		running.Go(func() { r.run(ctx) })
	}
	running.Go(func() { s.followRevision(ctx) })
	running.Wait()
}

// remembering returns a claim for what the source remembers.
func (s *source) remembering() budget.Claim {
	src := s.settings.Load()
	return s.m.remembered.Claim(src.Namespace, src.Name)
}

// plan reads the rows of the store, removes the rows of resources that are not watched
// any more, and returns the resources that are.
func (s *source) plan(w *schedule.Watch) (resources []*resource, err error) {
	states, err := s.marks.States()
	if err != nil {
		return nil, err
	}
	wanted := map[uint64]*resource{}
	defer func() {
		if err != nil {
			for _, r := range wanted {
				r.rows.release()
			}
		}
	}()
	if w != nil {
		for i := range w.Resources {
			cfg := &w.Resources[i]
			r := &resource{s: s, cfg: cfg, id: identity(cfg), rows: rows{by: map[string]row{}, memory: memory{claim: s.remembering()}}, health: map[string]*health{}}
			if wanted[r.id] != nil { // it differs in the selector
				r.id = bits(r.id ^ hashOf(cfg.Selector))
			}
			if wanted[r.id] != nil {
				continue // the same once more
			}
			if cfg.Key != "" {
				if r.key, err = expression.CompileWatchKey(cfg.Key); err != nil {
					r.fault = err
				}
			}
			r.objects.Store(uncounted)
			r.wanted = s.wanted(r.id)
			wanted[r.id] = r
			resources = append(resources, r)
		}
	}
	pair(resources)
	for _, state := range states {
		if c, ok := state.MarkCount(); ok {
			if r := wanted[c.Watch]; r != nil {
				r.objects.Store(c.Marks)
				r.bytes = c.Bytes
				continue
			}
			// A crash may have left no more than this row.
			if err := s.marks.Remove(c.Watch); err != nil {
				return nil, err
			}
		}
		row, ok := parseRow(state)
		if ok && wanted[row.resource] != nil {
			rows := &wanted[row.resource].rows
			if _, err := rows.reserve(&row); err != nil {
				return nil, err
			}
			rows.set(row)
			continue
		}
		if w != nil && (state.Watch == revisionID || wanted[state.Watch] != nil) {
			continue // also marks whose state cannot be read
		}
		if err := s.marks.Remove(state.Watch); err != nil {
			return nil, err
		}
	}
	return resources, nil
}

// wanted is since when the list of a resource is wanted that was never complete.
func (s *source) wanted(id uint64) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, before := range s.resources {
		if before.id == id && !before.rows.listed() {
			return before.wanted
		}
	}
	return time.Now()
}

// touch records that an event came.
func (s *source) touch() { s.event.Store(time.Now().UnixNano()) }

// removed reports that the source is gone, or the store has ended. A lease that ends and comes
// back is no such end: without it the store refuses only what changes nothing, and all that a
// watch writes changes something, also for keys that wait already.
func (s *source) removed(err error) bool {
	var refused *schedule.Error
	return errors.As(err, &refused) && (refused.Code == schedule.CodeNotFound || refused.Code == schedule.CodeUnavailable)
}

// warn notifies the owner of the source, at most once a minute for one reason.
func (s *source) warn(reason, format string, args ...any) {
	s.mu.Lock()
	now := time.Now()
	recent := now.Sub(s.warned[reason]) < warnInterval && !s.warned[reason].IsZero()
	if !recent {
		s.warned[reason] = now
	}
	s.mu.Unlock()
	if recent {
		return
	}
	src, message := s.settings.Load(), fmt.Sprintf(format, args...)
	s.m.cfg.Log.Warn("a watch does not schedule everything", "source", src.Path(), "reason", reason, "detail", message)
	s.m.cfg.Warn(src, reason, message)
}

// The reasons of the Events.
const (
	reasonKey      = "WatchKeyFailed"
	reasonTooLarge = "WatchObjectTooLarge"
	reasonRefused  = "WatchRefused"
	reasonOrder    = "WatchUnordered"
)
