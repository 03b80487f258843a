package queue

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/reschedule-dev/reschedule/pkg/adapter/recent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// DefaultPageRows bounds a source's near horizon: at 1,000 deliveries a second
// about two seconds between two loads, in about 300 KiB.
const DefaultPageRows = 4096

// minPageRows is what every source's horizon keeps, even among very many sources.
const minPageRows = 64

// Config is what a Queue needs.
type Config struct {
	Store store.Store
	Log   *slog.Logger // default: discards
	// Now is the wall clock, default time.Now.
	Now func() time.Time
	// Random returns a number in [0,1) for jitter, default math/rand/v2.
	Random func() float64
	// Wake is called when a source may have something due sooner than
	// [Source.NextAt] returned before. It must not block; it is called from any goroutine.
	Wake func(*Source)
	// Fatal is called when durability is unknown, after a failed fsync or write: the
	// process must end. Default: panics.
	Fatal func(error)
	// PageRows bounds the rows of a source's near horizon, default DefaultPageRows.
	PageRows int
	// PageBudget bounds the rows of all sources' horizons together, as long as
	// every source keeps 64; default 32 times DefaultPageRows.
	PageBudget int
	// Owns reports that no other adapter can own the store: while it does not, nothing is
	// delivered. Wake every source when it does again. Default: always.
	Owns func() bool
	// Meter makes the instruments, default none.
	Meter metric.Meter
}

// Queue holds the queues of all sources over one store.
type Queue struct {
	cfg     Config
	store   store.Store
	storeID string
	metrics *metrics
	history *recent.History
	feeds   *recent.Feeds
	seed    maphash.Seed

	mu      sync.RWMutex
	sources map[string]*Source // by uid
	byPath  map[string]*Source // by namespace/name
	tenants map[string]*tenant // by namespace

	loads  chan struct{} // bounds loads at a time
	paused atomic.Bool   // no delivery starts: the disk has no space for outcomes
	expiry expiry
	stop   chan struct{}
	work   sync.WaitGroup
}

// Open brings forward the deliveries that a crash left unfinished, and returns a
// Queue without sources.
func Open(cfg Config) (*Queue, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	if cfg.Wake == nil {
		cfg.Wake = func(*Source) {}
	}
	if cfg.Fatal == nil {
		cfg.Fatal = func(err error) { panic(err) }
	}
	if cfg.Owns == nil {
		cfg.Owns = func() bool { return true }
	}
	cfg.PageRows = cmp.Or(cfg.PageRows, DefaultPageRows)
	cfg.PageBudget = cmp.Or(cfg.PageBudget, 32*DefaultPageRows)
	q := &Queue{
		cfg: cfg, store: cfg.Store, storeID: cfg.Store.ID(), seed: maphash.MakeSeed(),
		sources: map[string]*Source{}, byPath: map[string]*Source{}, tenants: map[string]*tenant{},
		history: recent.NewHistory(recent.HistoryBytes, cfg.Now().Round(0)), feeds: recent.NewFeeds(),
		loads: make(chan struct{}, 4), expiry: expiry{wake: make(chan struct{}, 1)}, stop: make(chan struct{}),
	}
	var err error
	if q.metrics, err = newMetrics(cfg.Meter, q); err != nil {
		return nil, fmt.Errorf("queue: metrics: %w", err)
	}
	if err := q.recover(); err != nil {
		return nil, fmt.Errorf("queue: recovery: %w", err)
	}
	if err := q.checkClock(); err != nil {
		return nil, fmt.Errorf("queue: clock: %w", err)
	}
	q.work.Go(q.heartbeat)
	q.work.Go(q.sweep)
	return q, nil
}

// Close ends the background work. It does not close the store.
func (q *Queue) Close() {
	close(q.stop)
	q.work.Wait()
	q.metrics.close()
}

// recover brings forward keys that an event postponed while an older occurrence was
// in delivery: the outcome of that delivery is unknown now.
func (q *Queue) recover() error {
	rows, err := q.store.Unfinished()
	if err != nil {
		return err
	}
	var changes []store.Change
	held := int64(0)
	for _, row := range rows {
		if held >= pageBytes { // events that wait may be large
			if _, err := q.store.Apply(true, changes...); err != nil {
				return err
			}
			changes, held = changes[:0], 0
		}
		old, err := q.store.Outline(row.Source, row.Key, outline)
		if err != nil {
			q.cfg.Log.Error("an entry cannot be read and was left out of the recovery", "source", row.Source, "key", row.Key, "error", err)
			continue
		}
		if old == nil {
			continue
		}
		if e, changed := old.Recover(); changed {
			changes = append(changes, store.Change{Source: row.Source, Key: row.Key, Old: old, New: e})
			held += e.Size(row.Key)
		}
	}
	if len(changes) == 0 {
		return nil
	}
	commit, err := q.store.Apply(false, changes...)
	if err != nil {
		return err
	}
	return commit.Wait()
}

