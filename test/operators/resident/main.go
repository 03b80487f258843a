// Command resident is an operator in the usual form: a manager of controller-runtime that
// runs all the time. It reports each run to a recorder, and does nothing else. A run
// that the recorder refuses is an error, and comes again after a back-off.
//
// test/cluster measures it beside a RescheduleSource, over the same faults. KUBECONFIG is
// the API server, NAMESPACE is where its objects are, and RECORDER is the URL to report to.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
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
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Cache:   cache.Options{DefaultNamespaces: map[string]cache.Config{os.Getenv("NAMESPACE"): {}}},
		Metrics: server.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	website := &unstructured.Unstructured{}
	website.SetGroupVersionKind(schema.GroupVersionKind{Group: "watch.test", Version: "v1", Kind: "Website"})
	// Changes of the status do not count, as they do not for a RescheduleSource.
	counts := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	if err := ctrl.NewControllerManagedBy(mgr).Named("website").For(website, counts).Complete(reconcile.Func(report)); err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}

// report is the Reconcile of the operator.
func report(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, os.Getenv("RECORDER"), nil)
	if err != nil {
		return reconcile.Result{}, err
	}
	req.Header.Set("Ce-Reschedulekey", "Website/"+r.String())
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return reconcile.Result{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return reconcile.Result{}, fmt.Errorf("the recorder: %s", resp.Status)
	}
	return reconcile.Result{}, nil
}
