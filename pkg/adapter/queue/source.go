package queue

import (
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/recent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/timer"
)

// stripes is how many locks the keys of a source share.
const stripes = 64

// Source is the queue of one source. All methods are safe for concurrent use;
// a source that was removed answers not_found.
type Source struct {
	q        *Queue
	uid      string
	settings atomic.Pointer[schedule.Spec]
	counts   counting

	gate    sync.RWMutex // held for reading by every call, for writing by Remove
	removed atomic.Bool

	page struct {
		sync.Mutex
		*timer.Page
		letters letters
		queued  bool // a load waits for its turn, or is under way
	}
	again atomic.Int64 // keys that wait to be read once more

	// A source has stripes of its own: a bulk call holds most of them while it
	// writes, and the keys of other sources must not wait for that.
	stripes [stripes]stripe

	tenant      *tenant // guarded by gate
	kept        kept
	feed        recent.FeedRef
	keys        atomic.Int64 // entries of keys
	bytes       atomic.Int64 // of all entries, dead letters too
	marks       marks
	deadLetters atomic.Int64              // of all kinds
	expired     atomic.Int64              // since the start
	refused     [len(quotas)]atomic.Int64 // for each quota, since the start
	changes     tally
	flights     atomic.Int64 // deliveries under way
	own         atomic.Int64 // deliveries with nothing behind them: their entry is not pending
}

func (q *Queue) newSource(settings *schedule.Spec) (*Source, error) {
	keys, dead, err := q.store.Count(settings.UID)
	if err != nil {
		return nil, err
	}
	bytes, err := q.store.Bytes(settings.UID)
	if err != nil {
		return nil, err
	}
	s := &Source{q: q, uid: settings.UID}
	s.settings.Store(settings)
	s.keys.Store(keys)
	s.bytes.Store(bytes)
	s.deadLetters.Store(dead)
	if err := s.readMarks(); err != nil {
		return nil, err
	}
	q.join(s, settings.Namespace)
	s.page.Page = timer.New(q.pageRows(len(q.sources) + 1))
	return s, nil
}

// resize gives the page another size.
func (s *Source) resize(rows int) {
	s.page.Lock()
	s.page.Resize(rows)
	s.page.Unlock()
}

// Spec is what the source asks for now.
func (s *Source) Spec() *schedule.Spec { return s.settings.Load() }

// enter guards a call against Remove. After nil the caller must call leave.
func (s *Source) enter() error {
	s.gate.RLock()
	if s.removed.Load() {
		s.gate.RUnlock()
		return schedule.Refuse(schedule.CodeNotFound, "there is no RescheduleSource %s any more", s.Spec().Path())
	}
	return nil
}

func (s *Source) leave() { s.gate.RUnlock() }

// stripe guards the keys of a source that hash to it, and their deliveries under way.
// A change holds it from start to end, also while it waits for a full disk. Therefore
// reads do not take it: they read the flights under shown, which a change holds only
// while it modifies them.
type stripe struct {
	sync.Mutex
	shown   sync.Mutex
	flights map[string]*activeFlight // nil until the first
}

// show locks the flights for a change and returns the function to unlock them.
func (st *stripe) show() func() {
	st.shown.Lock()
	return st.shown.Unlock
}

// flightOf returns a copy of the key's delivery under way, and whether there is one.
func (st *stripe) flightOf(key string) (schedule.Flight, bool) {
	st.shown.Lock()
	defer st.shown.Unlock()
	if f := st.flights[key]; f != nil {
		return f.Flight, true
	}
	return schedule.Flight{}, false
}

// activeFlight is a delivery under way, and how to end it. Its fields change under the stripe's lock.
type activeFlight struct {
	schedule.Flight
	cancel  func()        // ends the attempt, once there is one
	writing chan struct{} // nil until the attempt begins; closed once its first bytes are written
}

func (s *Source) stripe(key string) *stripe { return &s.stripes[s.stripeOf(key)] }

func (s *Source) stripeOf(key string) int {
	return int(maphash.String(s.q.seed, key) % uint64(len(s.stripes)))
}

// lock locks the stripes of the keys, in the one order that cannot deadlock, and
// returns the function to unlock them.
func (s *Source) lock(keys ...string) (unlock func()) {
	if len(keys) == 1 {
		st := s.stripe(keys[0])
		st.Lock()
		return st.Unlock
	}
	held := s.stripesOf(keys)
	for i := range s.stripes {
		if held[i] {
			s.stripes[i].Lock()
		}
	}
	return func() {
		for i := range s.stripes {
			if held[i] {
				s.stripes[i].Unlock()
			}
		}
	}
}

