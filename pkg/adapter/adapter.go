// Package adapter is the composition root of the data plane: the only package that
// knows all the others. It opens the store, builds queue, dispatcher, sender and
// API, and serves until its context ends.
//
// It guarantees the order: nothing is accepted before the sources are set and the
// store is recovered, and at the end requests stop first, then deliveries, then the
// store is flushed. Probes and metrics are served from the first moment to the last.
//
// Where the sources come from, a file or a cluster, is a sources.Origin: nothing else
// differs.
package adapter

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
	"github.com/reschedule-dev/reschedule/pkg/adapter/backup"
	"github.com/reschedule-dev/reschedule/pkg/adapter/cluster"
	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/group"
	"github.com/reschedule-dev/reschedule/pkg/adapter/ingest"
	"github.com/reschedule-dev/reschedule/pkg/adapter/listener"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sink"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch"
)

// Adapter is the running data plane.
type Adapter struct {
	cfg       Config
	origin    sources.Origin
	telemetry *telemetry
	disk      disk          // the store, or the member
	member    *group.Member // nil: the adapter is alone
	core
	events *ingest.Receiver

	connections *connections

	calls     []*listener.Endpoint // of the schedule API
	admin     *listener.Endpoint
	backups   *backup.Server // nil: they cannot be served
	serving   sync.WaitGroup
	ready     atomic.Bool
	profiling atomic.Bool // is served on the admin address
	quit      func()      // ends Run
	stop      sync.Once
	stopping  atomic.Bool
	started   func() bool // ends what waits for the end during the start; nil before
}

// core is what serves the sources of an adapter that is alone.
type core struct {
	store    *store.DB
	sealable *sealable // it
	queue    *queue.Queue
	dispatch *dispatch.Dispatcher
	watches  *watch.Manager // nil: sources cannot watch
}

// disk is what metrics say about the disk, and what is backed up.
type disk interface {
	backup.Sealable
	Corrupt() int64
}

// Run serves until ctx ends and calls ready when it serves. Each value on reload
// reads the files of a standalone adapter anew; a bad file changes nothing.
func Run(ctx context.Context, cfg Config, reload <-chan struct{}, ready func(*Adapter)) error {
	if err := cfg.complete(); err != nil {
		return err
	}
	a := &Adapter{cfg: cfg, origin: cfg.origin(reload), telemetry: newTelemetry(), connections: newConnections(cfg.Log)}
	ctx, a.quit = context.WithCancel(ctx)
	defer a.quit()
	a.profiling.Store(cfg.Profiling)
	a.events = &ingest.Receiver{Log: cfg.Log, Refused: a.origin.EventsRefused}
	if err := a.start(ctx); err != nil {
		if errors.Is(err, errSealed) {
			return a.serveSealed(ctx)
		}
		if ctx.Err() != nil {
			return a.Stop() // it ended while it waited for its origin
		}
		return errors.Join(err, a.Stop())
	}
	a.started()
	ready(a)
	a.follow(ctx)
	return a.Stop()
}

// start opens everything in order. The adapter is alive, but not ready, until its
// origin knows all sources: which schedules belong to sources that were deleted
// meanwhile is not known before.
func (a *Adapter) start(ctx context.Context) error {
	if err := a.administer(); err != nil {
		return err
	}
	settings, err := a.origin.Connect(ctx)
	if err != nil {
		return err
	}
	if settings.Profiling {
		a.profiling.Store(true)
	}
	if err := a.telemetry.start(ctx, settings.Metrics, settings.Tracing); err != nil {
		return err
	}
	if a.cfg.Replication != nil {
		return a.join(ctx)
	}
	if err := a.open(ctx); err != nil {
		return err
	}
	wanted, unusable := a.origin.Sources()
	if err := (registry{a}).fill(ctx, wanted, unusable); err != nil {
		return err
	}
	return a.serve(ctx)
}

// followTimeout is how long the origin may take to end once ctx ended.
const followTimeout = time.Second

// follow keeps in step with the origin until ctx ends.
func (a *Adapter) follow(ctx context.Context) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.origin.Run(ctx, a.registry())
	}()
	<-ctx.Done()
	select {
	case <-ended:
	case <-time.After(followTimeout): // it may wait for the disk, and the end does not wait for it
	}
}

