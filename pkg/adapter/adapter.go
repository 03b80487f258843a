// Package adapter is the composition root of the data plane: the one room that
// knows all the others. It opens the store, builds queue, dispatcher, sender
// and API, keeps the set of sources, and serves until it is told to stop.
//
// It guarantees the order: nothing is accepted before the sources are set and
// the store is recovered, and when it stops, requests end first, then
// deliveries, then the store is flushed. Probes and metrics are there from the
// first moment to the last.
//
// Where sources come from is all that differs between the two ways it runs: a
// file (file.go), or a cluster (cluster.go).
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

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
	"github.com/reschedule-dev/reschedule/pkg/adapter/cluster"
	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/ingest"
	"github.com/reschedule-dev/reschedule/pkg/adapter/listener"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sink"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Adapter is the running data plane.
type Adapter struct {
	cfg       Config
	telemetry *telemetry
	store     *store.DB
	queue     *queue.Queue
	dispatch  *dispatch.Dispatcher
	tokens    *access.Tokens   // nil in a cluster, or when everybody may call
	cluster   *cluster.Cluster // nil standalone
	rules     sync.Map         // uid → rules

	connections *connections

	calls   []*endpoint // of the schedule API
	admin   *endpoint
	serving sync.WaitGroup
	ready   atomic.Bool
	// profiling is served on the admin address while it is true.
	profiling atomic.Bool
	stop      sync.Once
	stopping  atomic.Bool
	started   func() bool // ends what waits for the end during the start; nil before
}

// Run serves until ctx ends and says when it is ready. Each value on reload
// reads the file of sources anew; a bad file keeps the old ones.
func Run(ctx context.Context, cfg Config, reload <-chan struct{}, ready func(*Adapter)) error {
	if err := cfg.complete(); err != nil {
		return err
	}
	a := &Adapter{cfg: cfg, connections: newConnections(cfg.Log)}
	a.profiling.Store(cfg.Profiling)
	if err := a.start(ctx); err != nil {
		if ctx.Err() != nil {
			return a.Stop() // told to end while it waited for the cluster
		}
		return errors.Join(err, a.Stop())
	}
	a.started()
	ready(a)
	if a.cluster != nil {
		return a.follow(ctx)
	}
	return a.obey(ctx, reload)
}

// start opens everything in order.
func (a *Adapter) start(ctx context.Context) error {
	a.telemetry = newTelemetry()
	if a.cfg.Kubernetes != nil {
		return a.startInCluster(ctx)
	}
	return a.startFromFile(ctx)
}

// open opens the data directory and recovers. Nothing is listening or
// delivered yet.
func (a *Adapter) open(ctx context.Context, sender *sink.Sender) error {
	meter := a.telemetry.meter
	latency, err := meter.Float64Histogram("reschedule_storage_sync_duration", metric.WithUnit("s"),
		metric.WithDescription("How long a change waited to be on stable storage."),
		metric.WithExplicitBucketBoundaries(.0005, .001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 5))
	if err != nil {
		return err
	}
	err = a.openStore(ctx, store.Options{
		Dir: a.cfg.DataDir, Log: a.cfg.Log, Fatal: a.fatal,
		Observe: func(d time.Duration) { latency.Record(context.Background(), d.Seconds()) },
	})
	if err != nil {
		return err
	}
	// Told to end while the start waits for room on the disk, it gives that up;
	// later that is for Stop to do.
	a.started = context.AfterFunc(ctx, func() {
		a.stopping.Store(true)
		a.store.GiveUp()
	})
	_, err = meter.Int64ObservableCounter("reschedule_storage_corrupt",
		metric.WithDescription("Corrupt places that were met on the disk since the start: blocks, records, rows."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(a.store.Corrupt())
			return nil
		}))
	if err != nil {
		return err
	}
	a.dispatch, err = dispatch.New(dispatch.Config{Sender: sender, Log: a.cfg.Log, MaxInFlight: a.cfg.MaxInFlight, Meter: meter, Lost: a.lost})
	if err != nil {
		return err
	}
	a.queue, err = queue.Open(queue.Config{Store: a.store, Log: a.cfg.Log, Fatal: a.fatal, Meter: meter,
		Wake: func(s *queue.Source) {
			if a.ready.Load() {
				a.dispatch.Wake(s)
			}
		}})
	return err
}

