package resources

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/eventing/pkg/apis/feature"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

var gitRepos = types.NamespacedName{Namespace: "ops", Name: "git-repos"}

// The source attribute of events is the path of the resource.
func TestEventSource_IsThePath(t *testing.T) {
	t.Parallel()
	want := "/apis/sources.reschedule.dev/v1alpha1/namespaces/ops/reschedulesources/git-repos"
	if got := EventSource(gitRepos); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The addresses follow the flag transport-encryption.
func TestAddresses_TransportEncryption(t *testing.T) {
	t.Parallel()
	const host = "reschedule-adapter.knative-eventing.svc.cluster.local"
	ca, audience := "the CA", "the audience"
	address := func(scheme string, ca *string) duckv1.Addressable {
		return duckv1.Addressable{Name: &scheme, URL: apis.HTTP(host), CACerts: ca, Audience: &audience}
	}
	http, https, trusted := address("http", nil), address("https", &ca), address("https", nil)
	for _, a := range []*duckv1.Addressable{&http, &https, &trusted} {
		a.URL.Scheme, a.URL.Path = *a.Name, "/ops/git-repos"
	}
	withCA := &corev1.Secret{Data: map[string][]byte{"ca.crt": []byte(ca)}}
	publicly := &corev1.Secret{Data: map[string][]byte{"tls.crt": []byte("a certificate")}}
	emptyCA := &corev1.Secret{Data: map[string][]byte{"ca.crt": []byte("\n")}}

	for _, test := range []struct {
		name    string
		mode    feature.Flag
		secret  *corev1.Secret
		address duckv1.Addressable
		choices []duckv1.Addressable
		wants   bool
	}{
		{"no flag", "", withCA, http, nil, false},
		{"disabled", feature.Disabled, withCA, http, nil, false},
		{"permissive", feature.Permissive, withCA, http, []duckv1.Addressable{https, http}, true},
		{"permissive, publicly trusted", feature.Permissive, publicly, http, []duckv1.Addressable{trusted, http}, true},
		{"permissive, the CA is empty", feature.Permissive, emptyCA, http, []duckv1.Addressable{trusted, http}, true},
		{"permissive without a certificate", feature.Permissive, nil, http, []duckv1.Addressable{http}, true},
		{"strict", feature.Strict, withCA, https, []duckv1.Addressable{https}, true},
		{"strict, publicly trusted", feature.Strict, publicly, trusted, []duckv1.Addressable{trusted}, true},
		{"strict without a certificate", feature.Strict, nil, trusted, []duckv1.Addressable{trusted}, true},
	} {
		edge := Edge{SystemNamespace: "knative-eventing", Flags: feature.Flags{feature.TransportEncryption: test.mode}, TLS: test.secret}
		want := duckv1.AddressStatus{Address: &test.address, Addresses: test.choices}
		if diff := cmp.Diff(want, edge.Addresses(gitRepos, &audience)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
		if got := edge.WantsTLS(); got != test.wants {
			t.Errorf("%s: wants TLS: %t", test.name, got)
		}
	}
}

// Only the CA of a certificate is part of an address.
func TestSameCertificates_OnlyTheCA(t *testing.T) {
	t.Parallel()
	secret := func(ca, key string) *corev1.Secret {
		return &corev1.Secret{Data: map[string][]byte{"ca.crt": []byte(ca), "tls.key": []byte(key)}}
	}
	for _, test := range []struct {
		name string
		a, b *corev1.Secret
		same bool
	}{
		{"none", nil, nil, true},
		{"a new one", nil, secret("a", "1"), false},
		{"a new one that is publicly trusted", nil, &corev1.Secret{}, false},
		{"renewed", secret("a", "1"), secret("a", "2"), true},
		{"another authority", secret("a", "1"), secret("b", "1"), false},
		{"no authority any more", secret("a", "1"), secret("", "1"), false},
	} {
		if got := SameCertificates(test.a, test.b); got != test.same {
			t.Errorf("%s: got %t", test.name, got)
		}
		if got := SameCertificates(test.b, test.a); got != test.same {
			t.Errorf("%s, the other way round: got %t", test.name, got)
		}
	}
}

func statefulSet(replicas int32, status appsv1.StatefulSetStatus) *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Generation: 2, ResourceVersion: "41"}, Status: status}
	s.Spec.Replicas = &replicas
	return s
}

