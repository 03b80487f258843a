package queue

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Expiry is promised within 5 s; the sweeper comes by at most once a second
// while something is about to expire, and at least every ten, should the clock
// have jumped.
const (
	sweepEvery = time.Second
	sweepIdle  = 10 * time.Second
	// A sweep from the start takes at most 1/sweepFactor of the time.
	sweepFactor = 20
	sweepRows   = 256 // at a time
)

// expiry is when the sweeper is needed next.
type expiry struct {
	sync.Mutex
	nextAt time.Time // zero: nothing expires
	wake   chan struct{}

	// Of the sweeper alone: its last row, when it last began at the start, and how
	// long that took.
	after store.SourceRow
	begun time.Time
	took  time.Duration
	anew  atomic.Bool // the next sweep begins at the start
}

// note wakes the sweeper if the expiry is the soonest.
func (x *expiry) note(at time.Time) {
	x.Lock()
	sooner := x.nextAt.IsZero() || at.Before(x.nextAt)
	if sooner {
		x.nextAt = at
	}
	x.Unlock()
	if sooner {
		select {
		case x.wake <- struct{}{}:
		default:
		}
	}
}

// sweep drops expired entries until the queue is closed.
func (q *Queue) sweep() {
	for {
		next := q.sweepOnce()
		wait := make(<-chan time.Time)
		if !next.IsZero() {
			wait = time.After(min(max(next.Sub(q.cfg.Now()), sweepEvery), sweepIdle))
		}
		select {
		case <-wait:
		case <-q.expiry.wake:
		case <-q.stop:
			return
		}
	}
}

// sweepOnce drops expired entries and returns the next expiry. It skips rows that it
// cannot drop: of deliveries under way, which stay until the outcome; of sources that
// are not set; of entries that cannot be read.
func (q *Queue) sweepOnce() time.Time {
	x := &q.expiry
	x.Lock()
	x.nextAt = time.Time{} // entries accepted from now on call note
	x.Unlock()
	// New entries are behind the end of the last sweep. The skipped rows are tried
	// again each time, or less often if they are very many.
	start := time.Now()
	anew := x.anew.Swap(false) || start.Sub(x.begun) >= sweepFactor*x.took
	after := x.after
	if anew {
		after = store.SourceRow{}
	}
	now, left := q.cfg.Now().Round(0), false
	next, err := time.Time{}, error(nil)
	for more := true; more; {
		var rows []store.SourceRow
		rows, next, err = q.store.Expired(now, after, sweepRows)
		if errors.Is(err, store.ErrClosed) {
			return time.Time{}
		}
		if err != nil {
			q.cfg.Log.Error("the expiry index cannot be read; trying again", "error", err)
			left = true
		}
		for _, row := range rows {
			left = !q.expire(row, now) || left
			after = row
		}
		more = err == nil && len(rows) == sweepRows && !q.closing()
	}
	x.after = after
	if anew {
		x.begun, x.took = start, time.Since(start)
	}
	if again := now.Add(sweepEvery); (left || x.took*sweepFactor > sweepEvery) && (next.IsZero() || next.After(again)) {
		next = again
	}
	if !next.IsZero() {
		x.Lock()
		if x.nextAt.IsZero() || next.Before(x.nextAt) {
			x.nextAt = next
		}
		next = x.nextAt
		x.Unlock()
	}
	return next
}

func (q *Queue) closing() bool {
	select {
	case <-q.stop:
		return true
	default:
		return false
	}
}

// expire drops an entry whose expiry has come, unless it is in delivery: then
// the outcome decides.
func (q *Queue) expire(row store.SourceRow, now time.Time) bool {
	q.mu.RLock()
	s := q.sources[row.Source]
	q.mu.RUnlock()
	if s == nil {
		return false // its source is not set yet, or is being purged
	}
	if err := s.enter(); err != nil {
		return false
	}
	defer s.leave()
	defer s.stripes.lock(row.Key)()
	if schedule.IsKeptLetterKey(row.Key) {
		s.Letters.mu.Lock()
		defer s.Letters.mu.Unlock()
	}
	f := s.stripes.flight(row.Key)
	if f != nil && f.Own {
		return false
	}
	e, err := q.store.Outline(row.Source, row.Key, outline)
	if err != nil || e == nil || !e.Expired(now) {
		return false
	}
	return s.drop(row.Key, e) == nil
}
