package cluster

import (
	"encoding/json"
	"encoding/pem"
	"net/http/httptest"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"
	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	"sigs.k8s.io/yaml"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/client/clientset/versioned"
	typed "github.com/reschedule-dev/reschedule/pkg/client/clientset/versioned/typed/sources/v1alpha1"
)

// typedSourcesIn is the generated client of the administrator.
func typedSourcesIn(t *testing.T, namespace string) typed.RescheduleSourceInterface {
	t.Helper()
	c, err := versioned.NewForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	return c.SourcesV1alpha1().RescheduleSources(namespace)
}

// The API server writes the defaults into the object.
func TestCRD_DefaultsAreWritten(t *testing.T) {
	t.Parallel()
	sources := sourcesIn(t, "defaults")
	const (
		delivery = "delivery: {backoffPolicy: exponential, backoffDelay: PT1S}\n"
		events   = "conflictPolicy: earliest, policies: [earliest, keep], maxDelay: 8760h, authentication: cluster"
		ingest   = "ingest: {" + events + "}\n"
		top      = "delay: 0s\nconflictPolicy: replace\naccess: namespace\naudit: false\nsuspend: false\n" +
			"deadLetters: {keep: 100, maxAge: 168h}\nwarmUp: 0s\njitter: 0\n"
	)
	for _, c := range []struct{ name, spec, want string }{
		{"nothing", "", delivery + ingest + top},
		{"empty parts", "delivery: {}\ningest: {}\nlimits: {}\n", delivery + ingest + "limits: {}\n" + top},
		{"some", "delivery: {retry: 3}\ningest: {key: event.id}\nlimits: {maxInFlight: 7}\n",
			"delivery: {retry: 3, backoffPolicy: exponential, backoffDelay: PT1S}\n" +
				"ingest: {key: event.id, " + events + "}\nlimits: {maxInFlight: 7}\n" + top},
		{"nulls", "delivery: null\ningest: null\nlimits: null\ndelay: null\nconflictPolicy: null\n", delivery + ingest + top},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := manifest(t, "defaults", toURI+c.spec)
			o.SetName("")
			o.SetGenerateName("defaults-")
			got, err := sources.Create(t.Context(), o, strict)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(manifest(t, "x", toURI+c.want).Object["spec"], got.Object["spec"]); diff != "" {
				t.Errorf("the API server's defaults (-want +got):\n%s", diff)
			}

			// What SetDefaults makes of it is the same, so that a file means
			// what an object means.
			var ours, theirs v1alpha1.RescheduleSource
			if err := yaml.Unmarshal([]byte(toURI+c.spec), &ours.Spec); err != nil {
				t.Fatal(err)
			}
			ours.SetDefaults(t.Context())
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(got.Object, &theirs); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(ours.Spec, theirs.Spec); diff != "" {
				t.Errorf("SetDefaults and the API server (-ours +theirs):\n%s", diff)
			}
		})
	}
}

