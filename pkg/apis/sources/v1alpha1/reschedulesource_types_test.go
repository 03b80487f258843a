package v1alpha1

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"
	"knative.dev/pkg/apis"
	"knative.dev/pkg/apis/duck"
	"knative.dev/pkg/apis/duck/ducktypes"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

// The resource implements every duck type that Knative looks for.
func TestDuckTypes_AreImplemented(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]ducktypes.Implementable{
		"Source":      &duckv1.Source{},
		"Addressable": &duckv1.Addressable{},
		"Conditions":  &duckv1.Conditions{},
		"KResource":   &duckv1.KResource{},
		"AuthStatus":  &duckv1.AuthStatus{},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := duck.VerifyType(&RescheduleSource{}, want); err != nil {
				t.Error(err)
			}
		})
	}
}

// The scheme knows the resource.
func TestScheme_KnowsTheResource(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	kinds, _, err := scheme.ObjectKinds(&RescheduleSource{})
	if err != nil {
		t.Fatal(err)
	}
	if want := (&RescheduleSource{}).GetGroupVersionKind(); len(kinds) != 1 || kinds[0] != want {
		t.Errorf("kinds are %v, want %v", kinds, want)
	}
	if want := "sources.reschedule.dev/v1alpha1, Kind=RescheduleSource"; kinds[0].String() != want {
		t.Errorf("kind is %v, want %v", kinds[0], want)
	}
	if _, err := scheme.New(SchemeGroupVersion.WithKind(Kind + "List")); err != nil {
		t.Error(err)
	}
	if got, want := Resource("reschedulesources").String(), "reschedulesources.sources.reschedule.dev"; got != want {
		t.Errorf("resource is %v, want %v", got, want)
	}
}

func full() *RescheduleSource {
	retry, pending := int32(20), int64(1204)
	max, delay, certs, audience := "PT5M", "10s", "pem", "aud"
	format, policy := eventingduckv1.DeliveryFormatJson, ConflictPolicyLatest
	policies, required, rbac := []ConflictPolicy{ConflictPolicyLatest}, AuthenticationRequired, AccessRBAC
	changes, no, half := ChangesSpec, false, 0.5
	bytes := resource.MustParse("10Gi")
	url := apis.HTTP("sink.example")
	o := &RescheduleSource{
		TypeMeta:   metav1.TypeMeta{Kind: Kind, APIVersion: SchemeGroupVersion.String()},
		ObjectMeta: metav1.ObjectMeta{Name: "git-repos", Namespace: "ops", Labels: map[string]string{"a": "b"}},
		Spec: RescheduleSourceSpec{
			SourceSpec: duckv1.SourceSpec{
				Sink:                duckv1.Destination{Ref: &duckv1.KReference{Kind: "Service", Name: "x", APIVersion: "v1"}, CACerts: &certs, Audience: &audience},
				CloudEventOverrides: &duckv1.CloudEventOverrides{Extensions: map[string]string{"team": "platform"}},
			},
			Delivery:       &RescheduleSourceDelivery{DeliverySpec: eventingduckv1.DeliverySpec{Retry: &retry, RetryAfterMax: &max, Format: &format, DeadLetterSink: &duckv1.Destination{URI: url}}, BackoffMax: &max},
			Delay:          &delay,
			ConflictPolicy: &policy,
			MaxInterval:    &delay,
			Ingest:         &RescheduleSourceIngest{Key: "event.id", When: "true", ConflictPolicy: &policy, Policies: &policies, MaxDelay: &delay, Authentication: &required},
			Limits:         &RescheduleSourceLimits{MaxInFlight: &retry, MaxPerSecond: &retry, MaxPending: &pending, MaxBytes: &bytes},
			Access:         &rbac,
			DeadLetters:    &RescheduleSourceDeadLetters{Keep: &retry, MaxAge: &delay},
			WarmUp:         &delay,
			Jitter:         &half,
			Watch: &RescheduleSourceWatch{
				ServiceAccountName: "watcher", NamespaceSelector: &metav1.LabelSelector{},
				Resources: []WatchResource{{
					APIVersion: "apps/v1", Kind: "Deployment", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
					Owner: &WatchOwner{APIVersion: "example.com/v1", Kind: "Website"}, Changes: &changes,
				}, {APIVersion: "v1", Kind: "Secret", Key: "object.metadata.name"}},
				Resync: &WatchResync{OnRevision: &no, Over: &delay},
			},
			Audit:   true,
			Suspend: true,
		},
		Status: RescheduleSourceStatus{
			SourceStatus: duckv1.SourceStatus{
				Status:               duckv1.Status{ObservedGeneration: 1, Conditions: duckv1.Conditions{{Type: ConditionReady, Status: corev1.ConditionTrue}}},
				SinkURI:              url,
				CloudEventAttributes: []duckv1.CloudEventAttributes{{Type: "dev.reschedule.due", Source: "/x"}},
			},
			AddressStatus:  duckv1.AddressStatus{Address: &duckv1.Addressable{URL: url}},
			DeliveryStatus: eventingduckv1.DeliveryStatus{DeadLetterSinkURI: url},
			AppliedEventPoliciesStatus: eventingduckv1.AppliedEventPoliciesStatus{
				Policies: []eventingduckv1.AppliedEventPolicyRef{{APIVersion: "v1", Name: "p"}},
			},
			Pending: &pending,
			Watched: &pending, SinkRevision: "x-00001",
			Watch:     &WatchStatus{ObservedGeneration: 1, Status: "True", WasTrue: true},
			NextDueAt: &metav1.Time{Time: time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)},
		},
	}
	return o
}

