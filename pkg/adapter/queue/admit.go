package queue

import (
	"errors"
	"math"
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
	if err := s.admit(items[:], out[:], &admission{}, claim); err != nil {
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
	out := make([]Scheduled, len(items))
	return out, s.admit(items, out, &admission{}, claim)
}

// ScheduleTogether applies all items as one durable change or, when one is
// refused, none: then the error is that item's *schedule.Error.
func (s *Source) ScheduleTogether(items []Item) error {
	return s.admit(items, make([]Scheduled, len(items)), &admission{allOrNone: true}, nil)
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

// admission is the state of a call over its pages.
type admission struct {
	allOrNone bool
	outlines  bool  // the entries' events are not needed
	claimed   bool  // memory for large entries, which are read page by page
	needs     int64 // bytes to claim
	marks     []store.MarkChange
	marked    bool  // the marks are stored
	freed     int64 // bytes of the marks, which the items may use
	reserved  int64 // bytes of the items
	extra     []store.Change

	answerBytes int64
	accepted    bool
	full        error // some item's refusal because the disk is full
	commit      store.Commit
	writes      firstWrites
	wake        bool
}

// errLarge is returned before anything changes: the entries are large, and memory must be claimed.
var errLarge = errors.New("queue: the entries are large")

// admit decides about the items, applies the accepted changes and waits until they
// are durable.
func (s *Source) admit(items []Item, out []Scheduled, a *admission, claim ClaimMemory) error {
	a.outlines, a.needs = a.allOrNone, pageMemory
	for i := range items {
		r := &items[i].Request
		a.outlines = a.outlines && r.Event != nil && !r.EventIfNone
	}
	if !a.outlines { // the marks may go with a later page
		a.freed = 0
	}
	if a.allOrNone || len(items) == 1 || fitPage(items) {
		if err := s.admitAll(items, out, a); !errors.Is(err, errLarge) {
			return err
		}
	}
	if claim != nil {
		if err := claim(a.needs); err != nil {
			return err
		}
	}
	a.claimed = true
	return s.admitAll(items, out, a)
}

func (s *Source) admitAll(items []Item, out []Scheduled, a *admission) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	// A change that waits for space holds the locks of its keys. A call must not join it.
	if s.q.store.Waiting() {
		if err := s.checkSpace(0, 0); err != nil {
			return err
		}
	}
	if len(a.marks) > 0 {
		if err := s.reserveMarks(a.marks); err != nil {
			return err
		}
		defer func() { s.settleMarks(a.marks, a.marked) }()
	}
	for first := true; ; first = false {
		n, err := s.admitPage(items, out, a)
		if err != nil && !first {
			return partialChangeError(err)
		}
		if err != nil {
			return err
		}
		if a.wake {
			s.q.cfg.Wake(s)
		}
		if items, out = items[n:], out[n:]; len(items) == 0 {
			break
		}
	}
	// The last commit covers the pages before it.
	if err := s.q.wait(a.commit); err != nil {
		return err
	}
	a.writes.wait()
	return nil
}

// admitPage decides and applies as many of the items as fit a page, and returns how
// many.
func (s *Source) admitPage(items []Item, out []Scheduled, a *admission) (int, error) {
	defer s.lockItems(items)()
	settings, now := s.Spec(), s.now()
	keys, of, n, err := s.openAll(items, now, a)
	if err != nil {
		return 0, err
	}
	for i := range items[:n] {
		k := &keys[0]
		if of != nil {
			k = &keys[of[i]]
		}
		k.call = a
		err := s.decide(k, &items[i].Request, &out[i], settings, now)
		var refused *schedule.Error
		switch {
		case err == nil:
			a.accepted = true
			a.echo(&items[i].Request, &out[i].View)
		case errors.As(err, &refused) && !a.allOrNone:
			out[i].Err = refused
			if refused.Code == schedule.CodeStorageFull {
				a.full = refused
			}
		default:
			s.release(keys)
			return 0, err
		}
	}
	if n == len(items) && a.full != nil && !a.accepted {
		s.release(keys)
		return 0, a.full
	}
	if err := s.apply(keys, a, n < len(items)); err != nil {
		return 0, err
	}
	for i := range out[:n] {
		if out[i].Err == nil {
			s.changes.add(string(out[i].Result), 1)
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
	if size := v.Size(v.Key); a.answerBytes+size <= echoBytes {
		a.answerBytes += size
		return
	}
	e := *v.Entry
	e.Event = nil
	v.Entry = &e
}

// keyState is a key during a call: the entry in the store, and the entry that
// the call has made of it so far.
type keyState struct {
	key      string
	flight   *activeFlight
	own      bool
	stored   *schedule.Entry
	corrupt  bool            // something is stored that cannot be read: counted, and as if absent
	current  *schedule.Entry // nil: none, or expired
	changed  bool
	reserved reservation
	call     *admission // nil: an outcome
	refused  error
	accepts  []accepted
}

type accepted struct {
	change   schedule.Change
	ingested bool
}

// decide decides about one request and records its effect.
func (s *Source) decide(k *keyState, r *schedule.Request, out *Scheduled, settings *schedule.Spec, now time.Time) error {
	if k.refused != nil {
		return k.refused
	}
	revision, err := s.q.store.NextRevision()
	if err != nil {
		return s.q.fatal(err)
	}
	c, err := r.Apply(schedule.Inputs{Key: k.key, Source: settings, Revision: revision, Now: now, Random: s.q.cfg.Random()}, k.current, k.own)
	if err != nil {
		return err
	}
	out.Result = c.Result
	out.View = schedule.NewView(k.key, c.Entry, k.flight != nil, false, now)
	if c.Result == schedule.Kept {
		return nil
	}
	expired := c.Entry.Expired(now) // accepted and dropped: it counts in no quota
	if !expired {
		if err := s.reserve(k, c.Entry, settings); err != nil {
			return err
		}
	}
	k.current, k.own, k.changed = c.Entry, false, true
	if k.flight != nil {
		k.accepts = append(k.accepts, accepted{c, r.Ingested})
	}
	if expired { // the next item may use the quota
		k.current = nil
		s.unreserve(k)
	}
	return nil
}

// openAll reads the entries of the items' keys, each key once. of has the index of
// each item's key; it is nil when there is one item. With memory claimed
// for large entries it ends after the n-th item, when it holds a page of them, with the
// events that the items bring.
func (s *Source) openAll(items []Item, now time.Time, a *admission) (keys []keyState, of []int, n int, _ error) {
	if len(items) == 1 {
		k := keyState{key: items[0].Key}
		most := int64(smallEntry)
		switch {
		case a.outlines:
			most = outline
		case a.claimed:
			most = whole
		}
		if k.refused = schedule.ValidateKey(k.key); k.refused == nil {
			k.refused = s.open(&k, now, most)
		}
		if size := k.stored.Size(k.key); most == smallEntry && size > most {
			a.needs = entryCopies * size
			return nil, nil, 0, errLarge
		}
		return []keyState{k}, nil, 1, nil
	}
	keys, of = make([]keyState, 0, len(items)), make([]int, len(items))
	index := make(map[string]int, len(items))
	oneByOne, held := a.claimed && !a.outlines, int64(0)
	for i := range items {
		if held >= pageBytes && !a.outlines {
			break
		}
		key := items[i].Key
		at, seen := index[key]
		if !seen {
			at = len(keys)
			index[key] = at
			keys = append(keys, keyState{key: key, refused: schedule.ValidateKey(key), flight: s.flight(key)})
			switch k := &keys[at]; {
			case !k.reads() && k.flight != nil:
				held += k.flight.Entry.Size(key)
			case oneByOne && k.reads():
				k.stored, k.corrupt, k.refused = s.get(key, whole)
				held += k.stored.Size(key)
			}
		}
		of[i], n = at, i+1
		if oneByOne && !a.allOrNone {
			held += items[i].brings()
		}
	}
	if !oneByOne {
		if !a.outlines && held > int64(len(items))*smallEntries {
			return nil, nil, 0, errLarge
		}
		if err := s.readAll(keys, a); err != nil {
			return nil, nil, 0, err
		}
	}
	for i := range keys {
		keys[i].begin(now)
	}
	return keys, of, n, nil
}

// readAll reads the entries of the keys.
func (s *Source) readAll(keys []keyState, a *admission) error {
	names, unread := make([]string, 0, len(keys)), make([]*keyState, 0, len(keys))
	for i := range keys {
		if k := &keys[i]; k.reads() {
			names, unread = append(names, k.key), append(unread, k)
		}
	}
	entries := make([]*schedule.Entry, len(names))
	var err error
	if a.outlines {
		err = s.q.store.Outlines(s.uid, names, entries)
	} else {
		err = s.q.store.GetAll(s.uid, names, entries, int64(len(names))*smallEntries)
	}
	switch {
	case err == nil:
		for i, k := range unread {
			k.stored = entries[i]
		}
	case a.outlines:
		// One of them may be unreadable: it must not stop the others.
		for _, k := range unread {
			k.stored, k.corrupt, k.refused = s.get(k.key, outline)
		}
	default: // one by one, with memory claimed for any size
		return errLarge
	}
	return nil
}

// reads reports that the key's entry must be read from the store.
func (k *keyState) reads() bool {
	return k.refused == nil && (k.flight == nil || !k.flight.Own)
}

// Of which entries [Source.get] reads the event: of none, or of all.
const (
	outline = 0
	whole   = math.MaxInt64
)

// get reads a key's entry, and its event if the entry has at most most bytes. A key whose
// entry cannot be read is treated as absent, but counted: a new entry replaces it, and a
// cancellation removes it.
func (s *Source) get(key string, most int64) (e *schedule.Entry, unreadable bool, err error) {
	e, err = s.q.store.Outline(s.uid, key, most)
	if _, ok := errors.AsType[*store.CorruptError](err); ok { // the store has logged it, once
		return nil, true, nil
	}
	return e, false, err
}

// open reads the entry and the flight of a key.
func (s *Source) open(k *keyState, now time.Time, most int64) (err error) {
	k.flight = s.flight(k.key)
	if k.flight == nil || !k.flight.Own {
		if k.stored, k.corrupt, err = s.get(k.key, most); err != nil {
			return err
		}
	}
	k.begin(now)
	return nil
}

// begin sets the current entry: the delivered occurrence if nothing waits behind it,
// otherwise the stored entry. An expired entry counts as absent.
func (k *keyState) begin(now time.Time) {
	k.own = k.flight != nil && k.flight.Own
	if k.own {
		k.stored = k.flight.Entry
	}
	k.current = k.stored
	if k.current != nil && !k.own && k.current.Expired(now) {
		k.current, k.changed = nil, true
	}
}

// apply gives the changes to the store and, once they are visible, to the page and
// the deliveries under way. A lazy apply is durable with the next one that is not.
func (s *Source) apply(keys []keyState, a *admission, lazy bool) error {
	changes := make([]store.Change, 0, len(keys))
	for i := range keys {
		if k := &keys[i]; k.changed && (k.stored != nil || k.corrupt || k.current != nil) {
			changes = append(changes, store.Change{Source: s.uid, Key: k.key, Old: k.stored, New: k.current, Corrupt: k.corrupt})
		}
	}
	changes = append(changes, a.extra...)
	// Without changes this is a barrier: the answer "kept" too requires that the kept
	// entry is durable.
	var marks []store.MarkChange
	if !lazy { // the last page: a mark records that all of it was scheduled
		marks = a.marks
	}
	commit, err := s.q.store.ApplyMarked(lazy, marks, changes...)
	if err != nil {
		s.release(keys)
		return s.q.fatal(err)
	}
	a.commit = commit
	a.marked = a.marked || !lazy
	for _, c := range changes {
		a.wake = s.accept(c) || a.wake
	}
	for i := range keys {
		k := &keys[i]
		if k.changed {
			s.settle(k)
		}
		if k.changed && k.current == nil { // it had expired, or was accepted and dropped
			s.expired.Add(1)
			s.rememberEnd(k.key, 0, string(schedule.Expired))
		}
		for _, accepted := range k.accepts {
			s.acceptedDuring(k, accepted)
		}
		if len(k.accepts) > 0 {
			a.writes.callOff(k.flight)
		}
	}
	return nil
}

// acceptedDuring records a change in the delivery under way of its key.
func (s *Source) acceptedDuring(k *keyState, a accepted) {
	defer s.stripe(k.key).show()()
	if k.flight.Own {
		s.own.Add(-1)
	}
	k.flight.Accept(a.change, a.ingested)
}

func (s *Source) now() time.Time { return s.q.cfg.Now().Round(0) }
