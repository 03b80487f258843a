package queue

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/recent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/timer"
)

// Source is the queue of one source. All methods are safe for concurrent use;
// a source that was removed answers not_found.
//
// Its locks, in the order in which they are taken, after following:
//
//   - gate is held for reading by every call from its start to its end, and for writing
//     while the source is removed or moves to another namespace. It guards removed, and
//     the namespace that usage counts for.
//   - stripes, by their number, guard the entries of keys in the store, and the deliveries
//     under way.
//   - Letters has one lock for all dead letters that are kept, which have no stripes.
//   - page, the bytes of Marks, the namespace's reservations and counts have a lock each,
//     under which none of the above is taken.
//
// Everything else is atomic.
type Source struct {
	q        *Queue
	uid      string
	settings atomic.Pointer[schedule.Spec]

	// Letters are the dead letters that are kept.
	Letters Letters
	// Marks are what is remembered of the objects that the source watches.
	Marks Marks

	gate      sync.RWMutex
	removed   atomic.Bool
	following sync.Mutex // one follower at a time; taken before all others

	stripes stripes
	page    page
	usage   usage
	counts  counting
	feed    recent.FeedRef
	changes tally
	expired atomic.Int64 // since the start
}

func (q *Queue) newSource(settings *schedule.Spec) (*Source, error) {
	s := &Source{q: q, uid: settings.UID}
	s.Letters.s, s.Marks.s, s.page.s, s.usage.store, s.stripes.seed = s, s, s, q.store, q.seed
	s.settings.Store(settings)
	if err := s.usage.read(s.uid); err != nil {
		return nil, err
	}
	if err := s.Marks.read(); err != nil {
		return nil, err
	}
	q.join(s, settings.Namespace)
	s.page.rows = timer.New(q.pageRows(len(q.sources)+1), pageDivisors[:]...)
	s.page.rows.Awake(int64(settings.Company))
	s.page.rows.Order(!settings.Scale.Sinkless) // its workload finds its work in an order of its own
	return s, nil
}

// Spec is what the source asks for now.
func (s *Source) Spec() *schedule.Spec { return s.settings.Load() }

func (s *Source) now() time.Time { return s.q.cfg.Now().Round(0) }

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

// Removed reports that [Queue.Remove] has removed the source: nothing of it is
// delivered any more.
func (s *Source) Removed() bool { return s.removed.Load() }

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
	return s.page.add(c.Key, c.New)
}

// NextAt is when [Source.Take] may return a key; zero if no time is known (Wake is
// called when that changes), and always of a removed source.
func (s *Source) NextAt() time.Time {
	if s.Removed() || s.page.readsFail() || !s.q.mayDeliver() {
		return time.Time{}
	}
	s.page.mu.Lock()
	defer s.page.mu.Unlock()
	if l := &s.page.letters; (len(l.deferred) > 0 || l.more) && l.hasSlot(s.Spec()) {
		return s.now()
	}
	return instant(s.page.rows.Next(s.now().UnixNano()))
}

// LetterIsDue reports whether TakeLetter may return a dead letter now.
func (s *Source) LetterIsDue() bool {
	p := &s.page
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &p.letters
	return l.hasSlot(s.Spec()) && (len(l.deferred) > 0 || l.more || p.rows.ApartIsDue(s.now().UnixNano()))
}

// NextKeyAt is when the first key of the page is delivered at the latest, without dead letters, which go
// to another sink; zero if the page has none. Due is the time of the key that Take returns if it is not stale;
// zero if it returns none.
func (s *Source) NextKeyAt() (latest, due time.Time) {
	s.page.mu.Lock()
	defer s.page.mu.Unlock()
	return instant(s.page.rows.Must()), instant(s.page.rows.Due(s.now().UnixNano()))
}
