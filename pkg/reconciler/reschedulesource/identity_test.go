package reschedulesource

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgotesting "k8s.io/client-go/testing"
	"knative.dev/eventing/pkg/apis/feature"
	"knative.dev/eventing/pkg/auth"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	. "knative.dev/pkg/reconciler/testing"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

const accountName = "git-repos-oidc-sources.reschedule.dev-reschedulesource"

// account is the ServiceAccount that a source is to its sinks.
func account() *corev1.ServiceAccount {
	yes, no := true, false
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ops", Name: accountName,
		Labels:      map[string]string{auth.OIDCLabelKey: "enabled"},
		Annotations: map[string]string{"description": `Service Account for OIDC Authentication for RescheduleSource "git-repos"`},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "sources.reschedule.dev/v1alpha1", Kind: "RescheduleSource", Name: "git-repos", UID: "5f0c",
			Controller: &yes, BlockOwnerDeletion: &no,
		}},
	}}
}

func ownedBy(uid string) *corev1.ServiceAccount {
	a := account()
	a.OwnerReferences[0].UID = "another"
	a.OwnerReferences[0].Name = uid
	return a
}

// authenticated is what authentication-oidc makes of a settled source.
func authenticated(s *v1alpha1.RescheduleSource) {
	identified(s)
	audience := "sources.reschedule.dev/reschedulesource/ops/git-repos"
	s.Status.Address.Audience = &audience
	for i := range s.Status.Addresses {
		s.Status.Addresses[i].Audience = &audience
	}
}

// naming lets the spec ask for tokens itself.
func naming(s *v1alpha1.RescheduleSource) {
	audience := "operator"
	s.Spec.Sink.Audience = &audience
}

// identified is what a source with an identity shows of it.
func identified(s *v1alpha1.RescheduleSource) {
	name := accountName
	s.Status.Auth = &duckv1.AuthStatus{ServiceAccountName: &name}
	but(condition("OIDCIdentityCreated", "True", "", ""))(s)
}

// named is a settled source that names an audience where authentication-oidc is
// off: its own address asks for no tokens.
func named(s *v1alpha1.RescheduleSource) {
	naming(s)
	identified(s)
	s.Status.SinkAudience = s.Spec.Sink.Audience
}

// toDeadLetters is the same of its dead letter sink.
func toDeadLetters(s *v1alpha1.RescheduleSource) {
	named(s)
	dead := uri("http://dead.ops")
	dead.Audience, s.Spec.Sink.Audience = s.Spec.Sink.Audience, nil
	s.Status.DeadLetterSinkAudience, s.Status.SinkAudience = s.Status.SinkAudience, nil
	deadLettersTo(dead)(s)
	deadLettersResolvedTo("http://dead.ops")(s)
	but(deadLettersResolved)(s)
}

// A source has an identity while the flag is on.
func TestIdentity_FollowsTheFlag(t *testing.T) {
	t.Parallel()
	const unowned = "service account " + accountName + " not owned by RescheduleSource git-repos"
	const uncreated = "could not create OIDC service account ops/git-repos for RescheduleSource: inducing failure for create serviceaccounts"
	const undeleted = "could not delete OIDC service account git-repos/ops for RescheduleSource: inducing failure for delete serviceaccounts"
	failed := func(says string) option {
		return but(condition("OIDCIdentityCreated", "False", "Unable to resolve service account for OIDC authentication", says))
	}
	on := func(more ...string) TableRow {
		return TableRow{Key: key, Ctx: with(t, append(more, feature.OIDCAuthentication, "Enabled")...)}
	}
	row := func(r TableRow, name string, edit func(*TableRow)) TableRow {
		r.Name = name
		edit(&r)
		return r
	}
	deletion := []clientgotesting.DeleteActionImpl{{
		ActionImpl: clientgotesting.ActionImpl{Namespace: "ops", Resource: corev1.SchemeGroupVersion.WithResource("serviceaccounts")}, Name: accountName,
	}}
	http := at("http", address)
	TableTest{
		row(on(), "on: the account is made", func(r *TableRow) {
			r.Objects = []runtime.Object{source(), adapter(1, 1)}
			r.WantCreates = []runtime.Object{account()}
			r.WantStatusUpdates = becomes(settled(authenticated))
		}),
		row(on(), "on: the account is there", func(r *TableRow) {
			r.Objects = []runtime.Object{settled(authenticated), adapter(1, 1), account()}
		}),
		row(on(feature.TransportEncryption, "Permissive"), "on: the audience is at every address", func(r *TableRow) {
			r.Objects = []runtime.Object{source(), adapter(1, 1), account(),
				&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "reschedule-adapter-server-tls"}}}
			r.WantStatusUpdates = becomes(settled(addressed(http, at("https", secured), at("http", address)), authenticated))
		}),
		row(on(), "on: the account has another owner", func(r *TableRow) {
			r.Objects = []runtime.Object{source(), adapter(1, 1), ownedBy("another")}
			r.WantErr, r.WantEvents = true, []string{Eventf("Warning", "InternalError", unowned)}
			r.WantStatusUpdates = becomes(settled(authenticated, failed(unowned)))
		}),
		row(on(), "on: the account cannot be made, and the rest is done all the same", func(r *TableRow) {
			r.Objects, r.WithReactors = []runtime.Object{source(), adapter(1, 1)}, reactors(InduceFailure("create", "serviceaccounts"))
			r.WantCreates = []runtime.Object{account()}
			r.WantErr, r.WantEvents = true, []string{Eventf("Warning", "InternalError", uncreated)}
			r.WantStatusUpdates = becomes(settled(authenticated, failed(uncreated)))
		}),
		{
			Name: "off, and the spec names an audience: the account is made", Key: key,
			Objects: []runtime.Object{source(naming), adapter(1, 1)}, WantCreates: []runtime.Object{account()},
			WantStatusUpdates: becomes(settled(named)),
		}, {
			Name: "off, and the spec names an audience: the account stays", Key: key,
			Objects: []runtime.Object{settled(named), adapter(1, 1), account()},
		}, {
			Name: "off, and the spec names an audience of its dead letters", Key: key,
			Objects: []runtime.Object{settled(toDeadLetters), adapter(1, 1), account()},
		}, {
			Name: "off, and the spec names an audience: the account has another owner", Key: key,
			Objects: []runtime.Object{source(naming), adapter(1, 1), ownedBy("another")},
			WantErr: true, WantEvents: []string{Eventf("Warning", "InternalError", unowned)},
			WantStatusUpdates: becomes(settled(named, failed(unowned))),
		}, {
			Name: "off: the account is removed", Key: key,
			Objects:           []runtime.Object{settled(authenticated), adapter(1, 1), account()},
			WantDeletes:       deletion,
			WantStatusUpdates: becomes(settled()),
		}, {
			Name: "off: an account with another owner is left alone", Key: key,
			Objects: []runtime.Object{settled(), adapter(1, 1), ownedBy("another")},
		}, {
			Name: "off: the account cannot be removed", Key: key, WithReactors: reactors(InduceFailure("delete", "serviceaccounts")),
			Objects:     []runtime.Object{settled(), adapter(1, 1), account()},
			WantDeletes: deletion, WantErr: true, WantEvents: []string{Eventf("Warning", "InternalError", undeleted)},
			WantStatusUpdates: becomes(settled(but(condition("OIDCIdentityCreated", "False", "ServiceAccountNotDeleted", undeleted)))),
		},
	}.Test(t, reconciling)
}
