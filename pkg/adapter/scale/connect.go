package scale

import (
	"context"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const (
	// A connection is tried each dialEvery, and given up after dialTime: a lost packet costs
	// no second. Dials of them are under way at a time.
	dialEvery = 25 * time.Millisecond
	dialTime  = 200 * time.Millisecond
	dials     = int(dialTime / dialEvery)
	// After fastTime one connection a second is tried: many workloads may not start.
	fastTime = 15 * time.Second
	slowDial = time.Second
)

// connect lets the members connect whose keys wait while the workload may be awake, and those
// deliver that have tried for startTimeout. It returns when the next of them has. The
// caller holds the lock.
func (t *target) connect(now time.Time, needed bool) (at time.Time) {
	maybeAwake := t.known && t.replicas > 0 || t.failures > 0
	for _, m := range t.members {
		if !needed || !m.connects(now) || !maybeAwake {
			m.stopProbe()
			if !m.waits {
				m.since = time.Time{}
			}
			continue
		}
		if m.since.IsZero() {
			m.since = now
		}
		deadline := m.since.Add(m.src.Scale.StartTimeout)
		if !deadline.After(now) {
			t.giveUp(m)
			continue
		}
		at = earliest(at, deadline)
		if m.probe == nil {
			ctx, cancel := context.WithCancel(t.keeper.ctx)
			m.probe = cancel
			fast := fastTime
			if t.failures > 0 {
				fast = 0
			}
			t.keeper.work.Go(func() { t.probe(ctx, m, m.src, fast) })
		}
	}
	return at
}

func (m *Member) stopProbe() {
	if m.probe != nil {
		m.probe()
		m.probe = nil
	}
}

// probe tries to connect until ctx ends.
func (t *target) probe(ctx context.Context, m *Member, src *schedule.Spec, fast time.Duration) {
	if !reach(ctx, fast, func(ctx context.Context) error { return t.keeper.cfg.Connect(ctx, src) }) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	t.connected(m)
	t.update()
}

// reach dials again and again until one connects, often for the time fast and then seldom; false:
// ctx ended first.
func reach(ctx context.Context, fast time.Duration, dial func(context.Context) error) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done, slots := make(chan struct{}, 1), make(chan struct{}, dials)
	every, most := dialEvery, dialTime
	timer := time.NewTimer(0)
	defer timer.Stop()
	for began := time.Now(); ; {
		select {
		case <-done:
			return true
		case <-ctx.Done():
			return false
		case <-timer.C:
		}
		if time.Since(began) >= fast {
			every, most = slowDial, slowDial
		}
		timer.Reset(every)
		limit := most
		select {
		case slots <- struct{}{}:
			go func() {
				defer func() { <-slots }()
				ctx, cancel := context.WithTimeout(ctx, limit)
				defer cancel()
				if dial(ctx) == nil {
					select {
					case done <- struct{}{}:
					default:
					}
				}
			}()
		default: // all are under way
		}
	}
}

// connected lets the deliveries of a member start: its sink has accepted a connection.
func (t *target) connected(m *Member) {
	now := time.Now()
	m.stopProbe()
	m.open, m.forced, m.waits, m.since = true, false, false, time.Time{}
	t.active, t.slow = now, false
	t.releaseSlot()
	t.startEnded(now)
	t.setState(awake, now)
	if t.Reason == ReasonStartTimeout {
		t.setProblem("", "")
	}
	go m.ready()
}

// startEnded notes how long a start took, if one is under way.
func (t *target) startEnded(now time.Time) {
	if !t.started.IsZero() {
		t.LastStart, t.started = now.Sub(t.started), time.Time{}
		t.keeper.cfg.Started(t.id.namespace, t.LastStart)
	}
}

// giveUp lets the deliveries of a member start although its sink accepts no connection.
func (t *target) giveUp(m *Member) {
	m.stopProbe()
	m.forced, m.waits, m.since = true, false, time.Time{}
	t.slow = true
	t.releaseSlot()
	if t.Reason == "" {
		t.setProblem(ReasonStartTimeout, "The sink accepted no connection within "+m.src.Scale.StartTimeout.String()+
			" after the workload was scaled up. Look at its pods, and at the Service in front of them.")
	}
	go m.ready()
}
