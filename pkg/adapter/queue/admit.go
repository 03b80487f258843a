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

// Scheduled is the answer to an [Item]: either Err or the rest.
type Scheduled struct {
	Result schedule.Result
	View   schedule.View // the key after the change
	// PreviousDueAt is the due time of the occurrence that waited before; zero
	// if none did.
	PreviousDueAt time.Time
	Err           *schedule.Error
}

// Schedule applies one request. It returns once the change is durable. Its
// error is an *schedule.Error, and then nothing changed, or another one when
// the outcome is unknown.
func (s *Source) Schedule(key string, r *schedule.Request) (Scheduled, error) {
	items := [1]Item{{Key: key, Request: *r}}
	var out [1]Scheduled
	if err := s.admit(items[:], out[:], false); err != nil {
		return Scheduled{}, err
	}
	if out[0].Err != nil {
		return Scheduled{}, out[0].Err
	}
	return out[0], nil
}

// ScheduleAll applies the items in order, each judged alone, as one durable
// change. Its error is as that of Schedule, about all of them.
func (s *Source) ScheduleAll(items []Item) ([]Scheduled, error) {
	out := make([]Scheduled, len(items))
	return out, s.admit(items, out, false)
}

// ScheduleTogether applies all items as one durable change or, when one is
// refused, none: then the error is that item's *schedule.Error.
func (s *Source) ScheduleTogether(items []Item) error {
	return s.admit(items, make([]Scheduled, len(items)), true)
}

// judged is a key on its way through a call: what the store has of it, and
// what the call has made of it so far.
type judged struct {
	key      string
	flight   *flight
	own      bool
	stored   *schedule.Entry
	corrupt  bool // something is stored that cannot be read: counted, and as if absent
	now      *schedule.Entry
	changed  bool
	reserved reservation
	refused  error
	accepts  []accepted
}

type accepted struct {
	change   schedule.Change
	ingested bool
}

// admit judges the items, applies what was accepted and waits for it.
func (s *Source) admit(items []Item, out []Scheduled, together bool) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	commit, begun, wake, err := s.admitLocked(items, out, together)
	if err != nil {
		return err
	}
	if wake {
		s.q.cfg.Wake(s)
	}
	if err := s.q.wait(commit); err != nil {
		return err
	}
	begun.wait()
	return nil
}

func (s *Source) admitLocked(items []Item, out []Scheduled, together bool) (store.Commit, begun, bool, error) {
	defer s.lock(items)()
	settings, now := s.Settings(), s.now()
	keys, of := s.openAll(items, now)
	var full error
	accepted := false
	for i := range items {
		k := &keys[0]
		if of != nil {
			k = &keys[of[i]]
		}
		err := s.judge(k, &items[i].Request, &out[i], settings, now)
		var refused *schedule.Error
		switch {
		case err == nil:
			accepted = true
		case errors.As(err, &refused) && !together:
			out[i].Err = refused
			if refused.Code == schedule.CodeStorageFull {
				full = refused
			}
		default:
			s.release(keys)
			return nil, nil, false, err
		}
	}
	if full != nil && !accepted {
		s.release(keys)
		return nil, nil, false, full
	}
	return s.apply(keys)
}

// judge decides about one request and notes its effect.
func (s *Source) judge(k *judged, r *schedule.Request, out *Scheduled, settings *schedule.Source, now time.Time) error {
	if k.refused != nil {
		return k.refused
	}
	revision, err := s.q.store.NextRevision()
	if err != nil {
		return s.q.fatal(err)
	}
	c, err := r.Apply(k.key, k.now, k.own, settings, revision, now, s.q.cfg.Random())
	if err != nil {
		return err
	}
	if k.now != nil && !k.own {
		out.PreviousDueAt = k.now.DueAt
	}
	out.Result = c.Result
	out.View = schedule.NewView(k.key, c.Entry, k.flight != nil, false, now)
	if c.Result == schedule.Kept {
		return nil
	}
	if err := s.reserve(k, c.Entry, settings); err != nil {
		return err
	}
	k.now, k.own, k.changed = c.Entry, false, true
	if k.flight != nil {
		k.accepts = append(k.accepts, accepted{c, r.Ingested})
	}
	if c.Entry.Expired(now) { // accepted and dropped: the next item may have its room
		k.now = nil
		s.unreserve(k)
	}
	return nil
}

