// Command controller is the control plane: it keeps the status of every
// RescheduleSource up to date, and runs the adapter while there is one.
//
// With --manage-adapter it also makes the adapter's StatefulSet, for installers that
// cannot: docs/olm.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"knative.dev/eventing/pkg/auth"
	filteredfactory "knative.dev/pkg/client/injection/kube/informers/factory/filtered"
	"knative.dev/pkg/configmap"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/injection"
	"knative.dev/pkg/injection/sharedmain"
	"knative.dev/pkg/logging"
	"knative.dev/pkg/signals"

	"github.com/reschedule-dev/reschedule/config"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/relist"
	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource"
	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
)

// version is set by the linker.
var version = "devel"

// defaults limit the calls to the API server per second and in a burst, about as
// eventing's own controller limits them. Knative's default depends on the number
// of controllers in the process. With four of them, a thousand sources that are
// created together would wait for minutes.
var defaults = map[string]string{"KUBE_API_QPS": "100", "KUBE_API_BURST": "200"}

var manageAdapter = flag.Bool("manage-adapter", false,
	"make the adapter's StatefulSet, with the image in RELATED_IMAGE_ADAPTER, and keep it as this version wants it; "+
		"ADAPTER_VOLUME_SIZE and ADAPTER_STORAGE_CLASS are about its volume")

func main() {
	for name, value := range defaults {
		if os.Getenv(name) != "" {
			continue
		}
		if err := os.Setenv(name, value); err != nil {
			fmt.Fprintln(os.Stderr, "controller cannot run:", err)
			os.Exit(1)
		}
	}
	ctx := filteredfactory.WithSelectors(signals.NewContext(), auth.OIDCLabelSelector)
	connection := injection.ParseAndGetRESTConfigOrDie() // it parses the flags
	connection.Wrap(relist.Transport)
	sharedmain.MainWithConfig(ctx, "reschedule-controller", connection,
		reschedulesource.NewController, newScaler, reschedulesource.NewWatchAccounts, reschedulesource.NewFinalizers)
}

func newScaler(ctx context.Context, cmw configmap.Watcher) *controller.Impl {
	if !*manageAdapter {
		return reschedulesource.NewScaler(ctx, cmw)
	}
	adapter, err := resources.AdapterStatefulSet(config.Adapter, resources.AdapterSettings{
		Version:      version,
		Image:        os.Getenv("RELATED_IMAGE_ADAPTER"),
		VolumeSize:   os.Getenv("ADAPTER_VOLUME_SIZE"),
		StorageClass: os.Getenv("ADAPTER_STORAGE_CLASS"),
	})
	if err != nil {
		logging.FromContext(ctx).Fatalf("The controller cannot make the adapter (--manage-adapter): %v", err)
	}
	return reschedulesource.NewScaler(reschedulesource.WithAdapter(ctx, adapter), cmw)
}
