package sim

import (
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
	{30, "request", (*world).stepRequest},
	{3, "burst", (*world).stepBurst},
	{6, "bulk", (*world).stepBulk},
	{3, "together", (*world).stepTogether},
	{8, "cancel", (*world).stepCancel},
	{2, "cancel all", (*world).stepCancelAll},
	{30, "wait", (*world).stepWait},
	{6, "reload", (*world).stepReload},
	{4, "suspend", (*world).stepSuspend},
	{2, "remove", (*world).stepRemove},
	{3, "hang", (*world).stepHang},
	{4, "jump", (*world).stepJump},
	{6, "overlap", (*world).stepOverlap},
	{3, "crash", (*world).stepCrash},
	{2, "restart", (*world).stepRestart},
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
			w.mu.Lock()
			w.note("%d: %s", i, s.name)
			w.mu.Unlock()
			w.random.Store(uint64(pick(r, 0, r.Int64N(1<<53), 1<<53-1)))
			s.run(w, r)
			break
		}
	}
	w.calls.Wait()
	w.ackTakes.Store(0)
	w.settle(r)
}

// source draws one.
func (w *world) source(r *rand.Rand) (string, *source) {
	uid := pick(r, slices.Sorted(maps.Keys(w.m.sources))...)
	return uid, w.m.sources[uid]
}

func (w *world) name(r *rand.Rand) string { return names[r.IntN(w.h.keys)] }

// tight says that what has expired may decide whether there is room.
func (w *world) tight(s *source) bool {
	return s.settings.MaxPending < 100 && w.m.lingering(s) > 0
}

// stepWait lets time pass: a little, a lot, or just until something is due.
func (w *world) stepWait(r *rand.Rand) {
	d := pick(r, 1, time.Millisecond, 30*time.Millisecond, time.Second, time.Second, 2500*time.Millisecond, 10*time.Second, time.Minute, 20*time.Minute)
	if r.IntN(50) == 0 {
		d = pick(r, time.Hour, 3*time.Hour)
	}
	if r.IntN(400) == 0 {
		d = pick[time.Duration](r, 24, 24*7, 24*45) * time.Hour
	}
	if r.IntN(2) == 0 {
		w.mu.Lock()
		now, next := w.now(), time.Time{}
		for _, s := range w.m.sources {
			for _, k := range s.keys {
				if k.cur == nil {
					continue
				}
				for _, at := range []time.Time{k.cur.at(), k.cur.expiresAt} {
					if at.After(now) && (next.IsZero() || at.Before(next)) {
						next = at
					}
				}
			}
		}
		if left := next.Sub(now); !next.IsZero() && left < 2*time.Hour {
			d = max(left+pick[time.Duration](r, -1, 0, 1), 1)
		}
		w.mu.Unlock()
	}
	w.mu.Lock()
	w.note("  for %s", d)
	w.mu.Unlock()
	time.Sleep(d)
}

// set puts new settings of a source in force.
func (w *world) set(uid string, settings *schedule.Source) {
	w.mu.Lock()
	w.m.observe()
	s := w.m.sources[uid]
	old := s.settings
	s.settings = settings
	w.incarnations[settings] = s
	if old.MaxPerSecond != settings.MaxPerSecond {
		// A new limit begins with a full burst, at the latest after a second.
		s.tokens, s.tokensAt = 1e9, time.Now()
		s.blockedAt = time.Now().Add(time.Second)
	}
	p := w.p
	w.note("  %s: sink %s suspend %v limits %d %d %d policy %s ingest %s delay %s interval %s retry %v backoff %s linear %v", uid, settings.Sink.URL, settings.Suspend,
		settings.MaxInFlight, settings.MaxPerSecond, settings.MaxPending, settings.Policy, settings.IngestPolicy, settings.Delay, settings.MaxInterval,
		settings.Delivery.Retry, settings.Delivery.BackoffDelay, settings.Delivery.Linear)
	w.mu.Unlock()
	if _, err := p.q.Set(settings); err != nil {
		w.broken("reload: %v", err)
	}
}

func (w *world) stepReload(r *rand.Rand) {
	uid, _ := w.source(r)
	w.set(uid, w.settings(r, uid))
}

func (w *world) stepSuspend(r *rand.Rand) {
	uid, s := w.source(r)
	n := *s.settings
	n.Suspend = !n.Suspend
	w.set(uid, &n)
}

// stepRemove removes a source and adds it again, under the same uid or as
// another.
func (w *world) stepRemove(r *rand.Rand) {
	uid, s := w.source(r)
	old := w.p.sources[uid]
	w.mu.Lock()
	w.m.observe()
	s.gone = true
	n := &source{settings: w.settings(r, uid), keys: map[string]*key{}, tokens: 1e9, tokensAt: time.Now(), blockedAt: time.Now()}
	for name, k := range s.keys { // what was seen of its revisions holds for ever
		if !schedule.IsDeadLetterKey(name) {
			w.m.newest[n.key(name)] = w.m.newest[k]
		}
	}
	w.m.sources[uid] = n
	w.incarnations[n.settings] = n
	w.m.log, w.m.acked = nil, 0 // it is as durable as all before it
	w.mu.Unlock()
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
	var err error
	if w.p.sources[uid], err = w.p.q.Set(n.settings); err != nil {
		w.broken("add: %v", err)
	}
	w.mu.Lock()
	n.blockedAt = time.Now()
	w.mu.Unlock()
}

