package v1alpha1

import (
	"encoding/pem"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const (
	sink   = "sink: {uri: 'http://x'}\n"
	target = "{targetRef: {apiVersion: apps/v1, kind: Deployment, name: x}" // the start of spec.scale
)

func object(t *testing.T, spec string) *RescheduleSource {
	t.Helper()
	o := &RescheduleSource{ObjectMeta: metav1.ObjectMeta{Name: "git-repos", Namespace: "ops"}}
	if err := yaml.UnmarshalStrict([]byte(spec), &o.Spec); err != nil {
		t.Fatalf("the test's own YAML: %v", err)
	}
	return o
}

// The error of a bad spec names the field, as far as the API server names less. What is good and what is bad is in the
// table of test/cluster, and test/manifests compares thousands of values with the schema.
func TestValidate_NamesTheField(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, spec, field string }{
		{"no sink", "", "spec.sink.ref, spec.sink.uri"},
		{"an empty uri", "sink: {uri: ''}", "spec.sink.ref, spec.sink.uri"},
		{"a host beside a reference", "sink: {uri: //x/path, ref: {apiVersion: v1, kind: Service, name: x}}", "spec.sink.uri"},
		{"a reference without a name", "sink: {uri: /path, ref: {apiVersion: v1, kind: Service}}", "spec.sink.ref.name"},
		{"override of id", sink + "ceOverrides: {extensions: {id: x}}", "spec.ceOverrides.extensions.id"},
		{"a name with a line break", sink + `ceOverrides: {extensions: {"a\nb": x}}`, `spec.ceOverrides.extensions."a\nb"`},
		{"an empty name", sink + "ceOverrides: {extensions: {'': x}}", `spec.ceOverrides.extensions.""`},
		{"an unknown policy for events", sink + "ingest: {policies: [keep, never]}", "spec.ingest.policies[1]"},
		{"a policy for events twice", sink + "ingest: {policies: [keep, keep]}", "spec.ingest.policies[1]"},
		{"Go style in backoffMax", sink + "delivery: {backoffMax: 15m}", "spec.delivery.backoffMax"},
		{"an empty dead letter sink", sink + "delivery: {deadLetterSink: {}}", "spec.delivery.deadLetterSink.ref"},
		{"a Knative Service that is scaled", "sink: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: x}}\nscale: " + target + "}", "spec.scale, spec.sink.ref"},
		{"a target in capitals", sink + "scale: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: X}}", "spec.scale.targetRef.name"},
		{"a target without a kind", sink + "scale: {targetRef: {apiVersion: apps/v1, name: x}}", "spec.scale.targetRef.kind"},
		{"no replicas", sink + "scale: " + target + ", replicas: 0}", "spec.scale.replicas"},
		{"too many replicas", sink + "scale: " + target + ", replicas: 1001}", "spec.scale.replicas"},
		{"a short cooldown", sink + "scale: " + target + ", cooldown: 999ms}", "spec.scale.cooldown"},
		{"a timeout that is none", sink + "scale: " + target + ", startTimeout: soon}", "spec.scale.startTimeout"},
		{"an account that is none", sink + "scale: " + target + ", serviceAccountName: A}", "spec.scale.serviceAccountName"},
		{"an unknown mode", sink + "scale: " + target + ", mode: Off}", "spec.scale.mode"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := object(t, c.spec).Validate(t.Context())
			if err == nil {
				t.Fatal("accepted")
			}
			if len(err.WrappedErrors()) != 1 {
				t.Errorf("more than one error: %v", err)
			}
			if !strings.HasPrefix(strings.Join(err.WrappedErrors()[0].Paths, ", "), c.field) {
				t.Errorf("%q does not name %s", err, c.field)
			}
		})
	}
}

// The error names every fault of a spec at once.
func TestValidate_NamesEveryError(t *testing.T) {
	t.Parallel()
	err := object(t, "delay: x\nlimits: {maxPending: -1}\nceOverrides: {extensions: {id: x}}").Validate(t.Context())
	for _, field := range []string{"spec.sink.ref", "spec.delay", "spec.limits.maxPending", "spec.ceOverrides.extensions.id"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q does not name %s", err, field)
		}
	}
}

// CACerts must be whole certificates.
func TestValidate_WholeCertificates(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	good := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	for _, c := range []struct {
		name, certs string
		ok          bool
	}{
		{"one", good, true},
		{"two with text between", good + "# the next\n" + good, true},
		{"a damaged one first", strings.Replace(good, "\n", "\n!", 1) + good, false},
		{"a damaged one last", good + strings.Replace(good, "\n", "\n!", 1), false},
		{"a key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})), false},
		{"a certificate of nothing", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})), false},
		{"half a one", good[:len(good)/2], false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := object(t, sink)
			o.Spec.Sink.CACerts = &c.certs
			if err := o.Validate(t.Context()); (err == nil) != c.ok {
				t.Errorf("error is %v, want none: %v", err, c.ok)
			}
		})
	}
}
