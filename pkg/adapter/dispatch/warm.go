package dispatch

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const (
	// awake is how long a sink is taken to be awake after a delivery or a call.
	awake = 30 * time.Second
	// warmUpTime bounds the call.
	warmUpTime = 30 * time.Second
)

// warming is what a lane has recorded of its sink's last delivery and warm-up.
type warming struct {
	active time.Time // the last start or end of a delivery, or the last call
	at     time.Time // the due time that was looked at last
	calls  atomic.Int64
}

// warmUp calls the sink if the next key of the lane is due soon and the sink may sleep,
// and returns how long the lane may wait. The call takes a slot and the memory of a
// delivery; without them it is left out. The caller holds the lock.
func (d *Dispatcher) warmUp(l *lane, s *schedule.Spec, nextAt time.Time, wait time.Duration) time.Duration {
	if early := wait - s.WarmUp; early > 0 {
		return early
	}
	w := &l.warming
	if w.at.Equal(nextAt) || l.inFlight > 0 || !w.active.IsZero() && time.Since(w.active) < awake {
		return wait
	}
	p := d.permit(s)
	if p == nil {
		return wait
	}
	w.at = nextAt
	d.workers.Go(func() {
		ctx, cancel := context.WithTimeout(l.ctx, warmUpTime)
		defer cancel()
		defer context.AfterFunc(d.warmUpsCtx, cancel)()
		// The row may be stale: its key was postponed or cancelled.
		if due, err := l.source.KeyDueBy(nextAt); due && err == nil {
			w.calls.Add(1)
			d.mu.Lock()
			w.active = time.Now()
			d.mu.Unlock()
			d.cfg.WarmUp(ctx, s)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		p.slot.Release()
		p.memory.Release()
		d.retryWaitingLanes()
	})
	return wait
}
