package adapter

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/reschedule-dev/reschedule/pkg/adapter/backup"
	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch"
)

// alone is the host without a group.
type alone struct {
	*store.DB
	log      *slog.Logger
	queues   queue.Config
	deliver  dispatch.Config
	watching watch.Config // its API is nil: sources cannot watch
	unusable []string     // uids of sources whose schedules are kept
	quit     func()       // ends the adapter

	// Join sets these; before, wanted has the sources.
	wanted   []*schedule.Spec
	queue    *queue.Queue
	dispatch *dispatch.Dispatcher
	watches  *watch.Manager // nil: sources cannot watch
	serves   atomic.Bool    // deliveries may begin

	left   chan struct{} // closed when watches have ended; nil before Leave
	seals  atomic.Bool   // Seal was called
	sealed chan error    // holds one: what became of it
}

// openAlone opens the store.
func (a *Adapter) openAlone(ctx context.Context, deliver dispatch.Config, unusable []string) (host, error) {
	latency, err := a.telemetry.meter.Float64Histogram("reschedule_storage_sync_duration", metric.WithUnit("s"),
		metric.WithDescription("How long a change waited to be on stable storage."),
		metric.WithExplicitBucketBoundaries(.0005, .001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 5))
	if err != nil {
		return nil, err
	}
	db, err := store.Open(store.Options{
		Dir: a.cfg.DataDir, Log: a.cfg.Log, Fatal: a.fatal,
		Observe: func(d time.Duration) { latency.Record(context.Background(), d.Seconds()) },
	})
	if err != nil {
		return nil, err
	}
	// When ctx ends while the start waits for disk space, the store gives up waiting;
	// later Stop does that.
	a.started = context.AfterFunc(ctx, func() {
		a.stopping.Store(true)
		db.GiveUp()
	})
	return &alone{
		DB: db, log: a.cfg.Log, queues: queue.Config{Store: db, Log: a.cfg.Log, Fatal: a.fatal, Meter: a.telemetry.meter},
		deliver: deliver, watching: a.watching(), unusable: unusable, quit: a.quit, sealed: make(chan error, 1),
	}, nil
}

// Join implements host. It purges what the store has of sources that do not exist any more, and puts the
// wanted ones in force. The unusable ones keep their schedules.
func (a *alone) Join(ctx context.Context) (err error) {
	if a.Sealed() {
		return store.ErrSealed
	}
	if a.dispatch, err = dispatch.New(a.deliver); err != nil {
		return err
	}
	a.queues.Wake = func(s *queue.Source) {
		if a.serves.Load() {
			a.dispatch.Wake(s)
		}
	}
	if a.queue, err = queue.Open(a.queues); err != nil {
		return err
	}
	if a.watching.API != nil {
		if a.watches, err = watch.New(a.watching); err != nil {
			return err
		}
	}
	exists := map[string]bool{}
	for _, uid := range a.unusable {
		exists[uid] = true
	}
	for _, s := range a.wanted {
		exists[s.UID] = true
	}
	stored, err := a.Sources()
	if err != nil {
		return err
	}
	for _, uid := range stored {
		if exists[uid] {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := a.RemoveSource(uid); err != nil {
			return err
		}
	}
	for _, s := range a.wanted {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := a.SetSource(s); err != nil {
			return err
		}
	}
	a.wanted = nil
	return nil
}

// SetSource implements host.
func (a *alone) SetSource(s *schedule.Spec) error {
	if a.queue == nil {
		a.wanted = append(a.wanted, s)
		return nil
	}
	q, err := a.queue.Set(s)
	if err == nil && a.watches != nil {
		a.watches.Set(s, &q.Marks)
	}
	return err
}

// RemoveSource implements host.
func (a *alone) RemoveSource(uid string) error {
	if a.watches != nil {
		a.watches.Remove(uid)
	}
	s, registered := a.queue.Find(uid)
	err := a.queue.Remove(uid)
	if registered { // what is cut off before that would be delivered again
		a.dispatch.Remove(s)
	}
	if err == nil {
		a.log.Info("source removed; its schedules are purged", "uid", uid)
	}
	return err
}

// Serve implements host.
func (a *alone) Serve(http.Handler) {
	a.serves.Store(true)
	for _, s := range a.queue.Sources() {
		a.dispatch.Wake(s)
	}
}

// Route implements host.
func (*alone) Route(handler http.Handler) http.Handler { return handler }

// Ready implements host.
func (*alone) Ready() bool { return true }

// Lookup implements host.
func (a *alone) Lookup(namespace, name string) (*queue.Source, bool) {
	return a.queue.Lookup(namespace, name)
}

// Serving implements host.
func (a *alone) Serving() (*queue.Queue, *dispatch.Dispatcher, *watch.Manager) {
	return a.queue, a.dispatch, a.watches
}

// Seal implements backup.Sealable. It ends the adapter: calls and deliveries end first, then the store is sealed. It
// returns once that is on stable storage. Of a sealed store nothing is left to do.
func (a *alone) Seal(ctx context.Context) error {
	if a.Sealed() {
		return nil
	}
	if a.seals.Swap(true) {
		return errors.New("a seal is under way")
	}
	a.quit()
	select {
	case err := <-a.sealed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Leave implements host: watches end, which may wait for the disk.
func (a *alone) Leave() {
	a.left = make(chan struct{})
	go func() {
		defer close(a.left)
		if a.watches != nil {
			a.watches.Close()
		}
	}()
}

// Shutdown implements host: deliveries end, and then the store is sealed if that was asked for.
func (a *alone) Shutdown(context.Context) {
	if a.dispatch != nil {
		ctx, cancel := context.WithTimeout(context.Background(), drainDeliveries)
		defer cancel()
		a.dispatch.Stop(ctx)
	}
	if !a.seals.Load() {
		return
	}
	err := a.DB.Seal()
	if err == nil {
		a.log.Warn("the store is sealed: it takes no change any more")
	}
	a.sealed <- err
}

// Close implements host.
func (a *alone) Close() error {
	if a.queue != nil {
		a.queue.Close()
	}
	err := a.DB.Close() // it waits for the calls that are in it
	<-a.left            // what waited for the disk has ended with the store
	return err
}

// serveSealed serves back-ups of a sealed store, and nothing else, until ctx ends.
func (a *Adapter) serveSealed(ctx context.Context) (err error) {
	if a.backups, err = backup.Serve(a.host, a.cfg.DataDir, a.cfg.Log); err == nil {
		a.cfg.Log.Warn("the store is sealed: this adapter answers no call and delivers nothing. It only serves adapter backup: restore the back-up into an empty directory", "dir", a.cfg.DataDir)
		<-ctx.Done()
	}
	return errors.Join(err, a.Stop())
}