func (w *world) stepHang(r *rand.Rand) {
	w.mu.Lock()
	defer w.mu.Unlock()
	uid, _ := w.source(r)
	w.hangs[uid] = !w.hangs[uid]
	w.note("  the sink of %s hangs: %v", uid, w.hangs[uid])
}

// stepJump sets the wall clock.
func (w *world) stepJump(r *rand.Rand) {
	d := pick(r, time.Second, time.Minute, time.Hour, 24*time.Hour, 30*24*time.Hour, 365*24*time.Hour)
	if r.IntN(2) == 0 {
		d = -min(d, 24*time.Hour)
		// What expired is dropped first, and does not come back; and the drop is
		// durable, a second later, in which nothing else may have expired.
		for lingering := true; lingering; {
			lingering = w.lingers(r, 3*heartbeat+1)
			lingering = w.lingers(r, time.Second) || lingering
		}
	}
	w.mu.Lock()
	w.m.checkOrder()
	w.offset.Add(int64(d))
	w.m.jumpAt = time.Now()
	w.m.backwards = w.m.backwards || d < 0
	w.note("  by %s", d)
	w.mu.Unlock()
}

// lingers waits, and says whether an entry has expired that may still be there.
func (w *world) lingers(r *rand.Rand, wait time.Duration) bool {
	time.Sleep(wait)
	w.settle(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed == "" && w.m.anyLingering()
}

// stepOverlap has operations wait for the disk at the same time; in the end
// they are acknowledged, or a crash comes first.
func (w *world) stepOverlap(r *rand.Rand) {
	const most = 20 * time.Millisecond
	takes := pick(r, time.Millisecond, 5*time.Millisecond, most)
	w.ackTakes.Store(int64(takes))
	crash := r.IntN(2) == 0
	for range 1 + r.IntN(5) {
		w.mu.Lock()
		w.m.slowUntil = time.Now().Add(7*time.Millisecond + 2*takes)
		w.mu.Unlock()
		switch r.IntN(6) {
		case 0:
			w.stepCancel(r)
		case 1:
			w.stepBulk(r)
		default:
			w.requestOnce(r, r.Int())
		}
		if r.IntN(3) == 0 {
			time.Sleep(pick(r, 0, time.Millisecond, 7*time.Millisecond))
			synctest.Wait()
		}
	}
	if crash {
		w.stepCrash(r)
		return
	}
	w.calls.Wait()
	w.ackTakes.Store(0)
	time.Sleep(2 * most) // what began slowly ends
}

// stepCrash ends the process and the power, and starts on what is left.
func (w *world) stepCrash(r *rand.Rand) {
	w.mu.Lock()
	w.m.checkOrder()
	w.p.dead = true
	w.m.down()
	old := w.disk
	var err error
	if w.disk, err = old.crash(pick(r, 0, 0, 30, 70, 100), r); err != nil {
		w.fail("crash: %v", err)
		w.disk = old
	}
	w.note("  crash")
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
	w.mu.Lock()
	w.m.slowUntil = time.Now().Add(5 * takes)
	w.mu.Unlock()
	w.resume()
	if w.ok() {
		w.stepBulk(r)
		w.stepBulk(r)
	}
	w.calls.Wait()
	w.ackTakes.Store(0)
	time.Sleep(2 * takes)
}

// stepRestart ends the process as a signal does, and starts it again.
func (w *world) stepRestart(r *rand.Rand) {
	w.stop(pick(r, 0, time.Second, 10*time.Second))
	w.mu.Lock()
	w.m.down()
	w.m.acked = len(w.m.log) // closing is a flush
	w.note("  stopped")
	w.mu.Unlock()
	if r.IntN(3) == 0 {
		time.Sleep(time.Minute)
	}
	w.resumeBusy(r)
}

// drain ends the history: nothing holds deliveries back any more, all sinks are
// well and all times come. What is acknowledged is delivered then.
func (w *world) drain(r *rand.Rand) {
	w.mu.Lock()
	w.note("drain")
	w.draining = true
	uids := slices.Sorted(maps.Keys(w.m.sources))
	w.mu.Unlock()
	for _, uid := range uids {
		n := *w.m.sources[uid].settings
		n.Suspend, n.MaxPerSecond, n.MaxInFlight, n.MaxInterval = false, 0, 100, 0
		w.set(uid, &n)
	}
	time.Sleep(25 * time.Minute) // what hangs
	w.settle(r)
	w.mu.Lock()
	w.m.checkOrder()
	last := w.now()
	for _, s := range w.m.sources {
		for _, k := range s.keys {
			if k.cur != nil {
				last = latest(last, k.cur.at(), k.cur.owedAt)
			}
		}
	}
	w.offset.Add(int64(last.Sub(w.now())))
	w.m.jumpAt = time.Now()
	w.mu.Unlock()
	time.Sleep(3 * heartbeat)
	w.settle(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid, s := range w.m.sources {
		for name, k := range s.keys {
			if k.present(w.now()) != nil {
				w.fail("nothing acknowledged is lost: %s/%q is not delivered in the end: %s", uid, name, w.m.describe(k))
			}
		}
	}
}
