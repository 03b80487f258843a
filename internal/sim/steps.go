package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// steps are what the driver does, with how often.
var steps = []struct {
	weight int
	name   string
	run    func(*world, *rand.Rand)
}{
	{30, "request", stepRequest},
	{3, "burst", stepBurst},
	{6, "bulk", stepBulk},
	{3, "together", stepTogether},
	{8, "cancel", stepCancel},
	{2, "cancel all", stepCancelAll},
	{30, "wait", stepWait},
	{6, "reload", stepReload},
	{3, "edit", stepEdit},
	{4, "suspend", stepSuspend},
	{2, "remove", stepRemove},
	{3, "hang", stepHang},
	{4, "jump", stepJump},
	{6, "overlap", stepOverlap},
	{3, "crash", stepCrash},
	{2, "restart", stepRestart},
}

var names = []string{"a", "a/b", "b", "c", "ü", "d d", "e", "f"}

// step does the i-th step of the history.
func (w *world) step(i int) {
	r := rand.New(rand.NewPCG(w.h.seed, uint64(i)+1))
	total := 0
	for _, s := range steps {
		total += s.weight
	}
	n := r.IntN(total)
	for _, s := range steps {
		if n -= s.weight; n < 0 {
			w.note(remark(fmt.Sprintf("%d: %s", i, s.name)))
			w.draw(uint64(pick(r, 0, r.Int64N(1<<53), 1<<53-1)))
			s.run(w, r)
			break
		}
	}
	w.calls.Wait()
	w.ackTakes.Store(0)
	w.settle(r)
}

// draw sets what jitter draws.
func (w *world) draw(random uint64) {
	w.random.Store(random)
	w.note(drawn{w.drawn()})
}

func (w *world) drawn() float64 { return float64(w.random.Load()) / (1 << 53) }

// source draws one.
func (w *world) source(r *rand.Rand) string {
	return pick(r, slices.Sorted(maps.Keys(w.settings))...)
}

func (w *world) name(r *rand.Rand) string { return names[r.IntN(w.h.keys)] }

// tight reports that what has expired may decide whether there is space.
func (w *world) tight(uid string) bool {
	if w.settings[uid].MaxPending >= 100 {
		return false
	}
	_, linger := w.waiting(uid)
	return linger
}

