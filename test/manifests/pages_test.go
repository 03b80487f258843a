package manifests

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	eventing "knative.dev/eventing/pkg/apis/sources/v1"
	"sigs.k8s.io/yaml"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/expression"
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
	var blocks []string
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, block[1])
	}
	return documents(t, name, strings.Join(blocks, "---\n"))
}

// documents is the objects in the documents of a text, by kind.
func documents(t *testing.T, name, text string) map[string][]string {
	t.Helper()
	objects := map[string][]string{}
	for document := range strings.SplitSeq(text, "---\n") {
		var typ metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &typ); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, document)
		}
		if typ.Kind != "" { // else it is a fragment
			objects[typ.Kind] = append(objects[typ.Kind], document)
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

// The manifests that a user copies are accepted by the API server, and refer to each
// other by name. The other form watches the same kinds.
func TestPages_ManifestsFitTogether(t *testing.T) {
	t.Parallel()
	objects := page(t, "sdk.md")
	source := acceptedSource(t, objects)
	ksvc := only[service](t, objects, "Service")
	if ref := source.Spec.Sink.Ref; ref.Name != ksvc.Name || ref.APIVersion != ksvc.APIVersion || ksvc.Namespace != source.Namespace {
		t.Errorf("the sink is %v, the Service is %s %s/%s", ref, ksvc.APIVersion, ksvc.Namespace, ksvc.Name)
	}
	const file = "../../sdk/controller/testdata/apiserversource.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	objects = documents(t, file, string(text))
	acceptedSource(t, objects)
	checkApiServerSource(t, objects, &source)
}

// The examples that watch are accepted by the API server.
func TestExamples_SourcesAreAccepted(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"../../sdk/examples/config-watcher/config/serverless/source.yaml", "../../examples/python-function/operator.yaml", "../expiry/config/serverless.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects := documents(t, file, string(text))
		if acceptedSource(t, objects).Spec.Watch == nil {
			t.Errorf("%s does not watch", file)
		}
	}
}

// Answers to post and the page on agents show sources that are accepted. An answer is a quotation.
func TestPages_SourcesToPostAreAccepted(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]int{"docs/upstream/knative.md": 3, "docs/agents.md": 1, "examples/agents/source.yaml": 1} {
		text, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		unquoted := regexp.MustCompile("(?m)^> ?").ReplaceAll(text, nil)
		blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(unquoted, -1)
		if filepath.Ext(file) == ".yaml" {
			blocks = [][][]byte{{nil, text}}
		}
		if len(blocks) != want {
			t.Errorf("%s has %d sources, want %d", file, len(blocks), want)
		}
		for _, b := range blocks {
			acceptedSource(t, documents(t, file, string(b[1])))
		}
	}
}

// The quick start shows the source that it applies.
func TestQuickStart_ShowsTheSource(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"python-function", "python-sleeping"} { // as in kustomize
		if err := fs.WalkDir(os.DirFS("../../examples/"+dir), ".", func(string, fs.DirEntry, error) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	text, err := yaml.Marshal(kustomize(t, "../../examples/python-sleeping")["RescheduleSource/namespace-ttl"])
	if err != nil {
		t.Fatal(err)
	}
	applied := only[v1alpha1.RescheduleSource](t, documents(t, "operator.yaml", string(text)), "RescheduleSource")
	shown := only[v1alpha1.RescheduleSource](t, page(t, "quickstart.md"), "RescheduleSource")
	if diff := cmp.Diff(applied, shown); diff != "" {
		t.Errorf("the page differs (-applied +shown):\n%s", diff)
	}
}

// What sdk/controller prints is accepted by the API server, and its account may watch.
func TestPrintedSources_AreAccepted(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../sdk/controller/testdata/source-*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects := documents(t, file, string(text))
		source := acceptedSource(t, objects)
		checkWatcher(t, objects, &source)
	}
}

// acceptedSource is the one RescheduleSource, which the API server accepts.
func acceptedSource(t *testing.T, objects map[string][]string) v1alpha1.RescheduleSource {
	t.Helper()
	source := only[v1alpha1.RescheduleSource](t, objects, "RescheduleSource")
	var tree map[string]any
	if err := yaml.Unmarshal([]byte(objects["RescheduleSource"][0]), &tree); err != nil {
		t.Fatal(err)
	}
	if _, refused := server(t).admit(t.Context(), integers(tree).(map[string]any)); len(refused) > 0 {
		t.Errorf("the RescheduleSource is refused: %q\n%s", refused, objects["RescheduleSource"][0])
	}
	if in := source.Spec.Ingest; in != nil {
		if err := expression.Check(in.Key, in.When); err != nil {
			t.Error(err)
		}
	}
	return source
}

