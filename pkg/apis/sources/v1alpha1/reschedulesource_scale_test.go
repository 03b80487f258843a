package v1alpha1

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

// The account of spec.scale is its own, else the account of watch, else default.
func TestScaleAccount_Default(t *testing.T) {
	t.Parallel()
	const scale = "scale: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: x}}\n"
	for spec, want := range map[string]string{
		sink: "", sink + scale: "default",
		sink + "watch: {serviceAccountName: watcher, resources: []}\n":                                                          "",
		sink + "watch: {serviceAccountName: watcher, resources: []}\n" + scale:                                                  "watcher",
		sink + "watch: {resources: []}\n" + scale:                                                                               "default",
		sink + "watch: {serviceAccountName: watcher, resources: []}\nscale: {serviceAccountName: scaler, targetRef: {name: x}}": "scaler",
	} {
		if got := object(t, spec).Spec.ScaleAccount(); got != want {
			t.Errorf("%q: %q, want %q", spec, got, want)
		}
	}
}

// Scaled is the adapter's report, with the severity Info, and is there only with spec.scale.
func TestMarkScaled_FromTheReport(t *testing.T) {
	t.Parallel()
	scaled := func(status corev1.ConditionStatus, reason, message string) *apis.Condition {
		return &apis.Condition{Type: "Scaled", Status: status, Severity: "Info", Reason: reason, Message: message}
	}
	unreported := scaled("Unknown", "NotReported", "The adapter has not reported on the workload yet.")
	for name, c := range map[string]struct {
		mode   ScaleMode
		report *ScaleStatus
		want   *apis.Condition
	}{
		"no scale":      {"", &ScaleStatus{State: "Awake"}, nil},
		"no report":     {ScaleAuto, nil, unreported},
		"held, no more": {ScaleAuto, &ScaleStatus{Held: &HeldWorkload{}}, unreported},
		"scaled":        {ScaleAuto, &ScaleStatus{State: "Asleep"}, scaled("True", "Scaled", "")},
		"kept awake":    {ScaleAwake, &ScaleStatus{State: "Awake"}, scaled("True", "Scaled", "")},
		"observed":      {ScaleObserve, &ScaleStatus{State: "Asleep"}, scaled("True", "Observed", "The workload is not scaled; the counters say what scaling would save.")},
		"refused":       {ScaleAuto, &ScaleStatus{State: "Awake", Reason: "Forbidden", Message: "no"}, scaled("False", "Forbidden", "no")},
	} {
		s := &RescheduleSourceStatus{Scale: c.report}
		s.MarkNotScaled("Old", "old")
		s.MarkScaled(c.mode)
		got := s.GetCondition(ConditionScaled)
		if diff := cmp.Diff(c.want, got, cmpopts.IgnoreFields(apis.Condition{}, "LastTransitionTime")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A Knative Service is one in every version, and in every part of its group.
func TestIsKnativeService_ByGroup(t *testing.T) {
	t.Parallel()
	for apiVersion, want := range map[string]bool{
		"serving.knative.dev/v1": true, "serving.knative.dev/v2": true, "v1": false, "eventing.knative.dev/v1": false, "a/b/c": false,
	} {
		if got := IsKnativeService(&duckv1.KReference{APIVersion: apiVersion, Kind: "Service"}); got != want {
			t.Errorf("%s: %t", apiVersion, got)
		}
	}
	if IsKnativeService(nil) {
		t.Error("no reference is one")
	}
}

// Of the finalizers only the project's own is kept: others may be as long as an object.
func TestTrimMetadata_KeepsTheFinalizer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ all, want []string }{
		{nil, nil}, {[]string{"a/b"}, nil}, {[]string{"a/b", ScaleFinalizer, "c/d"}, []string{ScaleFinalizer}},
	} {
		o := &RescheduleSource{ObjectMeta: metav1.ObjectMeta{Finalizers: c.all}}
		if o.TrimMetadata(); !slices.Equal(o.Finalizers, c.want) {
			t.Errorf("%q: %q", c.all, o.Finalizers)
		}
	}
}

// A sink with an audience alone is a mistake, not a source without a sink.
func TestSinkless_OnlyWithoutAnySink(t *testing.T) {
	t.Parallel()
	const rest = "scale: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: x}}\nwatch: {resources: [{apiVersion: v1, kind: Secret}]}\n"
	for spec, valid := range map[string]bool{rest: true, "sink: {}\n" + rest: true, "sink: {audience: x}\n" + rest: false, "sink: {CACerts: x}\n" + rest: false} {
		o := object(t, spec)
		if err := o.Validate(t.Context()); (err == nil) != valid || o.Spec.Sinkless() != valid {
			t.Errorf("%q: sinkless %t, %v", spec, o.Spec.Sinkless(), err)
		}
	}
}
