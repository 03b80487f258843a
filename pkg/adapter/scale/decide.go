package scale

import "time"

// action is what a target needs now.
type action uint8

const (
	rest    action = iota // until the time that decide returns
	look                  // read the replicas
	examine               // read the replicas and how the pods are; decide does not ask for it
	wake                  // scale up
	lull                  // scale to zero
)

// view is all that decides about a workload.
type view struct {
	known    bool // replicas is what the API server said last
	replicas int32
	stays    bool          // it must be awake: mode Awake, or it is given back
	underWay int           // deliveries
	due      time.Time     // when it is needed next; zero: no time is known
	active   time.Time     // when it was needed last
	cooldown time.Duration // it sleeps so long after active
	hold     time.Time     // it does not sleep before
	maySleep bool          // its sources are prepared for it
}

// decide returns what to do at now. With rest it also returns when to decide again at
// the latest; zero: there is no such time.
func (v *view) decide(now time.Time) (action, time.Time) {
	needed := v.needed(now)
	idle := latest(v.active.Add(v.cooldown), v.hold)
	switch {
	case !v.known:
		return look, time.Time{}
	case needed && v.replicas == 0:
		return wake, time.Time{}
	case needed:
		return rest, time.Time{}
	case v.replicas == 0, !v.due.IsZero() && !v.due.After(now.Add(v.cooldown)):
		return rest, v.due // asleep, or not worth it
	case idle.After(now):
		return rest, earliest(idle, v.due)
	case !v.maySleep:
		return rest, v.due
	}
	return lull, time.Time{}
}

// needed reports whether the workload must be awake.
func (v *view) needed(now time.Time) bool {
	return v.stays || v.underWay > 0 || !v.due.IsZero() && !v.due.After(now)
}

// latest is the later instant.
func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// earliest is the earlier instant; a zero one is none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
