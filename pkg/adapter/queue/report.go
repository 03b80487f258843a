package queue

import (
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Report applies the items as [Source.ScheduleTogether] does, and stores the marks of
// watched objects in the same durable change: when an item is refused, nothing is
// stored. A change may carry the state of the watch instead of a mark. Marks without
// items are stored lazily. The marks are of this source, whatever they name. Their
// growth, by [store.MarkChange.Growth], is refused when the namespace would exceed its
// max-bytes; what they free, the items may use. All items need an event: one that
// inherits a large event may be applied before the others, and stays when a later one
// is refused.
func (s *Source) Report(items []Item, marks []store.MarkChange) error {
	own := make([]store.MarkChange, len(marks))
	for i, m := range marks {
		if m.State == nil && m.Mark.Object == "" {
			return schedule.Invalid("object", "is empty: a mark needs the name of its object")
		}
		own[i], own[i].Source = m, s.uid
	}
	if len(items) > 0 {
		return s.admit(items, make([]Scheduled, len(items)), &admission{allOrNone: true, marks: own, freed: max(0, -growth(own))}, nil)
	}
	if len(marks) == 0 {
		return nil
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if err := s.reserveMarks(own); err != nil {
		return err
	}
	_, err := s.q.store.ApplyMarked(true, own)
	s.settleMarks(own, err == nil)
	if err != nil {
		return s.q.fatal(err)
	}
	return nil
}

// Marks is [store.Store.Marks] of this source.
func (s *Source) Marks(watch uint64, after string, limit int) (_ []store.Mark, more bool, _ error) {
	if err := s.enter(); err != nil {
		return nil, false, err
	}
	defer s.leave()
	marks, more, err := s.q.store.Marks(s.uid, watch, after, limit)
	return marks, more, translated(err)
}

// Mark is [store.Store.Mark] of this source.
func (s *Source) Mark(watch uint64, object string) (store.Mark, bool, error) {
	if err := s.enter(); err != nil {
		return store.Mark{}, false, err
	}
	defer s.leave()
	mark, ok, err := s.q.store.Mark(s.uid, watch, object)
	return mark, ok, translated(err)
}

// CountMarks is [store.Store.CountMarks] of this source.
func (s *Source) CountMarks(watch uint64) (n, bytes int64, err error) {
	if err := s.enter(); err != nil {
		return 0, 0, err
	}
	defer s.leave()
	n, bytes, err = s.q.store.CountMarks(s.uid, watch)
	return n, bytes, translated(err)
}

// WatchStates is [store.Store.WatchStates] of this source.
func (s *Source) WatchStates() ([]store.WatchState, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	states, err := s.q.store.WatchStates(s.uid)
	return states, translated(err)
}

// SetWatchState is [store.Store.SetWatchState] of this source. From a [store.MarkCount] on,
// the marks of its watch count as it says.
func (s *Source) SetWatchState(state store.WatchState) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if err := s.q.store.SetWatchState(s.uid, state); err != nil {
		return translated(err)
	}
	if c, ok := state.MarkCount(); ok {
		s.setMarks(c.Watch, c.Bytes)
	}
	return nil
}

// RemoveWatch is [store.Store.RemoveWatch] of this source.
func (s *Source) RemoveWatch(watch uint64) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if err := s.q.store.RemoveWatch(s.uid, watch); err != nil {
		return translated(err)
	}
	s.setMarks(watch, 0)
	return nil
}
