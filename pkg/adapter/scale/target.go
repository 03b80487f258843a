package scale

import (
	"slices"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The states of a workload.
const (
	asleep   = "Asleep"
	starting = "Starting"
	awake    = "Awake"
)

// target is a workload of one or more sources. All of it is under mu.
type target struct {
	keeper *Keeper
	id     id

	mu      sync.Mutex
	members []*Member
	running bool // a goroutine makes a call; it decides again afterwards
	timer   *time.Timer
	timerAt time.Time

	known    bool
	replicas int32
	active   time.Time // when it was needed last
	hold     time.Time // it is not told to sleep before
	lookedAt time.Time // when it was looked at last
	lookAt   time.Time // when it is looked at next

	slot    *slot
	slotEnd time.Time // zero: not started yet
	started time.Time // of a start under way; zero: there is none
	slow    bool      // the last start took longer than startTimeout

	pods
	calls
	figures
}

// calls are what is known of calls that failed.
type calls struct {
	failed   action // the call that failed last
	failures int    // in a row
	retryAt  time.Time
}

func newTarget(k *Keeper, key id, saved schedule.ScaleStatus) *target {
	t := &target{keeper: k, id: key, pods: pods{quiet: newQuiet(saved.Quiet, time.Now())}}
	t.figures = figures{ScaleStatus: saved, counted: time.Now()}
	t.State, t.Reason, t.Message, t.Held = "", "", "", schedule.Workload{}
	t.timer = time.AfterFunc(time.Hour, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.timerAt = time.Time{}
		t.update()
	})
	t.timer.Stop()
	return t
}

// update decides again. The caller holds the lock.
func (t *target) update() {
	if t.keeper.ctx.Err() != nil {
		return
	}
	if t.running {
		if t.observed() { // what is counted does not wait for the call
			t.decide(time.Now())
		}
		return
	}
	if act := t.step(); act != rest {
		t.running = true
		t.keeper.work.Go(func() { t.run(act) })
	}
}

// run makes calls until there is none to make.
func (t *target) run(act action) {
	for act != rest {
		t.call(act)
		t.keeper.mu.Lock()
		t.mu.Lock()
		if act = rest; t.keeper.ctx.Err() == nil {
			act = t.step()
		}
		if act == rest {
			t.running = false
			t.keeper.forgetIdle(t)
		}
		t.mu.Unlock()
		t.keeper.mu.Unlock()
	}
}

// step decides what to do now, and does what needs no call. The caller holds the lock.
func (t *target) step() action {
	now := time.Now()
	t.giveBack()
	v, act, at := t.decide(now)
	needed := v.needed(now)
	at = earliest(at, earliest(t.connect(now, needed), t.settle(now)))
	if act == wake && !t.hasSlot() {
		act = rest
	}
	if !needed {
		t.releaseSlot()
	} else if !t.slotEnd.IsZero() {
		if t.slotEnd.After(now) {
			at = earliest(at, t.slotEnd)
		} else {
			t.releaseSlot()
		}
	}
	if act == rest {
		var lookAt time.Time
		if act, lookAt = t.looks(&v); lookAt.After(now) {
			act, at = rest, earliest(at, lookAt)
		}
	}
	if act != rest && t.retryAt.After(now) {
		act, at = rest, earliest(at, t.retryAt)
	}
	switch act {
	case lull:
		t.close()
	case rest:
		t.arm(at)
	}
	return act
}

// decide decides on the workload. For one that is only counted it makes the calls, without an API
// server.
func (t *target) decide(now time.Time) (view, action, time.Time) {
	for {
		v := t.view(now)
		act, at := v.decide(now)
		if !t.observed() || act == rest {
			return v, act, at
		}
		t.pretend(act, now)
	}
}

