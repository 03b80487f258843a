package reschedulesource

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"
	eventingv1alpha1 "knative.dev/eventing/pkg/apis/eventing/v1alpha1"
	"knative.dev/eventing/pkg/apis/feature"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	. "knative.dev/pkg/reconciler/testing"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

var broken = v1alpha1.RescheduleSourceIngest{When: "evnt.type == 'x'"}

const brokenSays = `spec.ingest.when: ERROR: <input>:1:1: undeclared reference to 'evnt' (in container '')
 | evnt.type == 'x'
 | ^`

// A source with an invalid spec is not Addressable, and keeps its address.
func TestAddressable_InvalidSpec(t *testing.T) {
	t.Parallel()
	number := v1alpha1.RescheduleSourceIngest{Key: "1 + 1"}
	fine := v1alpha1.RescheduleSourceIngest{Key: "event.kind + '/' + event.name", When: "event.data.x > 1"}
	negative := int32(-1)
	limited := func(s *v1alpha1.RescheduleSource) {
		s.Spec.Limits = &v1alpha1.RescheduleSourceLimits{MaxPerSecond: &negative}
	}
	refused := func(s *v1alpha1.RescheduleSource) { s.Status.Refused = "too large" }
	const limitedSays = "-1 is less than 0: spec.limits.maxPerSecond"
	TableTest{{
		Name: "expressions that compile", Key: key,
		Objects:           []runtime.Object{source(ingesting(fine)), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(ingesting(fine))),
	}, {
		Name: "an expression that does not compile", Key: key, WantErr: true,
		Objects:           []runtime.Object{source(ingesting(broken)), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(ingesting(broken), but(condition("Addressable", "False", "IngestInvalid", brokenSays)))),
		WantEvents:        []string{Eventf("Warning", "IngestInvalid", "%s", brokenSays)},
	}, {
		Name: "an expression of the wrong type", Key: key, WantErr: true,
		Objects:           []runtime.Object{source(ingesting(number)), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(ingesting(number), but(condition("Addressable", "False", "IngestInvalid", "spec.ingest.key: yields int, not string")))),
		WantEvents:        []string{Eventf("Warning", "IngestInvalid", "spec.ingest.key: yields int, not string")},
	}, {
		Name: "what the schema lets through", Key: key, WantErr: true,
		Objects:           []runtime.Object{source(limited), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(limited, but(condition("Addressable", "False", "SpecInvalid", limitedSays)))),
		WantEvents:        []string{Eventf("Warning", "SpecInvalid", "%s", limitedSays)},
	}, {
		Name: "one that the adapter has no memory for", Key: key,
		Objects:           []runtime.Object{settled(refused), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(refused, but(condition("Addressable", "False", "NoMemory", "too large")))),
	}, {
		Name: "one that has memory again", Key: key,
		Objects:           []runtime.Object{settled(but(condition("Addressable", "False", "NoMemory", "too large"))), adapter(1, 1)},
		WantStatusUpdates: becomes(settled()),
	}, {
		Name: "a spec that is corrected", Key: key,
		Objects:           []runtime.Object{settled(but(condition("Addressable", "False", "IngestInvalid", brokenSays))), adapter(1, 1)},
		WantStatusUpdates: becomes(settled()),
	}}.Test(t, reconciling)
}

// addressed gives a source the addresses that follow. Old clients use the first.
func addressed(all ...*duckv1.Addressable) option {
	return func(s *v1alpha1.RescheduleSource) {
		s.Status.AddressStatus = duckv1.AddressStatus{Address: all[0]}
		for _, a := range all[1:] {
			s.Status.Addresses = append(s.Status.Addresses, *a)
		}
	}
}

func certified(a *duckv1.Addressable, ca string) *duckv1.Addressable {
	a.CACerts = &ca
	return a
}

// The addresses follow the flags and the certificate, as the table of package resources says.
func TestAddresses_FlagsAndCertificate(t *testing.T) {
	t.Parallel()
	secret := func(name string, data map[string][]byte) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: name}, Data: data}
	}
	withCA := secret("reschedule-adapter-server-tls", map[string][]byte{"ca.crt": []byte("the CA"), "tls.crt": []byte("x")})
	other := secret("another", map[string][]byte{"ca.crt": []byte("another CA")})
	missing := but(condition("Addressable", "False", "TLSSecretMissing",
		"transport-encryption is Strict, and there is no Secret knative-eventing/reschedule-adapter-server-tls with the adapter's certificate."))
	http, https := at("http", address), at("https", secured)
	var rows TableTest
	for _, test := range []struct {
		name, mode string
		secret     *corev1.Secret
		want       []option
	}{
		{"disabled", "Disabled", withCA, nil},
		{"permissive", "Permissive", withCA, []option{addressed(http, certified(at("https", secured), "the CA"), http)}},
		{"strict without the secret", "Strict", other, []option{addressed(https, https), missing}},
	} {
		rows = append(rows, TableRow{
			Name: test.name, Key: key, Ctx: with(t, feature.TransportEncryption, test.mode),
			Objects: []runtime.Object{source(), adapter(1, 1), test.secret}, WantStatusUpdates: becomes(settled(test.want...)),
		})
	}
	rows = append(rows, TableRow{
		Name: "disabled again", Key: key, Ctx: with(t, feature.TransportEncryption, "Disabled"),
		Objects:           []runtime.Object{settled(addressed(http, certified(at("https", secured), "the CA"), http)), adapter(1, 1), withCA},
		WantStatusUpdates: becomes(settled()),
	}, TableRow{
		Name: "of two obstacles the spec's comes first", Key: key, Ctx: with(t, feature.TransportEncryption, "Strict"), WantErr: true,
		Objects: []runtime.Object{source(ingesting(broken)), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(ingesting(broken), addressed(https, https),
			but(condition("Addressable", "False", "IngestInvalid", brokenSays)))),
		WantEvents: []string{Eventf("Warning", "IngestInvalid", "%s", brokenSays)},
	})
	rows.Test(t, reconciling)
}

