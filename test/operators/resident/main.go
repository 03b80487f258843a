// Command resident is an operator in the usual form: a manager of controller-runtime that
// runs all the time. It reports each run to a recorder, or without one writes the generation that it
// has seen into an annotation. A run that the recorder refuses is an error, and comes again after
// a back-off.
//
// test/cluster measures it beside a RescheduleSource, over the same faults; test/e2e lets a source put
// it to sleep. KUBECONFIG is the API server, NAMESPACE is where its objects are, and RECORDER is the
// URL to report to. METRICS is the address of its metrics, SECURE makes them https for who may get them,
// as kubebuilder does, LEASE is the name of a Lease that it holds and does not release, WORK how long a run takes;
// without them it has none.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func main() {
	ctrl.SetLogger(zap.New())
	if err := serve(); err != nil {
		log.Fatal(err)
	}
}

func serve() error {
	namespace, lease := os.Getenv("NAMESPACE"), os.Getenv("LEASE")
	work, err := time.ParseDuration(cmp.Or(os.Getenv("WORK"), "0s"))
	if err != nil {
		return fmt.Errorf("WORK: %w", err)
	}
	metrics := server.Options{BindAddress: cmp.Or(os.Getenv("METRICS"), "0")}
	if os.Getenv("SECURE") != "" {
		metrics.SecureServing, metrics.FilterProvider = true, filters.WithAuthenticationAndAuthorization
	}
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Cache:          cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
		Metrics:        metrics,
		LeaderElection: lease != "", LeaderElectionID: lease, LeaderElectionNamespace: namespace,
	})
	if err != nil {
		return err
	}
	// Changes of the status do not count, as they do not for a RescheduleSource.
	counts := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	if err := ctrl.NewControllerManagedBy(mgr).Named("website").For(newWebsite(), counts).Complete(operator{mgr.GetClient(), work}); err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}

// operator reports runs.
type operator struct {
	client client.Client
	work   time.Duration
}

// Reconcile implements reconcile.Reconciler.
func (o operator) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	if os.Getenv("RECORDER") != "" {
		return reconcile.Result{}, report(ctx, r)
	}
	website := newWebsite()
	if err := o.client.Get(ctx, r.NamespacedName, website); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	select {
	case <-time.After(o.work):
	case <-ctx.Done():
		return reconcile.Result{}, ctx.Err()
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"seen":"%d"}}}`, website.GetGeneration())
	return reconcile.Result{}, client.IgnoreNotFound(o.client.Patch(ctx, website, client.RawPatch(types.MergePatchType, []byte(patch))))
}

func newWebsite() *unstructured.Unstructured {
	website := &unstructured.Unstructured{}
	website.SetGroupVersionKind(schema.GroupVersionKind{Group: "watch.test", Version: "v1", Kind: "Website"})
	return website
}

func report(ctx context.Context, r reconcile.Request) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, os.Getenv("RECORDER"), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Ce-Reschedulekey", "Website/"+r.String())
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the recorder: %s", resp.Status)
	}
	return nil
}
