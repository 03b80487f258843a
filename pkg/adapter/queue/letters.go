package queue

import (
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/timer"
)

// letters are the dead letters under way, and the due ones that wait for a slot.
// They have slots of their own: in the slots of the keys, a dead letter sink that
// hangs would stop its source. The page's lock guards it.
type letters struct {
	flights  int
	deferred []timer.Row
	more     bool // deferred is full: the index has more
}

// maxDeferred bounds the deferred rows; further ones stay in the index.
const maxDeferred = 1024

// hasSlot reports whether one more may be under way: a quarter as many as keys.
func (l *letters) hasSlot(s *schedule.Spec) bool { return l.flights < max(1, s.MaxInFlight/4) }

// next pops the next due row for which there is a slot, and takes the slot if it is
// a dead letter's. The caller holds the page's lock.
func (s *Source) next(settings *schedule.Spec, now time.Time) (timer.Row, bool) {
	l := &s.page.letters
	if l.hasSlot(settings) {
		for len(l.deferred) > 0 {
			row := l.deferred[0]
			l.deferred = l.deferred[1:]
			if row.At > now.UnixNano() { // the clock went back: its time has yet to come
				s.page.Add(row)
				continue
			}
			l.flights++
			return row, true
		}
		if l.more { // the rows that were left in the index are in front of the page
			l.deferred, l.more = nil, false
			s.page.Restart()
		}
	}
	for {
		row, ok := s.page.Pop(now.UnixNano())
		switch {
		case !ok || !schedule.IsDeadLetterKey(row.Key):
			return row, ok
		case l.hasSlot(settings):
			l.flights++
			return row, true
		case len(l.deferred) < maxDeferred:
			l.deferred = append(l.deferred, row)
		default:
			l.more = true
		}
	}
}
