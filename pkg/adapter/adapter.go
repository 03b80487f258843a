// Package adapter is the composition root of the data plane: the one room that
// knows all the others. It opens the store, builds queue, dispatcher, sender
// and API, keeps the set of sources, and serves until it is told to stop.
//
// It guarantees the order: nothing is accepted before the sources are set and
// the store is recovered, and when it stops, requests end first, then
// deliveries, then the store is flushed.
//
// It is a library: [Run] is what cmd/adapter calls, and tests start the same
// thing with [New] and [Adapter.Start] on port 0.
package adapter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"golang.org/x/net/netutil"

	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/ingest"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sink"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Adapter is the running data plane.
type Adapter struct {
	cfg       Config
	telemetry *telemetry
	store     *store.DB
	queue     *queue.Queue
	dispatch  *dispatch.Dispatcher
	tokens    *api.Tokens
	rules     sync.Map // uid → *ingest.Rules

	servers   []*http.Server
	listeners []net.Listener
	serving   sync.WaitGroup
	ready     atomic.Bool
	stop      sync.Once
	stopping  atomic.Bool
	reload    sync.Mutex
}

// New opens the data directory, reads the sources and recovers. Nothing is
// listening or delivered yet.
func New(cfg Config) (_ *Adapter, err error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	a := &Adapter{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
		}
	}()
	// What can be wrong in a file is found before the data directory is touched.
	wanted, err := sources.ReadFile(cfg.SourcesFile)
	if err != nil {
		return nil, err
	}
	compiled, err := compile(wanted)
	if err != nil {
		return nil, err
	}
	if cfg.TokenFile != "" {
		if a.tokens, err = api.ReadTokens(cfg.TokenFile); err != nil {
			return nil, err
		}
	}
	if a.telemetry, err = newTelemetry(); err != nil {
		return nil, err
	}
	meter := a.telemetry.meter
	latency, err := meter.Float64Histogram("reschedule_storage_sync_duration", metric.WithUnit("s"),
		metric.WithDescription("How long a change waited to be on stable storage."),
		metric.WithExplicitBucketBoundaries(.0005, .001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 5))
	if err != nil {
		return nil, err
	}
	a.store, err = store.Open(store.Options{
		Dir: cfg.DataDir, Log: cfg.Log, Fatal: a.fatal,
		Observe: func(d time.Duration) { latency.Record(context.Background(), d.Seconds()) },
	})
	if err != nil {
		return nil, err
	}
	if a.dispatch, err = dispatch.New(dispatch.Config{Sender: sink.New(sink.Config{Log: cfg.Log}), Log: cfg.Log, MaxInFlight: cfg.MaxInFlight, Meter: meter}); err != nil {
		return nil, err
	}
	a.queue, err = queue.Open(queue.Config{Store: a.store, Log: cfg.Log, Fatal: a.fatal, Meter: meter,
		Wake: func(s *queue.Source) {
			if a.ready.Load() {
				a.dispatch.Wake(s)
			}
		}})
	if err != nil {
		return nil, err
	}
	return a, a.apply(wanted, compiled)
}

// compile makes the ingest rules of all sources, or says what is wrong with
// any of them.
func compile(wanted []*schedule.Source) (map[string]*ingest.Rules, error) {
	compiled, problems := map[string]*ingest.Rules{}, []error(nil)
	for _, s := range wanted {
		rules, err := ingest.Compile(s)
		if err != nil {
			problems = append(problems, fmt.Errorf("source %s: %w", s.Path(), err))
		}
		compiled[s.UID] = rules
	}
	return compiled, errors.Join(problems...)
}

// apply makes the wanted sources the ones there are. The schedules of all
// others are lost for good.
func (a *Adapter) apply(wanted []*schedule.Source, compiled map[string]*ingest.Rules) error {
	stored, err := a.store.Sources()
	if err != nil {
		return err
	}
	gone := map[string]*queue.Source{}
	for _, uid := range stored {
		gone[uid] = nil
	}
	for _, s := range a.queue.Sources() {
		gone[s.Settings().UID] = s
	}
	for _, s := range wanted {
		delete(gone, s.UID)
	}
	for uid, s := range gone {
		err := a.queue.Remove(uid)
		if s != nil { // what is cut off before that would be delivered again
			a.dispatch.Remove(s)
		}
		if err != nil {
			return err
		}
		a.rules.Delete(uid)
		a.cfg.Log.Info("source removed; its schedules are purged", "uid", uid)
	}
	for _, s := range wanted {
		a.rules.Store(s.UID, compiled[s.UID])
		if _, err := a.queue.Set(s); err != nil {
			return err
		}
	}
	return nil
}

