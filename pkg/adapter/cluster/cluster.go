package cluster

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/access/guard"
	"github.com/reschedule-dev/reschedule/pkg/adapter/kube"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/capacity"
	listers "github.com/reschedule-dev/reschedule/pkg/client/listers/sources/v1alpha1"
)

// Config is what a Cluster needs.
type Config struct {
	// REST says how to reach the API server; required.
	REST *rest.Config
	// Namespace is the system namespace, where Knative's ConfigMaps are; required.
	Namespace string
	Log       *slog.Logger // default: discards
	// Level follows config-logging, and keeps its present value when config-logging
	// names no level; nil: config-logging has no effect.
	Level *slog.LevelVar
	// SourceBytes bounds what all sources take; default: by the memory limit.
	SourceBytes int64
	// Replicated: the adapter is one of a group, whose memory limit leaves space for the log.
	Replicated bool
}

// Cluster is the connection to a cluster, and the [sources.Origin] of its adapter.
type Cluster struct {
	cfg  Config
	klog logr.Logger // cfg.Log, for client-go

	// All below is made by Connect.
	cancel    context.CancelFunc
	clients   kube.Clients
	informers *informers
	capacity  *capacity.Sources
	sources   listers.RescheduleSourceLister
	configs   *configs
	follower  *follower
	reporter  *reporter
	tokens    *kube.Tokens
	warner    *warner
	guard     *guard.Guard
	closing   sync.Once
}

var _ sources.Origin = (*Cluster)(nil)

// New returns a cluster that Connect connects to.
func New(cfg Config) *Cluster {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Cluster{cfg: cfg, klog: logr.FromSlogHandler(cfg.Log.Handler())}
}

// Connect implements [sources.Origin]: it makes the clients and starts the
// informers, and returns when each of them has its first list. It waits for an API
// server that cannot be reached; its error is the error of ctx when ctx ended first.
// What it started ends with ctx or with Close.
func (c *Cluster) Connect(ctx context.Context) (sources.Settings, error) {
	if c.cfg.REST == nil || c.cfg.Namespace == "" {
		return sources.Settings{}, errors.New("cluster: Config.REST and Config.Namespace must be set")
	}
	klog.SetSlogLogger(c.cfg.Log) // what client-go logs belongs to the adapter's log
	clients, err := kube.NewClients(c.cfg.REST, c.cfg.Namespace)
	if err != nil {
		return sources.Settings{}, err
	}
	return c.connect(ctx, clients)
}

func (c *Cluster) connect(ctx context.Context, clients kube.Clients) (settings sources.Settings, err error) {
	ctx, c.cancel = context.WithCancel(klog.NewContext(ctx, c.klog))
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	c.capacity = newCapacity(cmp.Or(c.cfg.SourceBytes, totalFor(c.cfg.Replicated)))
	in, err := newInformers(clients, c.capacity, c.cfg.Log)
	if err != nil {
		return settings, err
	}
	c.clients, c.informers = clients, in
	c.sources = listers.NewRescheduleSourceLister(in.sources.GetIndexer())
	c.configs = newConfigs(in.configs.GetStore(), c.cfg.Level, c.cfg.Log)
	c.tokens = kube.NewTokens(clients.RequestToken, clients.OwnAudiences)
	c.warner = newWarner(ctx, clients.Events)
	c.follower = &follower{
		lister: c.sources, warn: c.Warn, log: c.cfg.Log, objects: map[cache.ObjectName]*seenObject{},
		oidc:     func() bool { return c.configs.flags().IsOIDCAuthentication() },
		ceilings: c.configs.ceilingsNow.Load,
		capacity: c.capacity, fetch: c.fetch, refusalChanged: func(name cache.ObjectName) { c.reporter.changed(name) },
	}
	c.reporter = newReporter(c.sources, c.capacity.Refusal, clients.PatchStatus, c.cfg.Log)
	c.guard = guard.New(guard.Config{
		ReviewToken: clients.ReviewToken, ReviewStranger: clients.ReviewStranger, ReviewAccess: clients.ReviewAccess, FetchKeys: clients.FetchKeys,
		Sources: c.sources, Policies: in.policies.GetIndexer(), Flags: c.configs.flags, Log: c.cfg.Log,
	})
	refresh := func(any) { c.configs.refresh() }
	_, err = in.configs.AddEventHandlerWithOptions(cache.ResourceEventHandlerFuncs{
		AddFunc: refresh, UpdateFunc: func(_, o any) { refresh(o) }, DeleteFunc: refresh,
	}, cache.HandlerOptions{Logger: &c.klog})
	if err != nil {
		return settings, err
	}
	in.start(ctx)
	if err := in.listed(ctx); err != nil {
		return settings, err
	}
	c.capacity.Restored()
	c.configs.start()
	return c.configs.settings(), nil
}

