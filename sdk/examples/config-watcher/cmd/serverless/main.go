// Command serverless is the operator as a Knative Service: it runs while there is
// something to do.
package main

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	reschedule "github.com/reschedule-dev/reschedule/sdk/controller"
	v1 "github.com/reschedule-dev/reschedule/sdk/examples/config-watcher/api/v1"
	"github.com/reschedule-dev/reschedule/sdk/examples/config-watcher/internal/controller"
)

func main() {
	ctrl.SetLogger(zap.New())
	if err := run(); err != nil {
		ctrl.Log.Error(err, "The operator ends")
		os.Exit(1)
	}
}

func run() error {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1.AddToScheme(scheme))

	mgr, err := reschedule.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:                 scheme,
		Cache:                  cache.Options{DefaultNamespaces: map[string]cache.Config{os.Getenv("WATCH_NAMESPACE"): {}}}, // "" is all
		HealthProbeBindAddress: ":8081",
	}, reschedule.WithAudience("config-watcher")) // of sink.audience: events come from the RescheduleSource alone
	if err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("healthz", healthz.Ping); err != nil {
		return err
	}
	reconciler := &controller.ConfigWatcherReconciler{Client: mgr.GetClient(), Recorder: mgr.GetEventRecorder("config-watcher")}
	if err := reconciler.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("setting up the controller: %w", err)
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}
