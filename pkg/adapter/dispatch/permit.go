package dispatch

import (
	"slices"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The memory that a delivery counts: baseCost for its goroutine, its buffers, the
// headers of the answer and a small reply; and some copies of the event: one in
// memory, one in the socket's buffer, and two more in the JSON format. With TLS it is tlsCost more, for
// the buffers of both directions and as many certificates as the sink may send.
const (
	baseCost         = 40 << 10
	tlsCost          = 60 << 10
	binaryCopies     = 2
	structuredCopies = 4
)

// maxEvent is the most that is counted of an event: data and attributes.
const maxEvent = schedule.MaxDataBytes + 64<<10

func cost(s *schedule.Spec, entry int64) int64 {
	copies := int64(binaryCopies)
	if s.Delivery.Structured {
		copies = structuredCopies
	}
	n := baseCost + copies*min(entry, maxEvent)
	if s.Secure() {
		n += tlsCost
	}
	return n
}

// permit is the slot and the memory of one delivery. The size of the event is known
// only once it is taken from the queue, so a permit begins with the most memory and
// gives the rest back.
type permit struct {
	slot, memory budget.Claim
	namespace    *namespace // that it counts in
	letter       bool       // it is for a dead letter
	letters      bool       // it is for dead letters only
}

// permit takes a slot, and memory for the largest delivery of the source; nil when
// either is used up. The caller holds the lock.
func (d *Dispatcher) permit(s *schedule.Spec) *permit {
	p := &permit{slot: d.slots.Claim(s.Namespace, s.UID), memory: d.memory.Claim(s.Namespace, s.UID)}
	if !p.slot.TryGrow(1) {
		return nil
	}
	if !p.memory.TryGrow(cost(s, maxEvent)) {
		p.slot.Release()
		return nil
	}
	return p
}

// namespace is what the lanes of one namespace share. Its fields change under
// the Dispatcher's lock.
type namespace struct {
	name     string
	lanes    int
	inFlight int
	rate     rate
	ceilings schedule.Ceilings // when a lane was woken last
	waiting  []*lane           // for a permit, in turn
	queued   bool              // stands in Dispatcher.waiting
	timer    *time.Timer
}

// await lets a lane wait for a permit, in the queue of its namespace, which waits in
// the queue of namespaces. The caller holds the lock.
func (d *Dispatcher) await(l *lane) {
	ns := l.namespace
	l.waits = true
	ns.waiting = append(ns.waiting, l)
	d.enqueue(ns)
}

// stopWaiting takes a lane out of the queue. The caller holds the lock.
func (d *Dispatcher) stopWaiting(l *lane) {
	if !l.waits {
		return
	}
	l.waits = false
	ns := l.namespace
	ns.waiting = slices.DeleteFunc(ns.waiting, func(other *lane) bool { return other == l })
	if len(ns.waiting) == 0 {
		ns.queued = false
		d.waiting = slices.DeleteFunc(d.waiting, func(other *namespace) bool { return other == ns })
	}
}

func (d *Dispatcher) enqueue(ns *namespace) {
	if !ns.queued && len(ns.waiting) > 0 {
		ns.queued = true
		d.waiting = append(d.waiting, ns)
	}
}

// maxVain bounds how many lanes and namespaces try in vain at one time. Lanes at the front may
// have to go on waiting because they hold much, while a later one may start: the rest try
// restWait later.
const (
	maxVain  = 16
	restWait = time.Millisecond
)

// mayStart reports that a permit is left for a source of the namespace. Without this look all
// of a namespace's lanes would try in vain whenever a permit is given back.
func (d *Dispatcher) mayStart(ns *namespace) bool {
	if most := ns.ceilings.MaxInFlight; most > 0 && ns.inFlight >= most {
		return false
	}
	if wait := ns.rate.wait(ns.ceilings.MaxPerSecond, time.Now()); wait > 0 {
		ns.timer.Reset(wait)
		return false
	}
	return d.slots.Allows(ns.name, 1) && d.memory.Allows(ns.name, baseCost+binaryCopies*maxEvent)
}

// retryWaitingLanes lets each waiting lane try again, one of each namespace in turn, since a
// permit was given back or a limit was raised. The caller holds the lock.
func (d *Dispatcher) retryWaitingLanes() {
	d.round++
	d.tryWaiting()
}

// tryWaiting lets the waiting lanes try that have not tried in this round. After maxVain that
// try in vain it leaves the rest to the timer. The caller holds the lock.
func (d *Dispatcher) tryWaiting() {
	for vain, done := 0, 0; done < len(d.waiting) && !d.stopped; {
		if vain == maxVain {
			d.rest.Reset(restWait)
			return
		}
		ns := d.waiting[0]
		d.waiting = d.waiting[1:]
		// Lanes that have tried stand at the end, so that all have when the first one has.
		l := ns.waiting[0]
		if l.tried == d.round || !d.mayStart(ns) {
			d.waiting = append(d.waiting, ns) // its lanes keep their places
			done++
			vain++
			continue
		}
		done = 0
		ns.queued = false
		ns.waiting = ns.waiting[1:]
		l.waits, l.tried = false, d.round
		d.pump(l) // it waits at the end again if there is no permit for it yet
		d.enqueue(ns)
		if l.waits {
			vain++
		}
	}
}