// open opens the data directory and recovers. Nothing is accepted or delivered yet.
func (a *Adapter) open(ctx context.Context) error {
	meter := a.telemetry.meter
	latency, err := meter.Float64Histogram("reschedule_storage_sync_duration", metric.WithUnit("s"),
		metric.WithDescription("How long a change waited to be on stable storage."),
		metric.WithExplicitBucketBoundaries(.0005, .001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 5))
	if err != nil {
		return err
	}
	err = a.whileInUse(ctx, func() (err error) {
		o := store.Options{
			Dir: a.cfg.DataDir, Log: a.cfg.Log, Fatal: a.fatal,
			Observe: func(d time.Duration) { latency.Record(context.Background(), d.Seconds()) },
		}
		a.store, err = store.Open(o)
		return err
	})
	if err != nil {
		a.store = nil
		return err
	}
	a.sealable = &sealable{DB: a.store, end: a.quit, sealed: make(chan error, 1)}
	a.disk = a.sealable
	if a.store.Sealed() {
		return errSealed
	}
	// When ctx ends while the start waits for disk space, the store gives up waiting;
	// later Stop does that.
	a.started = context.AfterFunc(ctx, func() {
		a.stopping.Store(true)
		a.store.GiveUp()
	})
	if err := a.observe(); err != nil {
		return err
	}
	if a.dispatch, err = dispatch.New(a.deliveries()); err != nil {
		return err
	}
	a.queue, err = queue.Open(queue.Config{Store: a.store, Log: a.cfg.Log, Fatal: a.fatal, Meter: meter,
		Wake: func(s *queue.Source) {
			if a.ready.Load() {
				a.dispatch.Wake(s)
			}
		}})
	if watching := a.watching(); err == nil && watching.API != nil {
		a.watches, err = watch.New(watching)
	}
	return err
}

// deliveries is how deliveries are made.
func (a *Adapter) deliveries() dispatch.Config {
	sender := sink.New(sink.Config{Log: a.cfg.Log, Ignored: a.ignored, Tracer: a.telemetry.tracer,
		Token: a.origin.Token, TokenRefused: a.origin.TokenRefused})
	a.origin.Trust(sender.Trust)
	return dispatch.Config{
		Sender: sender, Log: a.cfg.Log, MaxInFlight: a.cfg.MaxInFlight, Meter: a.telemetry.meter,
		Lost: a.lost, Failing: a.warnFailing, WarmUp: sender.WarmUp,
	}
}

// watching is how objects are watched; its API is nil: sources cannot watch.
func (a *Adapter) watching() watch.Config {
	return watch.Config{API: a.origin.Objects(), Log: a.cfg.Log, Meter: a.telemetry.meter, Warn: a.origin.Warn, Changed: a.watchChanged,
		Memory: cluster.WatchBytes(a.cfg.Replication != nil)}
}

// join makes the adapter one of a group.
func (a *Adapter) join(ctx context.Context) error {
	deliveries := a.deliveries()
	err := a.whileInUse(ctx, func() (err error) {
		a.member, err = group.Open(group.Config{
			Settings: *a.cfg.Replication, DataDir: a.cfg.DataDir, Log: a.cfg.Log, Meter: a.telemetry.meter,
			Deliver: deliveries, Drain: drainDeliveries, Watch: a.watching(), Gone: a.origin.Gone, Fatal: a.fatal, Stopping: a.stopping.Load,
		})
		return err
	})
	if err != nil {
		a.member = nil
		return err
	}
	m := a.member
	a.disk = m
	a.started = context.AfterFunc(ctx, func() { a.stopping.Store(true) })
	if err := a.observe(); err != nil {
		return err
	}
	wanted, _ := a.origin.Sources()
	for _, s := range wanted {
		if err := a.registry().SetSource(s); err != nil {
			return err
		}
	}
	if err := m.Join(ctx); err != nil {
		return err
	}
	return a.serve(ctx)
}

// handover is how long a start waits for the data directory: the pod of the previous adapter may use the grace period up.
const handover = 30 * time.Second