// Close implements [sources.Origin]. It waits a moment for Events on their way. What
// Warn says after it is lost; all other methods may still be called.
func (c *Cluster) Close() {
	c.closing.Do(func() {
		if c.cancel == nil {
			return // never connected
		}
		c.cancel()
		if c.reporter != nil {
			c.reporter.changedWatches.ShutDown()
		}
		if c.informers != nil {
			c.informers.stopped()
			c.warner.close()
		}
	})
}

// Guard implements [sources.Origin].
func (c *Cluster) Guard() access.Guard { return c.guard }

// Token implements [sources.Origin].
func (c *Cluster) Token(ctx context.Context, src *schedule.Spec, target schedule.Target) (string, error) {
	return c.tokens.Get(ctx, src, target.Audience)
}

// TokenRefused implements [sources.Origin].
func (c *Cluster) TokenRefused(src *schedule.Spec, target schedule.Target) {
	c.tokens.Refused(src, target.Audience)
}

// Trust implements [sources.Origin]: the certificate authorities of the system and
// of the trust bundles. There is one apply; it must not change the pool.
func (c *Cluster) Trust(apply func(*x509.CertPool)) { c.configs.trust.follow(apply) }

// Warn implements [sources.Origin]: it records a Warning Event on the
// RescheduleSource. An Event that cannot be written in time is lost, and repeats are
// counted on one Event.
func (c *Cluster) Warn(src *schedule.Spec, reason, message string) {
	c.warner.warn(src, reason, message)
}

// EventsRefused implements [sources.Origin]. The message is a fixed text: a sender
// must not choose what an Event says. Events of senders without a token are not
// reported, since every caller can send them.
func (c *Cluster) EventsRefused(src *schedule.Spec, refusal error) {
	var r *schedule.Error
	if !errors.As(refusal, &r) || !src.Ingest.NeedsToken && !c.configs.flags().IsOIDCAuthentication() {
		return
	}
	switch r.Code {
	case schedule.CodeInvalid:
		c.Warn(src, reasonEventRefused, "an event that an admitted caller sent to its address was refused, because it cannot be used; the answer to the caller says why")
	case schedule.CodeTooLarge:
		c.Warn(src, reasonEventRefused, "an event that an admitted caller sent to its address was refused, because it is too large; the answer to the caller says what the limit is")
	}
}

// Objects implements [sources.Origin].
func (c *Cluster) Objects() objects.API { return c.clients.Objects }

// WatchChanged implements [sources.Origin]: the status of the source's watch is
// reported promptly.
func (c *Cluster) WatchChanged(src *schedule.Spec) {
	c.reporter.changed(cache.ObjectName{Namespace: src.Namespace, Name: src.Name})
}

// Refused implements [sources.Origin].
func (c *Cluster) Refused() int64 { return c.capacity.Refused() }

// Sources implements [sources.Origin], in the order of their names.
func (c *Cluster) Sources() (wanted []*schedule.Spec, unusable []string) {
	return c.follower.sources()
}

// Gone implements [sources.Origin]: it lists the objects that the API server has stored. The
// informer may not know a source yet whose schedules another adapter has taken.
func (c *Cluster) Gone(ctx context.Context, uids []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	stored := map[types.UID]bool{}
	page := metav1.ListOptions{Limit: gonePage}
	for {
		list, err := cache.ToListerWatcherWithContext(c.clients.Sources).ListWithContext(ctx, page)
		if err != nil {
			return nil, fmt.Errorf("cluster: listing the sources: %w", err)
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error {
			object, err := meta.Accessor(o)
			if err == nil {
				stored[object.GetUID()] = true
			}
			return err
		}); err != nil {
			return nil, fmt.Errorf("cluster: listing the sources: %w", err)
		}
		at, err := meta.ListAccessor(list)
		if err != nil {
			return nil, fmt.Errorf("cluster: listing the sources: %w", err)
		}
		if page.Continue = at.GetContinue(); page.Continue == "" {
			break
		}
	}
	return slices.DeleteFunc(slices.Clone(uids), func(uid string) bool { return stored[types.UID(uid)] }), nil
}

// The list of Gone.
const (
	goneTimeout = time.Minute
	gonePage    = 20 // of 1.5 MiB each at most, which all are in memory at once
)

// Run implements [sources.Origin]: it keeps the registry and the status of the objects
// in step. It takes what Sources returned as applied.
func (c *Cluster) Run(ctx context.Context, r sources.Registry) {
	var running sync.WaitGroup
	running.Go(func() { c.follow(ctx, r) })
	running.Go(func() { c.reporter.run(ctx, r) })
	running.Go(func() { c.reporter.runPromptly(ctx, r) })
	running.Wait()
}