// checkWatcher wants the account of spec.watch to have a role that lets it watch each of
// the resources, and the namespaces if they are selected, and no more.
func checkWatcher(t *testing.T, objects map[string][]string, source *v1alpha1.RescheduleSource) {
	t.Helper()
	watch := source.Spec.Watch
	if watch == nil {
		t.Fatal("the source does not watch")
	}
	role, binding := "Role", "RoleBinding"
	if watch.NamespaceSelector != nil {
		role, binding = "ClusterRole", "ClusterRoleBinding"
	}
	account := only[corev1.ServiceAccount](t, objects, "ServiceAccount")
	if watch.ServiceAccountName != account.Name || source.Namespace != account.Namespace {
		t.Errorf("the source watches as %s in %s, the account is %s/%s", watch.ServiceAccountName, source.Namespace, account.Namespace, account.Name)
	}
	rules := only[rbacv1.ClusterRole](t, objects, role)
	bound := only[rbacv1.ClusterRoleBinding](t, objects, binding)
	if bound.RoleRef.Kind != role || bound.RoleRef.Name != rules.Name || len(bound.Subjects) != 1 ||
		bound.Subjects[0].Name != account.Name || bound.Subjects[0].Namespace != account.Namespace {
		t.Errorf("the binding joins %v and %v", bound.RoleRef, bound.Subjects)
	}
	want := map[string]bool{}
	for _, r := range watch.Resources {
		gv, err := schema.ParseGroupVersion(r.APIVersion)
		if err != nil {
			t.Fatal(err)
		}
		want[gv.Group+" "+strings.ToLower(r.Kind)+"s get,list,watch"] = true
	}
	if s := watch.NamespaceSelector; s != nil && len(s.MatchLabels)+len(s.MatchExpressions) > 0 {
		want[" namespaces get,list,watch"] = true
	}
	have := map[string]bool{}
	for _, rule := range rules.Rules {
		have[strings.Join(rule.APIGroups, ",")+" "+strings.Join(rule.Resources, ",")+" "+strings.Join(rule.Verbs, ",")] = true
	}
	if !maps.Equal(have, want) {
		t.Errorf("the role grants %v, the resources need %v", have, want)
	}
}

// checkApiServerSource wants the other form to watch the same kinds with the same account.
func checkApiServerSource(t *testing.T, objects map[string][]string, source *v1alpha1.RescheduleSource) {
	t.Helper()
	other := only[eventing.ApiServerSource](t, objects, "ApiServerSource")
	if ref := other.Spec.Sink.Ref; ref.Name != source.Name || ref.APIVersion != source.APIVersion || other.Namespace != source.Namespace {
		t.Errorf("the ApiServerSource sends to %v", ref)
	}
	var kinds, watched []string
	for _, r := range other.Spec.Resources {
		kinds = append(kinds, r.APIVersion+" "+r.Kind)
	}
	for _, r := range source.Spec.Watch.Resources {
		watched = append(watched, r.APIVersion+" "+r.Kind)
	}
	if !slices.Equal(kinds, watched) || other.Spec.ServiceAccountName != source.Spec.Watch.ServiceAccountName {
		t.Errorf("the ApiServerSource watches %q as %s, the RescheduleSource %q", kinds, other.Spec.ServiceAccountName, watched)
	}
}

// docs/reschedulesource.md has every field that kubectl explain has, but for the fields of Knative's and Kubernetes' own types.
func TestPages_HaveEveryField(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reschedulesource.md")
	if err != nil {
		t.Fatal(err)
	}
	code := bytes.Join(regexp.MustCompile("`[^`\n]+`").FindAll(text, -1), []byte("\n"))
	for part, fields := range server(t).schema.Properties {
		paths := slices.Collect(maps.Keys(fields.Properties))
		if part == "spec" {
			for _, f := range specFields(t) {
				if !strings.Contains(f.path, "elector.") { // Kubernetes' own
					paths = append(paths, strings.TrimSuffix(f.path, "[0]"))
				}
			}
		}
		for _, path := range paths {
			name := path[strings.LastIndex(path, ".")+1:]
			if !regexp.MustCompile(`\b` + name + `\b`).Match(code) {
				t.Errorf("docs/reschedulesource.md says nothing of %s.%s", part, path)
			}
		}
	}
}
