// Package manifests tests the YAML of config without a cluster.
//
// It guarantees that the CRD's schema has the fields of the Go types, that the API server and an adapter with a file take
// the same specs, that the objects fit each other, and that identities and pods have no more than they need: exact
// rights are here alone.
//
// How it works: the CRD and thousands of objects go through the API server's own code (pruning, defaulting, validation,
// CEL with its cost limits). The other files are read as the types of k8s.io/api, which refuses unknown fields. The
// kustomization is built with the kustomize of tools.
//
// It leaves to others: what a running API server decides, such as which specs it refuses with which words, and the
// admission policies (test/cluster); building images (hack/test-release.sh).
package manifests

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	crdv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

const (
	configDir = "../../config"
	namespace = "knative-eventing"
)

// object is one document of config.
type object struct {
	file string
	metav1.TypeMeta
	metav1.ObjectMeta
	raw []byte
}

// installed is what ko apply -f config/ installs; extra is what lies beside it.
func installed(t *testing.T) []object { return read(t, "*.yaml") }
func extra(t *testing.T) []object     { return read(t, "*/*.yaml") }

func read(t *testing.T, pattern string) (out []object) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(configDir, pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files for %s: %v", pattern, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		docs := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(data)))
		for buf := make([]byte, len(data)+1); ; {
			n, err := docs.Read(buf)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			raw := bytes.Clone(buf[:n])
			var head struct {
				metav1.TypeMeta   `json:",inline"`
				metav1.ObjectMeta `json:"metadata"`
			}
			if err := sigsyaml.Unmarshal(raw, &head); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			out = append(out, object{filepath.Base(file), head.TypeMeta, head.ObjectMeta, raw})
		}
	}
	return out
}

// all decodes every installed object of a kind; unknown fields are errors.
func all[T any](t *testing.T, kind string) (out []T) {
	t.Helper()
	for _, o := range installed(t) {
		if o.Kind == kind {
			out = append(out, decode[T](t, o))
		}
	}
	if len(out) == 0 {
		t.Fatalf("config has no %s", kind)
	}
	return out
}

func decode[T any](t *testing.T, o object) (value T) {
	t.Helper()
	if err := sigsyaml.UnmarshalStrict(o.raw, &value); err != nil {
		t.Fatalf("%s: %s %s: %v", o.file, o.Kind, o.Name, err)
	}
	return value
}

// one is the installed object of a kind and name.
func one[T any](t *testing.T, kind, name string) (value T) {
	t.Helper()
	for _, o := range installed(t) {
		if o.Kind == kind && o.Name == name {
			return decode[T](t, o)
		}
	}
	t.Fatalf("config has no %s %s", kind, name)
	return value
}

var clusterScoped = map[string]bool{"Namespace": true, "CustomResourceDefinition": true, "ClusterRole": true, "ClusterRoleBinding": true,
	"ValidatingAdmissionPolicy": true, "ValidatingAdmissionPolicyBinding": true}

// Every object is of a known kind and in Knative's namespace.
func TestConfig_KindsAndNamespace(t *testing.T) {
	t.Parallel()
	known := map[string]func(*testing.T, object){
		"v1/Namespace":                                     func(t *testing.T, o object) { decode[corev1.Namespace](t, o) },
		"v1/ServiceAccount":                                func(t *testing.T, o object) { decode[corev1.ServiceAccount](t, o) },
		"v1/ConfigMap":                                     func(t *testing.T, o object) { decode[corev1.ConfigMap](t, o) },
		"v1/Service":                                       func(t *testing.T, o object) { decode[corev1.Service](t, o) },
		"apps/v1/Deployment":                               func(t *testing.T, o object) { decode[appsv1.Deployment](t, o) },
		"apps/v1/StatefulSet":                              func(t *testing.T, o object) { decode[appsv1.StatefulSet](t, o) },
		"policy/v1/PodDisruptionBudget":                    func(t *testing.T, o object) { decode[policyv1.PodDisruptionBudget](t, o) },
		"networking.k8s.io/v1/NetworkPolicy":               func(t *testing.T, o object) { decode[networkingv1.NetworkPolicy](t, o) },
		"rbac.authorization.k8s.io/v1/Role":                func(t *testing.T, o object) { decode[rbacv1.Role](t, o) },
		"rbac.authorization.k8s.io/v1/RoleBinding":         func(t *testing.T, o object) { decode[rbacv1.RoleBinding](t, o) },
		"rbac.authorization.k8s.io/v1/ClusterRole":         func(t *testing.T, o object) { decode[rbacv1.ClusterRole](t, o) },
		"rbac.authorization.k8s.io/v1/ClusterRoleBinding":  func(t *testing.T, o object) { decode[rbacv1.ClusterRoleBinding](t, o) },
		"apiextensions.k8s.io/v1/CustomResourceDefinition": func(t *testing.T, o object) { decode[crdv1.CustomResourceDefinition](t, o) },
		"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy": func(t *testing.T, o object) {
			decode[admissionv1.ValidatingAdmissionPolicy](t, o)
		},
		"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicyBinding": func(t *testing.T, o object) {
			decode[admissionv1.ValidatingAdmissionPolicyBinding](t, o)
		},
		// Their types are not Kubernetes' own.
		"cert-manager.io/v1/Certificate":          func(*testing.T, object) {},
		"cert-manager.io/v1/Issuer":               func(*testing.T, object) {},
		"monitoring.coreos.com/v1/ServiceMonitor": func(*testing.T, object) {},
		"monitoring.coreos.com/v1/PrometheusRule": func(*testing.T, object) {},
	}
	seen := map[string]string{}
	for _, o := range append(installed(t), extra(t)...) {
		check := known[o.APIVersion+"/"+o.Kind]
		if check == nil {
			t.Errorf("%s: %s %s is no kind that this test knows", o.file, o.APIVersion, o.Kind)
			continue
		}
		check(t, o)
		want := namespace
		if clusterScoped[o.Kind] {
			want = ""
		}
		if o.Namespace != want {
			t.Errorf("%s: %s %s is in namespace %q, want %q", o.file, o.Kind, o.Name, o.Namespace, want)
		}
		if first, twice := seen[o.Kind+"/"+o.Name]; twice {
			t.Errorf("%s: %s %s is in %s already", o.file, o.Kind, o.Name, first)
		}
		seen[o.Kind+"/"+o.Name] = o.file
		// hack/release.sh puts the version there.
		if o.Labels["app.kubernetes.io/name"] != "reschedule" || o.Labels["app.kubernetes.io/version"] != "devel" {
			t.Errorf("%s: %s %s has labels %v", o.file, o.Kind, o.Name, o.Labels)
		}
	}
}