// openAll reads what there is of the items' keys, each key once; of says which
// of them is an item's, nil when there is one item.
func (s *Source) openAll(items []Item, now time.Time) (keys []judged, of []int) {
	if len(items) == 1 {
		k := judged{key: items[0].Key}
		if k.refused = schedule.ValidateKey(k.key); k.refused == nil {
			k.refused = s.open(&k, now)
		}
		return []judged{k}, nil
	}
	keys, of = make([]judged, 0, len(items)), make([]int, len(items))
	index := make(map[string]int, len(items))
	names, unread := make([]string, 0, len(items)), make([]int, 0, len(items))
	for i := range items {
		key := items[i].Key
		at, seen := index[key]
		if !seen {
			at = len(keys)
			index[key] = at
			keys = append(keys, judged{key: key, refused: schedule.ValidateKey(key), flight: s.flight(key)})
			if k := &keys[at]; k.refused == nil && (k.flight == nil || !k.flight.Own) {
				names, unread = append(names, key), append(unread, at)
			}
		}
		of[i] = at
	}
	entries := make([]*schedule.Entry, len(names))
	if err := s.q.store.GetAll(s.uid, names, entries); err != nil {
		// One of them may be set aside: it must not stop the others.
		for i, at := range unread {
			entries[i], keys[at].corrupt, keys[at].refused = s.get(names[i])
		}
	}
	for i, at := range unread {
		keys[at].stored = entries[i]
	}
	for i := range keys {
		keys[i].begin(now)
	}
	return keys, of
}

// get reads a key's entry. One that cannot be read is set aside: the key is as
// if absent, but counted; a new entry takes its place, and a cancellation
// removes it.
func (s *Source) get(key string) (_ *schedule.Entry, unreadable bool, _ error) {
	e, err := s.q.store.Get(s.uid, key)
	var corrupt *store.CorruptError
	if errors.As(err, &corrupt) { // the store has said so, once
		return nil, true, nil
	}
	return e, false, err
}

// open reads what there is of a key.
func (s *Source) open(k *judged, now time.Time) (err error) {
	k.flight = s.flight(k.key)
	if k.flight == nil || !k.flight.Own {
		if k.stored, k.corrupt, err = s.get(k.key); err != nil {
			return err
		}
	}
	k.begin(now)
	return nil
}

// begin says what the key has now: the delivered occurrence while nothing is
// behind it, else what is stored. What has expired is not there any more.
func (k *judged) begin(now time.Time) {
	k.own = k.flight != nil && k.flight.Own
	if k.own {
		k.stored = k.flight.Entry
	}
	k.now = k.stored
	if k.now != nil && !k.own && k.now.Expired(now) {
		k.now, k.changed = nil, true
	}
}

// apply hands the changes to the store and, once they are visible, to the page
// and the deliveries under way.
func (s *Source) apply(keys []judged) (store.Commit, begun, bool, error) {
	changes := make([]store.Change, 0, len(keys))
	for i := range keys {
		if k := &keys[i]; k.changed && (k.stored != nil || k.corrupt || k.now != nil) {
			changes = append(changes, store.Change{Source: s.uid, Key: k.key, Old: k.stored, New: k.now, Corrupt: k.corrupt})
		}
	}
	// Without changes this is a barrier: "kept" too rests on what is durable.
	commit, err := s.q.store.Apply(false, changes...)
	if err != nil {
		s.release(keys)
		return nil, nil, false, s.q.fatal(err)
	}
	var began begun
	wake := false
	for _, c := range changes {
		wake = s.accept(c) || wake
	}
	for i := range keys {
		k := &keys[i]
		if k.changed {
			s.settle(k)
		}
		if k.changed && k.now == nil { // had expired, or was accepted and dropped
			s.expired.Add(1)
		}
		for _, a := range k.accepts {
			s.acceptedDuring(k, a)
		}
		if len(k.accepts) > 0 {
			began.callOff(k.flight)
		}
	}
	return commit, began, wake, nil
}

// acceptedDuring tells a delivery under way that something newer is there.
func (s *Source) acceptedDuring(k *judged, a accepted) {
	defer s.stripe(k.key).show()()
	if k.flight.Own {
		s.own.Add(-1)
	}
	k.flight.Accept(a.change, a.ingested)
}

func (s *Source) now() time.Time { return s.q.cfg.Now().Round(0) }
