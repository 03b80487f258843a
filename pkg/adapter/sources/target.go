package sources

import (
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// specTargets are the sinks of an object that names them by uri, as it must
// where there is no cluster to resolve a reference or to issue tokens. What is
// wrong with a destination anywhere is left to the object's own validation.
func specTargets(o *v1alpha1.RescheduleSource) (t schedule.Targets, errs []error) {
	t.Sink, errs = target("spec.sink", &o.Spec.Sink)
	if d := o.Spec.Delivery; d != nil && d.DeadLetterSink != nil {
		dead, more := target("spec.delivery.deadLetterSink", d.DeadLetterSink)
		t.DeadLetter, errs = &dead, append(errs, more...)
	}
	return t, errs
}

func target(field string, d *duckv1.Destination) (t schedule.Target, errs []error) {
	refuse := func(sub, format string, args ...any) {
		errs = append(errs, schedule.Invalid(field+sub, format, args...))
	}
	if d.Ref != nil {
		refuse(".ref", "needs a cluster that resolves it; a standalone adapter takes a uri")
	}
	if d.Audience != nil {
		refuse(".audience", "needs a cluster that issues tokens; a standalone adapter sends none")
	}
	t.URL = d.URI.String()
	if d.CACerts != nil {
		t.CACerts = *d.CACerts
	}
	return t, errs
}
