package manifests

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	eventing "knative.dev/eventing/pkg/apis/sources/v1"
	"sigs.k8s.io/yaml"

	ingestcel "github.com/reschedule-dev/reschedule/pkg/apis/sources/expression"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// service is the part of a Knative Service that the pages write. Its pod is
// Kubernetes' own, so that decoding is strict there too.
type service struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Template struct {
			metav1.ObjectMeta `json:"metadata"`

			Spec struct {
				corev1.PodSpec `json:",inline"`

				TimeoutSeconds int64 `json:"timeoutSeconds"`
			} `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
}

// page is the objects in the blocks of ```yaml of a page, by kind.
func page(t *testing.T, name string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string][]string{}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		for document := range strings.SplitSeq(block[1], "---\n") {
			var typ metav1.TypeMeta
			if err := yaml.Unmarshal([]byte(document), &typ); err != nil {
				t.Fatalf("%s: %v\n%s", name, err, document)
			}
			if typ.Kind != "" { // else it is a fragment
				objects[typ.Kind] = append(objects[typ.Kind], document)
			}
		}
	}
	return objects
}

// only is the one object of a kind, decoded strictly.
func only[T any](t *testing.T, objects map[string][]string, kind string) (value T) {
	t.Helper()
	if len(objects[kind]) != 1 {
		t.Fatalf("%d objects of kind %s, want 1", len(objects[kind]), kind)
	}
	if err := yaml.UnmarshalStrict([]byte(objects[kind][0]), &value); err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	return value
}

// The manifests that a user copies are accepted by the API server, and refer to
// each other by name.
func TestPages_ManifestsFitTogether(t *testing.T) {
	t.Parallel()
	// sdk/controller tests what the expressions of sdk.md do.
	tested := only[v1alpha1.RescheduleSource](t, page(t, "sdk.md"), "RescheduleSource").Spec.Ingest
	for _, name := range []string{"move-an-operator.md", "sdk.md"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects := page(t, name)
			source := only[v1alpha1.RescheduleSource](t, objects, "RescheduleSource")
			if api, validate := judge(t, objects["RescheduleSource"][0]); len(api) > 0 || validate != nil {
				t.Errorf("the RescheduleSource is refused: %q, %v", api, validate)
			}
			if _, err := ingestcel.Compile(source.Spec.Ingest.Key, source.Spec.Ingest.When); err != nil {
				t.Error(err)
			}
			if !reflect.DeepEqual(source.Spec.Ingest, tested) {
				t.Errorf("spec.ingest differs from the one of sdk.md: %v", source.Spec.Ingest)
			}
			ksvc := only[service](t, objects, "Service")
			if ref := source.Spec.Sink.Ref; ref.Name != ksvc.Name || ref.APIVersion != ksvc.APIVersion || ksvc.Namespace != source.Namespace {
				t.Errorf("the sink is %v, the Service is %s %s/%s", ref, ksvc.APIVersion, ksvc.Namespace, ksvc.Name)
			}
			for _, volume := range ksvc.Spec.Template.Spec.Volumes {
				checkToken(t, volume, &source)
			}
			for _, container := range ksvc.Spec.Template.Spec.Containers {
				for _, env := range container.Env {
					if want := "http://reschedule-adapter.knative-eventing.svc.cluster.local/" + source.Namespace + "/" + source.Name; env.Name == "RESCHEDULE_URL" && env.Value != want {
						t.Errorf("RESCHEDULE_URL is %s, want %s", env.Value, want)
					}
				}
			}
			checkWatcher(t, objects, &source)
		})
	}
}

func checkToken(t *testing.T, volume corev1.Volume, source *v1alpha1.RescheduleSource) {
	t.Helper()
	if volume.Projected == nil || volume.Projected.Sources[0].ServiceAccountToken == nil {
		t.Fatalf("the volume %s has no token", volume.Name)
	}
	want := "sources.reschedule.dev/reschedulesource/" + source.Namespace + "/" + source.Name
	if got := volume.Projected.Sources[0].ServiceAccountToken.Audience; got != want {
		t.Errorf("the token's audience is %s, want %s", got, want)
	}
}

// checkWatcher wants the account of the ApiServerSource to have a role that lets
// it watch each of the resources, and no more.
func checkWatcher(t *testing.T, objects map[string][]string, source *v1alpha1.RescheduleSource) {
	t.Helper()
	watch := only[eventing.ApiServerSource](t, objects, "ApiServerSource")
	if ref := watch.Spec.Sink.Ref; ref.Name != source.Name || ref.APIVersion != source.APIVersion {
		t.Errorf("the ApiServerSource sends to %v", ref)
	}
	role, binding := "Role", "RoleBinding"
	if watch.Spec.NamespaceSelector != nil {
		role, binding = "ClusterRole", "ClusterRoleBinding"
	}
	account := only[corev1.ServiceAccount](t, objects, "ServiceAccount")
	if watch.Spec.ServiceAccountName != account.Name || watch.Namespace != account.Namespace {
		t.Errorf("the ApiServerSource is %s in %s, the account %s/%s", watch.Spec.ServiceAccountName, watch.Namespace, account.Namespace, account.Name)
	}
	rules := only[rbacv1.ClusterRole](t, objects, role)
	bound := only[rbacv1.ClusterRoleBinding](t, objects, binding)
	if bound.RoleRef.Kind != role || bound.RoleRef.Name != rules.Name || len(bound.Subjects) != 1 ||
		bound.Subjects[0].Name != account.Name || bound.Subjects[0].Namespace != account.Namespace {
		t.Errorf("the binding joins %v and %v", bound.RoleRef, bound.Subjects)
	}
	var want []string
	for _, r := range watch.Spec.Resources {
		gv, err := schema.ParseGroupVersion(r.APIVersion)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, gv.Group+" "+strings.ToLower(r.Kind)+"s get,list,watch")
	}
	var have []string
	for _, rule := range rules.Rules {
		have = append(have, strings.Join(rule.APIGroups, ",")+" "+strings.Join(rule.Resources, ",")+" "+strings.Join(rule.Verbs, ","))
	}
	if strings.Join(have, "; ") != strings.Join(want, "; ") {
		t.Errorf("the role grants %q, the resources need %q", have, want)
	}
}
