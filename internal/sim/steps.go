package sim

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
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

func (w *world) stepRequest(r *rand.Rand) { w.requestOnce(r, r.Int()) }

// stepBurst schedules a few keys again and again for the same few instants.
func (w *world) stepBurst(r *rand.Rand) {
	uid, s := w.source(r)
	base := w.now().Round(0).Add(pick(r, 0, time.Second, time.Minute))
	for range 4 + r.IntN(12) {
		w.mu.Lock()
		if !w.tight(s) {
			q := &schedule.Request{DueAt: base.Add(time.Duration(r.IntN(3)) * time.Second), Policy: pick(r, schedule.Replace, schedule.Earliest, schedule.Earliest)}
			w.send(uid, s, w.name(r), q)
			continue
		}
		w.mu.Unlock()
	}
}

func (w *world) requestOnce(r *rand.Rand, number int) {
	w.mu.Lock()
	uid, s := w.source(r)
	if w.tight(s) {
		w.mu.Unlock()
		return
	}
	name := w.name(r)
	w.send(uid, s, name, w.request(r, s, s.keys[name], number))
}

// send makes a request. The caller holds the lock, which send releases.
func (w *world) send(uid string, s *source, name string, q *schedule.Request) {
	want := w.m.request(s, name, q, w.share())
	w.note("  %s/%s %s: want %q %s", uid, name, requestText{q}, want.code, want.result)
	w.mu.Unlock()
	w.call(func(p *process) (string, bool) {
		got, err := p.sources[uid].Schedule(name, q)
		if err != nil && !errors.As(err, &got.Err) {
			return fmt.Sprintf("PUT %s/%s: %v", uid, name, err), false
		}
		return w.judge(fmt.Sprintf("PUT %s/%s", uid, name), want, got), got.Err == nil
	})
}

func (w *world) share() float64 { return float64(w.random.Load()) / (1 << 53) }

// judge compares an answer, "" when it is right.
func (w *world) judge(what string, want answer, got queue.Scheduled) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if diff := w.m.answers(want, got); diff != "" {
		return fmt.Sprintf("%s: %s\n  the answer: %+v %v", what, diff, got, got.Err)
	}
	return ""
}

func (w *world) items(r *rand.Rand, s *source) []queue.Item {
	items := make([]queue.Item, pick(r, r.IntN(7), r.IntN(20)))
	for i := range items {
		name := w.name(r)
		items[i] = queue.Item{Key: name, Request: *w.request(r, s, s.keys[name], r.Int())}
	}
	return items
}

func (w *world) stepBulk(r *rand.Rand) {
	w.mu.Lock()
	uid, s := w.source(r)
	if w.tight(s) {
		w.mu.Unlock()
		return
	}
	items := w.items(r, s)
	end := s.together()
	want := make([]answer, len(items))
	for i := range items {
		want[i] = w.m.request(s, items[i].Key, &items[i].Request, w.share())
		w.note("  %s/%s %s: want %q %s", uid, items[i].Key, requestText{&items[i].Request}, want[i].code, want[i].result)
	}
	end()
	w.mu.Unlock()
	w.call(func(p *process) (string, bool) {
		got, err := p.sources[uid].ScheduleAll(items)
		if err != nil {
			return fmt.Sprintf("bulk: %v", err), false
		}
		for i := range got {
			if problem := w.judge(fmt.Sprintf("bulk %s, item %d, %q", uid, i, items[i].Key), want[i], got[i]); problem != "" {
				return problem, false
			}
		}
		return "", true
	})
}

// stepTogether schedules all or none.
func (w *world) stepTogether(r *rand.Rand) {
	w.mu.Lock()
	uid, s := w.source(r)
	if w.tight(s) {
		w.mu.Unlock()
		return
	}
	items := w.items(r, s)
	end, undo := s.together(), w.m.save(s)
	var code schedule.Code
	for i := range items {
		a := w.m.request(s, items[i].Key, &items[i].Request, w.share())
		w.note("  %s/%s %s: want %q", uid, items[i].Key, requestText{&items[i].Request}, a.code)
		if code = a.code; code != "" {
			undo()
			break
		}
	}
	end()
	w.mu.Unlock()
	w.call(func(p *process) (string, bool) {
		err := p.sources[uid].ScheduleTogether(items)
		var refused *schedule.Error
		switch {
		case err == nil && code == "":
			return "", true
		case errors.As(err, &refused) && refused.Code == code:
			return "", false
		}
		return fmt.Sprintf("all or none on %s: %v, want %q", uid, err, code), false
	})
}

