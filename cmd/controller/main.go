// Command controller is the control plane: it keeps the status of every
// RescheduleSource up to date, and runs the adapter while there is one.
package main

import (
	"knative.dev/eventing/pkg/auth"
	filteredfactory "knative.dev/pkg/client/injection/kube/informers/factory/filtered"
	"knative.dev/pkg/injection/sharedmain"
	"knative.dev/pkg/signals"

	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource"
)

func main() {
	ctx := filteredfactory.WithSelectors(signals.NewContext(), auth.OIDCLabelSelector)
	sharedmain.MainWithContext(ctx, "reschedule-controller", reschedulesource.NewController, reschedulesource.NewScaler)
}
