// Command controller is the control plane: it keeps the status of every
// RescheduleSource up to date, and runs the adapter while there is one.
package main

import (
	"cmp"
	"flag"

	"knative.dev/eventing/pkg/auth"
	filteredfactory "knative.dev/pkg/client/injection/kube/informers/factory/filtered"
	"knative.dev/pkg/injection"
	"knative.dev/pkg/injection/sharedmain"
	"knative.dev/pkg/signals"

	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource"
)

// Calls a second, and at once, where -kube-api-qps and -kube-api-burst say
// nothing: about what eventing's own controller has. Knative's default, by the
// number of controllers, would be a tenth, and a thousand sources that are made
// at once would wait for minutes.
const (
	qps   = 100
	burst = 200
)

func main() {
	ctx := filteredfactory.WithSelectors(signals.NewContext(), auth.OIDCLabelSelector)
	disableHA := flag.Bool("disable-ha", false, "run without leader election, as the only replica")
	cfg := injection.ParseAndGetRESTConfigOrDie()
	cfg.QPS, cfg.Burst = cmp.Or(cfg.QPS, qps), cmp.Or(cfg.Burst, burst)
	if *disableHA {
		ctx = sharedmain.WithHADisabled(ctx)
	}
	sharedmain.MainWithConfig(ctx, "reschedule-controller", cfg, reschedulesource.NewController, reschedulesource.NewScaler)
}
