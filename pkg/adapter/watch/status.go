package watch

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// unreachableAfter is how long the API server may fail or refuse, or a quota be exceeded, before a
// source that has watched says so. An API server that starts refuses until it has read RBAC.
const unreachableAfter = 10 * time.Second

// The reasons, in the order in which the status prefers them.
var reasons = []string{
	schedule.WatchInvalidKey, schedule.WatchNoSuchKind, schedule.WatchForbidden, schedule.WatchQuotaExceeded, schedule.WatchUnreachable, schedule.WatchListing,
}

// problem is why a part of a source is not watched.
type problem struct{ reason, message string }

// classify reads an error of the API server, or a refusal of the queue.
func classify(what string, err error) problem {
	var denied *objects.Forbidden
	switch {
	case errors.Is(err, objects.ErrNoSuchKind):
		return problem{schedule.WatchNoSuchKind, what + " does not exist at the API server: the source waits for it"}
	case errors.As(err, &denied):
		return problem{schedule.WatchForbidden, denied.Error()}
	case overQuota(err):
		return problem{schedule.WatchQuotaExceeded, what + ": changes wait, and are tried again: " + err.Error()}
	case isOverShare(err):
		return problem{schedule.WatchQuotaExceeded, what + ": " + err.Error()}
	}
	return problem{schedule.WatchUnreachable, fmt.Sprintf("%s cannot be watched: %v", what, err)}
}

// overQuota reports that the queue refused a change for a quota.
func overQuota(err error) bool {
	var refused *schedule.Error
	return errors.As(err, &refused) && refused.Code == schedule.CodeQuota
}

// passing reports that the problem is reported only when it lasts.
func (p problem) passing() bool {
	return slices.Contains([]string{schedule.WatchUnreachable, schedule.WatchForbidden, schedule.WatchQuotaExceeded}, p.reason)
}

// problems lists what is wrong with the resource now.
func (r *resource) problems(now time.Time) []problem {
	what := r.cfg.Kind + " of " + objects.Resource{Group: r.cfg.Group, Version: r.cfg.Version}.APIVersion()
	if r.fault != nil {
		return []problem{{schedule.WatchInvalidKey, what + ": " + r.fault.Error()}}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	listing := problem{schedule.WatchListing, "the first list of " + what + " is not complete"}
	if len(r.health) == 0 {
		if r.s.namespaces != nil && r.partly() {
			return nil // no namespace is selected
		}
		return []problem{listing}
	}
	var all []problem
	for _, h := range r.health {
		if c := classify(what, h.err); h.err != nil && (!c.passing() || h.lasts(now)) {
			all = append(all, c)
		} else if !h.complete {
			all = append(all, listing)
		}
	}
	return all
}

// partly reports that the resource has a watch for each namespace.
func (r *resource) partly() bool {
	return r.s.namespaces.status().complete && r.perNamespace.Load()
}

// status is what the source reports now.
func (s *source) status() schedule.WatchStatus {
	s.mu.Lock()
	resources, watch, namespaces, fault := s.resources, s.watch, s.namespaces, s.fault
	s.mu.Unlock()
	src := s.settings.Load()
	st := schedule.WatchStatus{Status: schedule.WatchUnknown, Reason: schedule.WatchListing, Message: "the watches begin"}
	if src.Watch != nil {
		st.Generation = src.Watch.Generation
	}
	if watch == nil || !sameWatch(watch, src.Watch) {
		return st
	}
	if s.paused.Load() { // as it was
		s.mu.Lock()
		last := s.reported
		s.mu.Unlock()
		last.Generation, last.Objects = st.Generation, 0
		for _, r := range resources {
			last.Objects += r.marked()
		}
		return last
	}
	var all []problem
	if fault != nil {
		p := problem{schedule.WatchUnreachable, fault.Error()}
		if isOverShare(fault) {
			p.reason = schedule.WatchQuotaExceeded
		}
		all = append(all, p)
	}
	now := time.Now()
	if namespaces != nil {
		h := namespaces.status()
		if c := classify("Namespace of v1", h.err); h.err != nil && (c.reason == schedule.WatchQuotaExceeded || h.lasts(now)) {
			all = append(all, c)
		}
	}
	st.Complete = true
	for _, r := range resources {
		st.Complete = st.Complete && r.listed()
		st.Objects += r.marked()
		all = append(all, r.problems(now)...)
	}
	if len(all) == 0 {
		st.Status, st.Reason, st.Message = schedule.WatchTrue, "", ""
		return st
	}
	worst := slices.MinFunc(all, func(a, b problem) int {
		return cmp.Or(cmp.Compare(slices.Index(reasons, a.reason), slices.Index(reasons, b.reason)), cmp.Compare(a.message, b.message))
	})
	st.Status, st.Reason, st.Message = schedule.WatchFalse, worst.reason, worst.message
	if worst.reason == schedule.WatchListing {
		st.Status = schedule.WatchUnknown
	}
	return st
}

// A status is read from all watches of a source, and after a failure of the API server each of
// them reports: publishGap later all are published at once. publishShare bounds the time that it
// takes of a processor.
const publishGap, publishShare = 100 * time.Millisecond, 50

// publication is when the status of a source is published. It is locked while it is: an older status does not
// take the place of a newer one.
type publication struct {
	sync.Mutex
	planned atomic.Bool
	took    atomic.Int64 // nanoseconds, the last time
}

// publish reports the status soon, when it has changed.
func (s *source) publish() {
	if s.publication.planned.Swap(true) {
		return
	}
	time.AfterFunc(max(publishGap, time.Duration(s.publication.took.Load())*publishShare), func() {
		s.publication.planned.Store(false)
		if s.ctx.Err() == nil {
			began := time.Now()
			s.publishNow()
			s.publication.took.Store(int64(time.Since(began)))
		}
	})
}

func (s *source) publishNow() {
	s.publication.Lock()
	defer s.publication.Unlock()
	st := s.status()
	st.Objects = 0
	s.mu.Lock()
	same := st == s.reported
	s.reported = st
	s.mu.Unlock()
	if !same {
		s.m.cfg.Changed(s.uid)
	}
}
