package sim

import (
	"math/rand/v2"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

func stepRequest(w *world, r *rand.Rand) {
	if uid := w.source(r); !w.tight(uid) {
		name := w.name(r)
		w.put(uid, name, w.request(r, uid, name, r.Int()))
	}
}

func (w *world) put(uid, name string, q *schedule.Request) {
	w.call(&call{kind: callPut, uid: uid, items: []queue.Item{{Key: name, Request: *q}}})
}

// stepBurst schedules a few keys again and again for the same few instants.
func stepBurst(w *world, r *rand.Rand) {
	uid := w.source(r)
	base := w.now().Round(0).Add(pick(r, 0, time.Second, time.Minute))
	for range 4 + r.IntN(12) {
		if !w.tight(uid) {
			q := &schedule.Request{DueAt: base.Add(time.Duration(r.IntN(3)) * time.Second), Policy: pick(r, schedule.Replace, schedule.Earliest, schedule.Earliest),
				Priority: pick(r, schedule.Priorities[:]...)}
			w.put(uid, w.name(r), q)
		}
	}
}

func stepBulk(w *world, r *rand.Rand) { w.many(r, callBulk) }

// stepTogether schedules all or none.
func stepTogether(w *world, r *rand.Rand) { w.many(r, callTogether) }

func (w *world) many(r *rand.Rand, kind callKind) {
	uid := w.source(r)
	if w.tight(uid) {
		return
	}
	items := make([]queue.Item, pick(r, r.IntN(7), r.IntN(20)))
	for i := range items {
		name := w.name(r)
		items[i] = queue.Item{Key: name, Request: *w.request(r, uid, name, r.Int())}
	}
	w.call(&call{kind: kind, uid: uid, items: items})
}

func stepCancel(w *world, r *rand.Rand) {
	uid, name := w.source(r), w.name(r)
	c := w.conditions(r, uid, name)
	c.IfNoneMatch = false
	if r.IntN(4) == 0 {
		c.IfUID = pick(r, "u1", "u2")
	}
	w.call(&call{kind: callCancel, uid: uid, items: []queue.Item{{Key: name, Request: schedule.Request{Conditions: c}}}})
}

func stepCancelAll(w *world, r *rand.Rand) {
	w.call(&call{kind: callCancelAll, uid: w.source(r), prefix: pick(r, "", "a", "a/", "b", "zz")})
}
