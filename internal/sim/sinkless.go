package sim

import (
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// scaled is a workload from now on: what it will do, until it is scaled again.
type scaled struct {
	name     string
	replicas int32
	phases   []phase
}

// phase is how a workload is from an instant on, in the bubble's time.
type phase struct {
	from        time.Time
	ready, busy bool
	restarts    int // of its container
}

// ended is the end of an attempt of a key that is not sent, as the source's events tell it.
type ended struct {
	uid, key string
	attempt  uint32
	what     schedule.Disposition
}

// startLooks is how late the adapter may see that a workload is up, or is not any more; doubt is how long a look at due keys
// and the patch that follows take.
const (
	startLooks = 3 * time.Second
	doubt      = 50 * time.Millisecond
)

// napping judges the workloads of sources without a sink.
type napping struct{ *judge }

// workload is what the judge knows of a workload.
type workload struct {
	scaled
	since  time.Time // of replicas
	failed time.Time // when it crashed last, or had not been up for startTimeout, before it was scaled last
}

func (x *scaled) phaseAt(at time.Time) (last *phase) {
	for i := range x.phases {
		if p := &x.phases[i]; !p.from.After(at) {
			last = p
		}
	}
	return last
}

// idleSince is since when the workload was up, and, with metrics, not at work, until then; zero: it is not. Looks may see
// the end of its work so much too early.
func (x *scaled) idleSince(at time.Time, s *schedule.Scale, early time.Duration) (since time.Time) {
	restarts, busy := 0, false
	for _, p := range x.phases {
		switch {
		case p.from.After(at):
		case !p.ready || s.Busy.Port > 0 && p.busy:
			since, busy, restarts = time.Time{}, p.ready, p.restarts
		case since.IsZero() && busy && p.restarts == restarts:
			since = p.from.Add(-early)
		case since.IsZero() || p.restarts > restarts:
			since, restarts = p.from, p.restarts
		}
	}
	return since
}

// failedAt is when it crashed last, or had not been up for the limit.
func (x *workload) failedAt(now time.Time, limit time.Duration) time.Time {
	at, restarts, down := x.failed, 0, time.Time{}
	for _, p := range x.phases {
		if p.from.After(now) {
			break
		}
		if p.restarts > restarts {
			at, restarts = latest(at, p.from), p.restarts
		}
		if down.IsZero() == p.ready {
			continue
		}
		if p.ready {
			if p.from.Sub(down) >= limit-startLooks {
				at = latest(at, p.from)
			}
			down = time.Time{}
		} else {
			down = p.from
		}
	}
	if !down.IsZero() && now.Sub(down) >= limit {
		at = latest(at, now)
	}
	return at
}

// looksEach is how often the adapter looks, or with settings of before has looked, at a workload that is up.
func (j napping) looksEach(s *source) time.Duration {
	const most = 2 * time.Second
	cooldown := s.settings.Scale.Cooldown
	if j.at.Sub(s.appliedAt) <= cooldown+most {
		return most
	}
	return max(250*time.Millisecond, min(cooldown/5, most))
}

// bubble is an instant of the wall clock, in the bubble's time. A jump has made it earlier.
func (j napping) bubble(wall time.Time) time.Time { return j.at.Add(-j.wall.Sub(wall)) }

// askedAt is when the workload was needed last for the key: it was due, or a change of it was accepted that
// it may not have seen before. A clock that was set back says nothing.
func (j napping) askedAt(k *key) time.Time {
	o := k.newest
	at := o.at()
	if !o.scheduledAt.After(j.wall) {
		at = latest(at, o.scheduledAt)
	}
	return j.bubble(at)
}

// workload is the source's, nil if it was never scaled.
func (j napping) workload(s *source) *workload { return j.workloads[s.settings.Scale.Name] }

// keysWithoutSink hold whenever an attempt of a key without a sink ends.
var keysWithoutSink = []invariant[*ending]{
	{neverEarly, func(j *judge, e *ending) string {
		return unless(!e.of.at().After(j.wall), "%s too early", e.of.at().Sub(j.wall))
	}},
	{notExpired, func(j *judge, e *ending) string {
		return unless(!e.of.expired(j.wall), "it expired at %s", e.of.expiresAt)
	}},
	{withinLimits, func(j *judge, e *ending) string {
		why := j.blocked(e.source, false)
		return unless(why == "" || why == sharedSlots, "%s", why)
	}},
	{attemptCounter, func(_ *judge, e *ending) string {
		return unless(e.attempt == e.of.attempt, "%d, want %d", e.attempt, e.of.attempt)
	}},
	{doneWhenIdle, func(j *judge, e *ending) string {
		x, settings := napping{j}.workload(e.source), &e.source.settings.Scale
		if e.kind != schedule.Succeeded {
			return ""
		}
		if x == nil || x.replicas == 0 {
			return "the workload sleeps"
		}
		early := napping{j}.looksEach(e.source)
		asked := napping{j}.askedAt(e.key)
		for _, seen := range []time.Time{j.at, j.at.Add(-early)} { // the last look may be so old
			if idle := x.idleSince(seen, settings, early); !idle.IsZero() && !latest(asked, idle).Add(settings.Cooldown).After(j.at) {
				return ""
			}
		}
		return unless(false, "needed at %s, up and idle since %s, cooldown %s, phases %v", stamp(asked), stamp(x.idleSince(j.at, settings, 0)), settings.Cooldown, x.phases)
	}},
	{failsWithReason, func(j *judge, e *ending) string {
		x := napping{j}.workload(e.source)
		if e.kind != schedule.Failed {
			return ""
		}
		if x == nil {
			return "the workload was never scaled"
		}
		at, due := x.failedAt(j.at, e.source.settings.Scale.StartTimeout), latest(napping{j}.bubble(e.of.at()), e.key.jumpedAt)
		return unless(!at.Before(due.Add(-heartbeat)), "due at %s, the workload failed at %s", stamp(due), stamp(at))
	}},
}

// ending is the end of an attempt of a key without a sink.
type ending struct {
	*delivery
	attempt uint32
	kind    schedule.OutcomeKind
}

// ended judges the end of an attempt of a key without a sink, which takes no time.
func (j napping) ended(e ended) {
	var kind schedule.OutcomeKind
	switch e.what {
	case schedule.Delivered:
		kind = schedule.Succeeded
	case schedule.Retrying, schedule.DeadLettered, schedule.KeptLetter, schedule.Dropped:
		kind = schedule.Failed
	case schedule.Unfinished:
		kind = schedule.Aborted
	default: // not of an attempt
		return
	}
	s := j.sources[e.uid]
	if s == nil {
		j.broken(goneIsGone, "%q of %s has ended", e.key, e.uid)
		return
	}
	k := s.key(e.key)
	if k.newest == nil {
		j.broken(newestStarts, "key %q has ended: nothing waits for it", e.key)
		return
	}
	begun := &start{schedule.Attempt{Key: e.key}}
	d := &delivery{start: begun, source: s, key: k, of: k.newest, at: j.at, began: j.wall}
	for _, i := range keysWithoutSink {
		if problem := i.check(j.judge, &ending{d, e.attempt, kind}); problem != "" {
			j.broken(i.promise, "key %q: %s\n  the key: %s", k.name, problem, k.describe())
		}
	}
	k.out, j.flying[begun] = d, d
	s.take(d, j.at)
	j.end(end{begun, schedule.Outcome{Kind: kind}})
}

// scaled judges a workload that is scaled, and notes it.
func (j napping) scaled(to scaled) {
	x := j.workloads[to.name]
	if x == nil {
		x = &workload{}
		j.workloads[to.name] = x
	}
	s := j.sources[to.name]
	if s == nil || !s.settings.Scale.Sinkless {
		x.scaled, x.since = to, j.at
		return
	}
	scale := &s.settings.Scale
	if to.replicas == 0 {
		if k := j.dueFor(s, doubt); k != nil {
			j.broken(sleepsIdle, "%q of %s is due\n  the key: %s", k.name, to.name, k.describe())
		}
		each := j.looksEach(s)
		if from := j.at.Add(-scale.Cooldown); scale.Busy.Port > 0 && x.busyBetween(from.Add(each), j.at.Add(-each)) {
			j.broken(sleepsIdle, "%s has worked, cooldown %s, phases %v", to.name, scale.Cooldown, x.phases)
		}
	}
	x.failed = x.failedAt(j.at, scale.StartTimeout)
	x.scaled, x.since = to, j.at
}

// busyBetween reports whether it was at work, by its metrics, at a time in between.
func (x *scaled) busyBetween(from, to time.Time) bool {
	for i, p := range x.phases {
		if p.busy && p.from.Before(to) && (i+1 == len(x.phases) || x.phases[i+1].from.After(from)) && from.Before(to) {
			return true
		}
	}
	return false
}

// dueFor is a key of the source for which the workload is needed for so long, nil if there is none. It is not
// asked of a jump of the clock that the adapter may not have noticed yet.
func (j napping) dueFor(s *source, long time.Duration) *key {
	for _, k := range s.keys {
		if s.settings.Suspend || k.letter || !k.startable(j.wall) {
			continue
		}
		if j.at.Sub(latest(j.dueBy(s, k.newest), k.since, s.appliedAt, j.upAt, j.slowUntil)) > long {
			return k
		}
	}
	return nil
}

// wakes finds workloads that must be awake by now, and keys that must have ended.
func (j napping) wakes() {
	for _, s := range j.sources {
		if !s.settings.Scale.Sinkless {
			continue
		}
		x := j.workload(s)
		if x == nil || x.replicas == 0 && j.at.Sub(x.since) > promptly {
			within := promptly
			if j.at.Sub(s.blockedAt) <= heartbeat { // its lane may wait for a slot, to find out that a key is gone
				within += heartbeat
			}
			if k := j.dueFor(s, within); k != nil {
				j.broken(wakesAtOnce, "%q of %s is due, and the workload sleeps\n  the key: %s", k.name, s.settings.UID, k.describe())
			}
			continue
		}
		j.endsInTime(s, x)
	}
}

// endsInTime finds keys that must have ended by now.
func (j napping) endsInTime(s *source, x *workload) {
	scale := &s.settings.Scale
	idle, most := x.idleSince(j.at, scale, 0), scale.Cooldown
	if p := x.phaseAt(j.at); p != nil && !p.ready { // then it fails
		idle, most = latest(p.from, x.since), scale.StartTimeout
	}
	if idle.IsZero() || j.blocked(s, false) != "" {
		return
	}
	for _, k := range s.keys {
		if k.letter || !k.startable(j.wall) {
			continue
		}
		from := latest(idle, j.at.Add(-j.late(s, k)), s.appliedAt, j.askedAt(k))
		if j.at.Sub(from) > most+startLooks {
			j.broken(endsInTime, "%q of %s has not ended, %s after %s, phases %v\n  the key: %s", k.name, s.settings.UID, j.at.Sub(from), stamp(from), x.phases, k.describe())
		}
	}
}
