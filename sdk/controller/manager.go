package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crmanager "sigs.k8s.io/controller-runtime/pkg/manager"
)

// What controller-runtime has by default: gracePeriod is the time in which runs end,
// resyncPeriod the time after which every object is reconciled again.
const (
	gracePeriod  = 30 * time.Second
	resyncPeriod = 10 * time.Hour
)

// manager is a manager whose controllers are driven by events that come in over
// HTTP.
type manager struct {
	ctrl.Manager
	server    *server
	informers *informers
	adopted   []*adopted
	grace     time.Duration
}

// NewManager is ctrl.NewManager for an operator that runs as a Knative Service:
// its controllers watch nothing, keep no timers, and are driven by the
// CloudEvents that Start serves on $PORT (8080 by default).
//
// The options of leader election do not count. The SyncPeriod of the cache counts for a
// controller whose key has the timer of another controller; elsewhere it is maxInterval
// of the source. Objects
// outside the namespaces of the cache are not reconciled, whatever asks for it. The
// selectors of the cache are for cached reads and for [PrintSource]: the RescheduleSource
// says which objects are watched. Metrics are off unless an address is given: events
// come in on their default port.
func NewManager(cfg *rest.Config, o ctrl.Options, opts ...Option) (ctrl.Manager, error) {
	s := newServer(opts)
	if _, prints := os.LookupEnv(printVariable); !prints { // it may be no pod, which has no namespace
		if err := s.setVerify(func() (*rest.Config, error) { return cfg, nil }); err != nil {
			return nil, err
		}
	}
	in := &informers{byKind: map[kind]*informer{}, mapped: map[schema.GroupKind]bool{}}
	s.feeder = &feeder{informers: in}
	if !s.replicas && s.verify != nil {
		s.feeder.seen.byKey = map[objectKey]rememberedObject{}
	}
	o.LeaderElection = false
	o.Metrics.BindAddress = cmp.Or(o.Metrics.BindAddress, "0")
	newCache, newClient := o.NewCache, o.NewClient
	if newCache == nil {
		newCache = cache.New
	}
	o.NewCache = func(cfg *rest.Config, co cache.Options) (cache.Cache, error) {
		in.scheme, in.options = co.Scheme, co
		live, err := client.New(cfg, client.Options{HTTPClient: co.HTTPClient, Scheme: co.Scheme, Mapper: co.Mapper})
		if err != nil {
			return nil, err
		}
		in.live = live
		if s.cachedReads {
			if in.cached, err = newCache(cfg, co); err != nil {
				return nil, err
			}
		}
		return in, nil
	}
	o.NewClient = func(cfg *rest.Config, co client.Options) (client.Client, error) {
		if in.cached == nil {
			co.Cache = nil
		} else {
			co.Cache.Reader = in.cached
		}
		if newClient == nil {
			c, err := client.New(cfg, co)
			return notingClient{c, in}, err
		}
		c, err := newClient(cfg, co)
		if in.cached == nil {
			in.live = c // one of the operator's own, which may read more
		}
		return notingClient{c, in}, err
	}
	m, err := ctrl.NewManager(cfg, o)
	if err != nil {
		return nil, err
	}
	s.log = m.GetLogger().WithName("reschedule")
	w := &manager{Manager: m, server: s, informers: in, grace: gracePeriod}
	if o.Cache.SyncPeriod != nil {
		s.resync = *o.Cache.SyncPeriod
	}
	if o.GracefulShutdownTimeout != nil {
		w.grace = *o.GracefulShutdownTimeout
	}
	return w, nil
}

// GetAPIReader is the manager's reader, whose reads are noted.
func (m *manager) GetAPIReader() client.Reader {
	return notingReader{m.Manager.GetAPIReader(), m.informers}
}

