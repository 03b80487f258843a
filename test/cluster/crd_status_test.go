package cluster

import (
	"encoding/pem"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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

// The API server writes the defaults into the object, and SetDefaults the same, so that a file means what an object means.
func TestCRD_DefaultsAreWritten(t *testing.T) {
	t.Parallel()
	sources := sourcesIn(t, "defaults")
	for name, spec := range map[string]string{
		"nothing given":  "",
		"watch":          "watch: {resources: [{" + secrets + "}]}",
		"parts of watch": "watch: {serviceAccountName: null, namespaceSelector: {}, resources: [{" + secrets + ", changes: null, selector: {}}], resync: {over: null}}",
		"all of watch": "watch: {serviceAccountName: a, namespaceSelector: {matchLabels: {a: b}}, resources: [{" + secrets +
			", changes: Spec, key: x}], resync: {onRevision: false, over: 1h}}",
		"dead letters": "deadLetters: {keep: 5}\nwarmUp: 3s\njitter: 0.5\nslack: 10m",
		"empty parts":  "delivery: {}\ningest: {}\nlimits: {}\ndeadLetters: {}",
		"null parts":   "delivery: null\ningest: null\nlimits: null\ndelay: null\nconflictPolicy: null\nsuspend: null",
		"parts of parts": "delivery: {retry: 3, backoffDelay: PT2S}\ningest: {key: event.id}\nlimits: {maxPerSecond: 5}\n" +
			"delay: 1m\nmaxInterval: 10h\nsuspend: true",
		"everything given": "delivery: {retry: 3, backoffPolicy: linear, backoffDelay: PT2S, timeout: PT1M, backoffMax: PT4S, retryAfterMax: PT3S, format: json}\n" +
			"ingest: {conflictPolicy: keep, policies: [fail], maxDelay: 1h, authentication: required}\nlimits: {maxInFlight: 1, maxPerSecond: 5, maxPending: 6, maxBytes: 7Mi}\naccess: rbac\naudit: true\ndelay: 1m\nconflictPolicy: fail",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := manifest(t, "defaults", toURI+spec)
			o.SetName("")
			o.SetGenerateName("defaults-")
			got, err := sources.Create(t.Context(), o, strict)
			if err != nil {
				t.Fatal(err)
			}
			var ours, theirs v1alpha1.RescheduleSource
			if err := yaml.Unmarshal([]byte(toURI+spec), &ours.Spec); err != nil {
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

// certificate is one in PEM.
func certificate(t *testing.T) string {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
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