// stripesOf returns which of the stripes have one of the keys.
func (s *Source) stripesOf(keys []string) (held [stripes]bool) {
	for _, key := range keys {
		held[s.stripeOf(key)] = true
	}
	return held
}

// lockItems locks the stripes of the items' keys.
func (s *Source) lockItems(items []Item) (unlock func()) {
	if len(items) == 1 {
		return s.lock(items[0].Key)
	}
	keys := make([]string, len(items))
	for i := range items {
		keys[i] = items[i].Key
	}
	return s.lock(keys...)
}

// flight is the key's delivery under way, or nil. The caller holds the stripe.
func (s *Source) flight(key string) *activeFlight {
	return s.stripe(key).flights[key]
}

// entry is the key's entry, nil when there is none, and whether there is one
// that cannot be read. The caller holds the stripe.
func (s *Source) entry(key string, f *activeFlight) (*schedule.Entry, bool, error) {
	if f != nil && f.Own {
		return f.Entry, false, nil
	}
	return s.get(key, outline)
}

// accept registers an entry that is in the store now. The caller holds the stripe,
// and must call Wake after releasing it if accept returns true.
func (s *Source) accept(c store.Change) (wake bool) {
	if c.New == nil {
		return false
	}
	if !c.New.ExpiresAt.IsZero() {
		s.q.expiry.note(c.New.ExpiresAt)
	}
	if feed := s.feed.Feed(); feed != nil {
		s.showScheduled(feed, &c)
	}
	return s.add(c.Key, c.New)
}

// add puts an entry into the page and reports whether it is the next one.
func (s *Source) add(key string, e *schedule.Entry) bool {
	s.page.Lock()
	defer s.page.Unlock()
	return s.page.Add(timer.Row{At: e.At().UnixNano(), Key: key, Revision: e.Revision})
}

// Removed reports that [Queue.Remove] has removed the source: nothing of it is
// delivered any more.
func (s *Source) Removed() bool { return s.removed.Load() }

// NextAt is when [Source.Take] may return a key; zero if no time is known (Wake is
// called when that changes), and always of a removed source.
func (s *Source) NextAt() time.Time {
	if s.Removed() || s.readsFail() || !s.q.mayDeliver() {
		return time.Time{}
	}
	s.page.Lock()
	defer s.page.Unlock()
	if l := &s.page.letters; (len(l.deferred) > 0 || l.more) && l.hasSlot(s.Spec()) {
		return s.now()
	}
	at, ok := s.page.Head()
	if !ok {
		return time.Time{}
	}
	return time.Unix(0, at)
}

// NextKeyAt is when the first key of the page may be delivered, without dead letters, which go
// to another sink; zero if the page has none.
func (s *Source) NextKeyAt() time.Time {
	s.page.Lock()
	defer s.page.Unlock()
	at, ok := s.page.First(func(key string) bool { return !schedule.IsDeadLetterKey(key) })
	if !ok {
		return time.Time{}
	}
	return time.Unix(0, at)
}

// load reads the next page of the due index in the background when the page
// in memory runs low.
func (s *Source) load() {
	s.page.Lock()
	needed := s.page.NeedsLoad() && !s.page.queued
	s.page.queued = s.page.queued || needed
	s.page.Unlock()
	if !needed {
		return
	}
	s.q.work.Go(func() {
		// The load begins when its turn has come: rows that arrive during the load are
		// put aside, and too many of them make it void.
		s.q.loads <- struct{}{}
		s.page.Lock()
		after, n := s.page.BeginLoad()
		s.page.Unlock()
		err := s.loadPage(after, n)
		<-s.q.loads
		if errors.Is(err, errRemoved) || errors.Is(err, store.ErrClosed) {
			return
		}
		if err != nil {
			s.q.cfg.Log.Error("the due index cannot be read; trying again", "source", s.Spec().Path(), "error", err)
			select {
			case <-time.After(time.Second):
				s.loaded()
				s.load()
			case <-s.q.stop:
			}
			return
		}
		s.loaded()
		s.load() // too many rows may have arrived, which made it void
		s.q.cfg.Wake(s)
	})
}

// loaded lets the next load begin.
func (s *Source) loaded() {
	s.page.Lock()
	s.page.queued = false
	s.page.Unlock()
}

var errRemoved = errors.New("queue: the source was removed")

func (s *Source) loadPage(after timer.Row, n int) error {
	if err := s.enter(); err != nil {
		s.page.Lock()
		s.page.AbortLoad()
		s.page.Unlock()
		return errRemoved
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
