package queue

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/timer"
)

// Source is the queue of one source. All methods are safe for concurrent use;
// a source that was removed answers not_found.
type Source struct {
	q        *Queue
	uid      string
	settings atomic.Pointer[schedule.Source]
	counts   counting

	gate    sync.RWMutex // held for reading by every call, for writing by Remove
	removed atomic.Bool

	page struct {
		sync.Mutex
		*timer.Page
		letters letters
	}

	keys        atomic.Int64 // entries of keys
	deadLetters atomic.Int64
	expired     atomic.Int64 // since the start
	flights     atomic.Int64 // deliveries under way
	own         atomic.Int64 // those with nothing behind them: their entry is not pending
}

func (q *Queue) newSource(settings *schedule.Source) (*Source, error) {
	keys, dead, err := q.store.Count(settings.UID)
	if err != nil {
		return nil, err
	}
	s := &Source{q: q, uid: settings.UID}
	s.settings.Store(settings)
	s.keys.Store(keys)
	s.deadLetters.Store(dead)
	s.page.Page = timer.New(q.pageRows())
	return s, nil
}

// Settings are the source's settings now in force.
func (s *Source) Settings() *schedule.Source { return s.settings.Load() }

// enter guards a call against Remove; leave must follow when it returns nil.
func (s *Source) enter() error {
	s.gate.RLock()
	if s.removed.Load() {
		s.gate.RUnlock()
		return schedule.Refuse(schedule.CodeNotFound, "there is no RescheduleSource %s any more", s.Settings().Path())
	}
	return nil
}

func (s *Source) leave() { s.gate.RUnlock() }

// stripe guards the keys that hash to it and their deliveries under way.
type stripe struct {
	sync.Mutex
	flights map[flightKey]*flight
}

type flightKey struct {
	source *Source
	key    string
}

// flight is a delivery under way. Its fields change under the stripe's lock.
type flight struct {
	schedule.Flight
	cancel  func()        // ends the attempt, once there is one
	writing chan struct{} // nil until the attempt begins; closed once its first bytes are written
}

func (s *Source) stripeOf(key string) int {
	return int(maphash.String(s.q.seed, key) % uint64(len(s.q.stripes)))
}

// lock takes the stripes of the keys, in the one order that cannot deadlock,
// and returns how to release them.
func (s *Source) lock(items []Item) (unlock func()) {
	if len(items) == 1 {
		st := &s.q.stripes[s.stripeOf(items[0].Key)]
		st.Lock()
		return st.Unlock
	}
	held := make([]int, len(items))
	for i := range items {
		held[i] = s.stripeOf(items[i].Key)
	}
	slices.Sort(held)
	held = slices.Compact(held)
	for _, i := range held {
		s.q.stripes[i].Lock()
	}
	return func() {
		for _, i := range held {
			s.q.stripes[i].Unlock()
		}
	}
}

// flight is the key's delivery under way, or nil. The caller holds the stripe.
func (s *Source) flight(key string) *flight {
	return s.q.stripes[s.stripeOf(key)].flights[flightKey{s, key}]
}

// entry is the key's entry, nil when there is none. The caller holds the stripe.
func (s *Source) entry(key string, f *flight) (*schedule.Entry, error) {
	if f != nil && f.Own {
		return f.Entry, nil
	}
	return s.get(key)
}

// accept notes an entry that is in the store now. The caller holds the stripe;
// it calls Wake, if asked to, after releasing it.
func (s *Source) accept(c store.Change) (wake bool) {
	if c.New == nil {
		return false
	}
	if !c.New.ExpiresAt.IsZero() {
		s.q.expiry.note(c.New.ExpiresAt)
	}
	return s.add(c.Key, c.New)
}

// count notes that an entry was made or removed.
func (s *Source) count(c store.Change) {
	n := &s.keys
	if schedule.IsDeadLetterKey(c.Key) {
		n = &s.deadLetters
	}
	switch {
	case c.Old == nil && c.New != nil:
		n.Add(1)
	case c.Old != nil && c.New == nil:
		n.Add(-1)
	}
}

// add puts an entry into the page and reports whether it is the next one.
func (s *Source) add(key string, e *schedule.Entry) bool {
	s.page.Lock()
	defer s.page.Unlock()
	return s.page.Add(timer.Row{At: e.At().UnixNano(), Key: key, Revision: e.Revision})
}

// Removed says that [Queue.Remove] has taken the source away: nothing of it is
// delivered any more.
func (s *Source) Removed() bool { return s.removed.Load() }

// NextAt is when [Source.Take] may have something; zero when nothing is known
// to come (Wake tells when that changes), or ever, of a removed source.
func (s *Source) NextAt() time.Time {
	if s.Removed() {
		return time.Time{}
	}
	s.page.Lock()
	defer s.page.Unlock()
	if l := &s.page.letters; (len(l.parked) > 0 || l.more) && l.room(s.Settings()) {
		return s.now()
	}
	at, ok := s.page.Head()
	if !ok {
		return time.Time{}
	}
	return time.Unix(0, at)
}

// load reads the next page of the due index in the background when the page
// in memory runs low.
func (s *Source) load() {
	s.page.Lock()
	needed := s.page.NeedsLoad()
	var after timer.Row
	var n int
	if needed {
		after, n = s.page.BeginLoad()
	}
	s.page.Unlock()
	if !needed {
		return
	}
	s.q.work.Go(func() {
		s.q.loads <- struct{}{}
		err := s.loadPage(after, n)
		<-s.q.loads
		if err != nil {
			s.q.cfg.Log.Error("the due index cannot be read; trying again", "source", s.Settings().Path(), "error", err)
			select {
			case <-time.After(time.Second):
				s.load()
			case <-s.q.stop:
			}
			return
		}
		s.load() // so much may have come in meanwhile that it was void
		s.q.cfg.Wake(s)
	})
}

func (s *Source) loadPage(after timer.Row, n int) error {
	if err := s.enter(); err != nil {
		return nil // removed: nothing to load
	}
	defer s.leave()
	from := store.Position{At: time.Unix(0, after.At), Key: after.Key}
	rows, more, err := s.q.store.Due(make([]store.Row, 0, n), s.uid, from, n)
	loaded := make([]timer.Row, len(rows))
	for i, r := range rows {
		loaded[i] = timer.Row{At: r.At.UnixNano(), Key: r.Key, Revision: r.Revision}
	}
	s.page.Lock()
	defer s.page.Unlock()
	if err != nil {
		s.page.AbortLoad()
		return err
	}
	s.page.EndLoad(loaded, more)
	return nil
}
