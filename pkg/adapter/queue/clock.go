package queue

import (
	"time"
)

// The heartbeat compares the wall clock, which decides, with the monotonic clock, on
// which timers run, and sets the timers again.
const (
	heartbeatEvery = 10 * time.Second
	jumpTolerance  = 100 * time.Millisecond
	// A difference to the clock's mark that is worth a warning: the clock is wrong, or
	// the adapter was down for that long.
	absurdGap = 30 * 24 * time.Hour
)

// checkClock compares the wall clock with where it was when the store was last
// in use. The wall clock decides all the same: due times are instants, and
// holding on to the mark would freeze them.
func (q *Queue) checkClock() error {
	mark, err := q.store.Clock()
	if err != nil || mark.IsZero() {
		return err
	}
	now := q.cfg.Now().Round(0)
	switch gap := now.Sub(mark); {
	case gap < -time.Second:
		q.cfg.Log.Warn("the wall clock is behind where it was when this store was last in use: schedules are late by that much until it catches up",
			"now", now, "mark", mark, "behind", -gap)
	case gap > absurdGap:
		q.cfg.Log.Warn("the wall clock is far ahead of where it was when this store was last in use: everything that became due meanwhile is delivered now",
			"now", now, "mark", mark, "ahead", gap)
	}
	return nil
}

// heartbeat notices jumps of the wall clock, notes where it is, and gives every
// source its share of the memory for pages, until the queue is closed.
func (q *Queue) heartbeat() {
	ticker := time.NewTicker(heartbeatEvery)
	defer ticker.Stop()
	wall, monotonic, mark := q.cfg.Now().Round(0), time.Now(), time.Time{}
	for {
		select {
		case <-q.stop:
			return
		case <-ticker.C:
		}
		now := q.cfg.Now().Round(0)
		jump := now.Sub(wall) - time.Since(monotonic)
		wall, monotonic = now, time.Now()
		if jump.Abs() > jumpTolerance {
			q.cfg.Log.Warn("the wall clock jumped; timers are set anew", "by", jump)
			q.expiry.note(now)
			q.expiry.anew.Store(true)
		}
		// Also without a jump: two jumps may have cancelled out since the last heartbeat,
		// and a timer that was set in between is wrong.
		q.feeds.Tidy()
		all := q.Sources()
		for _, s := range all {
			s.page.resize(q.pageRows(len(all)))
			q.cfg.Wake(s)
		}
		if now.Sub(mark).Abs() >= time.Minute { // also when the clock went back
			mark = now
			if err := q.store.SetClock(now); err != nil && RefusalOfEndedStore(err) == nil {
				q.cfg.Log.Error("the clock's mark cannot be written", "error", err)
			}
		}
	}
}
