package scale

import (
	"context"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const (
	// A connection is tried each dialEvery, and given up after dialTime: a lost packet costs
	// no second. So many are tried at a time.
	dialEvery = 25 * time.Millisecond
	dialTime  = time.Second
	dials     = int(dialTime / dialEvery)
)

// connect lets the members connect whose keys wait while the workload may be awake, and those
// deliver that have tried for startTimeout. It returns when the next of them has. The
// caller holds the lock.
func (t *target) connect(now time.Time, needed bool) (at time.Time) {
	maybeAwake := t.known && t.replicas > 0 || t.failures > 0
	for _, m := range t.members {
		if !needed || !m.waits || !maybeAwake {
			m.stopProbe()
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
			t.keeper.work.Go(func() { t.probe(ctx, m, m.src) })
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
func (t *target) probe(ctx context.Context, m *Member, src *schedule.Spec) {
	if !reach(ctx, func(ctx context.Context) error { return t.keeper.cfg.Connect(ctx, src) }) {
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

// reach dials again and again until one connects; false: ctx ended first.
func reach(ctx context.Context, dial func(context.Context) error) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done, slots := make(chan struct{}, 1), make(chan struct{}, dials)
	for timer := time.NewTicker(dialEvery); ; {
		select {
		case slots <- struct{}{}:
			go func() {
				defer func() { <-slots }()
				ctx, cancel := context.WithTimeout(ctx, dialTime)
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
		select {
		case <-done:
			timer.Stop()
			return true
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
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
	if !t.started.IsZero() {
		t.LastStart, t.started = now.Sub(t.started), time.Time{}
		t.keeper.cfg.Started(t.id.namespace, t.LastStart)
	}
	t.setState(awake, now)
	if t.Reason == ReasonStartTimeout {
		t.setProblem("", "")
	}
	go m.ready()
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
