package dispatch

import (
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// What a delivery costs: its goroutines, buffers, the headers of the answer and
// a small reply, whatever it carries; and the event so many times: as it is in
// memory and in the socket's buffer, and in the JSON format twice more.
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

// permit is the room of one delivery: a slot, and memory. How much memory it
// needs is known only once it is taken from the queue, so that it begins with
// the most and gives the rest back.
type permit struct {
	slot, memory budget.Claim
	letter       bool // it is for a dead letter
}

// permit takes room for the largest delivery of the source, nil when there is
// none. The caller holds the lock.
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
	lanes    int
	inFlight int
	rate     rate
	ceilings schedule.Ceilings // when a lane was woken last
	waiting  []*lane           // for room, in turn
	queued   bool              // stands in Dispatcher.waiting
	timer    *time.Timer
}

// await puts a lane in the queue for room: of its namespace, which stands in
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

// maxVain bounds how many lanes in vain are looked at when room was given back.
// Those at the front may have to go on waiting, because they hold much, when
// another need not.
const maxVain = 16

// turn lets those that wait for room try again: a lane of each namespace in
// turn. The caller holds the lock.
func (d *Dispatcher) turn() {
	for vain := 0; vain < maxVain && len(d.waiting) > 0; {
		ns := d.waiting[0]
		d.waiting = d.waiting[1:]
		ns.queued = false
		l := ns.waiting[0]
		ns.waiting = ns.waiting[1:]
		l.waits = false
		d.pump(l) // stands at the end again if there is no room for it yet
		d.enqueue(ns)
		if l.waits {
			vain++
		}
	}
}
