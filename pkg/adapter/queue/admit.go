package queue

import (
	"errors"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Item is a request for a key.
type Item struct {
	Key     string
	Request schedule.Request
}

// brings is the size of an entry with the event that the item brings, 0 without one.
func (i *Item) brings() int64 {
	if i.Request.Event == nil {
		return 0
	}
	e := schedule.Entry{Event: i.Request.Event}
	return e.Size(i.Key)
}

// fitPage reports that the events which the items bring fit a page.
func fitPage(items []Item) bool {
	brought := int64(0)
	for i := range items {
		brought += items[i].brings()
	}
	return brought <= pageBytes
}

// Scheduled is the answer to an [Item]: either Err or the rest.
type Scheduled struct {
	Result schedule.Result
	View   schedule.View // the key after the change
	Err    *schedule.Error
}

// ClaimMemory reserves memory for a call that has to read large entries. The call
// makes it once, with no lock held and before anything changes, and returns its
// error. nil: the memory is not bounded.
type ClaimMemory func(bytes int64) error

// Schedule applies one request. It returns once the change is durable. Its
// error is an *schedule.Error, and then nothing changed, or another one when
// the outcome is unknown.
func (s *Source) Schedule(key string, r *schedule.Request, claim ClaimMemory) (Scheduled, error) {
	items := [1]Item{{Key: key, Request: *r}}
	var out [1]Scheduled
	a := admission{Source: s, claim: claim}
	if err := a.admit(items[:], out[:]); err != nil {
		return Scheduled{}, err
	}
	if out[0].Err != nil {
		return Scheduled{}, out[0].Err
	}
	return out[0], nil
}

// ScheduleAll applies the items in order, accepts or refuses each alone, and returns
// once all of them are durable. If they bring large events, or their keys hold some, it
// goes page by page, and a crash may lose the last pages. Its error, like the error of
// Schedule, is about all items. The views have at most a MiB of events that the items
// did not bring; beyond that a view has no event.
func (s *Source) ScheduleAll(items []Item, claim ClaimMemory) ([]Scheduled, error) {
	a, out := admission{Source: s, claim: claim}, make([]Scheduled, len(items))
	return out, a.admit(items, out)
}

// ScheduleTogether applies all items as one durable change or, when one is
// refused, none: then the error is that item's *schedule.Error.
func (s *Source) ScheduleTogether(items []Item) error {
	a := admission{Source: s, together: true}
	return a.admit(items, make([]Scheduled, len(items)))
}

const (
	// smallEntry is the size up to which an entry is read without a claim of memory;
	// of many keys it is smallEntries on average.
	smallEntry, smallEntries = 4 << 10, 1 << 10
	// pageBytes ends a page of a call that brings large events, or whose keys hold some:
	// one change of the store, which a group's log keeps in memory. Inherited events are
	// written once more, so a page is in memory two or three times.
	pageBytes = 512 << 10
	// A large entry claims entryCopies times its size: as it was, in the store's
	// batch, and in the answer, as base64 at worst. A page claims pageMemory, which
	// includes echoBytes.
	entryCopies, pageMemory = 4, 4 << 20
	// echoBytes bounds the inherited events in the views.
	echoBytes = 1 << 20
)

// admission is a call that schedules items of a source, page by page: one page, unless
// the events that they bring, or that their keys hold, are large.
type admission struct {
	*Source
	claim    ClaimMemory
	together bool               // all items or none
	marks    []store.MarkChange // stored with the last page

	outlines bool  // the entries' events are not needed
	claimed  bool  // memory for large entries, which are read one by one
	echoed   int64 // bytes of inherited events in the views
	accepted bool  // some item
	full     error // the refusal of an item because the disk is full
	swap     swap
	effect
}

// largeError is returned before anything changes: the entries are large, and memory of so
// many bytes must be claimed.
type largeError int64

func (largeError) Error() string { return "queue: the entries are large" }

// admit decides about the items, applies what it accepts and waits until that is
// durable.
func (a *admission) admit(items []Item, out []Scheduled) error {
	a.outlines = a.together
	for i := range items {
		r := &items[i].Request
		a.outlines = a.outlines && r.Event != nil && !r.EventIfNone
	}
	if a.outlines { // else the marks may go with a later page
		a.swap.freed = max(0, -growth(a.marks))
	}
	var err error = largeError(pageMemory)
	if a.together || len(items) == 1 || fitPage(items) {
		err = a.admitPages(items, out)
	}
	large, ok := errors.AsType[largeError](err)
	if !ok {
		return err
	}
	if a.claim != nil {
		if err := a.claim(int64(large)); err != nil {
			return err
		}
	}
	a.claimed = true
	return a.admitPages(items, out)
}

// admitPages is admit with the memory that is claimed.
func (a *admission) admitPages(items []Item, out []Scheduled) error {
	if err := a.enter(); err != nil {
		return err
	}
	defer a.leave()
	// A change that waits for space holds the locks of its keys. A call must not join it.
	if a.q.store.Waiting() {
		if err := a.usage.checkSpace(0, 0); err != nil {
			return err
		}
	}
	marked := false
	if len(a.marks) > 0 {
		if err := a.Marks.reserve(a.marks); err != nil {
			return err
		}
		defer func() { a.Marks.settle(a.marks, marked) }()
	}
	for first := true; ; first = false {
		n, err := a.admitPage(items, out)
		if err != nil && !first {
			return partialChangeError(err)
		}
		if err != nil {
			return err
		}
		if a.wake {
			a.q.cfg.Wake(a.Source)
		}
		if items, out = items[n:], out[n:]; len(items) == 0 {
			break
		}
	}
	marked = true
	if err := a.q.wait(a.commit); err != nil {
		return err
	}
	a.writes.wait()
	return nil
}

// admitPage decides about as many of the items as fit a page, applies what it accepts,
// and returns how many.
func (a *admission) admitPage(items []Item, out []Scheduled) (int, error) {
	defer a.stripes.lockItems(items)()
	settings, now := a.Spec(), a.now()
	keys, of, n, err := a.read(items, now)
	if err != nil {
		return 0, err
	}
	for i := range items[:n] {
		k := &keys[0]
		if of != nil {
			k = &keys[of[i]]
		}
		err := a.decide(k, &items[i].Request, &out[i], settings, now)
		var refused *schedule.Error
		switch {
		case err == nil:
			a.accepted = true
			a.echo(&items[i].Request, &out[i].View)
		case errors.As(err, &refused) && !a.together:
			out[i].Err = refused
			if refused.Code == schedule.CodeStorageFull {
				a.full = refused
			}
		default:
			a.usage.release(keys)
			return 0, err
		}
	}
	last := n == len(items)
	if last && a.full != nil && !a.accepted {
		a.usage.release(keys)
		return 0, a.full
	}
	var marks []store.MarkChange
	if last { // a mark records that all of the items were scheduled
		marks = a.marks
	}
	if err := a.apply(keys, marks, !last, &a.effect); err != nil {
		return 0, err
	}
	for i := range out[:n] {
		if out[i].Err == nil {
			a.changes.add(string(out[i].Result), 1)
		}
	}
	return n, nil
}

// echo removes an inherited event from the view when the views have too many bytes of
// them already.
func (a *admission) echo(r *schedule.Request, v *schedule.View) {
	if v.Event == nil || v.Event == r.Event {
		return
	}
	if size := v.Size(v.Key); a.echoed+size <= echoBytes {
		a.echoed += size
		return
	}
	e := *v.Entry
	e.Event = nil
	v.Entry = &e
}

// read reads the entries of the items' keys, each key once. of has the index of
// each item's key; it is nil when there is one item. With memory claimed
// for large entries it ends after the n-th item, when it holds a page of them, with the
// events that the items bring.
func (a *admission) read(items []Item, now time.Time) (keys []keyState, of []int, n int, _ error) {
	if len(items) == 1 {
		k := keyState{key: items[0].Key, swap: &a.swap}
		most := int64(smallEntry)
		switch {
		case a.outlines:
			most = outline
		case a.claimed:
			most = whole
		}
		if k.refused = schedule.ValidateKey(k.key); k.refused == nil {
			k.refused = a.open(&k, now, most)
		}
		if size := k.stored.Size(k.key); most == smallEntry && size > most {
			return nil, nil, 0, largeError(entryCopies * size)
		}
		return []keyState{k}, nil, 1, nil
	}
	keys, of = make([]keyState, 0, len(items)), make([]int, len(items))
	index := make(map[string]int, len(items))
	oneByOne, held := a.claimed && !a.outlines, int64(0)
	for i := range items {
		if oneByOne && held >= pageBytes {
			break
		}
		key := items[i].Key
		at, seen := index[key]
		if !seen {
			at = len(keys)
			index[key] = at
			keys = append(keys, keyState{key: key, swap: &a.swap, refused: schedule.ValidateKey(key), flight: a.stripes.flight(key)})
			switch k := &keys[at]; {
			case !k.reads() && k.flight != nil:
				held += k.flight.Entry.Size(key)
			case oneByOne && k.reads():
				k.stored, k.corrupt, k.refused = a.get(key, whole)
				held += k.stored.Size(key)
			}
		}
		of[i], n = at, i+1
		if oneByOne && !a.together {
			held += items[i].brings()
		}
	}
	if !oneByOne {
		if !a.outlines && held > int64(len(items))*smallEntries {
			return nil, nil, 0, largeError(pageMemory)
		}
		if err := a.readAll(keys); err != nil {
			return nil, nil, 0, err
		}
	}
	for i := range keys {
		keys[i].begin(now)
	}
	return keys, of, n, nil
}

// readAll reads the entries of the keys.
func (a *admission) readAll(keys []keyState) error {
	names, unread := make([]string, 0, len(keys)), make([]*keyState, 0, len(keys))
	for i := range keys {
		if k := &keys[i]; k.reads() {
			names, unread = append(names, k.key), append(unread, k)
		}
	}
	entries := make([]*schedule.Entry, len(names))
	var err error
	if a.outlines {
		err = a.q.store.Outlines(a.uid, names, entries)
	} else {
		err = a.q.store.GetAll(a.uid, names, entries, int64(len(names))*smallEntries)
	}
	switch {
	case err == nil:
		for i, k := range unread {
			k.stored = entries[i]
		}
	case a.outlines:
		// One of them may be unreadable: it must not stop the others.
		for _, k := range unread {
			k.stored, k.corrupt, k.refused = a.get(k.key, outline)
		}
	default: // one by one, with memory claimed for any size
		return largeError(pageMemory)
	}
	return nil
}
