package queue

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// The note of a source says on which schedule its keys are. It is stored as the state of a watch that no source
// has, and purged with these.
const (
	noteID    = 0x7363686564756c65
	noteScope = "schedule"
)

func isNote(s store.WatchState) bool { return s.Watch == noteID && s.Scope == noteScope }

// pageOfSchedule is how many keys move at a time, at most, and movePause how long a source waits after an error.
const (
	pageOfSchedule = 256
	movePause      = time.Second
)

var errSuperseded = errors.New("queue: the schedule has changed again")

// sameSchedule reports that keys on the one schedule are on the other.
func sameSchedule(a, b *schedule.Calendar) bool { return a == b || a != nil && b != nil && *a == *b }

// follower moves the keys that wait for an instant of an older schedule of a source to its schedule.
type follower struct{ *Source }

// run is called when the source is set, and whenever its schedule has changed. After a crash it moves
// all keys again: there is no note while they move.
func (s follower) run() {
	s.following.Lock()
	defer s.following.Unlock()
	for i := range s.stripes.all { // what decides by older settings ends
		s.stripes.all[i].Lock()
		s.stripes.all[i].Unlock() //nolint:staticcheck // it guards nothing: it waits
	}
	for {
		err := s.move(s.Spec().Calendar)
		var refused *schedule.Error
		if err == nil || errors.Is(err, errSuperseded) || errors.As(translated(err), &refused) {
			return
		}
		s.q.cfg.Log.Error("keys cannot follow the schedule of their source; trying again", "source", s.Spec().Path(), "error", err)
		select {
		case <-s.q.stop:
			return
		case <-time.After(movePause):
		}
	}
}

// move moves the keys to a schedule. Without one they stay: their time is as good as any.
func (s follower) move(c *schedule.Calendar) error {
	on, noted, err := s.note()
	if err != nil || noted && c != nil && on == *c || !noted && c == nil {
		return err
	}
	if noted {
		if err := s.Marks.Remove(noteID); err != nil || c == nil {
			return err
		}
	}
	after := ""
	for more := true; more; {
		var keys []string
		if keys, after, more, err = s.onSchedule(after); err != nil {
			return err
		}
		if err := s.moveKeys(keys, c); err != nil {
			return err
		}
	}
	return s.Marks.SetState(store.WatchState{Watch: noteID, Scope: noteScope, Version: c.Cron, Revision: c.TimeZone})
}

// note is the schedule that all keys are on.
func (s follower) note() (on schedule.Calendar, noted bool, err error) {
	states, err := s.q.store.WatchStates(s.uid)
	if i := slices.IndexFunc(states, isNote); i >= 0 {
		return schedule.Calendar{Cron: states[i].Version, TimeZone: states[i].Revision}, true, err
	}
	return on, false, err
}

// onSchedule returns the keys of the next page that wait for an instant of a schedule of the source.
func (s follower) onSchedule(after string) (keys []string, last string, more bool, err error) {
	items, more, err := s.q.store.List(s.uid, "", after, min(pageOfSchedule, s.q.cfg.PageRows), false)
	for _, i := range items {
		if i.Entry != nil && i.Entry.OnSchedule {
			keys = append(keys, i.Key)
		}
		after = i.Key
	}
	return keys, after, more, err
}

// moveKeys moves keys that are on an older schedule still.
func (s follower) moveKeys(keys []string, c *schedule.Calendar) error {
	if len(keys) == 0 {
		return nil
	}
	if !s.q.untilSpace() { // what many keys write would take the space of outcomes
		return errSuperseded
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if s.q.closing() || !sameSchedule(s.Spec().Calendar, c) {
		return errSuperseded
	}
	wake, err := s.moveLocked(keys)
	if wake {
		s.q.cfg.Wake(s.Source)
	}
	return err
}

func (s follower) moveLocked(keys []string) (wake bool, err error) {
	defer s.stripes.lock(keys...)()
	in := schedule.Inputs{Source: s.Spec(), Now: s.now()}
	var changes []store.Change
	for _, key := range keys {
		if f := s.stripes.flight(key); f != nil && f.Own { // it may be ahead again: the clock was set back
			continue
		}
		old, _, err := s.get(key, outline)
		if err != nil {
			return false, fmt.Errorf("queue: key %q: %w", key, err)
		}
		if old == nil {
			continue
		}
		if in.Revision, err = s.q.store.NextRevision(); err != nil {
			return false, s.q.fatal(err)
		}
		in.Random = s.q.cfg.Random()
		if n := old.Moved(in); n != nil {
			changes = append(changes, store.Change{Source: s.uid, Key: key, Old: old, New: n})
		}
	}
	if _, err := s.q.store.Apply(true, changes...); err != nil {
		return false, s.q.fatal(err)
	}
	for _, c := range changes {
		wake = s.accept(c) || wake
	}
	return wake, nil
}
