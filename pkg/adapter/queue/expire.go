package queue

import (
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Expiry is promised within 5 s; the sweeper comes by at most once a second
// while something is about to expire, and at least every ten, should the clock
// have jumped.
const (
	sweepEvery = time.Second
	sweepIdle  = 10 * time.Second
	sweepRows  = 256
)

// expiry is when the sweeper is needed next.
type expiry struct {
	sync.Mutex
	nextAt time.Time // zero: nothing expires
	poke   chan struct{}
}

// note tells the sweeper of an expiry sooner than the ones it knows of.
func (x *expiry) note(at time.Time) {
	x.Lock()
	sooner := x.nextAt.IsZero() || at.Before(x.nextAt)
	if sooner {
		x.nextAt = at
	}
	x.Unlock()
	if sooner {
		select {
		case x.poke <- struct{}{}:
		default:
		}
	}
}

// sweep drops what expires, until the queue is closed.
func (q *Queue) sweep() {
	for {
		next := q.sweepOnce()
		wait := make(<-chan time.Time)
		if !next.IsZero() {
			wait = time.After(min(max(next.Sub(q.cfg.Now()), sweepEvery), sweepIdle))
		}
		select {
		case <-wait:
		case <-q.expiry.poke:
		case <-q.stop:
			return
		}
	}
}

// sweepOnce drops what has expired and says when the next entry does.
func (q *Queue) sweepOnce() time.Time {
	q.expiry.Lock()
	q.expiry.nextAt = time.Time{} // what comes in from now on is noted
	q.expiry.Unlock()
	for {
		now := q.cfg.Now().Round(0)
		// Rows of deliveries under way stay until the outcome: look past them.
		limit := sweepRows
		for _, s := range q.Sources() {
			limit += int(s.own.Load())
		}
		rows, next, err := q.store.Expired(now, limit)
		if err != nil {
			q.cfg.Log.Error("the expiry index cannot be read; trying again", "error", err)
			next, rows = now.Add(sweepEvery), nil
		}
		dropped := 0
		for _, row := range rows {
			if q.expire(row, now) {
				dropped++
			}
		}
		if dropped > 0 && len(rows) == limit {
			continue
		}
		if len(rows) > dropped && (next.IsZero() || next.After(now.Add(sweepEvery))) {
			next = now.Add(sweepEvery)
		}
		if !next.IsZero() {
			q.expiry.Lock()
			if q.expiry.nextAt.IsZero() || next.Before(q.expiry.nextAt) {
				q.expiry.nextAt = next
			}
			next = q.expiry.nextAt
			q.expiry.Unlock()
		}
		return next
	}
}

// expire drops an entry whose expiry has come, unless it is in delivery: then
// the outcome decides.
func (q *Queue) expire(row store.SourceRow, now time.Time) bool {
	q.mu.RLock()
	s := q.sources[row.Source]
	q.mu.RUnlock()
	if s == nil {
		return false // its source is not here yet, or is being purged
	}
	if err := s.enter(); err != nil {
		return false
	}
	defer s.leave()
	defer s.lock([]Item{{Key: row.Key}})()
	f := s.flight(row.Key)
	if f != nil && f.Own {
		return false
	}
	e, err := q.store.Get(row.Source, row.Key)
	if err != nil || e == nil || !e.Expired(now) {
		return false
	}
	return s.drop(row.Key, e) == nil
}
