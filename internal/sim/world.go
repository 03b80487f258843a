package sim

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/scale"
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
	settings map[string]*schedule.Spec // in force, by uid

	maxInFlight int

	mu        sync.Mutex
	trace     []moment
	judge     *judge
	sent      map[string]int    // deliveries so far, by key; starts, by workload
	workloads map[string]scaled // by uid of their source
	hangs     map[string]bool   // sources whose sink hangs
	draining  bool

	calls sync.WaitGroup // operations that wait for their acknowledgement
}

// process is the core between two starts.
type process struct {
	w         *world
	db        *store.DB
	q         *queue.Queue
	d         *dispatch.Dispatcher
	ready     atomic.Bool
	followers []func()                 // under world.mu: they add to the trace what is not there yet
	underWay  map[string]int           // under world.mu: deliveries to workloads
	dead      bool                     // under world.mu: it crashed, what it does has no effect
	sources   map[string]*queue.Source // by uid
}

func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.offset.Load())) }

// record adds a moment to the trace, and the judge reads it. The caller holds the
// lock.
func (w *world) record(what any) {
	if w.p != nil && !w.p.dead {
		for _, catchUp := range w.p.followers {
			catchUp()
		}
	}
	w.add(what)
}

// add is record without what has happened before.
func (w *world) add(what any) {
	if w.judge.failed == "" {
		m := moment{time.Now(), w.now().Round(0), what}
		w.trace = append(w.trace, m)
		w.judge.see(m)
	}
}

func (w *world) note(what any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.record(what)
}

// fail notes that the core does not work at all. The caller holds the lock.
func (w *world) fail(format string, args ...any) { w.judge.broken("the core works", format, args...) }

func (w *world) broken(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail(format, args...)
}

func (w *world) ok() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.judge.failed == ""
}

// start opens the core over the disk with all sources, but delivers nothing yet.
func (w *world) start() error {
	p := &process{w: w, sources: map[string]*queue.Source{}, underWay: map[string]int{}}
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
	if p.d, err = dispatch.New(dispatch.Config{Sender: p, Now: w.now, MaxInFlight: w.maxInFlight, Scale: scale.Config{API: p, Connect: p.connect}}); err != nil {
		return err
	}
	p.q, err = queue.Open(queue.Config{
		Store: slowStore{p.db, &w.ackTakes}, Now: w.now, PageRows: w.pageRows, Fatal: fatal,
		Random: w.drawn,
		Wake: func(s *queue.Source) {
			if p.ready.Load() {
				p.d.Wake(s)
			}
		},
	})
	if err != nil {
		return err
	}
	w.p = p
	w.note(up{w.maxInFlight})
	for _, uid := range slices.Sorted(maps.Keys(w.settings)) {
		if p.sources[uid], err = p.q.Set(w.settings[uid]); err != nil {
			return err
		}
		if err = p.follow(uid, p.sources[uid]); err != nil {
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
	w.note(remark("  stopped"))
	p.q.EndEvents()
	p.q.Close()
	if err := p.db.Close(); err != nil {
		w.mu.Lock()
		if !p.dead {
			w.fail("closing the store: %v", err)
		}
		w.mu.Unlock()
	}
}

// resume opens the core again, and looks what it found before it delivers.
func (w *world) resume() {
	report, err := store.Verify(store.Options{Dir: "data", FS: w.disk})
	if err == nil {
		err = w.start()
	}
	f := found{report.Clean(), map[string][]schedule.View{}, map[string][]store.Item{}}
	for uid, s := range w.p.sources {
		if err == nil {
			f.views[uid], _, err = s.List(queue.ListOptions{Limit: 1000})
		}
		if err == nil {
			f.dead[uid], _, err = w.p.db.DeadLetters(uid, "", 1000)
		}
	}
	if err != nil {
		w.broken("starting: %v", err)
		return
	}
	w.note(f)
	w.deliver()
}