// Add adds a runnable, and adopts it if it is a controller.
func (m *manager) Add(r crmanager.Runnable) error {
	a, err := adopt(r, m.server.enqueuedWithoutEvent)
	if err != nil {
		return err
	}
	if err := m.Manager.Add(r); err != nil || a == nil {
		return err
	}
	m.server.mu.Lock()
	defer m.server.mu.Unlock()
	m.adopted = append(m.adopted, a)
	m.server.queues = append(m.server.queues, a.queue)
	return nil
}

// Start starts the manager, serves events once all controllers work, and ends
// in the reverse order: when ctx ends no event is taken any more, the events that came in
// are answered, and then the manager stops.
func (m *manager) Start(ctx context.Context) error {
	if l := m.server.listener; l != nil {
		defer func() { _ = l.Close() }()
	}
	if done, err := m.printed(); done {
		return err
	}
	if err := m.readKinds(); err != nil {
		return err
	}
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- m.Manager.Start(inner) }()
	for _, q := range m.server.all() {
		select {
		case <-q.ready:
		case <-ctx.Done():
			stop()
			return <-ended
		case err := <-ended:
			return cmp.Or(err, errors.New("controller: the manager ended by itself"))
		}
	}
	// Not before: an operator is ready to Knative when its port takes connections.
	l := m.server.listener
	if l == nil {
		var err error
		if l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+cmp.Or(os.Getenv("PORT"), "8080")); err != nil {
			stop()
			return errors.Join(fmt.Errorf("controller: events cannot come in: %w", err), <-ended)
		}
	}
	srv := &http.Server{Handler: m.server, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	m.server.log.Info("Serving events", "address", l.Addr().String())
	m.server.logOpen()
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	case err = <-ended:
		_ = srv.Close()
		return err
	}
	m.drain(ctx, srv)
	stop()
	return errors.Join(err, <-ended)
}

// drain takes no event any more, and answers the events that came in, within the grace
// period. What still waits for a worker after half of it does not begin: the other half
// is for the runs that began.
func (m *manager) drain(ctx context.Context, srv *http.Server) {
	ctx = context.WithoutCancel(ctx)
	begin := ctx
	if m.grace >= 0 {
		var cancel, cancelBegin context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.grace)
		defer cancel()
		begin, cancelBegin = context.WithTimeout(ctx, m.grace/2)
		defer cancelBegin()
	}
	answered := make(chan struct{})
	go func() {
		_ = srv.Shutdown(ctx) // the process ends all the same
		close(answered)
	}()
	select {
	case <-answered:
	case <-begin.Done():
	}
	queues := m.server.all()
	for _, q := range queues {
		q.halt()
	}
	for _, q := range queues {
		q.drain(ctx)
	}
	<-answered
	_ = srv.Close()
}

// readKinds finds out which kinds the controllers are For, in which namespaces, and
// which keys they have: Kind/namespace/name is for the first controller of a kind.
func (m *manager) readKinds() error {
	taken := map[string]bool{}
	for _, a := range m.adopted {
		k, err := a.reconciled(m.GetScheme())
		if err != nil {
			return err
		}
		q := a.queue
		q.kind, q.prefix = k, q.name
		if !k.Empty() && !taken[k.Kind] {
			taken[k.Kind], q.prefix = true, k.Kind
		}
		if err := m.readMapped(a); err != nil {
			return err
		}
		if q.namespaces, _, err = m.informers.namespaces(k); err != nil {
			return err
		}
	}
	return nil
}

// readMapped notes the kinds of objects that a controller maps to others, or watches with
// another cache.
func (m *manager) readMapped(a *adopted) error {
	watches, _ := a.sources()
	for _, w := range watches {
		k, err := kindOfValue(w.object, m.GetScheme())
		if err != nil {
			return err
		}
		if w.elsewhere(m.informers) {
			a.queue.elsewhere[k.GroupKind()] = true
		}
		if !mapsToItself(w.handler.Type()) {
			m.informers.mapped[k.GroupKind()], a.queue.caused = true, true
		}
	}
	return nil
}