// Reload reads the sources and tokens anew. On an error everything stays as it
// was.
func (a *Adapter) Reload() error {
	a.reload.Lock()
	defer a.reload.Unlock()
	wanted, err := sources.ReadFile(a.cfg.SourcesFile)
	if err != nil {
		return err
	}
	compiled, err := compile(wanted)
	if err != nil {
		return err
	}
	if a.tokens != nil {
		if err := a.tokens.Reload(a.cfg.TokenFile); err != nil {
			return err
		}
	}
	return a.apply(wanted, compiled)
}

// Start listens, then starts to deliver.
func (a *Adapter) Start() error {
	handler := api.New(api.Config{Lookup: a.queue.Lookup, Ingest: ingester{a}, Guard: a.guard(), Log: a.cfg.Log, Meter: a.telemetry.meter})
	for _, s := range []struct {
		address string
		server  *http.Server
	}{{a.cfg.Listen, api.Server(handler)}, {a.cfg.AdminListen, a.adminServer()}} {
		listener, err := net.Listen("tcp", s.address)
		if err != nil {
			a.closeListeners()
			return fmt.Errorf("adapter: listen: %w", err)
		}
		listener = netutil.LimitListener(listener, maxConnections)
		s.server.ErrorLog = slog.NewLogLogger(a.cfg.Log.Handler(), slog.LevelDebug)
		a.listeners, a.servers = append(a.listeners, listener), append(a.servers, s.server)
	}
	a.ready.Store(true)
	for _, s := range a.queue.Sources() {
		a.dispatch.Wake(s)
	}
	for i := range a.servers {
		a.serving.Go(func() {
			if err := a.servers[i].Serve(a.listeners[i]); !errors.Is(err, http.ErrServerClosed) {
				a.cfg.Log.Error("a server ended", "address", a.listeners[i].Addr(), "error", err)
			}
		})
	}
	return nil
}

// guard says who may call; nil: everybody who can reach the address.
func (a *Adapter) guard() api.Guard {
	if a.tokens == nil {
		return nil
	}
	return a.tokens
}

// ingester takes the CloudEvents that are sent to a source's address.
type ingester struct{ *Adapter }

// Ingest implements api.Ingester.
func (a ingester) Ingest(s *queue.Source, header http.Header, body []byte, judge api.Judge) error {
	rules, ok := a.rules.Load(s.Settings().UID)
	if !ok {
		return schedule.Refuse(schedule.CodeNotFound, "there is no RescheduleSource %s any more", s.Settings().Path())
	}
	items, err := rules.(*ingest.Rules).Read(header, body, time.Now(), judge)
	if err != nil || len(items) == 0 {
		return err
	}
	return s.ScheduleTogether(items)
}

// Addr is the address of the schedule API, AdminAddr that of probes and
// metrics, after Start.
func (a *Adapter) Addr() net.Addr { return a.listeners[0].Addr() }

// AdminAddr is the address of probes and metrics.
func (a *Adapter) AdminAddr() net.Addr { return a.listeners[1].Addr() }

func (a *Adapter) closeListeners() {
	for _, l := range a.listeners {
		_ = l.Close()
	}
	a.listeners, a.servers = nil, nil
}

// Run serves until ctx ends and says when it is ready. Each value on reload
// reads the sources anew; a bad file keeps the old ones.
func Run(ctx context.Context, cfg Config, reload <-chan struct{}, ready func(*Adapter)) error {
	a, err := New(cfg)
	if err != nil {
		return err
	}
	if err := a.Start(); err != nil {
		return errors.Join(err, a.Stop())
	}
	ready(a)
	for {
		select {
		case <-ctx.Done():
			return a.Stop()
		case <-reload:
			if err := a.Reload(); err != nil {
				a.cfg.Log.Error("the sources stay as they were: the file cannot be used", "file", cfg.SourcesFile, "error", err)
			} else {
				a.cfg.Log.Info("sources reloaded", "file", cfg.SourcesFile, "sources", len(a.queue.Sources()))
			}
		}
	}
}
