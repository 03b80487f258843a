package scale

import (
	"context"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Member is a source with its workload. Its methods are for one caller at a time.
type Member struct {
	keeper *Keeper
	src    *schedule.Spec
	ready  func()                          // deliveries may start
	isDue  func(within time.Duration) bool // reads the index; what Next said may be stale
	back   *Member                         // gives the workload back that the source held before; nil: none

	// Set by Keeper.enter, and under target.mu.
	target   *target // nil: it has none
	workload schedule.Workload
	due      time.Time // when the next key is due; zero: unknown
	dueAt    time.Time // the same, by the clock of the dispatcher
	staleAt  time.Time // a dueAt at which no key is due: it needs no warm-up
	underWay int
	waits    bool               // a due key waits for a connection
	since    time.Time          // when it began to connect
	open     bool               // the sink accepted a connection
	missed   bool               // since the last answer a delivery could not connect
	forced   bool               // it did not within startTimeout: deliveries find out
	pass     bool               // one delivery may start: the key that seemed due may be gone
	probe    context.CancelFunc // nil: it does not try to connect
	failed                      // only without a sink
	given    func()             // of a member that gives back: called when that is done
}

// Join returns the member of a source that has so many deliveries under way. ready is called in a
// goroutine of its own when Admit may be true; isDue reports whether a key is due within that time.
func (k *Keeper) Join(src *schedule.Spec, underWay int, ready func(), isDue func(within time.Duration) bool) *Member {
	m := &Member{keeper: k, ready: ready, isDue: isDue, underWay: underWay}
	m.Set(src)
	return m
}

// observes reports that the workload is only counted.
func (m *Member) observes() bool { return m.given == nil && m.src.Scale.Mode == schedule.ScaleObserve }

// Set puts the settings of the source in force. The one before may have had another workload.
func (m *Member) Set(src *schedule.Spec) {
	before := m.src
	if src == before {
		return
	}
	if before != nil && m.target != nil && (src.Scale.Mode == "" || !src.Scale.Same(m.workload) || m.observes() != (src.Scale.Mode == schedule.ScaleObserve)) {
		m.keeper.leave(m)
		m.target = nil
	}
	switch {
	case m.target != nil:
		m.target.mu.Lock()
		m.src, m.workload = src, src.Scale.Workload
		m.target.update()
		m.target.mu.Unlock()
	case src.Scale.Mode != "":
		m.src = src
		m.keeper.enter(m, src.Scale.Workload, m.keeper.cfg.Saved(src))
	default:
		m.src = src
	}
	m.giveBack()
}

// giveBack scales up the workload that the status names, if it is not the source's any more.
func (m *Member) giveBack() {
	held, scale := m.src.Scale.Held, &m.src.Scale
	keeps := held == schedule.Workload{} || scale.Scales() && scale.Same(held)
	if m.back != nil && (keeps || m.back.workload != held) {
		m.keeper.leave(m.back)
		m.back = nil
	}
	if keeps || m.back != nil {
		return
	}
	m.back = &Member{keeper: m.keeper, src: m.src, ready: func() {}}
	src := m.src
	m.back.given = func() { m.keeper.cfg.Changed(src) }
	m.keeper.enter(m.back, held, schedule.ScaleStatus{})
}

// held is the workload that the status must name.
func (m *Member) held() schedule.Workload {
	switch scale := &m.src.Scale; {
	case m.back != nil && !m.back.target.gaveBack(m.back):
		return scale.Held
	case scale.Scales():
		return scale.Workload
	}
	return schedule.Workload{}
}

// wakeAt is when the workload is needed: warmUp before the next key is due; zero: no time is known.
func (m *Member) wakeAt() time.Time {
	if m.due.IsZero() || m.src.WarmUp == 0 || m.dueAt.Equal(m.staleAt) {
		return m.due
	}
	return m.due.Add(-m.src.WarmUp)
}

// connects reports whether the member needs a connection now.
func (m *Member) connects(now time.Time) bool {
	if m.open || m.forced || m.sinkless() {
		return false
	}
	at := m.wakeAt()
	return m.waits || m.src.WarmUp > 0 && !at.IsZero() && !at.After(now)
}

// Leave ends the member. Its workload stays as it is.
func (m *Member) Leave() {
	if m.back != nil {
		m.keeper.leave(m.back)
	}
	if m.target != nil {
		m.keeper.leave(m)
	}
}

// Admit reports whether a delivery may start, for a key that is due for so long. If not, ready is
// called when it may. Without a sink it may when the key is done or has failed.
func (m *Member) Admit(overdue time.Duration) bool {
	t := m.target
	if t == nil || m.observes() {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if m.pass {
		m.pass = false
		return true
	}
	now := time.Now()
	if m.sinkless() {
		return m.admitEnd(now.Add(-overdue))
	}
	if m.due.IsZero() || m.due.After(now) {
		m.due = now
	}
	if m.waits = !m.open && !m.forced; !m.waits {
		t.active = now // until Begin the key may seem not to be due
	}
	t.update()
	return !m.waits
}

// Next notes in which time the next key is due, and at which instant of the dispatcher's clock; less
// than 0: no time is known.
func (m *Member) Next(wait time.Duration, at time.Time) {
	t := m.target
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	m.waits, m.pass = false, false
	m.due, m.dueAt = time.Time{}, at
	if wait >= 0 {
		m.due = time.Now().Add(wait)
	}
	t.update()
}

// Begin notes that a delivery begins.
func (m *Member) Begin() {
	t := m.target
	if t == nil {
		m.underWay++
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	m.underWay++
	t.update()
}

// Unreached notes that a delivery could not connect, and reports whether that is no attempt: the
// workload is looked at again, and the key waits for a connection.
func (m *Member) Unreached() bool {
	t := m.target
	if t == nil || m.observes() {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case m.forced, m.open && m.missed:
		t.lookAt = time.Time{} // another hand may have scaled it down
		return false
	case m.open:
		m.open, m.missed, t.known = false, true, false
	}
	return true
}

// End notes that a delivery has ended, and whether the sink has answered.
func (m *Member) End(answered bool) {
	t := m.target
	if t == nil {
		m.underWay--
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	m.underWay--
	if !m.sinkless() || m.observes() { // without a sink it was idle for cooldown already
		t.active = time.Now()
	}
	if answered {
		m.missed = false
		if m.forced {
			t.connected(m)
		}
	}
	t.update()
}

// Status is the state of the workload.
func (m *Member) Status() schedule.ScaleStatus {
	s := schedule.ScaleStatus{}
	if t := m.target; t != nil {
		s = t.status()
	}
	if m.back != nil && s.Reason == "" {
		back := m.back.target.status()
		s.Reason, s.Message = back.Reason, back.Message
	}
	s.Held = m.held()
	return s
}
