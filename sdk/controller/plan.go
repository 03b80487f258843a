package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// planner decides what an event leads to. It is pure: it runs nothing, reads
// nothing, and keeps nothing. What was read and remembered is a parameter.
type planner struct {
	queues []*queue
	// withClient: requests can be scheduled under keys of their own.
	withClient bool
	// priority is the priority of the event.
	priority int
}

// plan is what an event leads to.
type plan struct {
	run []target
	// check are targets of the key that run if predicates let pass what their objects
	// are now, as when an operator starts.
	check []target
	// decided are targets whose outcome needs no run.
	decided []decision
	// schedule are requests that get deliveries of their own.
	schedule []delayed
	// survivors are targets of the key that still exist after an event of something
	// else's deletion.
	survivors []target
	// doubts is as in an answer.
	doubts int
	// outside are the controllers of requests that were dropped, because they are not
	// in the namespaces of the manager's cache.
	outside []string
}

type decision struct {
	target
	outcome
}

// observation is an event about an object, with all that is known about it.
type observation struct {
	key string // of the delivery
	// priority is the priority of the delivery.
	priority int
	change   *change
	// gone: the object does not exist any more, by the event or by a read of the object.
	gone bool
	// enqueued is what the handlers of the controllers enqueued, each request once.
	enqueued []delayed
	// last is the last answer to the key. It is known to be everything that waits
	// under it, or not.
	last  answer
	known bool
	// atStart: predicates judged the object without a state before, as when an operator
	// starts, and no controller maps objects of its kind. What they keep out then needs
	// no other look before its next change, which is an event.
	atStart bool
	// unknown: no controller watches the kind in this namespace.
	unknown bool
	// watched: the source of the event schedules every object again for a new revision of
	// the operator, which may have a controller of the kind.
	watched bool
	// compared: predicates judged the event of a source that watches by the state that this
	// process saw last.
	compared bool
}

// errUnknownKey marks a key that is due and that no controller knows. It is the
// mistake of the caller who scheduled it.
var errUnknownKey = errors.New("this operator does not know the key")

// due plans the delivery of a key that a run asked for, or a caller, or a watching
// source, whose events have a cause. Predicates are not asked; the namespaces of the
// manager's cache are. A source may watch more namespaces: then its keys are dropped.
func (p planner) due(key string, d due, cause string) (is plan, err error) {
	requests := d.Requests
	if len(requests) == 0 {
		requests = []due{d}
	}
	for _, d := range requests {
		for _, t := range p.named(d, key, &is) {
			is.add(t)
		}
	}
	if is.empty() {
		is.run = p.ofKey(key, &is)
	}
	if is.empty() && !(cause != "" && len(is.outside) > 0 && is.drop()) {
		return is, p.unknownKey(key)
	}
	return is, nil
}

// change plans the delivery of an event about an object. A request whose key is not
// the key of the delivery gets a delivery of its own, if there is a client.
//
// The event may have taken the place of an occurrence that waited under the key.
// That occurrence must not be lost when predicates drop the event, or handlers map
// it to other requests: what the last answer asked for stays. If the last answer may
// not be everything, the objects of the key are checked as when an operator starts.
func (p planner) change(o observation) (is plan) {
	if p.anyKind() {
		is.run = []target{{queue: p.queues[0], request: reconcile.Request{NamespacedName: o.change.name}, key: o.key, priority: p.priority}}
		return is
	}
	enqueued := slices.DeleteFunc(slices.Clone(o.enqueued), func(d delayed) bool { return !is.covers(d.target) })
	for _, d := range enqueued {
		ownObject := len(enqueued) == 1 && d.isOf(o.change)
		if !p.withClient || d.key == o.key || ownObject {
			is.add(d)
		} else {
			is.schedule = append(is.schedule, d)
		}
	}
	ofKey := p.ofKey(o.key, &is)
	if p.withClient { // then each has a key of its own
		ofKey = slices.DeleteFunc(ofKey, func(t target) bool { return t.key != o.key })
	}
	for _, t := range ofKey { // the source has mapped the object to the key, and nothing else can
		if t.queue.elsewhere[o.change.gvk.GroupKind()] && !slices.ContainsFunc(is.run, t.is) {
			is.add(delayed{target: t})
		}
	}
	for _, d := range o.last.again {
		if i := slices.IndexFunc(is.run, d.is); i >= 0 {
			is.run[i].failures, is.run[i].priority = d.failures, max(is.run[i].priority, d.priority)
		} else if !o.deletes(d.target) {
			is.add(d)
		}
	}
	for _, t := range ofKey {
		if o.change.verb == deleted && !o.deletes(t) {
			is.survivors = append(is.survivors, t)
		}
		switch {
		case o.doubtful(t) && !slices.ContainsFunc(is.run, t.is):
			is.check = append(is.check, t)
		case is.has(t):
		case o.deletes(t):
			is.decide(t, outcome{gone: true})
		case o.known, t.isOf(o.change):
		case t.queue.kind.Empty():
			is.run = append(is.run, t)
		default:
			is.check = append(is.check, t)
		}
	}
	keptOut := o.atStart && len(ofKey) > 0 && !slices.ContainsFunc(ofKey, func(t target) bool { return !t.isOf(o.change) })
	if len(is.outside) > 0 || keptOut || o.unknown && o.watched {
		is.drop()
	}
	return is
}

