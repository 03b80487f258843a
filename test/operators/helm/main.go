// Command helm is an operator of the Operator SDK's Helm kind: it installs a chart for each
// object of the kinds in kodata/watches.yaml. The reconciler comes unchanged from
// github.com/operator-framework/helm-operator-plugins v0.9.1, pkg/reconciler. This main
// program replaces helm-operator run there, and has the options of its reconciler that
// concern a chart. It differs in the function that makes the manager; with RESIDENT=true it
// has the manager of controller-runtime, to compare with.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/operator-framework/helm-operator-plugins/pkg/annotation"
	"github.com/operator-framework/helm-operator-plugins/pkg/reconciler"
	"github.com/operator-framework/helm-operator-plugins/pkg/watches"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/reschedule-dev/reschedule/sdk/controller"
)

func main() {
	ctrl.SetLogger(zap.New())
	if err := run(); err != nil {
		ctrl.Log.Error(err, "The operator ended")
		os.Exit(1)
	}
}

func run() error {
	// ko puts kodata there: the folder of watches.yaml, and of the charts that it names.
	if err := os.Chdir(os.Getenv("KO_DATA_PATH")); err != nil {
		return fmt.Errorf("KO_DATA_PATH: %w", err)
	}
	kinds, err := watches.Load("watches.yaml")
	if err != nil {
		return err
	}
	mgr, err := newManager(ctrl.GetConfigOrDie())
	if err != nil {
		return err
	}
	for _, w := range kinds {
		options := []reconciler.Option{
			reconciler.WithChart(*w.Chart),
			reconciler.WithGroupVersionKind(w.GroupVersionKind),
			reconciler.WithOverrideValues(w.OverrideValues),
			reconciler.WithSelector(*w.Selector),
			reconciler.SkipDependentWatches(!*w.WatchDependentResources),
			reconciler.WithInstallAnnotations(annotation.DefaultInstallAnnotations...),
			reconciler.WithUpgradeAnnotations(annotation.DefaultUpgradeAnnotations...),
			reconciler.WithUninstallAnnotations(annotation.DefaultUninstallAnnotations...),
		}
		if w.ReconcilePeriod != nil {
			options = append(options, reconciler.WithReconcilePeriod(w.ReconcilePeriod.Duration))
		}
		r, err := reconciler.New(options...)
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(w.ChartPath), err)
		}
		if err := r.SetupWithManager(mgr); err != nil {
			return fmt.Errorf("%s: %w", w.GroupVersionKind, err)
		}
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}

func newManager(config *rest.Config) (ctrl.Manager, error) {
	if os.Getenv("RESIDENT") != "true" {
		return controller.NewManager(config, ctrl.Options{})
	}
	// Its Role is of one namespace.
	namespace := map[string]cache.Config{os.Getenv("NAMESPACE"): {}}
	return ctrl.NewManager(config, ctrl.Options{
		Cache:   cache.Options{DefaultNamespaces: namespace},
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
}
