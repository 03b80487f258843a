// Command controller is the control plane: it keeps the status of every
// RescheduleSource up to date, and runs the adapter while there is one.
package main

import (
	"fmt"
	"os"

	"knative.dev/eventing/pkg/auth"
	filteredfactory "knative.dev/pkg/client/injection/kube/informers/factory/filtered"
	"knative.dev/pkg/injection/sharedmain"
	"knative.dev/pkg/signals"

	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource"
)

// defaults limit the calls to the API server per second and in a burst, about as
// eventing's own controller limits them. Knative's default depends on the number
// of controllers in the process. With three of them, a thousand sources that are
// created together would wait for minutes.
var defaults = map[string]string{"KUBE_API_QPS": "100", "KUBE_API_BURST": "200"}

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
	sharedmain.MainWithContext(ctx, "reschedule-controller",
		reschedulesource.NewController, reschedulesource.NewScaler, reschedulesource.NewWatchAccounts)
}
