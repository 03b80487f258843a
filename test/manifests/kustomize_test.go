package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

// kustomize builds the directory, with the kustomize of tools.
func kustomize(t *testing.T, dir string) map[string]any {
	t.Helper()
	// go test reuses a result while the files that the test opens are the same, and does
	// not see which files a process opens.
	if err := fs.WalkDir(os.DirFS(configDir), ".", func(string, fs.DirEntry, error) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("../../tools/go.mod"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", "-modfile=../../tools/go.mod", "sigs.k8s.io/kustomize/kustomize/v5", "build", dir)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kustomize build %s: %v\n%s", dir, err, &said)
	}
	return objects(t, out)
}

// objects are the decoded objects, by kind and name.
func objects(t *testing.T, text []byte) map[string]any {
	t.Helper()
	found := map[string]any{}
	docs := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text)))
	for buf := make([]byte, len(text)+1); ; {
		n, err := docs.Read(buf)
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		var o map[string]any
		if err := sigsyaml.Unmarshal(buf[:n], &o); err != nil {
			t.Fatal(err)
		}
		metadata, _ := o["metadata"].(map[string]any)
		found[o["kind"].(string)+"/"+metadata["name"].(string)] = o
	}
}

// The base has every object that ko apply -f config/ installs, unchanged.
func TestKustomize_Base(t *testing.T) {
	t.Parallel()
	want := map[string]any{}
	for _, o := range installed(t) {
		maps.Copy(want, objects(t, o.raw))
	}
	if diff := cmp.Diff(want, kustomize(t, configDir)); diff != "" {
		t.Errorf("objects (-config +kustomize):\n%s", diff)
	}
}