// openStore opens the store. In a cluster it lets the adapter before come to its
// end first: that of a pod which was deleted by force ends its deliveries while
// the next one starts already. A container that gave up would be started again
// only after a back-off of ten seconds and more.
func (a *Adapter) openStore(ctx context.Context, o store.Options) error {
	deadline := time.Now()
	if a.cfg.Kubernetes != nil {
		deadline = deadline.Add(handover)
	}
	for waiting := false; ; waiting = true {
		db, err := store.Open(o)
		if err == nil {
			a.store = db
			return nil
		}
		if !errors.Is(err, store.ErrInUse) || !time.Now().Before(deadline) {
			return err
		}
		if !waiting {
			a.cfg.Log.Warn("the data directory is in use: waiting for the end of the adapter before", "dir", o.Dir, "most", handover)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// set puts a source in force, with its ingest rules.
func (a *Adapter) set(s *schedule.Source, r rules) error {
	a.rules.Store(s.UID, r)
	_, err := a.queue.Set(s)
	return err
}

// remove purges a source; its schedules are lost for good.
func (a *Adapter) remove(uid string) error {
	s, known := a.queue.Find(uid)
	err := a.queue.Remove(uid)
	if known { // what is cut off before that would be delivered again
		a.dispatch.Remove(s)
	}
	if err != nil {
		return err
	}
	a.rules.Delete(uid)
	a.cfg.Log.Info("source removed; its schedules are purged", "uid", uid)
	return nil
}

// keepOnly removes every source, of the store too, that is neither wanted nor
// one of the others.
func (a *Adapter) keepOnly(ctx context.Context, wanted []*schedule.Source, others ...string) error {
	done := make(map[string]bool, len(wanted)+len(others))
	for _, s := range wanted {
		done[s.UID] = true
	}
	for _, uid := range others {
		done[uid] = true
	}
	stored, err := a.store.Sources()
	if err != nil {
		return err
	}
	for _, s := range a.queue.Sources() {
		stored = append(stored, s.Settings().UID)
	}
	for _, uid := range stored {
		if done[uid] {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		done[uid] = true // a source of the queue may be in the store too
		if err := a.remove(uid); err != nil {
			return err
		}
	}
	return nil
}

// serve starts to deliver, and to answer at the addresses.
func (a *Adapter) serve(guard access.Guard) error {
	if err := listener.Observe(a.telemetry.meter, a.connections.plain, a.connections.secured, a.connections.admin); err != nil {
		return err
	}
	handler := api.New(api.Config{Lookup: a.queue.Lookup, Ingest: ingester{a}, Guard: guard, Local: guard == nil, Log: a.cfg.Log, Meter: a.telemetry.meter})
	calls, err := a.listen(a.cfg.Listen, api.Server(handler), a.connections.plain)
	if err != nil {
		return err
	}
	a.calls = append(a.calls, calls)
	if a.cfg.TLSListen != "" {
		server := api.Server(handler)
		server.TLSConfig = serverTLS(a.cfg.TLSDir)
		if calls, err = a.listen(a.cfg.TLSListen, server, a.connections.secured); err != nil {
			return err
		}
		a.calls = append(a.calls, calls)
	}
	a.ready.Store(true)
	for _, s := range a.queue.Sources() {
		a.dispatch.Wake(s)
	}
	for _, e := range a.calls {
		a.answer(e)
	}
	return nil
}

// rules are a source's compiled ingest rules, or why there are none.
type rules struct {
	*ingest.Rules
	err error
}

// ingester takes the CloudEvents that are sent to a source's address.
type ingester struct{ *Adapter }

// Ingest implements api.Ingester.
func (a ingester) Ingest(ctx context.Context, s *queue.Source, header http.Header, body []byte, judge access.Judge) ([]queue.Item, error) {
	value, ok := a.rules.Load(s.Settings().UID)
	if !ok {
		return nil, schedule.Refuse(schedule.CodeNotFound, "there is no RescheduleSource %s any more", s.Settings().Path())
	}
	r := value.(rules)
	if r.Rules == nil {
		return nil, schedule.Refuse(schedule.CodeUnavailable, "%s takes no events until its spec is mended: %v", s.Settings().Path(), r.err)
	}
	items, err := r.Read(ctx, header, body, time.Now(), judge)
	if err == nil && len(items) > 0 {
		err = s.ScheduleTogether(items)
	}
	a.refused(s.Settings(), err)
	return items, err
}

// refused makes an event that will never be taken known where the owner of its
// source looks: sources of events tell it in their own logs at best. The text is
// ours alone: an Event in which a sender has a say is a billboard. Of senders
// without a token nothing is told, since anybody can be one.
func (a *Adapter) refused(s *schedule.Source, err error) {
	var refusal *schedule.Error
	if a.cluster == nil || !errors.As(err, &refusal) || !a.cluster.EventsNeedToken(s) {
		return
	}
	switch refusal.Code {
	case schedule.CodeInvalid:
		a.cluster.Warn(s, cluster.ReasonEventRefused, "an event that an admitted caller sent to its address was refused, because it cannot be used; the answer to the caller says why")
	case schedule.CodeTooLarge:
		a.cluster.Warn(s, cluster.ReasonEventRefused, "an event that an admitted caller sent to its address was refused, because it is too large; the answer to the caller says what the limit is")
	}
}

// lost makes an event that its sink will not get known where its owner looks.
func (a *Adapter) lost(l dispatch.Loss) {
	if a.cluster == nil {
		return // the dispatcher has logged it
	}
	why := fmt.Sprintf("%s did not take the event of key %.128q", l.Dest, l.Key)
	if l.Code != 0 {
		why += fmt.Sprintf(" (its last answer was %d)", l.Code)
	}
	if l.DeadLettered {
		a.cluster.Warn(l.Source, "EventDeadLettered", why+"; it goes to the dead letter sink")
	} else {
		a.cluster.Warn(l.Source, "EventDropped", why+"; it is dropped, since there is no dead letter sink for it")
	}
}

// Addr is the address of the schedule API.
func (a *Adapter) Addr() string { return a.calls[0].listener.Addr().String() }

// AdminAddr is the address of probes and metrics.
func (a *Adapter) AdminAddr() string { return a.admin.listener.Addr().String() }
