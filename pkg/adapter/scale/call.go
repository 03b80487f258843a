package scale

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// Why a workload cannot be scaled: reasons of the condition Scaled.
const (
	ReasonForbidden    = "Forbidden"
	ReasonNoTarget     = "NoSuchTarget"
	ReasonStartTimeout = "StartTimeout"
	ReasonUnreachable  = "Unreachable"
	ReasonCrashed      = "Crashed"
	ReasonNoMetrics    = "NoMetrics"
)

// call makes one call, and notes what it found.
func (t *target) call(act action) {
	if act == wake && !t.confirm() || act == lull && !t.mayLull() {
		return
	}
	if act == examine {
		t.examine()
		return
	}
	began := time.Now()
	t.mu.Lock()
	workloads := t.workloads()
	t.mu.Unlock()
	var replicas, was int32
	err := asEach(workloads, func(w schedule.Workload) (err error) {
		account := objects.Account{Namespace: t.id.namespace, Name: w.Account}
		api := t.keeper.cfg.API
		switch act {
		case wake:
			replicas = w.Replicas
			was, err = api.SetReplicas(t.keeper.ctx, account, w, w.Replicas)
		case lull:
			replicas = 0
			was, err = api.SetReplicas(t.keeper.ctx, account, w, 0)
		default:
			replicas, err = api.Replicas(t.keeper.ctx, account, w)
			was = replicas
		}
		return err
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	switch {
	case errors.Is(err, errNoMember):
	case err != nil:
		t.fail(act, err, now)
	default:
		if act == wake && was > 0 {
			replicas = was // another hand was faster
		}
		t.found(act, replicas, was, began, now)
	}
}

// examine looks at the pods.
func (t *target) examine() {
	began := time.Now()
	t.mu.Lock()
	all := examiners(t.members)
	t.mu.Unlock()
	if !t.keeper.looks.AllowN(began, 1) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.noTurn = began.Add(laterLook/2 + rand.N(laterLook))
		return
	}
	var health Health
	err := asEach(all, func(e examiner) (err error) {
		account := objects.Account{Namespace: t.id.namespace, Name: e.workload.Account}
		health, err = t.keeper.cfg.API.Examine(t.keeper.ctx, account, e.workload, e.busy)
		return err
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	switch {
	case errors.Is(err, errNoMember):
		return
	case err != nil:
		t.fail(examine, err, now)
	case t.observed(): // its replicas are only counted
		t.failures, t.retryAt = 0, time.Time{}
	default:
		t.found(examine, health.Replicas, health.Replicas, began, now)
	}
	t.examined(&health, err, began, now)
}

// asEach makes a call as one account after the other, until one has the right to make it.
func asEach[A any](accounts []A, call func(A) error) error {
	err := errNoMember
	for _, a := range accounts {
		err = call(a)
		if _, forbidden := errors.AsType[*objects.Forbidden](err); !forbidden {
			break
		}
	}
	return err
}

var errNoMember = errors.New("no source scales the workload any more")

// confirm reports whether a key is due, where keys seem to be: what the dispatcher knows may be
// stale. The dispatcher drops what is.
func (t *target) confirm() bool {
	type question struct {
		m      *Member
		within time.Duration
		isDue  func(time.Duration) bool
	}
	t.mu.Lock()
	now := time.Now()
	v := t.view(now)
	needed := v.stays || v.underWay > 0
	var seem []question
	for _, m := range t.members {
		if at := m.wakeAt(); m.given == nil && !at.IsZero() && !at.After(now) {
			seem = append(seem, question{m, max(m.due.Sub(now), 0), m.isDue})
		}
	}
	t.mu.Unlock()
	if needed {
		return true
	}
	for _, q := range seem {
		if q.isDue(q.within) {
			return true
		}
		t.mu.Lock()
		if q.within > 0 { // it was for a warm-up; its row goes when its time comes
			q.m.staleAt = q.m.dueAt
		} else {
			q.m.due, q.m.waits, q.m.pass = time.Time{}, false, true
			go q.m.ready()
		}
		t.mu.Unlock()
	}
	return false
}

// workloads are the workload with each account that may scale it, and the most replicas.
func (t *target) workloads() []schedule.Workload {
	var all []schedule.Workload
	most := int32(1)
	for _, m := range t.members {
		w := m.workload
		most = max(most, w.Replicas)
		if !slices.ContainsFunc(all, func(o schedule.Workload) bool { return o.Account == w.Account }) {
			all = append(all, w)
		}
	}
	slices.SortFunc(all, func(a, b schedule.Workload) int { return strings.Compare(a.Account, b.Account) })
	for i := range all {
		all[i].Replicas = most
	}
	return all
}

// found notes the replicas that a call made or read.
func (t *target) found(act action, replicas, was int32, began, now time.Time) {
	before, knew := t.replicas, t.known
	t.known, t.replicas, t.lookedAt, t.lookAt = true, replicas, now, now.Add(t.keeper.pollAfter())
	if t.ends(act, replicas) {
		t.failures, t.retryAt = 0, time.Time{}
		switch t.Reason {
		case ReasonStartTimeout, ReasonCrashed, ReasonNoMetrics: // a connection ends them, or a key that is done
		default:
			t.setProblem("", "")
		}
	}
	if act == wake {
		if t.slotEnd = now.Add(slotTime); t.slow || was > 0 {
			t.releaseSlot()
		}
	}
	switch {
	case replicas == 0:
		if act == lull || before > 0 {
			t.pods = pods{}
			t.close()
		}
		t.setState(asleep, now)
	case act == wake && was == 0:
		t.Starts++
		t.started, t.pods = began, pods{seen: map[string]seenPod{}}
		t.active = now
		t.setState(starting, now)
	default:
		if !knew || before == 0 { // it was scaled up by another hand, or by an adapter before
			t.active = now
		}
		if t.started.IsZero() {
			t.setState(awake, now)
		}
	}
}

// ends reports whether a call that was made shows that the call that failed before would be made too.
func (t *target) ends(act action, replicas int32) bool {
	switch {
	case t.failed == examine:
		return act == examine || len(examiners(t.members)) == 0
	case act == look || act == examine: // they do not show that a patch is possible
		return t.failed == look || (t.failed == wake) == (replicas > 0)
	}
	return true
}

// fail notes a call that failed.
func (t *target) fail(act action, err error, now time.Time) {
	if t.keeper.ctx.Err() != nil || errors.Is(err, context.Canceled) {
		return
	}
	t.failed = act
	t.retryAt = now.Add(min(firstRetry<<min(t.failures, 10), lastRetry))
	t.failures++
	t.slotEnd = now // others need not wait for it
	reason, text := ReasonUnreachable, err.Error()
	if _, ok := errors.AsType[*objects.Forbidden](err); ok {
		reason = ReasonForbidden
	} else if errors.Is(err, ErrNoTarget) {
		reason = ReasonNoTarget
	}
	if act == look || reason != ReasonForbidden && act != examine { // the patch may have been made
		t.known = false
	}
	if reason != t.Reason {
		t.keeper.cfg.Log.Warn("a workload cannot be scaled; retrying", "namespace", t.id.namespace, "workload", t.id.kind+"/"+t.id.name, "reason", reason, "error", err)
	}
	t.setProblem(reason, text)
}