// stepWait lets time pass: a little, a lot, or just until something is due.
func stepWait(w *world, r *rand.Rand) {
	d := pick(r, 1, time.Millisecond, 30*time.Millisecond, time.Second, time.Second, 2500*time.Millisecond, 10*time.Second, time.Minute, 20*time.Minute)
	if r.IntN(50) == 0 {
		d = pick(r, time.Hour, 3*time.Hour)
	}
	if r.IntN(400) == 0 && !w.naps() && !ticks(w) {
		d = pick[time.Duration](r, 24, 24*7, 24*45) * time.Hour
	}
	if r.IntN(2) == 0 {
		now, next := w.now(), time.Time{}
		for _, at := range w.instants() {
			if at.After(now) && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
		if left := next.Sub(now); !next.IsZero() && left < 2*time.Hour {
			d = max(left+pick[time.Duration](r, -1, 0, 1), 1)
		}
	}
	w.note(remark(fmt.Sprintf("  for %s", d)))
	time.Sleep(d)
}

// apply notes new settings of a source.
func (w *world) apply(settings *schedule.Spec) {
	w.settings[settings.UID] = settings
	w.note(applied{settings})
}

// set puts new settings of a source in force.
func (w *world) set(settings *schedule.Spec) {
	w.apply(settings)
	was := w.p.sources[settings.UID]
	s, err := w.p.q.Set(settings)
	if w.p.sources[settings.UID] = s; err == nil && s != was {
		err = w.p.follow(settings.UID, s)
	}
	if err != nil {
		w.broken("settings: %v", err)
	}
}

func stepReload(w *world, r *rand.Rand) { w.set(w.randomSettings(r, w.source(r))) }

// stepEdit edits or removes the schedule of a source; sometimes a crash cuts the move of its keys off.
func stepEdit(w *world, r *rand.Rand) {
	n := *w.settings[w.source(r)]
	n.Calendar = randomCalendar(r, 1)
	if r.IntN(4) == 0 {
		n.Calendar = nil
	}
	w.set(&n)
	synctest.Wait()
	if r.IntN(4) == 0 {
		stepCrash(w, r)
	}
}

// ticks reports that a calendar makes keys due again and again.
func ticks(w *world) bool {
	for uid, s := range w.settings {
		views, _ := w.waiting(uid)
		if s.Calendar != nil || slices.ContainsFunc(views, func(v schedule.View) bool { return v.Calendar != nil || v.OnSchedule }) {
			return true
		}
	}
	return false
}

func stepSuspend(w *world, r *rand.Rand) {
	n := *w.settings[w.source(r)]
	n.Suspend = !n.Suspend
	w.set(&n)
}

// stepRemove removes a source and adds it again, under the same uid.
func stepRemove(w *world, r *rand.Rand) {
	uid := w.source(r)
	old := w.p.sources[uid]
	settings := w.randomSettings(r, uid)
	w.note(removed{uid})
	if err := w.p.q.Remove(uid); err != nil {
		w.broken("remove: %v", err)
	}
	if r.IntN(2) == 0 {
		synctest.Wait()
	}
	w.p.d.Remove(old)
	if r.IntN(2) == 0 {
		time.Sleep(pick(r, time.Millisecond, time.Minute))
	}
	if _, _, err := old.Get("a"); err == nil {
		w.broken("a removed source still answers")
	}
	w.set(settings)
}

func stepHang(w *world, r *rand.Rand) {
	uid := w.source(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hangs[uid] = !w.hangs[uid]
	w.record(remark(fmt.Sprintf("  the sink of %s hangs: %v", uid, w.hangs[uid])))
}

// stepJump sets the wall clock.
func stepJump(w *world, r *rand.Rand) {
	d := pick(r, time.Second, time.Minute, time.Hour, 24*time.Hour, 30*24*time.Hour, 365*24*time.Hour)
	if r.IntN(3) == 0 { // close to a change of the clock, in March or in autumn
		name := pick(r, "Europe/Berlin", "America/New_York")
		_, change := w.now().In(zones[name]).ZoneBounds()
		if r.IntN(2) == 0 {
			_, change = change.ZoneBounds()
		}
		d = max(change.Sub(w.now())-pick(r, 3*time.Hour, time.Hour, time.Minute, 0, -time.Hour), time.Minute)
	}
	if r.IntN(2) == 0 {
		d = -min(d, 24*time.Hour)
		if !w.expired(r) {
			return
		}
	}
	w.jump(d)
}

func (w *world) jump(d time.Duration) {
	w.note(jumped{d})
	w.offset.Add(int64(d))
}

// expired waits until all that has expired is dropped, so that it does not come back
// when the clock does; and the drop is durable, a second later, in which nothing
// else may have expired.
func (w *world) expired(r *rand.Rand) bool {
	for range 20 {
		time.Sleep(3*heartbeat + 1)
		w.settle(r)
		calm := true
		for uid := range w.settings {
			views, linger := w.waiting(uid)
			calm = calm && !linger && !slices.ContainsFunc(views, func(v schedule.View) bool {
				return v.State != schedule.InFlight && !v.ExpiresAt.IsZero() && v.ExpiresAt.Sub(w.now()) <= time.Second
			})
		}
		time.Sleep(time.Second)
		w.settle(r)
		if calm {
			return w.ok()
		}
	}
	return false
}

// stepOverlap has operations wait for the disk at the same time; in the end
// they are acknowledged, or a crash comes first.
func stepOverlap(w *world, r *rand.Rand) {
	const most = 20 * time.Millisecond
	takes := pick(r, time.Millisecond, 5*time.Millisecond, most)
	w.ackTakes.Store(int64(takes))
	crash := r.IntN(2) == 0
	for range 1 + r.IntN(5) {
		w.note(slow{time.Now().Add(7*time.Millisecond + 2*time.Duration(schedule.Bands)*takes)})
		switch r.IntN(6) {
		case 0:
			stepCancel(w, r)
		case 1:
			stepBulk(w, r)
		default:
			stepRequest(w, r)
		}
		if r.IntN(3) == 0 {
			time.Sleep(pick(r, 0, time.Millisecond, 7*time.Millisecond))
			synctest.Wait()
		}
	}
	if crash {
		stepCrash(w, r)
		return
	}
	w.calls.Wait()
	w.ackTakes.Store(0)
	time.Sleep(2 * time.Duration(schedule.Bands) * most) // what began slowly ends
}

// stepCrash ends the process and the power, and starts on what is left.
func stepCrash(w *world, r *rand.Rand) {
	w.mu.Lock()
	w.record(down{crash: true})
	w.p.dead = true
	old := w.disk
	var err error
	if w.disk, err = old.crash(pick(r, 0, 0, 30, 70, 100), r); err != nil {
		w.fail("crash: %v", err)
		w.disk = old
	}
	w.mu.Unlock()
	w.ackTakes.Store(0)
	w.stop(0)
	w.calls.Wait()
	if r.IntN(3) == 0 {
		time.Sleep(pick(r, time.Second, 20*time.Minute))
	}
	w.resumeBusy(r)
}

// resumeBusy starts again, and sometimes much comes in while the first pages
// are still loading.
func (w *world) resumeBusy(r *rand.Rand) {
	if r.IntN(3) > 0 {
		w.resume()
		return
	}
	const takes = 5 * time.Millisecond
	w.ackTakes.Store(int64(takes))
	w.note(slow{time.Now().Add(5 * time.Duration(schedule.Bands) * takes)})
	w.resume()
	synctest.Wait() // a call begins while nothing moves: the loads wait for the disk
	if w.ok() {
		stepBulk(w, r)
		stepBulk(w, r)
	}
	w.calls.Wait()
	w.ackTakes.Store(0)
	time.Sleep(2 * time.Duration(schedule.Bands) * takes)
}

// stepRestart ends the process as a signal does, and starts it again.
func stepRestart(w *world, r *rand.Rand) {
	w.stop(pick(r, 0, time.Second, 10*time.Second))
	w.note(down{})
	if r.IntN(3) == 0 {
		time.Sleep(time.Minute)
	}
	w.resumeBusy(r)
}

// drain ends the history: nothing holds deliveries back any more, all sinks are
// well and all times come.
func (w *world) drain(r *rand.Rand) {
	w.mu.Lock()
	w.draining = true
	w.record(remark("drain"))
	w.calm()
	w.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(w.settings)) {
		n := *w.settings[uid]
		n.Suspend, n.MaxPerSecond, n.MaxInFlight, n.MaxInterval, n.Calendar = false, 0, 100, 0, nil
		if n.Scale.Sinkless {
			n.Scale.Cooldown = time.Second
		}
		w.set(&n)
	}
	time.Sleep(25 * time.Minute) // what hangs
	for range 3 {                // what a restart left owed is due once more, and what that makes again
		w.settle(r)
		w.jump(latest(w.now(), w.instants()...).Sub(w.now()))
		time.Sleep(3 * heartbeat)
	}
	w.settle(r)
	w.note(drained{})
}
