package queue

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/timer"
)

const stripeCount = 64

// stripes are the locks of a source's keys, with the deliveries under way of these keys.
// A source has stripes of its own: a bulk call holds most of them while it writes, and
// the keys of other sources must not wait for that.
type stripes struct {
	seed maphash.Seed
	all  [stripeCount]stripe

	underWay atomic.Int64 // deliveries of keys
	// own are the ones with nothing behind them, whose entry is not pending, by priority.
	own [schedule.Bands]atomic.Int64
}

// stripe guards the keys of a source that hash to it, and their deliveries under way.
// A change holds it from start to end, also while it waits for a full disk. Therefore
// reads do not take it: they read the flights under shown, which a change holds only
// while it modifies them.
type stripe struct {
	sync.Mutex
	shown   sync.Mutex
	flights map[string]*activeFlight // nil until the first
}

// activeFlight is a delivery under way, and how to end it. Its fields change under the stripe's lock.
type activeFlight struct {
	schedule.Flight
	part    timer.Part
	cancel  func()        // ends the attempt, once there is one
	writing chan struct{} // nil until the attempt begins; closed once its first bytes are written
}

func (l *stripes) of(key string) *stripe { return &l.all[l.index(key)] }

func (l *stripes) index(key string) int {
	return int(maphash.String(l.seed, key) % uint64(len(l.all)))
}

// lock locks the stripes of the keys, in the one order that cannot deadlock, and
// returns the function to unlock them.
func (l *stripes) lock(keys ...string) (unlock func()) {
	if len(keys) == 1 {
		st := l.of(keys[0])
		st.Lock()
		return st.Unlock
	}
	held := l.holding(keys)
	for i := range l.all {
		if held[i] {
			l.all[i].Lock()
		}
	}
	return func() {
		for i := range l.all {
			if held[i] {
				l.all[i].Unlock()
			}
		}
	}
}

// lockItems locks the stripes of the items' keys.
func (l *stripes) lockItems(items []Item) (unlock func()) {
	if len(items) == 1 {
		return l.lock(items[0].Key)
	}
	keys := make([]string, len(items))
	for i := range items {
		keys[i] = items[i].Key
	}
	return l.lock(keys...)
}

// holding returns which of the stripes have one of the keys.
func (l *stripes) holding(keys []string) (held [stripeCount]bool) {
	for _, key := range keys {
		held[l.index(key)] = true
	}
	return held
}

// flight is the key's delivery under way, or nil. The caller holds the stripe.
func (l *stripes) flight(key string) *activeFlight { return l.of(key).flights[key] }

// begin adds a delivery under way. The caller holds the stripe.
func (l *stripes) begin(st *stripe, key string, f *activeFlight) {
	st.shown.Lock()
	if st.flights == nil {
		st.flights = map[string]*activeFlight{}
	}
	st.flights[key] = f
	st.shown.Unlock()
	if f.Entry.DeadLetter == nil {
		l.underWay.Add(1)
		l.own[f.Entry.Rank().Band()].Add(1)
	}
}

// modify changes the key's delivery under way, which is not alone any more then: an
// occurrence waits behind it, or it was cancelled. The caller holds the stripe.
func (l *stripes) modify(key string, change func(*schedule.Flight)) {
	st := l.of(key)
	st.shown.Lock()
	defer st.shown.Unlock()
	f := st.flights[key]
	if f.Own {
		l.own[f.Entry.Rank().Band()].Add(-1)
	}
	change(&f.Flight)
}

// end removes a delivery under way. The caller holds the stripe.
func (l *stripes) end(d *Delivery) {
	d.stripe.shown.Lock()
	delete(d.stripe.flights, d.key)
	d.stripe.shown.Unlock()
	if d.Entry.DeadLetter != nil {
		return
	}
	l.underWay.Add(-1)
	if d.flight.Own {
		l.own[d.Entry.Rank().Band()].Add(-1)
	}
}

// copy returns a copy of the key's delivery under way, and whether there is one. Nothing is locked.
func (l *stripes) copy(key string) (schedule.Flight, bool) {
	st := l.of(key)
	st.shown.Lock()
	defer st.shown.Unlock()
	if f := st.flights[key]; f != nil {
		return f.Flight, true
	}
	return schedule.Flight{}, false
}

// inFlight reports whether a row of the index is of a delivery under way.
func (l *stripes) inFlight(key string, revision uint64) bool {
	f, _ := l.copy(key)
	return f.Own && f.Entry.Revision == revision
}

// view is the key of the item, and whether there is one: not when it has expired.
func (l *stripes) view(item store.Item, now time.Time) (schedule.View, bool) {
	f, under := l.copy(item.Key)
	own := f.Own && f.Entry.Revision == item.Entry.Revision
	return schedule.NewView(item.Key, item.Entry, under, own, now), own || !item.Entry.Expired(now)
}

// list is [Source.List] of the keys in flight.
func (l *stripes) list(o ListOptions, after store.Position, now time.Time) (views []schedule.View, next string) {
	for i := range l.all {
		views = l.all[i].list(views, o, after, now)
	}
	slices.SortFunc(views, func(a, b schedule.View) int {
		if o.ByDue {
			return cmp.Or(a.DueAt.Compare(b.DueAt), cmp.Compare(a.Key, b.Key))
		}
		return cmp.Compare(a.Key, b.Key)
	})
	if len(views) <= o.Limit {
		return views, ""
	}
	last := &views[o.Limit-1]
	return views[:o.Limit:o.Limit], encodeToken(o.ByDue, store.Position{At: last.DueAt, Key: last.Key})
}

// list appends the keys in flight that the options select.
func (st *stripe) list(views []schedule.View, o ListOptions, after store.Position, now time.Time) []schedule.View {
	st.shown.Lock()
	defer st.shown.Unlock()
	for key, f := range st.flights {
		behind := after.Key < key
		if o.ByDue {
			behind = after.Before(store.Position{At: f.Entry.DueAt, Key: key})
		}
		if f.Own && behind && strings.HasPrefix(key, o.Prefix) && !schedule.IsDeadLetterKey(key) {
			views = append(views, schedule.NewView(key, f.Entry, true, true, now))
		}
	}
	return views
}
