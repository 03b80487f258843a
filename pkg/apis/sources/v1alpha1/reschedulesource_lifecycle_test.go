package v1alpha1

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"knative.dev/pkg/apis"
)

func TestASourceIsReadyWhenEveryConditionIsTrue(t *testing.T) {
	t.Parallel()
	o := &RescheduleSource{}
	o.Status.InitializeConditions()
	var got []string
	for _, c := range o.Status.Conditions {
		got = append(got, string(c.Type))
		if !c.IsUnknown() {
			t.Errorf("%s starts as %s", c.Type, c.Status)
		}
	}
	want := []string{"Addressable", "DeadLetterSinkResolved", "Deployed", "OIDCIdentityCreated", "Ready", "SinkProvided"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	manager := o.GetConditionSet().Manage(o.GetStatus())
	for i, name := range want {
		if o.Status.IsReady() {
			t.Errorf("ready before %v are true", want[i:])
		}
		if name != "Ready" {
			manager.MarkTrue(apis.ConditionType(name))
		}
	}
	if !o.Status.IsReady() {
		t.Error("not ready with every condition true")
	}
	manager.MarkFalse(ConditionDeadLetterSinkResolved, "NotFound", "gone")
	if o.Status.IsReady() {
		t.Error("ready without its dead letter sink")
	}
}

func TestTheUntypedSpecIsTheSpec(t *testing.T) {
	t.Parallel()
	o := full()
	if diff := cmp.Diff(any(o.Spec), o.GetUntypedSpec()); diff != "" {
		t.Errorf("the specs differ:\n%s", diff)
	}
}
