package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// entry is an occurrence as the contract describes it. It is never changed,
// only replaced. rev and occ stand for the revision and the event's id, which
// the model learns when it sees them.
type entry struct {
	rev, occ int

	scheduledAt, dueAt, retryAt, expiresAt time.Time
	// olderAt is when an older occurrence was due whose delivery is out, if what
	// waits is an event that came in behind it.
	olderAt time.Time
	// owedAt is the event's own time, after a crash brought the older occurrence
	// back: the key is due then once more.
	owedAt time.Time

	attempt uint32 // failed runs of the key in a row
	tries   uint32 // failed deliveries of this occurrence

	maxInterval *time.Duration
	uid, reason string
	event       *schedule.Event
	dead        *deadLetter
}

type deadLetter struct {
	key     string
	dueAt   time.Time
	attempt uint32
	rev     int
	occ     int
	event   *schedule.Event
	code    int
}

func (e *entry) at() time.Time {
	if !e.retryAt.IsZero() {
		return e.retryAt
	}
	return e.dueAt
}

func (e *entry) expired(now time.Time) bool {
	return e != nil && !e.expiresAt.IsZero() && !now.Before(e.expiresAt)
}

// flight is a delivery under way.
type flight struct {
	e          *entry
	own        bool // what is delivered is still the key's newest
	superseded bool // a request took its place
	cancelled  bool
	ownCounter bool // what came in meanwhile counts for itself
}

type key struct {
	cur     *entry
	fl      *flight
	changed time.Time // in the bubble's time: last change, or end of a delivery
	sent    int       // deliveries so far
}

func (k *key) own() bool { return k.fl != nil && k.fl.own }

// waiting is the occurrence that waits or is due, nil when there is none.
func (k *key) waiting(now time.Time) *entry {
	if k.own() || k.cur.expired(now) {
		return nil
	}
	return k.cur
}

// present is what GET shows.
func (k *key) present(now time.Time) *entry {
	if !k.own() && k.cur.expired(now) {
		return nil
	}
	return k.cur
}

// source is one incarnation of a source.
type source struct {
	settings *schedule.Source
	keys     map[string]*key
	gone     bool
	before   map[*key]bool // keys that were there when a call of several began: they count until it ends

	inFlight  int // of keys
	letters   int // dead letters in flight
	tokens    float64
	tokensAt  time.Time
	blockedAt time.Time // until then something else than time held deliveries back

	lettersBlockedAt time.Time // the same for dead letters
}

func (s *source) key(name string) *key {
	k := s.keys[name]
	if k == nil {
		k = &key{}
		s.keys[name] = k
	}
	return k
}

// names are the keys of users, in order.
func (s *source) names() []string {
	names := slices.Sorted(maps.Keys(s.keys))
	return slices.DeleteFunc(names, schedule.IsDeadLetterKey)
}

// undo is a change that a crash may take back.
type undo struct {
	k   *key
	old *entry
	at  time.Time // in the bubble's time
}

type model struct {
	wall func() time.Time // the adapter's clock
	fail func(format string, args ...any)

	sources     map[string]*source // by uid
	maxInFlight int                // of all sources

	log   []undo
	acked int // so many of the log are durable for certain

	tokens int
	revs   map[int]uint64   // revisions as seen
	taken  map[uint64]int   // revision → its change
	ids    map[int]string   // ids as seen
	owner  map[string]int   // id → its occurrence
	newest map[*key]lastRev // of every key, over all crashes

	unsureUntil  time.Time // in the bubble's time: until then a crash may have left more that has expired
	slowUntil    time.Time // in the bubble's time: until then pages may still load
	upAt, jumpAt time.Time // in the bubble's time: start of the process, last jump of the clock
	backwards    bool      // the clock once went back
	probing      bool      // nothing is learned
	started      []started
	flying       map[*key]schedule.State // what was in delivery when the process went down
}

type lastRev struct {
	token int
	rev   uint64
}

type started struct {
	s  *source
	e  *entry
	at time.Time
}

func newModel(wall func() time.Time, fail func(string, ...any)) *model {
	return &model{
		wall: wall, fail: fail, sources: map[string]*source{}, revs: map[int]uint64{}, taken: map[uint64]int{}, ids: map[int]string{},
		owner: map[string]int{}, newest: map[*key]lastRev{},
	}
}

func (m *model) token() int { m.tokens++; return m.tokens }

// set replaces a key's occurrence, until it is durable subject to a crash.
func (m *model) set(k *key, e *entry) {
	m.log = append(m.log, undo{k, k.cur, time.Now()})
	k.cur, k.changed = e, time.Now()
}