// deletes reports whether the target's object does not exist any more.
func (o observation) deletes(t target) bool { return o.gone && t.isOf(o.change) }

// doubtful reports whether an event that predicates drop may have taken the place of an
// event about an object that the target's controller maps to it.
func (o observation) doubtful(t target) bool {
	return o.compared && t.queue.caused && t.isOf(o.change) && !o.deletes(t)
}

// doubt runs a target for which nothing is new: at once for the first time, then after a
// back-off, because an operator that writes the status of its object causes such events itself.
func (is *plan) doubt(t target, before int) {
	is.doubts = before + 1
	wait := time.Duration(0)
	if before > 0 {
		wait = backOff(before - 1)
	}
	is.add(delayed{t, wait})
}

// add runs a target now, or later, which needs no run.
func (is *plan) add(d delayed) {
	if d.after == 0 {
		is.decided = slices.DeleteFunc(is.decided, func(o decision) bool { return d.is(o.target) })
		is.run = append(is.run, d.target)
		return
	}
	is.decide(d.target, outcome{after: d.after})
}

// decide gives a target an outcome without a run. Of two, the sooner counts. It keeps the count of
// failures.
func (is *plan) decide(t target, o outcome) {
	i := slices.IndexFunc(is.decided, func(d decision) bool { return t.is(d.target) })
	switch {
	case i < 0:
		is.decided = append(is.decided, decision{t, o})
	case o.after < is.decided[i].after:
		is.decided[i].outcome = o
		fallthrough
	default: // a handler knows of no failures
		is.decided[i].failures = max(is.decided[i].failures, t.failures)
		is.decided[i].priority = max(is.decided[i].priority, t.priority)
	}
}

// drop gives up a key for good for which nothing is planned, and reports whether it is
// one. maxInterval must not bring it back: it would wake the operator for nothing.
func (is *plan) drop() bool {
	dropped := is.empty()
	if dropped {
		is.decide(target{}, outcome{gone: true})
	}
	return dropped
}

// dropped reports whether the key is given up for good.
func (is *plan) dropped() bool { return len(is.decided) == 1 && is.decided[0].queue == nil }

// empty reports whether nothing is planned.
func (is *plan) empty() bool {
	return len(is.run)+len(is.check)+len(is.decided)+len(is.schedule)+len(is.survivors) == 0
}

// has reports whether anything is planned for a target under the key of the event.
func (is *plan) has(t target) bool {
	return slices.ContainsFunc(is.run, t.is) || slices.ContainsFunc(is.decided, func(d decision) bool { return t.is(d.target) })
}

// covers reports whether a target is in the namespaces of the manager's cache.
func (is *plan) covers(t target) bool {
	if !t.queue.covers(t.request) {
		is.outside = append(is.outside, t.queue.name)
		return false
	}
	return true
}

// anyKind reports whether there is a single queue, for objects of every kind: the
// queue of a Handler.
func (p planner) anyKind() bool { return len(p.queues) == 1 && p.queues[0].prefix == "" }

// named is the target that data names, if there is such a controller.
func (p planner) named(d due, key string, is *plan) []delayed {
	if d.Name == "" {
		return nil
	}
	i := slices.IndexFunc(p.queues, func(q *queue) bool { return q.name == d.Controller })
	if i < 0 {
		return nil
	}
	t := p.queues[i].target(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: d.Namespace, Name: d.Name}})
	if p.anyKind() {
		t.key = key
	}
	if !is.covers(t) {
		return nil
	}
	t.failures, t.priority = max(d.Failures, 0), p.priority
	return []delayed{{t, d.after}}
}

// ofKey are the targets of a key Kind/namespace/name or controller/namespace/name.
func (p planner) ofKey(key string, is *plan) []target {
	parts := strings.Split(key, "/")
	if p.anyKind() {
		parts = append([]string{"any", ""}[:max(3-len(parts), 0)], parts...)
	}
	if len(parts) != 3 || parts[0] == "" || parts[2] == "" {
		return nil
	}
	request := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: parts[1], Name: parts[2]}}
	if p.anyKind() {
		return []target{{queue: p.queues[0], request: request, key: key, priority: p.priority}}
	}
	var ofKind, ofName []target
	for _, q := range p.queues {
		t := q.target(request)
		t.priority = p.priority
		switch {
		case q.kind.Kind != parts[0] && q.name != parts[0], !is.covers(t):
		case q.kind.Kind == parts[0]:
			ofKind = append(ofKind, t)
		default:
			ofName = append(ofName, t)
		}
	}
	if len(ofKind) > 0 {
		return ofKind
	}
	return ofName
}

func (p planner) unknownKey(key string) error {
	known := []string{"Kind/namespace/name", "namespace/name", "name"}
	if !p.anyKind() {
		known = nil
		for _, q := range p.queues {
			known = append(known, q.prefix+"/namespace/name")
		}
	}
	return fmt.Errorf("%w %q: its keys are %s, in the namespaces of the manager's cache", errUnknownKey, key, strings.Join(known, ", "))
}
