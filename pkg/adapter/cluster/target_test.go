package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// Changes of an object.
type change = func(*v1alpha1.RescheduleSource)

func unresolved(o *v1alpha1.RescheduleSource) { o.Status.SinkURI = nil }

func notReadySource(o *v1alpha1.RescheduleSource) {
	o.Status.Conditions = duckv1.Conditions{{Type: v1alpha1.ConditionReady, Status: corev1.ConditionFalse}}
}

func wantsDeadLetters(o *v1alpha1.RescheduleSource) {
	o.Spec.Delivery = &v1alpha1.RescheduleSourceDelivery{DeliverySpec: eventingduckv1.DeliverySpec{DeadLetterSink: &duckv1.Destination{
		Ref: &duckv1.KReference{APIVersion: "v1", Kind: "Service", Name: "dead"},
	}}}
}

func deadLettersResolved(o *v1alpha1.RescheduleSource) {
	o.Status.DeadLetterSinkURI = apis.HTTP("dead.ops")
}

func withAudience(o *v1alpha1.RescheduleSource) { o.Status.SinkAudience = new("sink") }

func namesAudience(o *v1alpha1.RescheduleSource) { o.Spec.Sink.Audience = new("sink") }

// withIdentity is the source's own account, whose name is given.
func withIdentity(o *v1alpha1.RescheduleSource) {
	o.Status.Auth = &duckv1.AuthStatus{ServiceAccountName: new(accountOfA)}
}

const accountOfA = "a-oidc-sources.reschedule.dev-reschedulesource"

// gone is what the controller says of a target that is not there any more.
func gone(condition apis.ConditionType, reason string) change {
	return func(o *v1alpha1.RescheduleSource) {
		o.Status.Conditions = duckv1.Conditions{{Type: condition, Status: corev1.ConditionFalse, Reason: reason}}
		if _, err := new(slimSources).slim(o); err != nil { // what is kept of them is enough
			panic(err)
		}
	}
}

// decided is what a status decides of a source.
type decided struct {
	Sink       schedule.Target
	DeadLetter *schedule.Target
	Account    string
	Suspend    bool
}

