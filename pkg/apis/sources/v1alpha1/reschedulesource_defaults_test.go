package v1alpha1

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

// Fields that are not set get their defaults.
func TestSetDefaults_FillsEveryField(t *testing.T) {
	t.Parallel()
	o := &RescheduleSource{ObjectMeta: metav1.ObjectMeta{Namespace: "ops"}}
	o.Spec.Sink.Ref = &duckv1.KReference{Name: "x"}
	o.Spec.Delivery = &RescheduleSourceDelivery{DeliverySpec: eventingduckv1.DeliverySpec{DeadLetterSink: &duckv1.Destination{Ref: &duckv1.KReference{Name: "y", Namespace: "other"}}}}
	o.Spec.Watch = &RescheduleSourceWatch{Resources: []WatchResource{{APIVersion: "v1", Kind: "Secret"}}}
	o.Spec.Scale = &RescheduleSourceScale{TargetRef: ScaleTarget{Name: "z"}}
	o.SetDefaults(t.Context())

	yes := true
	hundred, week, none := int32(100), "168h", 0.0
	exponential, second := eventingduckv1.BackoffPolicyExponential, "PT1S"
	zero, replace, earliest := "0s", ConflictPolicyReplace, ConflictPolicyEarliest
	policies, year, cluster, namespace := []ConflictPolicy{"earliest", "keep"}, "8760h", AuthenticationCluster, AccessNamespace
	want := RescheduleSourceSpec{
		SourceSpec: duckv1.SourceSpec{Sink: duckv1.Destination{Ref: &duckv1.KReference{Name: "x", Namespace: "ops"}}},
		Delivery: &RescheduleSourceDelivery{DeliverySpec: eventingduckv1.DeliverySpec{
			DeadLetterSink: &duckv1.Destination{Ref: &duckv1.KReference{Name: "y", Namespace: "other"}},
			BackoffPolicy:  &exponential, BackoffDelay: &second,
		}},
		Delay: &zero, ConflictPolicy: &replace,
		Ingest: &RescheduleSourceIngest{ConflictPolicy: &earliest, Policies: &policies, MaxDelay: &year, Authentication: &cluster},
		Access: &namespace, DeadLetters: &RescheduleSourceDeadLetters{Keep: &hundred, MaxAge: &week}, WarmUp: &zero, Jitter: &none, Slack: &zero,
		Watch: &RescheduleSourceWatch{
			ServiceAccountName: "default", Resources: []WatchResource{{APIVersion: "v1", Kind: "Secret"}},
			Resync: &WatchResync{OnRevision: &yes},
		},
		Scale: &RescheduleSourceScale{
			TargetRef: ScaleTarget{Name: "z"}, Replicas: new(int32(1)), Cooldown: new("10s"), StartTimeout: new("2m"), Mode: new(ScaleAuto),
		},
	}
	if diff := cmp.Diff(want, o.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if err := o.Spec.Ingest.validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
}