// whileInUse opens the data directory. The previous adapter may take until the end of
// handover to stop: a pod that was deleted by force ends its deliveries while the next one
// starts. A back-up of the stopped directory may be under way. A container that gave up would
// be restarted only after a back-off of ten seconds and more.
func (a *Adapter) whileInUse(ctx context.Context, open func() error) error {
	deadline := time.Now().Add(handover)
	for waiting := false; ; waiting = true {
		err := open()
		if !errors.Is(err, store.ErrInUse) || !time.Now().Before(deadline) {
			return err
		}
		if !waiting {
			a.cfg.Log.Warn("the data directory is in use: waiting for the end of the process that has it, the previous adapter or a back-up", "dir", a.cfg.DataDir, "most", handover)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// serve starts to deliver, and to answer at the addresses.
func (a *Adapter) serve(ctx context.Context) error {
	if err := listener.Observe(a.telemetry.meter, a.connections.plain, a.connections.secured, a.connections.admin); err != nil {
		return err
	}
	guard := a.origin.Guard()
	lookup := a.queue.Lookup
	if a.member != nil {
		lookup = a.member.Lookup
	}
	handler := api.New(api.Config{
		Lookup: lookup, Ingest: a.events, Guard: guard, Local: guard == nil,
		Log: a.cfg.Log, Meter: a.telemetry.meter, Tracer: a.telemetry.tracer, Resync: a.resync, Watched: a.watched,
	})
	calls, err := a.listen(a.cfg.Listen, a.server(handler), a.connections.plain)
	if err != nil {
		return err
	}
	a.calls = append(a.calls, calls)
	if a.cfg.TLSListen != "" {
		server := a.server(handler)
		files := &certificate{dir: a.cfg.TLSDir}
		server.TLSConfig = files.server()
		certificate := listener.Certificate{Name: "api-tls", End: files.end}
		if err := certificate.Observe(a.telemetry.meter); err != nil {
			return err
		}
		a.serving.Go(func() { certificate.Warn(ctx, a.cfg.Log) })
		if calls, err = a.listen(a.cfg.TLSListen, server, a.connections.secured); err != nil {
			return err
		}
		a.calls = append(a.calls, calls)
	}
	// Without back-ups everything else goes on: the volume may allow no sockets.
	if a.backups, err = backup.Serve(a.disk, a.cfg.DataDir, a.cfg.Log); err != nil {
		a.cfg.Log.Warn("adapter backup will not work", "error", err)
	}
	a.ready.Store(true)
	if a.member != nil {
		a.member.Serve(handler)
	} else {
		for _, s := range a.queue.Sources() {
			a.dispatch.Wake(s)
		}
	}
	for _, e := range a.calls {
		a.answer(e)
	}
	return nil
}

// server serves the schedule API on a public address.
func (a *Adapter) server(handler *api.Handler) *http.Server {
	s := api.Server(handler)
	s.RegisterOnShutdown(handler.EndEvents)
	if a.member != nil {
		s.Handler = a.member.Route(handler)
	}
	return s
}

// lost notifies the owner of a source of an event that its sink did not take. The
// dispatcher has logged it.
func (a *Adapter) lost(l dispatch.Loss) {
	why := fmt.Sprintf("%s did not take the event of key %.128q", l.Dest, l.Key)
	if l.Code != 0 {
		why += fmt.Sprintf(" (its last answer was %d)", l.Code)
	}
	switch {
	case l.DeadLettered:
		a.origin.Warn(l.Source, "EventDeadLettered", why+"; it goes to the dead letter sink")
	case l.Kept:
		a.origin.Warn(l.Source, "EventKept", why+"; it is kept as a dead letter, see GET …/deadletters at the source's address")
	default:
		a.origin.Warn(l.Source, "EventDropped", why+"; it is dropped: there is no dead letter sink, and it could not be kept (deadLetters.keep, a quota or the disk)")
	}
}

// ignored notifies the owner of a source of a part of an answer that is not as it should be.
func (a *Adapter) ignored(src *schedule.Spec, key, why string) {
	a.origin.Warn(src, "AnswerIgnored", fmt.Sprintf("part of the sink's answer to a delivery of key %.128q is ignored: %s", key, why))
}

// warnFailing notifies the owner of a source that its deliveries fail.
func (a *Adapter) warnFailing(s *schedule.Spec, h dispatch.Health) {
	a.origin.Warn(s, "DeliveryFailing", fmt.Sprintf("no delivery has succeeded for a minute. %s", failureSentence(&h)))
}

// Addr is the address of the schedule API.
func (a *Adapter) Addr() string { return a.calls[0].Addr().String() }

// TLSAddr is the address of the schedule API with TLS, "" when there is none.
func (a *Adapter) TLSAddr() string {
	if a.cfg.TLSListen == "" {
		return ""
	}
	return a.calls[1].Addr().String()
}

// AdminAddr is the address of probes and metrics.
func (a *Adapter) AdminAddr() string { return a.admin.Addr().String() }