// Each component adds or leaves out what its comment says, and changes no
// other object.
func TestKustomize_Components(t *testing.T) {
	t.Parallel()
	base := kustomize(t, configDir)
	for component, want := range map[string]struct{ added, removed, changed []string }{
		"tls":        {added: []string{"Certificate/reschedule-adapter-server-tls"}},
		"monitoring": {added: []string{"ConfigMap/reschedule-dashboards", "PrometheusRule/reschedule", "ServiceMonitor/reschedule-adapter", "ServiceMonitor/reschedule-controller"}},
		"cli": {added: []string{
			"ClusterRole/reschedule-viewer", "ClusterRoleBinding/reschedule-viewer", "Role/reschedule-cli", "Role/reschedule-viewer-token", "ServiceAccount/reschedule-viewer",
		}},
		"olm": {
			added: []string{"Role/reschedule-controller-adapter", "RoleBinding/reschedule-controller-adapter"},
			removed: slices.Sorted(slices.Values(slices.Concat([]string{
				"ConfigMap/config-reschedule", "StatefulSet/reschedule-adapter",
			}, namesIn(t, "204-adapter-oidc-rbac.yaml"), namesIn(t, "205-status-admission.yaml"), namesIn(t, "206-adapter-watch-rbac.yaml")))),
			changed: []string{"Deployment/reschedule-controller"},
		},
		"replicated": {changed: []string{"NetworkPolicy/reschedule-adapter", "StatefulSet/reschedule-adapter"}},
		"peer-certificates": {added: []string{
			"Certificate/reschedule-adapter-peers", "Certificate/reschedule-adapter-peers-ca", "Issuer/reschedule-adapter-peers", "Issuer/reschedule-adapter-peers-root",
		}},
		"components/no-network-policies": {removed: namesIn(t, "401-network-policy.yaml")},
		"components/no-sink-tokens":      {removed: namesIn(t, "204-adapter-oidc-rbac.yaml")},
		"components/no-watching":         {removed: namesIn(t, "206-adapter-watch-rbac.yaml")},
		"components/manage-adapter": {
			added:   []string{"Role/reschedule-controller-adapter", "RoleBinding/reschedule-controller-adapter"},
			removed: []string{"StatefulSet/reschedule-adapter"}, changed: []string{"Deployment/reschedule-controller"},
		},
	} {
		t.Run(strings.ReplaceAll(component, "/", "-"), func(t *testing.T) {
			t.Parallel()
			built := withComponent(t, component)
			if diff := cmp.Diff(want.added, missing(built, base)); diff != "" {
				t.Errorf("added (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want.removed, missing(base, built)); diff != "" {
				t.Errorf("removed (-want +got):\n%s", diff)
			}
			for name, o := range built {
				if before, ok := base[name]; ok && cmp.Equal(before, o) == slices.Contains(want.changed, name) {
					t.Errorf("%s is another one:\n%s", name, cmp.Diff(before, o))
				}
			}
		})
	}
}

// Without Knative each object is in reschedule-system, with the objects of other components; accounts are there in bindings and
// policies, and the certificate names the Service there. Alone the component is refused: it would be half an installation.
func TestKustomize_WithoutKnative(t *testing.T) {
	t.Parallel()
	const system = "reschedule-system"
	if diff := cmp.Diff(withComponent(t, "without-knative"), kustomize(t, "../../hack/without-knative")); diff != "" {
		t.Errorf("hack/without-knative (-component +built):\n%s", diff)
	}
	for name, o := range withComponent(t, "replicated", "peer-certificates", "tls", "monitoring", "cli", "components/manage-adapter", "without-knative") {
		kind, _, _ := strings.Cut(name, "/")
		metadata := o.(map[string]any)["metadata"].(map[string]any)
		if in, _ := metadata["namespace"].(string); (in == "") != clusterScoped[kind] || in != "" && in != system {
			t.Errorf("%s is in namespace %q", name, in)
		}
		text, err := sigsyaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		// The policy refuses sources of Knative's namespaces too, and the issuer is an example.
		rest := strings.NewReplacer("''knative-eventing'', ''knative-serving''", "", "knative-eventing-ca-issuer", "").Replace(string(text))
		if strings.Contains(rest, "knative-eventing") || strings.Contains(rest, "name: addressable-resolver") {
			t.Errorf("%s rests on Knative:\n%s", name, text)
		}
	}
}

// withComponent is the base with components.
func withComponent(t *testing.T, components ...string) map[string]any {
	t.Helper()
	dir := t.TempDir()
	config, err := filepath.Abs(configDir)
	if err != nil {
		t.Fatal(err)
	}
	if config, err = filepath.Rel(dir, config); err != nil {
		t.Fatal(err)
	}
	for i, c := range components {
		components[i] = config + "/" + c
	}
	text := "resources: [" + config + "]\ncomponents: [" + strings.Join(components, ", ") + "]\n"
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kustomize(t, dir)
}

// missing are the names in from that are not in to.
func missing(from, to map[string]any) (names []string) {
	for name := range from {
		if _, ok := to[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// namesIn are the objects of a file of config.
func namesIn(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(configDir, file))
	if err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(objects(t, text)))
}

// The kustomizations of docs/install.md build as they are there. The patch for storage, nodes, memory and pull secrets
// changes what it names, and nothing else.
func TestInstall_KustomizationsBuild(t *testing.T) {
	t.Parallel()
	config, err := filepath.Abs(configDir)
	if err != nil {
		t.Fatal(err)
	}
	patched := 0
	for _, text := range page(t, "install.md")["Kustomization"] {
		if !strings.Contains(text, "resources: [config]") {
			continue // Flux's
		}
		dir := t.TempDir()
		here, err := filepath.Rel(dir, config)
		if err != nil {
			t.Fatal(err)
		}
		text = strings.NewReplacer("[config]", "["+here+"]", "- config/", "- "+here+"/").Replace(text)
		if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		built := kustomize(t, dir)
		if !strings.Contains(text, "patches:") {
			continue
		}
		patched++
		set, before := typed[appsv1.StatefulSet](t, built["StatefulSet/reschedule-adapter"]), adapter(t)
		claim, pod := &set.Spec.VolumeClaimTemplates[0].Spec, &set.Spec.Template.Spec
		memory := pod.Containers[0].Resources.Limits.Memory()
		if !is(claim.StorageClassName, "fast") || claim.Resources.Requests.Storage().String() != "50Gi" || memory.String() != "2Gi" ||
			pod.NodeSelector["disk"] != "ssd" || len(pod.Tolerations) != 1 || len(pod.ImagePullSecrets) != 1 {
			t.Errorf("the patch makes %+v of the claim, and %+v", claim, pod)
		}
		claim.StorageClassName, claim.Resources = nil, before.Spec.VolumeClaimTemplates[0].Spec.Resources
		pod.NodeSelector, pod.Tolerations, pod.ImagePullSecrets = nil, nil, nil
		c, old := &pod.Containers[0], before.Spec.Template.Spec.Containers[0]
		limit := slices.IndexFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == "GOMEMLIMIT" })
		if want := fmt.Sprintf("%dMiB", memory.Value()*85/100>>20); c.Env[limit].Value != want {
			t.Errorf("GOMEMLIMIT is %s, want 85 %% of the limit: %s", c.Env[limit].Value, want)
		}
		c.Env, c.Resources = old.Env, old.Resources
		if diff := cmp.Diff(before.Spec, set.Spec); diff != "" {
			t.Errorf("more has changed (-before +patched):\n%s", diff)
		}
	}
	if patched != 1 {
		t.Errorf("%d kustomizations have patches", patched)
	}
}