// A deep copy shares nothing with the original.
func TestDeepCopy_SharesNothing(t *testing.T) {
	t.Parallel()
	o := full()
	c := o.DeepCopy()
	if diff := cmp.Diff(o, c); diff != "" {
		t.Fatalf("the copy differs (-original +copy):\n%s", diff)
	}
	*c.Spec.Delay, *c.Spec.Limits.MaxPending, *c.Spec.Delivery.Retry = "1h", 1, 1
	c.Spec.Ingest.Key = "other"
	*c.Spec.Ingest.ConflictPolicy = ConflictPolicyFail
	c.Spec.CloudEventOverrides.Extensions["team"] = "other"
	c.Spec.Sink.Ref.Name = "other"
	c.Spec.Watch.NamespaceSelector.MatchLabels = map[string]string{"a": "b"}
	c.Spec.Watch.Resources[0].Selector.MatchLabels["app"] = "other"
	c.Spec.Watch.Resources[0].Owner.Kind, *c.Spec.Watch.Resources[0].Changes = "Other", ChangesAny
	*c.Spec.Watch.Resync.OnRevision = true
	c.Status.Watch.Status, *c.Status.Watched = "False", 3
	*c.Status.Pending = 2
	c.Status.Conditions[0].Status = corev1.ConditionFalse
	c.Status.NextDueAt.Time = time.Time{}
	c.Status.Address.URL.Host = "other"
	c.Status.Policies[0].Name = "other"
	if diff := cmp.Diff(full(), o); diff != "" {
		t.Errorf("a change of the copy reached the original (-want +got):\n%s", diff)
	}
	list := &RescheduleSourceList{Items: []RescheduleSource{*o}}
	if diff := cmp.Diff(runtime.Object(list), list.DeepCopyObject()); diff != "" {
		t.Errorf("the copy of a list differs:\n%s", diff)
	}
}

// An object survives encoding and decoding as JSON.
func TestJSON_RoundTrip(t *testing.T) {
	t.Parallel()
	raw, err := json.Marshal(full())
	if err != nil {
		t.Fatal(err)
	}
	var back RescheduleSource
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	if back.Status.NextDueAt != nil {
		back.Status.NextDueAt.Time = back.Status.NextDueAt.UTC()
	}
	if diff := cmp.Diff(full(), &back); diff != "" {
		t.Errorf("JSON lost something (-want +got):\n%s", diff)
	}
}

// The inline fields have the names of the contract.
func TestJSON_InlineFields(t *testing.T) {
	t.Parallel()
	raw, err := json.Marshal(full())
	if err != nil {
		t.Fatal(err)
	}
	var tree struct{ Spec, Status map[string]any }
	if err := json.Unmarshal(raw, &tree); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sink", "ceOverrides", "delivery", "delay", "conflictPolicy", "maxInterval", "ingest", "limits", "suspend"} {
		if _, ok := tree.Spec[name]; !ok {
			t.Errorf("spec has no %s", name)
		}
	}
	for _, name := range []string{"conditions", "sinkUri", "address", "ceAttributes", "deadLetterSinkUri", "policies", "pending", "nextDueAt"} {
		if _, ok := tree.Status[name]; !ok {
			t.Errorf("status has no %s", name)
		}
	}
}