// The adapter is available when a pod of the newest revision is ready.
func TestAdapter_Availability(t *testing.T) {
	t.Parallel()
	const name = "StatefulSet knative-eventing/reschedule-adapter"
	for _, test := range []struct {
		what string
		s    *appsv1.StatefulSet
		want Availability
	}{
		{"missing", nil, Availability{"False", "AdapterNotInstalled",
			"There is no " + name + ". Install it with the release manifest, or from a checkout with: ko apply -f config/"}},
		{"at zero", statefulSet(0, appsv1.StatefulSetStatus{ObservedGeneration: 2}),
			Availability{"Unknown", "AdapterScalingUp", name + " has no replicas yet."}},
		{"at zero with a pod that still ends", statefulSet(0, appsv1.StatefulSetStatus{ObservedGeneration: 2, ReadyReplicas: 1}),
			Availability{"Unknown", "AdapterScalingUp", name + " has no replicas yet."}},
		{"just changed", statefulSet(1, appsv1.StatefulSetStatus{ObservedGeneration: 1, ReadyReplicas: 1, UpdatedReplicas: 1}),
			Availability{"Unknown", "AdapterRollingOut", "A change of " + name + " is not observed yet."}},
		{"not ready", statefulSet(1, appsv1.StatefulSetStatus{ObservedGeneration: 2, Replicas: 1}),
			Availability{"Unknown", "AdapterNotReady", "No pod of " + name + " is ready."}},
		{"ready, of an older revision", statefulSet(1, appsv1.StatefulSetStatus{
			ObservedGeneration: 2, Replicas: 1, ReadyReplicas: 1, CurrentReplicas: 1, CurrentRevision: "a", UpdateRevision: "b"}),
			Availability{"Unknown", "AdapterRollingOut", "The pod of " + name + " is of an older revision."}},
		{"ready, of the new revision", statefulSet(1, appsv1.StatefulSetStatus{
			ObservedGeneration: 2, Replicas: 1, ReadyReplicas: 1, UpdatedReplicas: 1, CurrentRevision: "a", UpdateRevision: "b"}),
			Availability{Status: "True"}},
		{"ready", statefulSet(1, appsv1.StatefulSetStatus{
			ObservedGeneration: 2, Replicas: 1, ReadyReplicas: 1, CurrentReplicas: 1, UpdatedReplicas: 1, CurrentRevision: "a", UpdateRevision: "a"}),
			Availability{Status: "True"}},
	} {
		if diff := cmp.Diff(test.want, AdapterAvailability("knative-eventing", test.s)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.what, diff)
		}
	}
}

// A group serves during a rollout, while one of its pods is ready.
func TestAvailability_GroupRollsOut(t *testing.T) {
	t.Parallel()
	group := statefulSet(3, appsv1.StatefulSetStatus{ObservedGeneration: 1, Replicas: 3, ReadyReplicas: 2, CurrentRevision: "a", UpdateRevision: "b"})
	if got := AdapterAvailability("knative-eventing", group); got.Status == "True" {
		t.Errorf("without the annotation: %+v", got)
	}
	group.Annotations = map[string]string{ReplicatedAnnotation: "true"}
	if got, want := AdapterAvailability("knative-eventing", group), (Availability{Status: "True"}); got != want {
		t.Errorf("got %+v", got)
	}
	group.Status.ReadyReplicas = 0
	if got := AdapterAvailability("knative-eventing", group); got.Status == "True" {
		t.Errorf("no pod is ready: %+v", got)
	}
}

// A StatefulSet that names no replicas has one.
func TestReplicas_DefaultIsOne(t *testing.T) {
	t.Parallel()
	if got := Replicas(&appsv1.StatefulSet{}); got != 1 {
		t.Errorf("got %d", got)
	}
	if got := Replicas(statefulSet(0, appsv1.StatefulSetStatus{})); got != 0 {
		t.Errorf("got %d, want 0", got)
	}
}

// The patch of a scale holds only for the version that it was made from.
func TestScalePatch_HasTheVersion(t *testing.T) {
	t.Parallel()
	patch, err := ScalePatch(statefulSet(3, appsv1.StatefulSetStatus{}), 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(patch), `{"metadata":{"resourceVersion":"41"},"spec":{"replicas":0}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The patch of a status has the changes, and no field that the adapter writes.
func TestStatusPatch_OnlyOwnChanges(t *testing.T) {
	t.Parallel()
	pending, now := int64(7), metav1.Now()
	before := &v1alpha1.RescheduleSource{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "12"}}
	before.Status.Pending, before.Status.NextDueAt = &pending, &now
	before.Status.Watched, before.Status.Watch = &pending, &v1alpha1.WatchStatus{Status: "True"}
	before.Status.Refused = "too large"
	before.Status.Scale = &v1alpha1.ScaleStatus{Starts: 1}
	before.Status.SinkURI, before.Status.DeadLetterSinkURI = apis.HTTP("sink"), apis.HTTP("dead-letters")
	before.Status.Annotations = map[string]string{"left": "alone"}

	if patch, err := StatusPatch(before, before.DeepCopy()); err != nil || patch != nil {
		t.Errorf("nothing changed: %s, %v", patch, err)
	}
	after := before.DeepCopy()
	after.Status.Pending, after.Status.NextDueAt, after.Status.Watched, after.Status.Watch = nil, nil, nil, nil
	after.Status.Refused, after.Status.Scale = "", nil
	if patch, err := StatusPatch(before, after); err != nil || patch != nil {
		t.Errorf("only what is the adapter's changed: %s, %v", patch, err)
	}
	after.Status.SinkURI, after.Status.DeadLetterSinkURI, after.Status.ObservedGeneration = apis.HTTP("other"), nil, 3
	patch, err := StatusPatch(before, after)
	if err != nil {
		t.Fatal(err)
	}
	var got any
	if err := json.Unmarshal(patch, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"metadata": map[string]any{"resourceVersion": "12"},
		"status":   map[string]any{"sinkUri": "http://other", "deadLetterSinkUri": nil, "observedGeneration": 3.0},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the patch (-want +got):\n%s", diff)
	}
}

// What the annotation says: a group must never be scaled as a single adapter.
func TestReplicated_Annotation(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{"": false, "false": false, "true": true, "3": true, "yes": true} {
		s := statefulSet(3, appsv1.StatefulSetStatus{})
		s.Annotations = map[string]string{ReplicatedAnnotation: value}
		if IsReplicated(s) != want {
			t.Errorf("%q: want %t", value, want)
		}
	}
}