// ack notes that everything up to the position in the log is durable.
func (m *model) ack(position int) { m.acked = max(m.acked, position) }

// lazily notes that what is older than the store may leave without an fsync is
// durable too, whichever call waited for it.
func (m *model) lazily() {
	for m.acked < len(m.log) && time.Since(m.log[m.acked].at) > 2*store.LazySync {
		m.acked++
	}
}

// seeRevision learns a revision, or holds it against the one known.
func (m *model) seeRevision(k *key, token int, got uint64) bool {
	if known, ok := m.revs[token]; ok {
		return known == got
	}
	if _, taken := m.taken[got]; taken || m.probing {
		return !taken
	}
	m.revs[token], m.taken[got] = got, token
	last := m.newest[k]
	if token > last.token {
		m.newest[k] = lastRev{token, got}
		return got > last.rev
	}
	return got < last.rev
}

// seeID learns the id of an occurrence, or holds it against the one known.
func (m *model) seeID(e *entry, id string) bool {
	event, occ := e.event, e.occ
	if e.dead != nil {
		event, occ = e.dead.event, e.dead.occ
	}
	if event != nil && event.ID != "" {
		return id == event.ID
	}
	if known, ok := m.ids[occ]; ok {
		return known == id
	}
	m.ids[occ] = id
	if _, used := m.owner[id]; used {
		return false
	}
	m.owner[id] = occ
	return true
}

// state is where a key stands.
func (m *model) state(k *key) schedule.State {
	now := m.wall()
	e := k.present(now)
	switch {
	case e == nil && k.fl == nil:
		return schedule.Absent
	case e == nil:
		return schedule.Leaving
	case k.own():
		return schedule.InFlight
	case k.fl != nil:
		return schedule.Behind
	case e.dueAt.After(now):
		return schedule.Waiting
	}
	return schedule.Due
}

// step holds a step against the table of legal ones. Waiting turns due by
// itself, so that where a step leads to the two are the same; where it comes
// from they are, once the clock went back.
func (m *model) step(from schedule.State, on string, to schedule.State) {
	near := func(a, b schedule.State) bool {
		return a == b || a == schedule.Waiting && b == schedule.Due || a == schedule.Due && b == schedule.Waiting
	}
	for _, t := range schedule.Transitions {
		if t.On == on && near(t.To, to) && (t.From == from || m.backwards && near(t.From, from)) {
			return
		}
	}
	m.fail("a step that is not in the table: %s, %s, %s", from, on, to)
}

// down ends all deliveries, as a crash does.
func (m *model) down() {
	m.flying = map[*key]schedule.State{}
	for _, s := range m.sources {
		s.inFlight, s.letters = 0, 0
		for _, k := range s.keys {
			if k.fl != nil {
				m.flying[k], k.fl = m.state(k), nil
			}
		}
	}
}

// up takes back changes, newest first, until what is left matches what a
// restart found; what was acknowledged is not taken back.
func (m *model) up(matches func() string) {
	for _, u := range m.log[m.acked:] { // whether it is there cannot be seen
		if now := m.wall(); u.old.expired(now) || u.k.cur.expired(now) {
			m.unsureUntil = time.Now().Add(5 * time.Second)
		}
	}
	first := ""
	for {
		mismatch := matches()
		if mismatch == "" {
			break
		}
		if first == "" {
			first = mismatch
		}
		if len(m.log) == m.acked {
			m.fail("after a restart the store is at no moment after the last acknowledged change: at first %s; at last %s", first, mismatch)
			break
		}
		last := m.log[len(m.log)-1]
		m.log = m.log[:len(m.log)-1]
		last.k.cur = last.old
		delete(m.flying, last.k)
	}
	for _, s := range m.sources {
		for _, k := range s.keys {
			k.cur = recovered(k.cur)
			k.changed = time.Now()
		}
	}
	for k, from := range m.flying {
		to := m.state(k)
		if from != schedule.Leaving && k.cur != nil && to == schedule.Absent { // its expiry came meanwhile
			m.step(schedule.Due, "expire", to)
			to = schedule.Due
		}
		m.step(from, "restart", to)
	}
	m.log, m.acked, m.started, m.flying = nil, 0, nil, nil
}

// recovered is an occurrence after a restart: an event never postpones what
// was in delivery and is due again now, and it has its own time afterwards.
func recovered(e *entry) *entry {
	if e == nil || e.olderAt.IsZero() {
		return e
	}
	n := *e
	n.olderAt = time.Time{}
	if e.olderAt.Before(n.dueAt) {
		n.dueAt, n.retryAt, n.owedAt = e.olderAt, time.Time{}, e.dueAt
	}
	return &n
}