// Set adds a source, or gives the source with the same uid new settings: in
// force for the next request and the next delivery. A new source takes the
// address from another that still has it.
func (q *Queue) Set(settings *schedule.Spec) (*Source, error) {
	q.mu.Lock()
	s, ok := q.sources[settings.UID]
	trim, follow := !ok, settings.Calendar != nil
	if ok {
		trim, follow = s.Spec().Letters != settings.Letters, !sameSchedule(s.Spec().Calendar, settings.Calendar)
		old := s.settings.Swap(settings)
		s.page.set(old, settings)
		if old.Path() != settings.Path() && q.byPath[old.Path()] == s {
			delete(q.byPath, old.Path())
		}
	} else {
		var err error
		if s, err = q.newSource(settings); err != nil {
			q.mu.Unlock()
			return nil, fmt.Errorf("queue: source %s: %w", settings.Path(), err)
		}
		follow = follow || s.Marks.noted
		q.sources[settings.UID] = s
		q.expiry.anew.Store(true) // the sweeper may have skipped its rows
	}
	q.byPath[settings.Path()] = s
	moved := s.usage.tenant.namespace != settings.Namespace
	q.mu.Unlock()
	if moved {
		q.move(s)
	}
	if !ok { // without the lock: it reads the disk
		if err := s.Letters.countAll(); err != nil {
			return nil, fmt.Errorf("queue: source %s: %w", settings.Path(), err)
		}
	}
	if trim && s.usage.kept.Load() > 0 {
		q.work.Go(s.Letters.trim)
	}
	if follow {
		q.work.Go(follower{s}.run)
	}
	s.page.load()
	q.cfg.Wake(s)
	return s, nil
}

// Remove purges a source, also one that is only in the store: its schedules
// are lost for good, durably when it returns; a source that is set again with its
// uid starts empty. It waits for calls that are under way, not for deliveries.
func (q *Queue) Remove(uid string) error {
	q.mu.Lock()
	s := q.sources[uid]
	delete(q.sources, uid)
	if s != nil && q.byPath[s.Spec().Path()] == s {
		delete(q.byPath, s.Spec().Path())
	}
	q.mu.Unlock()
	if s != nil {
		s.gate.Lock()
		q.mu.Lock()
		if !s.removed.Swap(true) {
			q.part(s)
		}
		q.mu.Unlock()
		s.gate.Unlock()
		q.feeds.End(&s.feed)
	}
	if err := q.store.Purge(uid); err != nil {
		return fmt.Errorf("queue: purge source %s: %w", uid, err)
	}
	return nil
}

// Lookup finds a source by its address.
func (q *Queue) Lookup(namespace, name string) (*Source, bool) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	s, ok := q.byPath[namespace+"/"+name]
	return s, ok
}

// Find finds a source by its uid.
func (q *Queue) Find(uid string) (*Source, bool) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	s, ok := q.sources[uid]
	return s, ok
}

// Sources lists the sources, in no order.
func (q *Queue) Sources() []*Source {
	q.mu.RLock()
	defer q.mu.RUnlock()
	all := make([]*Source, 0, len(q.sources))
	for _, s := range q.sources {
		all = append(all, s)
	}
	return all
}

// pageRows is the size of a page when there are so many sources.
func (q *Queue) pageRows(sources int) int {
	most := q.cfg.PageBudget * 4 / 7 // with keys of all priorities a source has 7/4 of a page: pageDivisors
	return min(q.cfg.PageRows, max(minPageRows, most/max(sources, 1)))
}

// wait returns when the commit is durable. A failure ends the process, because then
// the content of the disk is not known.
func (q *Queue) wait(c store.Commit) error {
	if err := c.Wait(); err != nil {
		return partialChangeError(q.fatal(err)) // it was applied
	}
	return nil
}

// The refusals of a call whose store ended before or during it.
var (
	errEnded   = &schedule.Error{Code: schedule.CodeUnavailable, RetryAfter: time.Second, Detail: "this adapter no longer serves the source: nothing was changed; try again"}
	errUnknown = &schedule.Error{Code: schedule.CodeUnavailable, RetryAfter: time.Second, Detail: "whether something was changed is unknown; PUT and DELETE may be repeated"}
	// errTooLarge needs a change of 64 MiB, which no call of 16 MiB makes.
	errTooLarge = &schedule.Error{Code: schedule.CodeTooLarge, Detail: "the change is too large for the group's log: nothing was changed; send fewer events at a time"}
)

// RefusalOfEndedStore returns the refusal of a call whose store has ended: the adapter ends, or no longer owns
// the group. It returns nil for any other error.
func RefusalOfEndedStore(err error) *schedule.Error {
	switch {
	case errors.Is(err, store.ErrClosed), errors.Is(err, store.ErrNotOwner), errors.Is(err, store.ErrSealed), errors.Is(err, errEnded):
		return errEnded
	case errors.Is(err, store.ErrUnknown), errors.Is(err, errUnknown):
		return errUnknown
	case errors.Is(err, store.ErrTooLarge):
		return errTooLarge
	}
	return nil
}

// translated is the error, or the refusal that RefusalOfEndedStore makes of it.
func translated(err error) error {
	if e := RefusalOfEndedStore(err); e != nil {
		return e
	}
	return err
}

// partialChangeError is the error of a call that may have changed something before.
func partialChangeError(err error) error {
	if RefusalOfEndedStore(err) != nil {
		return errUnknown
	}
	return err
}

func (q *Queue) fatal(err error) error {
	if e := RefusalOfEndedStore(err); e != nil {
		return e
	}
	err = fmt.Errorf("queue: durability unknown: %w", err)
	q.cfg.Fatal(err)
	return err
}

// barrier returns when everything applied so far is durable. A call needs it before
// it acknowledges that nothing had to change.
func (q *Queue) barrier() error {
	commit, err := q.store.Apply(false)
	if err != nil {
		return q.fatal(err)
	}
	return q.wait(commit)
}
