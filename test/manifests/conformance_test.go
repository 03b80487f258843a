package manifests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
)

// Row 1: the labels that Knative finds a source and an addressable by.
func TestCRD_HasTheLabelsOfASource(t *testing.T) {
	t.Parallel()
	labels := server(t).crd.Labels
	for _, name := range []string{"duck.knative.dev/source", "duck.knative.dev/addressable", "eventing.knative.dev/source", "knative.dev/crd-install"} {
		if labels[name] != "true" {
			t.Errorf("label %s is %q, want true", name, labels[name])
		}
	}
}

// Row 2, and the names: kn builds the plural from the kind.
func TestCRD_HasTheNamesOfASource(t *testing.T) {
	t.Parallel()
	names := server(t).crd.Spec.Names
	if want := []string{"all", "knative", "sources"}; !cmp.Equal(names.Categories, want) {
		t.Errorf("categories are %v, want %v", names.Categories, want)
	}
	if want := v1alpha1.Resource("reschedulesources").String(); server(t).crd.Name != want {
		t.Errorf("the CRD is %s, want %s", server(t).crd.Name, want)
	}
	if names.Kind != v1alpha1.Kind || names.Plural != strings.ToLower(names.Kind)+"s" || names.Singular != strings.ToLower(names.Kind) {
		t.Errorf("names are %+v", names)
	}
	version := server(t).crd.Spec.Versions[0]
	if version.Name != v1alpha1.SchemeGroupVersion.Version || !version.Served || !version.Storage || version.Subresources.Status == nil {
		t.Errorf("version is %+v", version)
	}
}

// Row 3.
func TestCRD_Columns(t *testing.T) {
	t.Parallel()
	var got [][2]string
	for _, c := range server(t).crd.Spec.Versions[0].AdditionalPrinterColumns {
		got = append(got, [2]string{c.Name, c.JSONPath})
	}
	want := [][2]string{
		{"Sink", ".status.sinkUri"},
		{"Address", ".status.address.url"},
		{"Pending", ".status.pending"}, {"Scale", ".status.scale.state"},
		{"Ready", `.status.conditions[?(@.type=="Ready")].status`},
		{"Reason", `.status.conditions[?(@.type=="Ready")].reason`},
		{"Age", ".metadata.creationTimestamp"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
}

// Row 8.
func TestCRD_EventTypesAnnotation(t *testing.T) {
	t.Parallel()
	var types []struct{ Type, Schema, Description string }
	if err := json.Unmarshal([]byte(server(t).crd.Annotations["registry.knative.dev/eventTypes"]), &types); err != nil {
		t.Fatal(err)
	}
	want := append([]string{resources.EventType}, resources.WatchEventTypes...)
	for i, is := range types {
		if len(types) != len(want) || is.Type != want[i] || is.Description == "" {
			t.Errorf("event types are %+v", types)
		}
	}
}

// Row 9, and the same for addressables. Unlike Knative's own test it looks at the
// group too.
func TestRBAC_AggregatedRoles(t *testing.T) {
	t.Parallel()
	for label, resources := range map[string][]string{
		"duck.knative.dev/source":      {"reschedulesources"},
		"duck.knative.dev/addressable": {"reschedulesources", "reschedulesources/status"},
	} {
		want := []rbacv1.PolicyRule{{APIGroups: []string{v1alpha1.SchemeGroupVersion.Group}, Resources: resources, Verbs: []string{"get", "list", "watch"}}}
		found := 0
		for _, role := range all[rbacv1.ClusterRole](t, "ClusterRole") {
			if role.Labels[label] != "true" {
				continue
			}
			found++
			if diff := cmp.Diff(want, role.Rules); diff != "" {
				t.Errorf("%s (-want +got):\n%s", role.Name, diff)
			}
		}
		if found != 1 {
			t.Errorf("%d ClusterRoles have label %s, want 1", found, label)
		}
	}
}

// The contract's list, which the CRD's description tells users and the
// controller's lifecycle has to keep.
func TestCRD_Conditions(t *testing.T) {
	t.Parallel()
	o := &v1alpha1.RescheduleSource{}
	o.GetConditionSet().Manage(o.GetStatus()).InitializeConditions()
	var got []string
	for _, c := range o.Status.Conditions {
		got = append(got, string(c.Type))
	}
	slices.Sort(got)
	want := []string{"Addressable", "DeadLetterSinkResolved", "Deployed", "OIDCIdentityCreated", "Ready", "SinkProvided"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	conditions := server(t).schema.Properties["status"].Properties["conditions"]
	for _, name := range append(want, "Limited", "Watching") {
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(conditions.Description) {
			t.Errorf("the description of status.conditions does not name %s: %q", name, conditions.Description)
		}
	}
	for _, status := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown} {
		if !strings.Contains(conditions.Items.Properties["status"].Description, string(status)) {
			t.Errorf("the description of a condition's status does not name %s", status)
		}
	}
}

// ko and kubectl read the YAML files of one directory and of none below it, so
// cert-manager is the user's choice. The namespace belongs to eventing.
func TestConfig_OptionalIsNotInstalled(t *testing.T) {
	t.Parallel()
	for _, o := range installed(t) {
		if slices.Contains([]string{"Certificate", "Namespace"}, o.Kind) {
			t.Errorf("%s installs a %s", o.file, o.Kind)
		}
	}
	entries, err := os.ReadDir(configDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		// No installer reads Go.
		if !e.IsDir() && e.Name() != "Kustomization" && filepath.Ext(e.Name()) != ".go" && !regexp.MustCompile(`^[2-5]\d\d-[a-z0-9-]+\.yaml$`).MatchString(e.Name()) {
			t.Errorf("%s has no number that says when it is applied", e.Name())
		}
	}
}
