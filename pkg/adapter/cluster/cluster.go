package cluster

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"knative.dev/pkg/observability"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/access/guard"
	"github.com/reschedule-dev/reschedule/pkg/adapter/kube"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	listers "github.com/reschedule-dev/reschedule/pkg/client/listers/sources/v1alpha1"
)

// Config is what Connect needs.
type Config struct {
	// REST is how to reach the API server; required.
	REST *rest.Config
	// Namespace is the system namespace, where Knative's ConfigMaps are; required.
	Namespace string
	Log       *slog.Logger // default: discards
	// Level follows config-logging, and is what it is now when that names none;
	// nil: nothing follows.
	Level *slog.LevelVar
}

// Settings are what Knative's ConfigMaps say about the process.
type Settings struct {
	Metrics observability.MetricsConfig // as read at the start
	Tracing observability.TracingConfig // as read at the start
	// Profiling is runtime-profiling, as read at the start.
	Profiling bool
	// StrictTransport is transport-encryption: strict, as it is now.
	StrictTransport bool
}

// Plane is the data plane. Calls for different sources may be concurrent,
// those for one are not.
type Plane interface {
	// SetSource makes the source what it says from now on, a new one too. Its
	// sink is empty when it is suspended for lack of one. An error has it
	// called again, later.
	SetSource(src *schedule.Source) error
	// RemoveSource purges the source and its schedules for good; that there is
	// none is no error. An error has it called again, later.
	RemoveSource(uid string) error
	// Counts is what the status reports; ok is false for a source that the
	// plane does not have, and nextDueAt is zero when nothing waits.
	Counts(uid string) (pending int64, nextDueAt time.Time, ok bool)
}

// Cluster is a connection to the cluster. All methods are safe for concurrent
// use, but Sources, which comes before Run, and Run, which is called once.
type Cluster struct {
	log       *slog.Logger
	told      logr.Logger // the same, for what client-go has to say
	cancel    context.CancelFunc
	clients   kube.Clients
	informers *informers
	sources   listers.RescheduleSourceLister
	configs   *configs
	follower  *follower
	tokens    *kube.Tokens
	warner    *warner
	guard     *guard.Guard
	closing   sync.Once
}

// Connect makes the kube.Clients and starts the informers. It returns when each has
// its first list, and its error is that of ctx when that ended first; an API
// server that cannot be reached is waited for. What it started ends with ctx
// or with Close, which must be called when it succeeded.
func Connect(ctx context.Context, cfg Config) (*Cluster, error) {
	if cfg.REST == nil || cfg.Namespace == "" {
		return nil, errors.New("cluster: Config.REST and Config.Namespace must be set")
	}
	made, err := kube.NewClients(cfg.REST, cfg.Namespace)
	if err != nil {
		return nil, err
	}
	return connect(ctx, cfg, made)
}

func connect(ctx context.Context, cfg Config, made kube.Clients) (*Cluster, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	told := logr.FromSlogHandler(cfg.Log.Handler())
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, told))
	in, err := newInformers(made, cfg.Log)
	if err != nil {
		cancel()
		return nil, err
	}
	c := &Cluster{
		log: cfg.Log, told: told, cancel: cancel, clients: made, informers: in,
		sources: listers.NewRescheduleSourceLister(in.sources.GetIndexer()),
		configs: newConfigs(in.configs.GetStore(), cfg.Level, cfg.Log),
		tokens:  kube.NewTokens(made.RequestToken, made.OwnAudiences),
		warner:  newWarner(ctx, made.Events),
	}
	c.follower = &follower{
		lister: c.sources, warn: c.Warn, log: cfg.Log, known: map[cache.ObjectName]*known{},
		identified: func() bool { return c.configs.flags().IsOIDCAuthentication() },
		ceilings:   c.configs.ceilingsNow.Load,
	}
	c.guard = guard.New(guard.Config{
		ReviewToken: made.ReviewToken, ReviewStranger: made.ReviewStranger, ReviewAccess: made.ReviewAccess, FetchKeys: made.FetchKeys,
		Sources: c.sources, Policies: in.policies.GetIndexer(), Flags: c.configs.flags, Log: cfg.Log,
	})
	refresh := func(any) { c.configs.refresh() }
	_, err = in.configs.AddEventHandlerWithOptions(cache.ResourceEventHandlerFuncs{
		AddFunc: refresh, UpdateFunc: func(_, o any) { refresh(o) }, DeleteFunc: refresh,
	}, cache.HandlerOptions{Logger: &told})
	if err == nil {
		in.start(ctx)
		err = in.listed(ctx)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	c.configs.start()
	return c, nil
}

// Close ends what Connect started, and waits a moment for Events on their way.
// What Warn says after it is lost; all other calls may still be made.
func (c *Cluster) Close() {
	c.closing.Do(func() {
		c.cancel()
		c.informers.stopped()
		c.warner.close()
	})
}

// Guard says who may call.
func (c *Cluster) Guard() access.Guard { return c.guard }

// Token is the bearer token of the source for the target's audience. The error
// says whose token could not be had for which audience.
func (c *Cluster) Token(ctx context.Context, src *schedule.Source, target schedule.Target) (string, error) {
	return c.tokens.Get(ctx, src, target.Audience)
}

// Roots are the system's certificates and those of the trust bundles. The pool
// is not changed.
func (c *Cluster) Roots() *x509.CertPool { return c.configs.trust.get() }

// OnTrust calls f with the new Roots whenever they change after the last call
// of Roots. There is one f; it must not call Roots or OnTrust.
func (c *Cluster) OnTrust(f func(*x509.CertPool)) { c.configs.trust.onChange(f) }

// Warn records a Warning Event on the RescheduleSource. It never blocks: what
// cannot be written in time is lost, and repeats are summed up.
func (c *Cluster) Warn(src *schedule.Source, reason, message string) {
	c.warner.warn(src, reason, message)
}

// EventsNeedToken says whether only admitted callers may send events to the
// source.
func (c *Cluster) EventsNeedToken(src *schedule.Source) bool {
	return src.EventsNeedToken || c.configs.flags().IsOIDCAuthentication()
}

// Sources are the sources that there are now, in the order of their names.
// Those of others exist but cannot be used now: their schedules must not be
// purged.
func (c *Cluster) Sources() (wanted []*schedule.Source, others []string) { return c.follower.sources() }

// Run keeps the plane's sources and the objects' status in step until ctx ends.
// What Sources returned before it takes as applied.
func (c *Cluster) Run(ctx context.Context, p Plane) {
	var running sync.WaitGroup
	running.Go(func() { c.follow(ctx, p) })
	running.Go(func() { newReporter(c.sources, c.clients.PatchStatus, c.log).run(ctx, p) })
	running.Wait()
}

// Settings are those now in force.
func (c *Cluster) Settings() Settings { return c.configs.settings() }
