package watch

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// Config is what a Manager needs.
type Config struct {
	API objects.API // required
	Log *slog.Logger
	// Warn notifies the owner of a source. It must not block.
	Warn func(src *schedule.Spec, reason, message string)
	// Changed is called when the status of a source has changed, except for the number
	// of its objects. It must not block.
	Changed func(uid string)
	// Random returns a number in [0,1), default math/rand/v2.
	Random func() float64
	Meter  metric.Meter // default none
	// Memory is what watches may take beside Bytes.
	Memory int64
}

// Marks is what a watching source needs of its queue: a *queue.Marks.
type Marks interface {
	// Report schedules the items and stores the marks as one durable change, or, when
	// an item is refused, nothing.
	Report(items []queue.Item, marks []store.MarkChange) error
	List(watch uint64, after string, limit int) (marks []store.Mark, more bool, err error)
	Get(watch uint64, object string) (m store.Mark, ok bool, err error)
	Count(watch uint64) (n, bytes int64, err error)
	States() ([]store.WatchState, error)
	SetState(s store.WatchState) error
	Remove(watch uint64) error
}

// Manager watches for all sources. It is safe for concurrent use.
type Manager struct {
	cfg     Config
	lists   *budget.Budget // also of namespaces: one of a namespace of sources at a time
	streams *budget.Budget // watches that may be open
	// remembered are bytes: what is known of namespaces, and watches of one namespace that wait
	remembered *budget.Budget
	vanished   *budget.Budget // bytes of deletions that lists have found
	late       lateGroups
	// A watch has a turn while it reads events, up to the batch that it makes, and while it
	// evaluates an expression: what all watches hold is bounded by the number of turns.
	reading, evaluating *budget.Budget
	metrics             *metrics

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	sources map[string]*source // by uid
}

// New returns a Manager without sources.
func New(cfg Config) (*Manager, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Warn == nil {
		cfg.Warn = func(*schedule.Spec, string, string) {}
	}
	if cfg.Changed == nil {
		cfg.Changed = func(string) {}
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	m := &Manager{cfg: cfg, sources: map[string]*source{}, late: lateGroups{all: map[string]*lateGroup{}}, lists: budget.NewTurns(maxLists, 1, 0), streams: budget.New(maxStreams + cfg.Memory/2/streamBytes), vanished: budget.New(maxVanished),
		remembered: budget.New(maxRemembered + cfg.Memory/2),
		reading:    budget.NewTurns(maxReading, maxReading/2, 0), evaluating: budget.NewTurns(budget.HalfOfProcessors(), budget.HalfOfProcessors(), 0)}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	var err error
	if m.metrics, err = newMetrics(cfg.Meter, m); err != nil {
		m.cancel()
		return nil, fmt.Errorf("watch: metrics: %w", err)
	}
	return m, nil
}

// Set gives a source new settings, also a new source. It does not block. A source that
// does not watch any more loses its marks, and nothing is scheduled.
func (m *Manager) Set(src *schedule.Spec, marks Marks) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() != nil {
		return
	}
	s := m.sources[src.UID]
	if s == nil {
		s = newSource(m, src, marks)
		m.sources[src.UID] = s
		m.running.Go(s.run)
		return
	}
	s.set(src)
}

// Remove ends the watches of a source. It does not wait for them: the queue refuses
// what they still report once the source was removed there.
func (m *Manager) Remove(uid string) {
	m.mu.Lock()
	s := m.sources[uid]
	delete(m.sources, uid)
	m.mu.Unlock()
	if s != nil {
		s.cancel()
	}
}

// Close ends all watches and waits for them.
func (m *Manager) Close() {
	m.mu.Lock()
	m.cancel()
	m.mu.Unlock()
	m.running.Wait()
	m.metrics.close()
}

func (m *Manager) find(uid string) *source {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sources[uid]
}

func (m *Manager) all() []*source {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]*source, 0, len(m.sources))
	for _, s := range m.sources {
		all = append(all, s)
	}
	return all
}

// Status returns what a source reports; false for one that does not watch.
func (m *Manager) Status(uid string) (schedule.WatchStatus, bool) {
	s := m.find(uid)
	if s == nil || s.settings.Load().Watch == nil {
		return schedule.WatchStatus{}, false
	}
	return s.status(), true
}

// Bytes is the most that watches hold.
const Bytes = maxStreams*streamBytes + (maxReading+maxLists)*readingBytes + maxVanished + maxRemembered

const (
	// maxStreams bounds the watches of all sources. A namespace gets half of what is left at
	// most, a source half of that. A watch that ends, after ten minutes at most, gives way to a
	// namespace that has fewer.
	maxStreams = 512
	// maxRemembered bounds what all sources remember of namespaces, in bytes, which are shared alike. What a source
	// remembers stays: it does not know again what it has reported.
	maxRemembered = 8 << 20
	// streamBytes is what a watch takes that waits for its turn: 16 KiB of its answer have
	// arrived.
	streamBytes = 48 << 10
	// readingBytes is what it takes more while it reads: an object, its text and a batch.
	readingBytes = 2 << 20
	// maxReading is how many watches read events at once: of more than one, batches are
	// stored together. A namespace has half of them at most: the rest of an event may take long.
	maxReading = 4
	// maxLists is how many lists read at once, each of another namespace: a page may take half a minute.
	maxLists = 4
	// readingTurn is how long a watch reads on while others wait.
	readingTurn = 5 * time.Millisecond
)

const (
	// The wait after a failure: it doubles, and a random half of it is left out.
	backoffLeast, backoffMost = time.Second, 5 * time.Minute
	// shortLife is a watch that ended too soon to be followed by the next one at once.
	shortLife = time.Second
)

// backoff is the wait after so many failures in a row, from 1.
func (m *Manager) backoff(failures int) time.Duration {
	d := backoffMost
	if failures < 10 {
		d = min(backoffLeast<<(failures-1), backoffMost)
	}
	return d/2 + time.Duration(m.cfg.Random()*float64(d/2))
}

// worked forgets the failures before a watch that has been open for longer than the wait after one more
// would be: they are over. What makes watches fail, such as a rolling restart of the API server, may
// come every minute.
func (m *Manager) worked(opened time.Time, failures ...*int) {
	for _, n := range failures {
		if !opened.IsZero() && time.Since(opened) > m.backoff(*n+1) {
			*n = 0
		}
	}
}

// pause waits, and returns false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
