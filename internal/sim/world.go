package sim

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// world is one history under way.
type world struct {
	h    *history
	disk *disk
	p    *process

	offset   atomic.Int64 // of the wall clock to the bubble's
	random   atomic.Uint64
	ackTakes atomic.Int64 // how long a change takes to be durable
	pageRows int

	mu           sync.Mutex
	m            *model
	incarnations map[*schedule.Source]*source
	hangs        map[string]bool // sources whose sink hangs
	draining     bool
	failed       string
	trace        []line

	calls sync.WaitGroup // operations that wait for their acknowledgement
}

type line struct {
	at     time.Time
	format string
	args   []any
}

// process is the core between two starts.
type process struct {
	w       *world
	db      *store.DB
	q       *queue.Queue
	d       *dispatch.Dispatcher
	ready   atomic.Bool
	dead    bool                     // under world.mu: it crashed, what it does has no effect
	sources map[string]*queue.Source // by uid
}

func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.offset.Load())) }

// note adds a line to the trace. The caller holds the lock.
func (w *world) note(format string, args ...any) {
	if w.h.traced {
		for i, a := range args {
			if s, ok := a.(fmt.Stringer); ok {
				args[i] = s.String()
			}
		}
		w.trace = append(w.trace, line{w.now(), format, args})
	}
}

// fail notes the first broken promise. The caller holds the lock.
func (w *world) fail(format string, args ...any) {
	if w.failed == "" {
		w.failed = fmt.Sprintf("at %s: ", stamp(w.now())) + fmt.Sprintf(format, args...)
	}
}

func (w *world) broken(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail(format, args...)
}

func (w *world) ok() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed == ""
}

// start opens the core over the disk with all sources of the model, but
// delivers nothing yet.
func (w *world) start() error {
	p := &process{w: w, sources: map[string]*queue.Source{}}
	fatal := func(err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !p.dead {
			w.fail("fatal: %v", err)
		}
	}
	var err error
	if p.db, err = store.Open(store.Options{Dir: "data", FS: w.disk, Fatal: fatal, Log: slog.New(slog.DiscardHandler)}); err != nil {
		return err
	}
	if p.d, err = dispatch.New(dispatch.Config{Sender: p, Now: w.now, MaxInFlight: w.m.maxInFlight}); err != nil {
		return err
	}
	p.q, err = queue.Open(queue.Config{
		Store: slowStore{p.db, &w.ackTakes}, Now: w.now, PageRows: w.pageRows, Fatal: fatal,
		Random: func() float64 { return float64(w.random.Load()) / (1 << 53) },
		Wake: func(s *queue.Source) {
			if p.ready.Load() {
				p.d.Wake(s)
			}
		},
	})
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.p = p
	w.m.upAt = time.Now()
	settings := map[string]*schedule.Source{}
	for uid, s := range w.m.sources {
		settings[uid] = s.settings
		s.tokens, s.tokensAt, s.blockedAt = 1e9, time.Now(), time.Now()
	}
	w.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(settings)) {
		if p.sources[uid], err = p.q.Set(settings[uid]); err != nil {
			return err
		}
	}
	synctest.Wait()
	return nil
}

// deliver lets the core start deliveries.
func (w *world) deliver() {
	w.p.ready.Store(true)
	for _, s := range w.p.sources {
		w.p.d.Wake(s)
	}
}

// stop ends the process: within the time for deliveries under way, or as a
// crash does.
func (w *world) stop(within time.Duration) {
	p := w.p
	p.ready.Store(false)
	ctx, cancel := context.WithTimeout(context.Background(), within)
	p.d.Stop(ctx)
	cancel()
	p.q.Close()
	if err := p.db.Close(); err != nil {
		w.mu.Lock()
		if !p.dead {
			w.fail("closing the store: %v", err)
		}
		w.mu.Unlock()
	}
}

// resume opens the core again and finds out where the model stands.
func (w *world) resume() {
	report, err := store.Verify(store.Options{Dir: "data", FS: w.disk})
	if err != nil || !report.Clean() {
		w.broken("the store must be whole: %v %+v", err, report)
		return
	}
	if err := w.start(); err != nil {
		w.broken("starting: %v", err)
		return
	}
	found := map[string]map[string]schedule.View{}
	dead := map[string][]store.Item{}
	for uid, s := range w.p.sources {
		views, _, err := s.List(queue.ListOptions{Limit: 1000})
		if err != nil {
			w.broken("listing: %v", err)
			return
		}
		found[uid] = map[string]schedule.View{}
		for _, v := range views {
			found[uid][v.Key] = v
		}
		if dead[uid], _, err = w.p.db.DeadLetters(uid, "", 1000); err != nil {
			w.broken("listing dead letters: %v", err)
			return
		}
	}
	w.mu.Lock()
	w.m.up(func() string { return w.matches(found, dead) })
	w.mu.Unlock()
	w.deliver()
}

// matches says how what is there differs from the model.
func (w *world) matches(found map[string]map[string]schedule.View, dead map[string][]store.Item) string {
	for uid, s := range w.m.sources {
		letters := 0
		for name, k := range s.keys {
			if k.cur != nil && k.cur.dead != nil {
				letters++
				if !slices.ContainsFunc(dead[uid], func(i store.Item) bool {
					return i.Entry.DeadLetter.Key == k.cur.dead.key && i.Entry.DeadLetter.Revision == w.m.revs[k.cur.dead.rev] &&
						i.Entry.Tries == k.cur.tries && i.Entry.RetryAt.Equal(k.cur.retryAt)
				}) {
					return fmt.Sprintf("a dead letter of %q is not there", k.cur.dead.key)
				}
				continue
			}
			if schedule.IsDeadLetterKey(name) {
				continue
			}
			v, ok := found[uid][name]
			if diff := w.m.fits(k, v, ok); diff != "" {
				return fmt.Sprintf("%s/%s: %s", uid, name, diff)
			}
		}
		if letters != len(dead[uid]) {
			return fmt.Sprintf("%s has %d dead letters, want %d", uid, len(dead[uid]), letters)
		}
	}
	return ""
}
