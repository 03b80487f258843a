package reschedulesource

import (
	"context"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgotesting "k8s.io/client-go/testing"
	"knative.dev/pkg/apis"
	. "knative.dev/pkg/reconciler/testing"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// scalingAs makes a source scale a workload.
func scalingAs(mode v1alpha1.ScaleMode, account string) option {
	return func(s *v1alpha1.RescheduleSource) {
		s.Spec.Scale = &v1alpha1.RescheduleSourceScale{
			TargetRef: v1alpha1.ScaleTarget{APIVersion: "apps/v1", Kind: "Deployment", Name: "worker"}, Mode: &mode, ServiceAccountName: account,
		}
	}
}

// scaleReport is the adapter's report about the workload.
func scaleReport(state, reason, message string) option {
	return func(s *v1alpha1.RescheduleSource) {
		s.Status.Scale = &v1alpha1.ScaleStatus{State: state, Starts: 7, Reason: reason, Message: message}
	}
}

// holding is a source that holds its workload, with an account.
func holding(account string) option {
	return func(s *v1alpha1.RescheduleSource) {
		s.Status.Scale = &v1alpha1.ScaleStatus{State: "Asleep", Held: &v1alpha1.HeldWorkload{
			ScaleTarget: v1alpha1.ScaleTarget{APIVersion: "apps/v1", Kind: "Deployment", Name: "worker"}, Replicas: 2, ServiceAccountName: account,
		}}
	}
}

// Scaled is there only with spec.scale: the adapter's report, or that the sink is a Knative Service or a part of one.
// It is no part of Ready.
func TestScaled_Condition(t *testing.T) {
	t.Parallel()
	is := func(status corev1.ConditionStatus, reason, message string) option {
		return func(s *v1alpha1.RescheduleSource) {
			c := condition("Scaled", status, reason, message)
			c.Severity = "Info"
			at := 5 // sorted by type
			s.Status.Conditions = append(s.Status.Conditions[:at:at], append([]apis.Condition{c}, s.Status.Conditions[at:]...)...)
		}
	}
	scaled, plain := scalingAs(v1alpha1.ScaleAuto, ""), to(ref("v1", "Service", "", "plain"))
	address, asleep := resolvedTo("http://plain.ops.svc.cluster.local"), scaleReport("Asleep", "", "")
	fails := func(code int) context.Context {
		return context.WithValue(t.Context(), getServices{}, clientgotesting.ReactionFunc(func(clientgotesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewGenericServerResponse(code, "get", schema.GroupResource{Resource: "services"}, "plain", "it is down", 0, true)
		}))
	}
	failed := apierrors.NewGenericServerResponse(http.StatusInternalServerError, "get", schema.GroupResource{Resource: "services"}, "plain", "it is down", 0, true)
	row := func(name string, conditions option, options ...option) TableRow {
		return TableRow{
			Name: name, Key: key, Objects: []runtime.Object{source(append([]option{scaled, plain}, options...)...), adapter(1, 1)},
			WantStatusUpdates: becomes(settled(append([]option{scaled, plain, address}, append(options, conditions)...)...)),
		}
	}
	refused := func(name string) option {
		return is("False", "KnativeService", "Service "+name+" belongs to a Knative Service, which scales by itself: "+
			"remove spec.scale, or name a Service in front of the workload as the sink.")
	}
	hidden := row("its Service may not be read", is("True", "Scaled", ""), asleep)
	hidden.Ctx = fails(http.StatusForbidden)
	down := row("its Service cannot be read now", is("True", "Scaled", ""), asleep)
	down.Ctx, down.WantErr = fails(http.StatusInternalServerError), true
	down.WantEvents = []string{Eventf("Warning", "InternalError", "reading the Service that is the sink: %v", failed)}
	TableTest{
		row("no report yet", is("Unknown", "NotReported", "The adapter has not reported on the workload yet.")),
		row("asleep", is("True", "Scaled", ""), asleep),
		row("a refusal", is("False", "Forbidden", "no"), scaleReport("Awake", "Forbidden", "no")),
		row("observed", is("True", "Observed", "The workload is not scaled; the counters say what scaling would save."), scalingAs(v1alpha1.ScaleObserve, ""), asleep),
		row("a Service with a label of Knative", refused("labelled"), asleep, to(ref("v1", "Service", "", "labelled")), resolvedTo("http://labelled.ops.svc.cluster.local")),
		row("a Service that Knative owns", refused("owned"), asleep, to(ref("v1", "Service", "ops", "owned")), resolvedTo("http://owned.ops.svc.cluster.local")),
		hidden, down,
		{
			Name: "scale was removed", Key: key, Objects: []runtime.Object{settled(plain, address, asleep, is("True", "Scaled", "")), adapter(1, 1)},
			WantStatusUpdates: becomes(settled(plain, address, asleep)),
		},
	}.Test(t, reconciling)
}
