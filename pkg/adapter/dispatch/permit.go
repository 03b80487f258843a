package dispatch

import (
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The memory that a delivery counts: baseCost for its goroutines, its buffers, the
// headers of the answer and a small reply; and some copies of the event: one in
// memory, one in the socket's buffer, and two more in the JSON format.
const (
	baseCost         = 48 << 10
	binaryCopies     = 2
	structuredCopies = 4
)

// maxEvent is the most that is counted of an event: data and attributes.
const maxEvent = schedule.MaxDataBytes + 64<<10

func cost(s *schedule.Source, entry int64) int64 {
	copies := int64(binaryCopies)
	if s.Delivery.Structured {
		copies = structuredCopies
	}
	return baseCost + copies*min(entry, maxEvent)
}

// permit is the slot and the memory of one delivery. The size of the event is known
// only once it is taken from the queue, so a permit begins with the most memory and
// gives the rest back.
type permit struct {
	slot, memory budget.Claim
	letter       bool // it is for a dead letter
}

// permit takes a slot, and memory for the largest delivery of the source; nil when
// either is used up. The caller holds the lock.
func (d *Dispatcher) permit(s *schedule.Source) *permit {
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

func (d *Dispatcher) enqueue(ns *namespace) {
	if !ns.queued && len(ns.waiting) > 0 {
		ns.queued = true
		d.waiting = append(d.waiting, ns)
	}
}

// maxVain bounds how many lanes try in vain when a permit was given back. Lanes at
// the front may have to go on waiting because they hold much, while a later one
// may start.
const maxVain = 16

// mayStart reports that a permit is left for a source of the namespace. Without this look all
// of a namespace's lanes would try in vain whenever a permit is given back.
func (d *Dispatcher) mayStart(ns *namespace) bool {
	return d.slots.Allows(ns.name, 1) && d.memory.Allows(ns.name, baseCost+binaryCopies*maxEvent)
}

// turn lets waiting lanes try again, one of each namespace in turn. The caller holds
// the lock.
func (d *Dispatcher) turn() {
	for vain, full := 0, 0; vain < maxVain && full < len(d.waiting); {
		ns := d.waiting[0]
		d.waiting = d.waiting[1:]
		if !d.mayStart(ns) {
			d.waiting = append(d.waiting, ns) // its lanes keep their places
			full++
			vain++
			continue
		}
		full = 0
		ns.queued = false
		l := ns.waiting[0]
		ns.waiting = ns.waiting[1:]
		l.waits = false
		d.pump(l) // it waits at the end again if there is no permit for it yet
		d.enqueue(ns)
		if l.waits {
			vain++
		}
	}
}