// looks returns the look that a workload at rest needs, and when.
func (t *target) looks(v *view) (action, time.Time) {
	switch {
	case t.examines(v), t.failures > 0 && t.failed == examine && len(examiners(t.members)) > 0: // also asleep: the right may have come
		return examine, latest(t.examineAt, t.noTurn)
	case t.observed():
	case t.connects(): // it may have been scaled down meanwhile
		return look, earliest(t.lookAt, t.lookedAt.Add(pollLeast))
	case v.replicas == 0, v.stays:
		return look, t.lookAt
	}
	return rest, time.Time{}
}

// connects reports whether a due key has no connection.
func (t *target) connects() bool {
	return slices.ContainsFunc(t.members, func(m *Member) bool { return m.waits || m.forced })
}

// view is what decide needs.
func (t *target) view(now time.Time) view {
	v := view{known: t.known || len(t.members) == 0, replicas: t.replicas, active: latest(t.active, t.worked), hold: t.hold, maySleep: !t.unread}
	for _, m := range t.members {
		scale := &m.src.Scale
		v.underWay += m.underWay
		v.stays = v.stays || m.given != nil || scale.Mode == schedule.ScaleAwake
		v.maySleep = v.maySleep && (m.observes() || scale.Recorded)
		v.cooldown = max(v.cooldown, scale.Cooldown)
		if m.due.IsZero() {
			continue
		}
		due := m.wakeAt()
		if m.observes() && !due.After(now) { // its deliveries are counted, not its keys
			continue
		}
		v.due = earliest(v.due, due)
	}
	if len(t.members) == 0 { // it stays as it is
		v.maySleep, v.replicas = false, max(v.replicas, 1)
	}
	return v
}

// observed reports that the workload is only counted. The caller holds the lock.
func (t *target) observed() bool { return t.id.observer != "" }

// pretend is a call for a workload that is only counted.
func (t *target) pretend(act action, now time.Time) {
	t.known, t.replicas = true, 0
	state := asleep
	if act == wake {
		t.replicas, state, t.quiet.woken = 1, awake, true
		t.Starts++
	}
	t.setState(state, now)
}

// hasSlot reports whether a start may begin, and lets it wait for its turn. The caller holds the lock.
func (t *target) hasSlot() bool {
	if t.slot == nil {
		ceilings := t.members[0].src.Ceilings
		s := &slot{namespace: t.id.namespace, most: ceilings.MaxStarts, mostAll: ceilings.MaxStartsOfAll}
		s.granted = func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.update()
		}
		t.slot = s
		t.keeper.slots.ask(s)
	}
	return t.keeper.slots.holds(t.slot)
}

func (t *target) releaseSlot() {
	if t.slot != nil {
		t.keeper.slots.release(t.slot)
		t.slot, t.slotEnd = nil, time.Time{}
	}
}

// close lets no delivery start: the workload is about to sleep.
func (t *target) close() {
	for _, m := range t.members {
		m.stopProbe()
		m.open, m.forced, m.missed, m.since = false, false, false, time.Time{}
	}
	t.started = time.Time{}
}

// drop takes a member out.
func (t *target) drop(m *Member) {
	m.stopProbe()
	m.open, m.forced, m.missed, m.waits, m.since, m.failedAt = false, false, false, false, time.Time{}, time.Time{}
	t.members = slices.DeleteFunc(t.members, func(other *Member) bool { return other == m })
}

// giveBack ends the members that give the workload back once it is awake or does not exist.
func (t *target) giveBack() {
	for _, m := range slices.Clone(t.members) {
		if m.given == nil {
			continue
		}
		if t.known && t.replicas > 0 || t.Reason == ReasonNoTarget {
			t.drop(m)
			m.given()
		}
	}
}

// gaveBack reports whether a member that gives back is done.
func (t *target) gaveBack(m *Member) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !slices.Contains(t.members, m)
}

// arm sets the timer, unless it goes off earlier: then update is called anyway.
func (t *target) arm(at time.Time) {
	if at.IsZero() || !t.timerAt.IsZero() && !at.Before(t.timerAt) {
		return
	}
	t.timerAt = at
	t.timer.Reset(time.Until(at))
}
