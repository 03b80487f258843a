package v1alpha1

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"knative.dev/eventing/pkg/auth"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

var _ auth.OIDCIdentityStatusMarker = (*RescheduleSourceStatus)(nil)

// A source is ready when every condition is True.
func TestReady_WhenAllAreTrue(t *testing.T) {
	t.Parallel()
	o := &RescheduleSource{}
	manager := o.GetConditionSet().Manage(o.GetStatus())
	manager.InitializeConditions()
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

// The untyped spec is the spec.
func TestGetUntypedSpec_IsTheSpec(t *testing.T) {
	t.Parallel()
	o := &RescheduleSource{Spec: RescheduleSourceSpec{Suspend: true}}
	if diff := cmp.Diff(any(o.Spec), o.GetUntypedSpec()); diff != "" {
		t.Errorf("the specs differ:\n%s", diff)
	}
}

// Each Mark method sets only its condition.
func TestMarks_SetOneCondition(t *testing.T) {
	t.Parallel()
	addr := &duckv1.Addressable{URL: apis.HTTP("sink")}
	for _, test := range []struct {
		name string
		mark func(*RescheduleSourceStatus)
		want apis.Condition
	}{
		{"MarkSink", func(s *RescheduleSourceStatus) { s.MarkSink(addr) }, apis.Condition{Type: "SinkProvided", Status: "True"}},
		{"MarkNoSink", func(s *RescheduleSourceStatus) { s.MarkNoSink("R", "%d%%", 1) }, apis.Condition{Type: "SinkProvided", Status: "False", Reason: "R", Message: "1%"}},
		{"MarkDeadLetterSink", func(s *RescheduleSourceStatus) { s.MarkDeadLetterSink(addr) }, apis.Condition{Type: "DeadLetterSinkResolved", Status: "True"}},
		{"MarkDeadLetterSinkNotConfigured", (*RescheduleSourceStatus).MarkDeadLetterSinkNotConfigured, apis.Condition{
			Type: "DeadLetterSinkResolved", Status: "True", Reason: "DeadLetterSinkNotConfigured", Message: "No dead letter sink is configured."}},
		{"MarkNoDeadLetterSink", func(s *RescheduleSourceStatus) { s.MarkNoDeadLetterSink("R", "m") }, apis.Condition{Type: "DeadLetterSinkResolved", Status: "False", Reason: "R", Message: "m"}},
		{"MarkDeployed", (*RescheduleSourceStatus).MarkDeployed, apis.Condition{Type: "Deployed", Status: "True"}},
		{"MarkDeploying", func(s *RescheduleSourceStatus) { s.MarkDeploying("R", "m") }, apis.Condition{Type: "Deployed", Status: "Unknown", Reason: "R", Message: "m"}},
		{"MarkNotDeployed", func(s *RescheduleSourceStatus) { s.MarkNotDeployed("R", "m") }, apis.Condition{Type: "Deployed", Status: "False", Reason: "R", Message: "m"}},
		{"MarkAddressable", (*RescheduleSourceStatus).MarkAddressable, apis.Condition{Type: "Addressable", Status: "True"}},
		{"MarkNotAddressable", func(s *RescheduleSourceStatus) { s.MarkNotAddressable("R", "m") }, apis.Condition{Type: "Addressable", Status: "False", Reason: "R", Message: "m"}},
		{"MarkOIDCIdentityCreatedSucceeded", (*RescheduleSourceStatus).MarkOIDCIdentityCreatedSucceeded, apis.Condition{Type: "OIDCIdentityCreated", Status: "True"}},
		{"MarkOIDCIdentityCreatedSucceededWithReason", func(s *RescheduleSourceStatus) { s.MarkOIDCIdentityCreatedSucceededWithReason("R", "m") },
			apis.Condition{Type: "OIDCIdentityCreated", Status: "True", Reason: "R", Message: "m"}},
		{"MarkOIDCIdentityCreatedFailed", func(s *RescheduleSourceStatus) { s.MarkOIDCIdentityCreatedFailed("R", "m") },
			apis.Condition{Type: "OIDCIdentityCreated", Status: "False", Reason: "R", Message: "m"}},
	} {
		s := &RescheduleSourceStatus{}
		conditionsWithSink.Manage(s).InitializeConditions()
		test.mark(s)
		for _, c := range s.Conditions {
			want := apis.Condition{Type: c.Type, Status: "Unknown"}
			if c.Type == test.want.Type {
				want = test.want
			}
			c.LastTransitionTime, c.Severity = apis.VolatileTime{}, ""
			if c.Type != ConditionReady && c != want {
				t.Errorf("%s: got %+v, want %+v", test.name, c, want)
			}
		}
	}
}

// The URI of a lost sink stays in the status.
func TestMarkNoSink_KeepsTheURI(t *testing.T) {
	t.Parallel()
	ca, audience := "the CA", "the audience"
	addr := &duckv1.Addressable{URL: apis.HTTP("sink"), CACerts: &ca, Audience: &audience}
	s := &RescheduleSourceStatus{}
	s.MarkSink(addr)
	s.MarkDeadLetterSink(addr)
	want := s.DeepCopy()
	s.MarkNoSink("NotFound", "gone")
	s.MarkNoDeadLetterSink("NotFound", "gone")
	want.Conditions = s.Conditions
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("lost (-want +got):\n%s", diff)
	}
	if s.SinkURI == nil || *s.SinkCACerts != ca || *s.DeadLetterSinkAudience != audience {
		t.Errorf("not all of the sink is there: %+v", s)
	}
	s.MarkDeadLetterSinkNotConfigured()
	if s.DeadLetterSinkURI != nil || s.DeadLetterSinkCACerts != nil || s.DeadLetterSinkAudience != nil {
		t.Errorf("a dead letter sink that is not wanted stays: %+v", s.DeliveryStatus)
	}
}