// The status decides where a source delivers, and whether it may.
func TestDescribe_TakesTargetsFromTheStatus(t *testing.T) {
	t.Parallel()
	sink, dead := schedule.Target{URL: "http://sink.ops"}, schedule.Target{URL: "http://dead.ops"}
	secret := schedule.Target{URL: "http://sink.ops", Audience: "sink"}
	before := &schedule.Spec{Targets: schedule.Targets{Sink: schedule.Target{URL: "http://before", CACerts: "pem"}, DeadLetter: &schedule.Target{URL: "http://dead-before"}}}
	for name, c := range map[string]struct {
		changes    []change
		before     *schedule.Spec
		identified bool
		want       decided
	}{
		"ready": {want: decided{Sink: sink}},
		"all that a status can say": {
			changes: []change{wantsDeadLetters, withIdentity, func(o *v1alpha1.RescheduleSource) {
				o.Status.SinkCACerts, o.Status.SinkAudience = new("certs"), new("aud")
				o.Status.DeadLetterSinkURI = apis.HTTPS("dead.ops")
				o.Status.DeadLetterSinkCACerts, o.Status.DeadLetterSinkAudience = new("dead-certs"), new("dead-aud")
			}},
			identified: true,
			want: decided{
				Sink:       schedule.Target{URL: "http://sink.ops", CACerts: "certs", Audience: "aud"},
				DeadLetter: &schedule.Target{URL: "https://dead.ops", CACerts: "dead-certs", Audience: "dead-aud"},
				Account:    accountOfA,
			},
		},
		"a sink that was never resolved":              {changes: []change{unresolved}, want: decided{Suspend: true}},
		"not ready, with the last sink in the status": {changes: []change{notReadySource}, before: before, want: decided{Sink: sink}},
		"not ready, with the status lost":             {changes: []change{notReadySource, unresolved}, before: before, want: decided{Sink: before.Sink}},
		"another sink that cannot be resolved": {
			changes: []change{unresolved, gone(v1alpha1.ConditionSinkProvided, "NotResolved")}, before: before, want: decided{Suspend: true},
		},
		"another dead letter sink that cannot be resolved": {
			changes: []change{wantsDeadLetters, gone(v1alpha1.ConditionDeadLetterSinkResolved, "NotResolved")}, before: before,
			want: decided{Sink: sink, Suspend: true},
		},
		"a dead letter sink that was never resolved":     {changes: []change{wantsDeadLetters}, want: decided{Sink: sink, Suspend: true}},
		"a dead letter sink that is resolved":            {changes: []change{wantsDeadLetters, deadLettersResolved}, want: decided{Sink: sink, DeadLetter: &dead}},
		"a dead letter sink that was resolved before":    {changes: []change{wantsDeadLetters}, before: before, want: decided{Sink: sink, DeadLetter: before.DeadLetter}},
		"a dead letter sink that the spec no longer has": {changes: []change{deadLettersResolved}, before: before, want: decided{Sink: sink}},
		"suspended by its spec": {
			changes: []change{func(o *v1alpha1.RescheduleSource) { o.Spec.Suspend = true }},
			want:    decided{Sink: sink, Suspend: true},
		},
		"an audience of its spec, and its identity is on its way": {changes: []change{namesAudience}, want: decided{Sink: sink, Suspend: true}},
		"an audience of its spec, and its identity is there":      {changes: []change{namesAudience, withAudience, withIdentity}, want: decided{Sink: secret, Account: accountOfA}},
		"an audience, and its identity is on its way":             {changes: []change{withAudience}, identified: true, want: decided{Sink: secret, Suspend: true}},
		"an audience, and its identity is there":                  {changes: []change{withAudience, withIdentity}, identified: true, want: decided{Sink: secret, Account: accountOfA}},
		"an audience without authentication-oidc":                 {changes: []change{withAudience}, want: decided{Sink: secret}},
		"no audience, and its identity is on its way":             {identified: true, want: decided{Sink: sink}},
		// A user who may write statuses must not choose the account.
		"an audience, and the identity of another": {changes: []change{withAudience, func(o *v1alpha1.RescheduleSource) {
			o.Status.Auth = &duckv1.AuthStatus{ServiceAccountName: new("cluster-admin-operator")}
		}}, identified: true, want: decided{Sink: secret, Suspend: true}},
		"no audience, and the identity of another": {changes: []change{func(o *v1alpha1.RescheduleSource) {
			o.Status.Auth = &duckv1.AuthStatus{ServiceAccountName: new("cluster-admin-operator")}
		}}, identified: true, want: decided{Sink: sink}},
		"an audience, and its sink is gone": {
			changes: []change{withAudience, withIdentity, gone(v1alpha1.ConditionSinkProvided, "NotFound")}, identified: true,
			want: decided{Sink: secret, Account: accountOfA, Suspend: true},
		},
		"an audience, and its sink has no address now": {
			changes: []change{withAudience, withIdentity, gone(v1alpha1.ConditionSinkProvided, "NotResolved")}, identified: true,
			want: decided{Sink: secret, Account: accountOfA},
		},
		"no audience, and its sink is gone": {
			changes: []change{withIdentity, gone(v1alpha1.ConditionSinkProvided, "NotFound")}, identified: true,
			want: decided{Sink: sink, Account: accountOfA},
		},
		"an audience of its dead letters, and their sink is gone": {
			changes: []change{wantsDeadLetters, deadLettersResolved, withIdentity, func(o *v1alpha1.RescheduleSource) {
				o.Status.DeadLetterSinkAudience = new("dead")
			}, gone(v1alpha1.ConditionDeadLetterSinkResolved, "NotFound")},
			identified: true,
			want: decided{
				Sink: sink, DeadLetter: &schedule.Target{URL: "http://dead.ops", Audience: "dead"}, Account: accountOfA, Suspend: true,
			},
		},
		"an audience of its dead letters, and its sink is gone": {
			changes: []change{wantsDeadLetters, deadLettersResolved, withIdentity, func(o *v1alpha1.RescheduleSource) {
				o.Status.DeadLetterSinkAudience = new("dead")
			}, gone(v1alpha1.ConditionSinkProvided, "NotFound")},
			identified: true,
			want:       decided{Sink: sink, DeadLetter: &schedule.Target{URL: "http://dead.ops", Audience: "dead"}, Account: accountOfA},
		},
		"an audience of its dead letters, and no identity": {
			changes: []change{wantsDeadLetters, deadLettersResolved, func(o *v1alpha1.RescheduleSource) {
				o.Status.DeadLetterSinkAudience = new("dead")
			}},
			identified: true,
			want:       decided{Sink: sink, DeadLetter: &schedule.Target{URL: "http://dead.ops", Audience: "dead"}, Suspend: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src, err := describe(object("a", c.changes...), c.before, c.identified, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := decided{src.Sink, src.DeadLetter, src.ServiceAccount, src.Suspend}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("targets (-want +got):\n%s", diff)
			}
		})
	}
}
