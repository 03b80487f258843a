package scale

import (
	"fmt"
	"slices"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// A workload without a sink gets no events: it finds its work by itself once it is awake. A key of its
// source is done when the workload has been up since the key was due, and then idle for
// cooldown. A key has failed when a container of the workload has crashed, the workload is
// not up within startTimeout, or its last reconcile failed: then the source tries again, after the
// back-off of the key.

const (
	// A workload that is not up is examined each startExamine, after fastTime each slowDial; one that
	// is up five times in a cooldown, within these bounds.
	startExamine = 250 * time.Millisecond
	mostExamine  = 2 * time.Second
	// moreKeys is how soon a workload is told to sleep again for which keys were due that the
	// dispatcher had not read yet.
	moreKeys = 250 * time.Millisecond
	// crashTime is how long a workload must be up that has crashed.
	crashTime = 2 * time.Minute
	// MaxPods of a workload are examined.
	MaxPods = 100
)

// pods is what is known about the pods of a workload without a sink.
type pods struct {
	seen      map[string]seenPod // nil: not examined yet
	ready     time.Time          // since when they are ready; zero: they are not
	up        time.Time          // since when the workload can work; zero: it cannot
	worked    time.Time          // when it was seen at work, began to be up, or a key was due
	tried     time.Time          // when the last look began
	looked    time.Time          // when the last look began that told whether it works
	examineAt time.Time          // when it is examined next
	noTurn    time.Time          // it has no turn to be examined before
	fresh     bool               // it is ready, and has not begun to work
	unread    bool               // it is ready, and its metrics cannot be read: it may work
	lack      string             // why it is not up
	lackOf    string             // the reason of the condition, if it is not StartTimeout
	runs      runs
	quiet     quiet // of an observed workload
}

// seenPod is a pod when it was examined before.
type seenPod struct {
	restarts int
	ready    bool
}

// runs are the reconciles of a workload, as its metrics count them.
type runs struct {
	all, errors float64
	fail        bool // the last of them failed
}

// note adds what metrics say now. A reconcile that fails is tried again by the workload after a back-off that
// no metric shows: it looks idle meanwhile.
func (r *runs) note(w *Work) {
	if !w.Known {
		return
	}
	if more := w.Reconciles - r.all; more > 0 {
		r.fail = w.Errors-r.errors == more
	}
	r.all, r.errors = w.Reconciles, w.Errors
}

// failed is until when keys have failed, and why.
type failed struct {
	failedAt time.Time
	failure  string
}

// sinkless reports whether the source of the member has no sink.
func (m *Member) sinkless() bool { return m.given == nil && m.src.Scale.Sinkless }

// Settle is the end of a key that is due for so long, without a sink, and for which the workload is needed for so long:
// it may have been changed since. It is an aborted delivery while the key is neither done nor failed.
func (m *Member) Settle(overdue, needed time.Duration) schedule.Outcome {
	t := m.target
	if t == nil {
		return schedule.Outcome{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	due, since := now.Add(-overdue), now.Add(-needed)
	switch {
	case m.observes():
		return schedule.Outcome{Kind: schedule.Succeeded}
	case !m.failedAt.IsZero() && !due.After(m.failedAt):
		return schedule.Outcome{Kind: schedule.Failed, Failure: schedule.Failure{Data: []byte(m.failure)}}
	case m.isDone(since):
		return schedule.Outcome{Kind: schedule.Succeeded}
	}
	t.worked = latest(t.worked, since) // it was changed after it was due
	return schedule.Outcome{}
}

// NoneDue notes that no key is due, and none has been taken: all that had to fail have failed. A key that becomes due
// later may seem to be due since before, when the clock was set or it waited for company.
func (m *Member) NoneDue() {
	if t := m.target; t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		m.failedAt = time.Time{}
	}
}

// admitEnd reports whether a key that was due then is done or has failed.
func (m *Member) admitEnd(due time.Time) bool {
	m.due = due
	m.target.worked = latest(m.target.worked, due)
	if due.After(m.failedAt) { // keys come oldest first
		m.failedAt = time.Time{}
	}
	m.waits = m.failedAt.IsZero() && !m.isDone(due)
	m.target.update()
	return !m.waits
}

// isDone reports whether a key that was due then is done: a look after doneAt has found the workload
// as it must be.
func (m *Member) isDone(due time.Time) bool {
	at := m.doneAt(due)
	return !at.IsZero() && !at.After(m.target.looked) && !m.target.runs.fail
}

// doneAt is when a key that was due then is done, if nothing happens until then; zero: the workload is
// not up.
func (m *Member) doneAt(due time.Time) time.Time {
	t := m.target
	if t.up.IsZero() {
		return time.Time{}
	}
	return latest(t.worked, due).Add(m.src.Scale.Cooldown)
}

// settle lets the keys end that wait and are done or have failed. It returns when the next of
// them are. The caller holds the lock.
func (t *target) settle(now time.Time) (at time.Time) {
	for _, m := range t.members {
		if !m.sinkless() || !m.waits {
			continue
		}
		done := m.doneAt(m.due)
		awaits := done.IsZero() && (t.known && t.replicas > 0 || t.failures > 0) && !t.fresh && t.Reason != ReasonUnreachable
		if !awaits {
			m.since = time.Time{}
		}
		switch {
		case !done.IsZero() && done.After(t.looked):
			if done.After(t.tried) { // else the next look tells
				t.examineAt = earliest(t.examineAt, done)
			}
		case !done.IsZero():
			m.end(now)
		case awaits:
			at = earliest(at, m.await(now))
		}
	}
	return at
}

// end lets the keys end that are done.
func (m *Member) end(now time.Time) {
	t := m.target
	t.slow = false
	t.setProblem("", "")
	if t.runs.fail {
		m.fail("The last reconcile of the workload has failed: see its log.", now)
		return
	}
	m.waits = false
	go m.ready()
}

// await lets the keys fail when the workload is not up within startTimeout; before, it returns
// when that is.
func (m *Member) await(now time.Time) (at time.Time) {
	t := m.target
	if m.since.IsZero() {
		m.since = now
	}
	if deadline := m.since.Add(m.src.Scale.StartTimeout); deadline.After(now) {
		return deadline
	}
	t.slow = true
	t.releaseSlot()
	if t.failures == 0 {
		t.setProblem(t.startProblem(m.src.Scale.StartTimeout))
	}
	m.fail(t.Message, now)
	return time.Time{}
}

// startProblem is why the workload is not up after startTimeout.
func (p *pods) startProblem(limit time.Duration) (reason, message string) {
	if p.lackOf != "" {
		return p.lackOf, p.lack
	}
	message = "The workload did not start within " + limit.String() + "."
	if p.lack != "" {
		message += " " + p.lack
	}
	return ReasonStartTimeout, message
}

// fail makes the keys fail that are due now.
func (m *Member) fail(why string, now time.Time) {
	m.failedAt, m.failure = now, why
	m.waits, m.since = false, time.Time{}
	go m.ready()
}

// mayLull reports whether no key is due, and lets no key end then: when the last key of a page has
// ended, the dispatcher may not know yet that there are more.
func (t *target) mayLull() bool {
	t.mu.Lock()
	var all []func(time.Duration) bool
	for _, m := range t.members {
		if m.sinkless() {
			all = append(all, m.isDue)
		}
	}
	t.mu.Unlock()
	due := slices.ContainsFunc(all, func(isDue func(time.Duration) bool) bool { return isDue(0) })
	t.mu.Lock()
	defer t.mu.Unlock()
	if due {
		t.hold = time.Now().Add(moreKeys)
	} else {
		t.pods = pods{}
	}
	return !due
}

// examines reports whether the pods must be examined: a source without a sink has a workload that is
// awake, or observes one that has metrics.
func (t *target) examines(v *view) bool {
	return slices.ContainsFunc(t.members, func(m *Member) bool {
		if m.observes() {
			return m.sinkless() && m.src.Scale.Busy.Port != 0
		}
		return m.sinkless() && v.replicas > 0
	})
}

// examiner is as whom pods are listed, and where it may read their metrics: their pods get its token.
type examiner struct {
	workload schedule.Workload
	busy     schedule.Busy
}

// examiners are the accounts of the sources without a sink, those with metrics first.
func examiners(members []*Member) (all []examiner) {
	for _, m := range members {
		if !m.sinkless() {
			continue
		}
		e := examiner{m.workload, m.src.Scale.Busy}
		if e.busy.Port != 0 {
			all = append([]examiner{e}, all...)
		} else {
			all = append(all, e)
		}
	}
	return all
}

// hasMetrics reports whether a source says where the metrics of its workload are.
func hasMetrics(members []*Member) bool {
	all := examiners(members)
	return len(all) > 0 && all[0].busy.Port != 0
}

// examined notes how the pods are, or that it is not known. The caller holds the lock.
func (t *target) examined(h *Health, err error, began, now time.Time) {
	t.tried = began
	wasUp := !t.up.IsZero()
	crashed, replaced := "", false
	if err != nil {
		t.lackOf, t.lack, t.examineAt = t.Reason, t.Message, t.retryAt
		t.miss(now)
	} else {
		if crashed, replaced = t.compare(h.Pods); crashed != "" || replaced { // the pods begin again
			t.ready, t.up, t.runs, wasUp = time.Time{}, time.Time{}, runs{}, false
		}
		t.runs.note(&h.Work)
		t.judge(h, began, now)
		t.examineAt = now.Add(t.examineAfter(now))
	}
	isUp := !t.up.IsZero()
	if h.Work.Busy || crashed != "" || isUp && !wasUp {
		t.worked = now
	}
	switch {
	case err != nil:
		return
	case t.observed():
		t.quiet.note(&h.Work, t.replicas == 0, now, &t.Quiet)
		if t.lackOf == "" {
			t.lack = ""
		}
		t.setProblem(t.lackOf, t.lack)
		return
	case crashed != "":
		t.setProblem(ReasonCrashed, crashed)
		for _, m := range t.members {
			if m.sinkless() && m.waits {
				m.fail(crashed, now)
			}
		}
	}
	if isUp && !wasUp {
		t.releaseSlot()
		t.startEnded(now)
		t.setState(awake, now)
	}
	t.recover(now)
}

// miss notes a look that did not tell whether the workload works. One that was up still is, for a while.
func (t *target) miss(now time.Time) {
	if now.Sub(t.looked) >= 2*beginTime(t.members) {
		t.up = time.Time{}
	}
}

// recover ends a problem of a workload that is up: it may work for hours until a key is done.
func (t *target) recover(now time.Time) {
	switch {
	case t.up.IsZero() || t.unread:
	case t.Reason == ReasonStartTimeout, t.Reason == ReasonNoMetrics, t.Reason == ReasonCrashed && now.Sub(t.up) >= crashTime:
		t.setProblem("", "")
	}
}

// judge sets since when the workload is up, or why it is not.
func (t *target) judge(h *Health, began, now time.Time) {
	ready := int32(0)
	t.lackOf, t.lack, t.fresh, t.unread = "", "No pod of it is ready.", false, false
	for _, p := range h.Pods {
		if p.Ready {
			ready++
		} else if p.Problem != "" {
			t.lack = p.Problem
		}
	}
	if ready == 0 || ready < min(h.Replicas, MaxPods) {
		t.ready, t.up = time.Time{}, time.Time{}
		return
	}
	if t.ready.IsZero() {
		t.ready = now
	}
	metrics := hasMetrics(t.members)
	switch {
	case metrics && (!h.Work.Known || h.Work.Failed != nil) && !h.Work.Waits:
		t.unread, t.lackOf, t.lack = true, ReasonNoMetrics, "Its metrics do not say whether it works."
		if h.Work.Failed != nil {
			t.lack = "Its metrics cannot be read: " + h.Work.Failed.Error()
		}
		t.miss(now)
		return
	case metrics && h.Work.Waits:
		t.up, t.lack = time.Time{}, "It waits until it is the leader: let it release its Lease at its end, or switch leader election off."
	case metrics && h.Work.Fresh && now.Sub(t.ready) < beginTime(t.members): // it may still fill its caches
		t.up, t.fresh, t.lack = time.Time{}, true, "It has not begun to work: its queues have had no item."
	case t.up.IsZero():
		t.up = now
	}
	t.looked = began
}

// beginTime is how long a workload with ready pods may take until a queue has its first item. After it
// there is nothing to do.
func beginTime(members []*Member) (most time.Duration) {
	for _, m := range members {
		most = max(most, m.src.Scale.StartTimeout/2)
	}
	return most
}

// compare says which pod's containers have ended since the look before ("": none), and whether a pod has become ready.
func (p *pods) compare(all []Pod) (crashed string, replaced bool) {
	seen := make(map[string]seenPod, len(all))
	for _, one := range all {
		before := p.seen[one.UID]
		if p.seen != nil && one.Restarts > before.restarts {
			crashed = fmt.Sprintf("A container of the workload has ended; its pod has %d restarts.", one.Restarts)
			if one.Problem != "" {
				crashed += " " + one.Problem
			}
		}
		replaced = replaced || one.Ready && !before.ready
		seen[one.UID] = seenPod{one.Restarts, one.Ready || before.ready}
	}
	p.seen = seen
	return crashed, replaced
}

// examineAfter is when the pods are examined next.
func (t *target) examineAfter(now time.Time) time.Duration {
	switch {
	case t.observed() && t.replicas == 0:
		return observeExamine
	case !t.up.IsZero():
		return max(startExamine, min(t.view(now).cooldown/5, mostExamine))
	case !t.started.IsZero() && now.Sub(t.started) < fastTime:
		return startExamine
	}
	return slowDial
}