// Senders take the audience from the address, whatever the flag says.
func TestAddresses_RequiredTokens(t *testing.T) {
	t.Parallel()
	required, cluster := v1alpha1.AuthenticationRequired, v1alpha1.AuthenticationCluster
	audience := "sources.reschedule.dev/reschedulesource/ops/git-repos"
	audienced := func(s *v1alpha1.RescheduleSource) { s.Status.Address.Audience = &audience }
	requiring := ingesting(v1alpha1.RescheduleSourceIngest{Authentication: &required})
	following := ingesting(v1alpha1.RescheduleSourceIngest{Authentication: &cluster})
	TableTest{{
		Name: "required", Key: key,
		Objects: []runtime.Object{source(requiring), adapter(1, 1)}, WantStatusUpdates: becomes(settled(requiring, audienced)),
	}, {
		Name: "as the cluster says", Key: key,
		Objects: []runtime.Object{settled(following, audienced), adapter(1, 1)}, WantStatusUpdates: becomes(settled(following)),
	}}.Test(t, reconciling)
}

func policy(name string, ready bool, to ...eventingv1alpha1.EventPolicySpecTo) *eventingv1alpha1.EventPolicy {
	p := &eventingv1alpha1.EventPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: name}, Spec: eventingv1alpha1.EventPolicySpec{To: to},
	}
	if ready {
		p.Status.Conditions = duckv1.Conditions{{Type: "Ready", Status: "True"}}
	}
	return p
}

func toSource(name string) eventingv1alpha1.EventPolicySpecTo {
	return eventingv1alpha1.EventPolicySpecTo{Ref: &eventingv1alpha1.EventPolicyToReference{
		APIVersion: "sources.reschedule.dev/v1alpha1", Kind: "RescheduleSource", Name: name,
	}}
}

func toTeam(name string) eventingv1alpha1.EventPolicySpecTo {
	return eventingv1alpha1.EventPolicySpecTo{Selector: &eventingv1alpha1.EventPolicySelector{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": name}},
		TypeMeta:      &metav1.TypeMeta{APIVersion: "sources.reschedule.dev/v1alpha1", Kind: "RescheduleSource"},
	}}
}

func applied(names ...string) option {
	return func(s *v1alpha1.RescheduleSource) {
		for _, name := range names {
			s.Status.Policies = append(s.Status.Policies,
				eventingduckv1.AppliedEventPolicyRef{Name: name, APIVersion: "eventing.knative.dev/v1alpha1"})
		}
	}
}

// The EventPolicies that apply to a source are in its status, and must be ready.
func TestEventPolicies_ListedAndReady(t *testing.T) {
	t.Parallel()
	elsewhere := policy("elsewhere", false)
	elsewhere.Namespace = "other"
	bad := toSource("git-repos")
	bad.Ref.APIVersion = "a/b/c"
	row := func(name string, want []option, objects ...runtime.Object) TableRow {
		return TableRow{Name: name, Key: key, Objects: append(objects, source(), adapter(1, 1)), WantStatusUpdates: becomes(settled(want...))}
	}
	rows := TableTest{
		row("none", nil),
		row("one for all of the namespace", []option{applied("all")}, policy("all", true)),
		row("one that names the source", []option{applied("named")}, policy("named", true, toSource("git-repos"))),
		row("one that selects the source", []option{applied("team")}, policy("team", true, toTeam("platform"))),
		row("several, in the order of their names", []option{applied("a", "b")}, policy("b", true), policy("a", true, toSource("git-repos"))),
		row("policies for others do not count", nil, policy("named", false, toSource("other")), policy("team", false, toTeam("other")), elsewhere),
		row("one that is not ready", []option{applied("a"), but(condition("Addressable", "False", "EventPoliciesNotReady", "event policies b are not ready"))},
			policy("a", true), policy("b", false)),
		{Name: "one that is gone", Key: key, Objects: []runtime.Object{settled(applied("gone")), adapter(1, 1)}, WantStatusUpdates: becomes(settled())},
		row("one that cannot be read", []option{but(condition("Addressable", "False", "EventPoliciesGetFailed", "Failed to get applying event policies"))},
			policy("bad", true, bad)),
	}
	unreadable := &rows[len(rows)-1]
	unreadable.WantErr = true
	unreadable.WantEvents = []string{Eventf("Warning", "InternalError",
		"unable to get applying event policies: cannot split apiVersion into group and version: a/b/c")}
	rows.Test(t, reconciling)
}
