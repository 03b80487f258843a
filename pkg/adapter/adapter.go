// Package adapter is the composition root of the data plane: the only package that
// knows all the others. It opens the data directory, builds sender and API, and
// serves until its context ends.
//
// It guarantees the order: nothing is accepted before the sources are set and the
// store is recovered, and at the end requests stop first, then deliveries, then the
// store is flushed. Probes and metrics are served from the first moment to the last.
//
// It has two seams. A [sources.Origin] is where the sources, the settings and the guard
// of calls come from: a file or a cluster. A host has the store, the queue, the dispatcher
// and the watches: this process alone, or a [group.Member], only while it owns the group.
package adapter

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
	"github.com/reschedule-dev/reschedule/pkg/adapter/backup"
	"github.com/reschedule-dev/reschedule/pkg/adapter/cluster"
	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/group"
	"github.com/reschedule-dev/reschedule/pkg/adapter/ingest"
	"github.com/reschedule-dev/reschedule/pkg/adapter/listener"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/scale"
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
	host      host // nil until its data directory is open
	events    *ingest.Receiver

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

// host keeps the sources with their schedules, and serves them: this process alone, or as one of a group.
type host interface {
	backup.Sealable
	Corrupt() int64
	// SetSource and RemoveSource are of sources.Registry. A source that is set before Join is in force from Join on.
	SetSource(s *schedule.Spec) error
	RemoveSource(uid string) error
	// Join recovers, or joins the group. Nothing is accepted or delivered before Serve.
	Join(ctx context.Context) error
	// Serve begins: handler is the schedule API. Route answers calls by it, here or where the source is.
	Serve(handler http.Handler)
	Route(handler http.Handler) http.Handler
	// Ready reports that calls can be answered, once Serve was called.
	Ready() bool
	Lookup(namespace, name string) (*queue.Source, bool)
	// Serving are the parts that serve the sources here, nil: another process does. Sources cannot watch without a
	// manager, and nothing is delivered at the moment without a dispatcher.
	Serving() (*queue.Queue, *dispatch.Dispatcher, *watch.Manager)
	// The end: Leave before calls end, Shutdown behind them, and Close. Each is called also after a start that failed.
	Leave()
	Shutdown(ctx context.Context)
	Close() error
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
		if errors.Is(err, store.ErrSealed) {
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
	wanted, unusable := a.origin.Sources()
	deliver := a.deliveries()
	open := func() (host, error) { return a.openAlone(ctx, deliver, unusable) }
	if a.cfg.Replication != nil {
		open = func() (host, error) { return a.openMember(ctx, deliver) }
	}
	if a.host, err = a.whileInUse(ctx, open); err != nil {
		return err
	}
	if err := a.observe(); err != nil {
		return err
	}
	for _, s := range wanted {
		if err := (registry{a}).SetSource(s); err != nil {
			return err
		}
	}
	if err := a.host.Join(ctx); err != nil {
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
		a.origin.Run(ctx, registry{a})
	}()
	<-ctx.Done()
	select {
	case <-ended:
	case <-time.After(followTimeout): // it may wait for the disk, and the end does not wait for it
	}
}

// deliveries is how deliveries are made.
func (a *Adapter) deliveries() dispatch.Config {
	sender := sink.New(sink.Config{Log: a.cfg.Log, Ignored: a.ignored, Tracer: a.telemetry.tracer,
		Token: a.origin.Token, TokenRefused: a.origin.TokenRefused})
	a.origin.Trust(sender.Trust)
	return dispatch.Config{
		Sender: sender, Log: a.cfg.Log, MaxInFlight: a.cfg.MaxInFlight, Meter: a.telemetry.meter,
		Lost: a.lost, Failing: a.warnFailing, WarmUp: sender.WarmUp,
		Scale: scale.Config{
			API: a.origin.Workloads(), Log: a.cfg.Log, Connect: sender.Connect,
			Saved: a.origin.WorkloadSaved, Changed: a.origin.WorkloadChanged,
		},
	}
}

// watching is how objects are watched; its API is nil: sources cannot watch.
func (a *Adapter) watching() watch.Config {
	return watch.Config{API: a.origin.Objects(), Log: a.cfg.Log, Meter: a.telemetry.meter, Warn: a.origin.Warn, Changed: a.watchChanged,
		Memory: cluster.WatchBytes(a.cfg.Replication != nil)}
}

// openMember opens the view of one of a group.
func (a *Adapter) openMember(ctx context.Context, deliver dispatch.Config) (host, error) {
	m, err := group.Open(group.Config{
		Settings: *a.cfg.Replication, DataDir: a.cfg.DataDir, Log: a.cfg.Log, Meter: a.telemetry.meter,
		Deliver: deliver, Drain: drainDeliveries, Watch: a.watching(), Gone: a.origin.Gone, Fatal: a.fatal, Stopping: a.stopping.Load,
	})
	if err != nil {
		return nil, err
	}
	a.started = context.AfterFunc(ctx, func() { a.stopping.Store(true) })
	return m, nil
}

// handover is how long a start waits for the data directory: the pod of the previous adapter may use the grace period up.
const handover = 30 * time.Second

// whileInUse opens the data directory. The previous adapter may take until the end of
// handover to stop: a pod that was deleted by force ends its deliveries while the next one
// starts. A back-up of the stopped directory may be under way. A container that gave up would
// be restarted only after a back-off of ten seconds and more.
func (a *Adapter) whileInUse(ctx context.Context, open func() (host, error)) (host, error) {
	deadline := time.Now().Add(handover)
	for waiting := false; ; waiting = true {
		opened, err := unlessEnded(ctx, open)
		if !errors.Is(err, store.ErrInUse) || !time.Now().Before(deadline) {
			return opened, err
		}
		if !waiting {
			a.cfg.Log.Warn("the data directory is in use: waiting for the end of the process that has it, the previous adapter or a back-up", "dir", a.cfg.DataDir, "most", handover)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// openTimeout is how long the data directory may take to open once ctx ended.
const openTimeout = time.Second

// unlessEnded is open, without its end once ctx ended: on a full disk the store waits for space, for ever. It has
// acknowledged nothing yet, so that the process may end as by kill -9.
func unlessEnded(ctx context.Context, open func() (host, error)) (host, error) {
	type result struct {
		host
		err error
	}
	opened, late := make(chan result, 1), make(chan struct{})
	go func() {
		h, err := open()
		opened <- result{h, err}
	}()
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(openTimeout, func() { close(late) })
	})()
	select {
	case r := <-opened:
		return r.host, r.err
	case <-late:
		return nil, ctx.Err()
	}
}

// serve starts to deliver, and to answer at the addresses.
func (a *Adapter) serve(ctx context.Context) error {
	if err := listener.Observe(a.telemetry.meter, a.connections.plain, a.connections.secured, a.connections.admin); err != nil {
		return err
	}
	guard := a.origin.Guard()
	handler := api.New(api.Config{
		Lookup: a.host.Lookup, Ingest: a.events, Guard: guard, Local: guard == nil,
		Log: a.cfg.Log, Meter: a.telemetry.meter, Tracer: a.telemetry.tracer, Resync: a.resync, Watched: a.watched, Workload: a.workload,
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
	if a.backups, err = backup.Serve(a.host, a.cfg.DataDir, a.cfg.Log); err != nil {
		a.cfg.Log.Warn("adapter backup will not work", "error", err)
	}
	a.ready.Store(true)
	a.host.Serve(handler)
	for _, e := range a.calls {
		a.answer(e)
	}
	return nil
}

// server serves the schedule API on a public address.
func (a *Adapter) server(handler *api.Handler) *http.Server {
	s := api.Server(a.host.Route(handler))
	s.RegisterOnShutdown(handler.EndEvents)
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
