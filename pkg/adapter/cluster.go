package adapter

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/cluster"
	"github.com/reschedule-dev/reschedule/pkg/adapter/ingest"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sink"
)

// Cluster is the one that the kubeconfig file tells of, "" = the one that the
// process runs in; namespace is Knative Eventing's, "" = knative-eventing. The
// level follows its config-logging.
func Cluster(kubeconfig, namespace string, level *slog.LevelVar) (*cluster.Config, error) {
	connection, err := rest.InClusterConfig()
	if kubeconfig != "" {
		connection, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("adapter: no cluster (give --kubeconfig FILE, or --standalone to serve without one): %w", err)
	}
	if namespace == "" {
		namespace = "knative-eventing"
	}
	return &cluster.Config{REST: connection, Namespace: namespace, Level: level}, nil
}

// startInCluster starts an adapter whose sources are the cluster's. Until the
// API server has told them it is alive, but not ready: which schedules belong
// to sources that were deleted meanwhile is not known before.
func (a *Adapter) startInCluster(ctx context.Context) error {
	klog.SetSlogLogger(a.cfg.Log) // what client-go says goes where all else does
	err := a.administer()
	if err != nil {
		return err
	}
	if a.cluster, err = cluster.Connect(ctx, *a.cfg.Kubernetes); err != nil {
		return err
	}
	settings := a.cluster.Settings()
	if settings.Profiling {
		a.profiling.Store(true)
	}
	if err := a.telemetry.start(ctx, settings.Metrics, settings.Tracing); err != nil {
		return err
	}
	sender := sink.New(sink.Config{Log: a.cfg.Log, Tracer: a.telemetry.tracer, Token: a.cluster.Token, RootCAs: a.cluster.Roots()})
	a.cluster.OnTrust(sender.Trust)
	if err := a.open(ctx, sender); err != nil {
		return err
	}
	wanted, others := a.cluster.Sources()
	if err := a.keepOnly(ctx, wanted, others...); err != nil {
		return err
	}
	for _, s := range wanted {
		if err := (plane{a}).SetSource(s); err != nil {
			return err
		}
	}
	return a.serve(doorkeeper{a.cluster})
}

// lastWords is how long the cluster may take to end by itself.
const lastWords = time.Second

// follow keeps in step with the cluster until ctx ends.
func (a *Adapter) follow(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.cluster.Run(ctx, plane{a})
	}()
	<-ctx.Done()
	select {
	case <-ended:
	case <-time.After(lastWords): // it waits for the disk, and the end does not wait for it
	}
	return a.Stop()
}

// plane is what the cluster drives.
type plane struct{ *Adapter }

// SetSource implements cluster.Plane. Rules that do not compile do not hold up
// timers: the source goes on with the rules before, or takes no events. The
// controller says so in a condition.
func (a plane) SetSource(s *schedule.Source) error {
	compiled, err := ingest.Compile(s)
	r := rules{compiled, err}
	if err != nil {
		if before, ok := a.rules.Load(s.UID); ok {
			r.Rules = before.(rules).Rules
		}
		a.cfg.Log.Warn("the ingest rules of a source do not compile: those before stay in force, or it takes no events", "source", s.Path(), "error", err)
	}
	return a.set(s, r)
}

// RemoveSource implements cluster.Plane.
func (a plane) RemoveSource(uid string) error { return a.remove(uid) }

// Counts implements cluster.Plane.
func (a plane) Counts(uid string) (pending int64, nextDueAt time.Time, ok bool) {
	s, ok := a.queue.Find(uid)
	if !ok {
		return 0, time.Time{}, false
	}
	counts, err := s.Counts()
	return counts.Pending, counts.NextDueAt, err == nil
}

// doorkeeper is the cluster's guard, who under strict transport encryption
// lets nobody in without TLS.
type doorkeeper struct{ cluster *cluster.Cluster }

// Admit implements access.Guard.
func (d doorkeeper) Admit(r *http.Request, a access.Request) (access.Caller, error) {
	if r.TLS == nil && d.cluster.Settings().StrictTransport {
		return access.Caller{}, schedule.Refuse(schedule.CodeNotFound, "transport-encryption is strict in this cluster: use https, as status.address says")
	}
	return d.cluster.Guard().Admit(r, a)
}