// full fills every field that is not set, so that a field without a place in
// the schema shows.
func full(t *testing.T) *v1alpha1.RescheduleSource {
	t.Helper()
	text := func(s string) *string { return &s }
	url, certificates := apis.HTTPS("x.example"), certificate(t)
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	destination := duckv1.Destination{
		Ref: &duckv1.KReference{APIVersion: "v1", Kind: "Service", Name: "n", Namespace: "other", Address: text("https")},
		URI: &apis.URL{Path: "/path"}, Audience: text("whom"), CACerts: text(certificates),
	}
	retry, pending, most, keys := int32(3), int64(5), int32(7), int64(9)
	policy, later := v1alpha1.ConflictPolicyKeep, v1alpha1.ConflictPolicyLatest
	policies, required, rbac := []v1alpha1.ConflictPolicy{policy}, v1alpha1.AuthenticationRequired, v1alpha1.AccessRBAC
	bytes, half, yes := quantity.MustParse("10Gi"), 0.5, true
	chosen, whole := metav1.LabelSelector{
		MatchLabels:      map[string]string{"app": "one"},
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: metav1.LabelSelectorOpIn, Values: []string{"a"}}},
	}, v1alpha1.ChangesAny
	linear, binary := eventingduckv1.BackoffPolicyLinear, eventingduckv1.DeliveryFormatBinary
	address := duckv1.Addressable{Name: text("https"), URL: url, CACerts: text(certificates), Audience: text("whom")}
	s := &v1alpha1.RescheduleSource{
		ObjectMeta: metav1.ObjectMeta{Name: "full"},
		Spec: v1alpha1.RescheduleSourceSpec{
			SourceSpec: duckv1.SourceSpec{Sink: destination, CloudEventOverrides: &duckv1.CloudEventOverrides{Extensions: map[string]string{"a": "b"}}},
			Delivery: &v1alpha1.RescheduleSourceDelivery{DeliverySpec: eventingduckv1.DeliverySpec{
				DeadLetterSink: &destination, Retry: &retry, Timeout: text("PT1S"), BackoffPolicy: &linear, BackoffDelay: text("PT2S"),
				RetryAfterMax: text("PT3S"), Format: &binary,
			}, BackoffMax: text("PT6S")},
			Delay: text("1s"), ConflictPolicy: &policy, MaxInterval: text("2s"),
			Ingest:      &v1alpha1.RescheduleSourceIngest{Key: "event.id", When: "true", ConflictPolicy: &later, Policies: &policies, MaxDelay: text("3s"), Authentication: &required},
			Limits:      &v1alpha1.RescheduleSourceLimits{MaxInFlight: &most, MaxPerSecond: &most, MaxPending: &keys, MaxBytes: &bytes},
			DeadLetters: &v1alpha1.RescheduleSourceDeadLetters{Keep: &most, MaxAge: text("4s")},
			WarmUp:      text("5s"), Jitter: &half,
			Watch: &v1alpha1.RescheduleSourceWatch{
				ServiceAccountName: "watcher", NamespaceSelector: &chosen,
				Resources: []v1alpha1.WatchResource{
					{APIVersion: "v1", Kind: "ConfigMap", Selector: &chosen, Changes: &whole, Owner: &v1alpha1.WatchOwner{APIVersion: "apps/v1", Kind: "Deployment"}},
					{APIVersion: "v1", Kind: "Secret", Selector: &chosen, Changes: &whole, Key: "object.metadata.name"},
				},
				Resync: &v1alpha1.WatchResync{OnRevision: &yes, Over: text("6s")},
			},
			Access:  &rbac,
			Audit:   true,
			Suspend: true,
		},
		Status: v1alpha1.RescheduleSourceStatus{
			SourceStatus: duckv1.SourceStatus{
				Status: duckv1.Status{
					ObservedGeneration: 2, Annotations: map[string]string{"a": "b"},
					Conditions: duckv1.Conditions{{
						Type: apis.ConditionReady, Status: corev1.ConditionFalse, Severity: apis.ConditionSeverityInfo,
						LastTransitionTime: apis.VolatileTime{Inner: now}, Reason: "Why", Message: "because",
					}},
				},
				SinkURI: url, SinkCACerts: text(certificates), SinkAudience: text("whom"),
				CloudEventAttributes: []duckv1.CloudEventAttributes{{Type: "t", Source: "s"}},
				Auth:                 &duckv1.AuthStatus{ServiceAccountName: text("one"), ServiceAccountNames: []string{"one", "two"}},
			},
			AddressStatus: duckv1.AddressStatus{Address: &address, Addresses: []duckv1.Addressable{address, address}},
			DeliveryStatus: eventingduckv1.DeliveryStatus{
				DeadLetterSinkURI: url, DeadLetterSinkCACerts: text(certificates), DeadLetterSinkAudience: text("whom"),
			},
			AppliedEventPoliciesStatus: eventingduckv1.AppliedEventPoliciesStatus{
				Policies: []eventingduckv1.AppliedEventPolicyRef{{APIVersion: "v1alpha1", Name: "p"}},
			},
			Pending: &pending, NextDueAt: &now, OldestDueAt: &now, InFlight: &pending, Retrying: &pending,
			SinkRevision: "one-00002", Watched: &pending, Refused: "no memory",
			Deliveries: &v1alpha1.DeliveriesStatus{Status: "False", Reason: "DeliveryFailing", Message: "503"},
			Watch:      &v1alpha1.WatchStatus{ObservedGeneration: 2, Status: "False", Reason: "Forbidden", Message: "why", WasTrue: true},
		},
	}
	wholly(t, "spec", reflect.ValueOf(s.Spec))
	wholly(t, "status", reflect.ValueOf(s.Status))
	return s
}

// certificate is one in PEM.
func certificate(t *testing.T) string {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}