// Ready quotes the first condition that is False, or else the first that is not True.
func TestReady_QuotesFalseFirst(t *testing.T) {
	t.Parallel()
	allTrue := func(s *RescheduleSourceStatus) {
		for _, part := range parts {
			s.SetConditions(append(s.GetConditions(), apis.Condition{Type: part, Status: "True"}))
		}
	}
	for _, test := range []struct {
		name   string
		mark   func(*RescheduleSourceStatus)
		status corev1.ConditionStatus
		reason string
	}{
		{"all are true", func(*RescheduleSourceStatus) {}, "True", ""},
		{"two are false", func(s *RescheduleSourceStatus) { s.MarkNotAddressable("Second", ""); s.MarkNoSink("First", "") }, "False", "First"},
		{"the other way round", func(s *RescheduleSourceStatus) { s.MarkNoSink("First", ""); s.MarkNotAddressable("Second", "") }, "False", "First"},
		{"false goes before unknown", func(s *RescheduleSourceStatus) { s.MarkDeploying("Unknown", ""); s.MarkNotAddressable("False", "") }, "False", "False"},
		{"one is unknown", func(s *RescheduleSourceStatus) { s.MarkDeploying("Unknown", "") }, "Unknown", "Unknown"},
		{"one was never set", func(s *RescheduleSourceStatus) { s.Conditions = s.Conditions[:len(s.Conditions)-1] }, "Unknown", ""},
		{"none was ever set", func(s *RescheduleSourceStatus) { s.Conditions = nil }, "Unknown", ""},
	} {
		s := &RescheduleSourceStatus{}
		allTrue(s)
		test.mark(s)
		s.Summarize()
		if c := s.GetCondition(ConditionReady); c == nil || c.Status != test.status || c.Reason != test.reason {
			t.Errorf("%s: got %+v", test.name, c)
		}
		before := s.DeepCopy()
		s.Summarize()
		if diff := cmp.Diff(before, s); diff != "" {
			t.Errorf("%s: another summary differs:\n%s", test.name, diff)
		}
	}
}

// A source without a sink is ready without SinkProvided, which a source with a sink must have.
func TestReady_WithoutASink(t *testing.T) {
	t.Parallel()
	o := &RescheduleSource{Spec: RescheduleSourceSpec{Scale: &RescheduleSourceScale{}, Watch: &RescheduleSourceWatch{}}}
	o.Status.MarkNoSink("NotFound", "gone")
	o.Status.ClearSink()
	o.GetConditionSet().Manage(o.GetStatus()).InitializeConditions()
	for _, part := range parts[1:] {
		o.GetConditionSet().Manage(o.GetStatus()).MarkTrue(part)
	}
	o.Status.Summarize()
	if !o.Status.IsReady() || o.Status.GetCondition(ConditionSinkProvided) != nil {
		t.Errorf("%+v", o.Status.Conditions)
	}
	o.Status.MarkNoSink("NotFound", "gone")
	o.Status.Summarize()
	if o.Status.IsReady() || o.Status.GetCondition(ConditionSinkProvided).Severity != "" {
		t.Errorf("%+v", o.Status.Conditions)
	}
}