func (w *world) stepCancel(r *rand.Rand) {
	w.mu.Lock()
	uid, s := w.source(r)
	name := w.name(r)
	c := w.conditions(r, s.keys[name])
	c.IfNoneMatch = false
	if r.IntN(4) == 0 {
		c.IfUID = pick(r, "u1", "u2")
	}
	refused, _ := w.m.cancel(s, name, &c)
	w.note("  %s/%s: want refused %v", uid, name, refused)
	w.mu.Unlock()
	w.call(func(p *process) (string, bool) {
		err := p.sources[uid].Cancel(name, c)
		var e *schedule.Error
		if err != nil && !errors.As(err, &e) || refused != (e != nil) || e != nil && e.Code != schedule.CodePrecondition {
			return fmt.Sprintf("DELETE %s/%s: %v, want refused %v", uid, name, err, refused), false
		}
		return "", !refused
	})
}

func (w *world) stepCancelAll(r *rand.Rand) {
	w.mu.Lock()
	uid, s := w.source(r)
	prefix := pick(r, "", "a", "a/", "b", "zz")
	want := 0
	for _, name := range s.names() {
		if len(name) >= len(prefix) && name[:len(prefix)] == prefix {
			if _, waited := w.m.cancel(s, name, &schedule.Conditions{}); waited {
				want++
			}
		}
	}
	w.note("  %s prefix %q: want %d", uid, prefix, want)
	w.mu.Unlock()
	w.call(func(p *process) (string, bool) {
		if n, err := p.sources[uid].CancelAll(prefix); err != nil || n != want {
			return fmt.Sprintf("DELETE %s, prefix %q: %d %v, want %d", uid, prefix, n, err, want), false
		}
		return "", true
	})
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
		time.Sleep(3*heartbeat + 1) // what expired is dropped, and does not come back
		w.settle(r)
	}
	w.mu.Lock()
	w.m.checkOrder()
	w.offset.Add(int64(d))
	w.m.jumpAt = time.Now()
	w.m.backwards = w.m.backwards || d < 0
	w.note("  by %s", d)
	w.mu.Unlock()
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
				last = latest(last, k.cur.at())
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

// save notes where the model stands with a source, to go back there.
func (m *model) save(s *source) (undo func()) {
	log := len(m.log)
	type state struct {
		key
		fl flight
	}
	was := map[string]state{}
	for name, k := range s.keys {
		st := state{key: *k}
		if k.fl != nil {
			st.fl = *k.fl
		}
		was[name] = st
	}
	return func() {
		m.log = m.log[:log]
		for name, k := range s.keys {
			st := was[name]
			*k = st.key
			if k.fl != nil {
				*k.fl = st.fl
			}
		}
	}
}

type requestText struct{ *schedule.Request }

// String implements fmt.Stringer.
func (r requestText) String() string {
	text := string(r.Policy)
	if r.Ingested {
		text += " event " + r.Event.ID
	}
	if r.Delay != nil {
		text += fmt.Sprintf(" delay %s", *r.Delay)
	}
	if !r.DueAt.IsZero() {
		text += " dueAt " + stamp(r.DueAt)
	}
	if r.Backoff != nil {
		text += fmt.Sprintf(" backoff %+v", *r.Backoff)
	}
	if !r.ExpiresAt.IsZero() {
		text += " expiresAt " + stamp(r.ExpiresAt)
	}
	if r.MaxInterval != nil {
		text += fmt.Sprintf(" maxInterval %s", *r.MaxInterval)
	}
	if r.IfMatch != nil {
		text += fmt.Sprintf(" if-match %d", *r.IfMatch)
	}
	if r.IfNoneMatch {
		text += " if-none-match"
	}
	return fmt.Sprintf("%s jitter %g uid %q event %v", text, r.Jitter, r.UID, r.Event != nil)
}