// wholly fails if a field of a value is not set. What is not ours to set is an
// alternative to what is set, or has a form of its own.
func wholly(t *testing.T, path string, v reflect.Value) {
	t.Helper()
	switch v.Interface().(type) {
	case apis.URL, apis.VolatileTime, metav1.Time, quantity.Quantity:
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			t.Errorf("%s is not set by the test", path)
			return
		}
		wholly(t, path, v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			name := path + "." + v.Type().Field(i).Name
			if v.Type() == reflect.TypeFor[duckv1.KReference]() && v.Type().Field(i).Name == "Group" {
				continue // Validate refuses it
			}
			if r, ok := reflect.TypeAssert[v1alpha1.WatchResource](v); ok && (name == path+".Owner" && r.Key != "" || name == path+".Key" && r.Owner != nil) {
				continue // one of the two
			}
			wholly(t, name, v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			wholly(t, path, v.Index(i))
		}
		fallthrough
	default:
		if v.IsZero() {
			t.Errorf("%s is not set by the test", path)
		}
	}
}

// writeStatus repeats the update when a program of another test was faster: it writes into
// the status of every source.
func writeStatus(t *testing.T, sources typed.RescheduleSourceInterface, name string, status v1alpha1.RescheduleSourceStatus) (got *v1alpha1.RescheduleSource) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		s, err := sources.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		s.Status = status
		got, err = sources.UpdateStatus(t.Context(), s, metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// Every field has a place in the schema.
func TestCRD_HasEveryField(t *testing.T) {
	t.Parallel()
	sources := typedSourcesIn(t, namespace(t, "full"))
	want := full(t)
	made, err := sources.Create(t.Context(), want.DeepCopy(), strict)
	if err != nil {
		t.Fatal(err)
	}
	if made.Status.Pending != nil {
		t.Error("the status was taken from a create")
	}
	got := writeStatus(t, sources, made.Name, want.Status)
	if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want.Status, got.Status); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if got.Generation != made.Generation {
		t.Error("a status is a new generation")
	}
}

// A status must have type and status in each condition.
func TestCRD_ConditionsNeedTypeAndStatus(t *testing.T) {
	t.Parallel()
	sources := sourcesIn(t, "conditions")
	o, err := sources.Create(t.Context(), manifest(t, "x", toURI), strict)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		patch string
		ok    bool
	}{
		{`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, true},
		{`{"status":{"conditions":[{"type":"Ready"}]}}`, false},
		{`{"status":{"conditions":[{"status":"True"}]}}`, false},
		{`{"status":{"pending":"many"}}`, false},
		{`{"status":{"nextDueAt":"soon"}}`, false},
		{`{"status":{"nextDueAt":"2026-11-21T09:00:00Z","pending":1204}}`, true},
	} {
		_, err := sources.Patch(t.Context(), o.GetName(), "application/merge-patch+json", []byte(c.patch), metav1.PatchOptions{}, "status")
		if c.ok && err != nil || !c.ok && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want it accepted: %v", c.patch, err, c.ok)
		}
	}
}

// kubectl get shows the columns of a source.
func TestKubectl_ShowsTheColumns(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "columns")
	sources := typedSourcesIn(t, ns)
	s := full(t)
	made, err := sources.Create(t.Context(), s.DeepCopy(), strict)
	if err != nil {
		t.Fatal(err)
	}
	written := writeStatus(t, sources, made.Name, s.Status)
	body, err := server.Client.Discovery().RESTClient().Get().
		AbsPath("/apis/sources.reschedule.dev/v1alpha1/namespaces/"+ns+"/reschedulesources").
		Param("resourceVersion", written.ResourceVersion).Param("resourceVersionMatch", "Exact").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(body, &table); err != nil {
		t.Fatal(err)
	}
	got := map[string]any{}
	for i, c := range table.ColumnDefinitions {
		if c.Priority == 0 {
			got[c.Name] = table.Rows[0].Cells[i]
		}
	}
	delete(got, "Age")
	want := map[string]any{
		"Name": "full", "Sink": "https://x.example", "Address": "https://x.example", "Pending": 5.0, "Ready": "False", "Reason": "Why",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the columns (-want +got):\n%s", diff)
	}
}

// A source is found where users look for sources.
func TestKubectl_FindsSourcesByCategory(t *testing.T) {
	t.Parallel()
	list, err := server.Client.Discovery().ServerResourcesForGroupVersion("sources.reschedule.dev/v1alpha1")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list.APIResources {
		if r.Name == "reschedulesources" {
			if diff := cmp.Diff([]string{"all", "knative", "sources"}, r.Categories); diff != "" || !r.Namespaced || r.SingularName != "reschedulesource" {
				t.Errorf("namespaced: %v, %s, categories (-want +got):\n%s", r.Namespaced, r.SingularName, diff)
			}
			return
		}
	}
	t.Error("reschedulesources are not served")
}
