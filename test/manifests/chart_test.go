package manifests

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// helm runs Helm, of the module test/operators. With an error it returns what Helm said.
func helm(t *testing.T, args ...string) ([]byte, error) {
	t.Helper()
	for _, dir := range []string{"../../charts", configDir} { // as in kustomize
		if err := fs.WalkDir(os.DirFS(dir), ".", func(string, fs.DirEntry, error) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat("../operators/go.mod"); err != nil {
		t.Fatal(err)
	}
	chart, err := filepath.Abs("../../charts/reschedule")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", slices.Concat([]string{"-C", "../operators", "tool", "helm"}, args, []string{chart})...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return append(out, said.Bytes()...), err
	}
	return out, nil
}

// rendered are the objects of the chart with these values (--set), in the namespace.
func rendered(t *testing.T, namespace string, values ...string) map[string]any {
	t.Helper()
	args := []string{"template", "reschedule", "--kube-version", "1.34.0", "--namespace", namespace}
	for _, v := range values {
		args = append(args, "--set", v)
	}
	out, err := helm(t, args...)
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, out)
	}
	return objects(t, out)
}

// The chart has the objects of the kustomization, in both forms and with each part: both are the files of config/. It differs
// in what Helm has its own way for: the namespace is the user's, and the CRD stays when the chart goes.
func TestChart_IsTheKustomization(t *testing.T) {
	t.Parallel()
	without := func(components ...string) map[string]any {
		built := withComponent(t, append(components, "without-knative")...)
		delete(built, "Namespace/reschedule-system")
		return built
	}
	for name, row := range map[string]struct {
		namespace string
		values    []string
		want      func() map[string]any
	}{
		"with Knative":    {"knative-eventing", []string{"knative=true"}, func() map[string]any { return kustomize(t, configDir) }},
		"without Knative": {"reschedule-system", nil, func() map[string]any { return without() }},
		"all parts": {
			"reschedule-system", []string{"adapter.replicated=true", "tls.enabled=true", "monitoring=true", "cli=true"},
			func() map[string]any { return without("replicated", "peer-certificates", "tls", "monitoring", "cli") },
		},
		"fewest parts": {
			"reschedule-system", []string{"networkPolicies=false", "sinkTokens=false", "watching=false"},
			func() map[string]any {
				return without("components/no-network-policies", "components/no-sink-tokens", "components/no-watching")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := rendered(t, row.namespace, row.values...)
			annotations := below[map[string]any](t, got, "CustomResourceDefinition/reschedulesources.sources.reschedule.dev", "metadata", "annotations")
			if annotations["helm.sh/resource-policy"] != "keep" {
				t.Error("helm uninstall deletes the CRD, and with it all sources")
			}
			delete(annotations, "helm.sh/resource-policy")
			// The order of what has a name does not count.
			byName := cmpopts.SortSlices(func(a, b any) bool { return cmp.Less(nameOf(a), nameOf(b)) })
			want := row.want()
			if more, less := missing(got, want), missing(want, got); more != nil || less != nil {
				t.Errorf("the chart also has %v, and has no %v", more, less)
			}
			for name, o := range want {
				if diff := gocmp.Diff(o, got[name], byName); diff != "" {
					t.Errorf("%s (-kustomize +helm):\n%s", name, diff)
				}
			}
		})
	}
}

func nameOf(o any) string {
	named, _ := o.(map[string]any)
	name, _ := named["name"].(string)
	return name
}

// below is what is below a path of maps.
func below[T any](t *testing.T, in map[string]any, path ...string) T {
	t.Helper()
	for _, key := range path[:len(path)-1] {
		in, _ = in[key].(map[string]any)
	}
	out, ok := in[path[len(path)-1]].(T)
	if !ok {
		t.Fatalf("there is no %v", path)
	}
	return out
}

// Each value reaches the object that values.yaml says, GOMEMLIMIT follows the limit of memory, and any namespace is in the
// policies and is one whose sources must not watch.
func TestChart_Values(t *testing.T) {
	t.Parallel()
	got := rendered(t, "other", "crd=false", "namespace=mine", "images.adapter=registry/adapter@sha256:1", "images.controller=registry/controller:2",
		"imagePullSecrets[0].name=registry", "adapter.resources.limits.memory=2Gi", "adapter.resources.requests.cpu=500m", "adapter.storage.size=50Gi",
		"adapter.storage.className=fast", "adapter.extraArgs[0]=--log-level=debug", "adapter.pod.nodeSelector.disk=ssd", "controller.replicas=2",
		"controller.resources.limits.memory=1000Mi", "controller.extraArgs[0]=--x", "controller.pod.priorityClassName=high", "config.max-bytes=4Gi")
	if got["CustomResourceDefinition/reschedulesources.sources.reschedule.dev"] != nil {
		t.Error("there is a CRD")
	}
	set, before := typed[appsv1.StatefulSet](t, got["StatefulSet/reschedule-adapter"]), adapter(t)
	pod := set.Spec.Template.Spec
	c, claim := pod.Containers[0], set.Spec.VolumeClaimTemplates[0].Spec
	if set.Namespace != "mine" || c.Image != "registry/adapter@sha256:1" || pod.ImagePullSecrets[0].Name != "registry" || pod.NodeSelector["disk"] != "ssd" ||
		c.Resources.Limits.Memory().String() != "2Gi" || c.Resources.Requests.Cpu().String() != "500m" || c.Resources.Requests.Memory().String() != "64Mi" ||
		claim.Resources.Requests.Storage().String() != "50Gi" || !is(claim.StorageClassName, "fast") {
		t.Errorf("the adapter is %+v, with %+v", set.Spec, claim)
	}
	if diff := gocmp.Diff(append(slices.Clone(before.Spec.Template.Spec.Containers[0].Args), "--log-level=debug"), c.Args); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	d := typed[appsv1.Deployment](t, got["Deployment/reschedule-controller"])
	if of := d.Spec.Template.Spec; *d.Spec.Replicas != 2 || of.Containers[0].Image != "registry/controller:2" || of.PriorityClassName != "high" ||
		!slices.Equal(of.Containers[0].Args, []string{"--x"}) || of.ImagePullSecrets[0].Name != "registry" {
		t.Errorf("the controller is %+v", d.Spec)
	}
	for _, limit := range []struct {
		of   []corev1.EnvVar
		want string
	}{{c.Env, "1740MiB"}, {d.Spec.Template.Spec.Containers[0].Env, "800MiB"}} {
		if !slices.ContainsFunc(limit.of, func(v corev1.EnvVar) bool { return v.Name == "GOMEMLIMIT" && v.Value == limit.want }) {
			t.Errorf("GOMEMLIMIT is not %s: %v", limit.want, limit.of)
		}
	}
	if data := below[map[string]any](t, got, "ConfigMap/config-reschedule", "data"); data["max-bytes"] != "4Gi" || data["_example"] == nil {
		t.Errorf("config-reschedule has %v", data)
	}
	for policy, texts := range map[string][]string{
		"reschedule-adapter-tokens": {"system:serviceaccount:mine:reschedule-adapter", "'reschedule-system', 'mine']"},
		"reschedule-status":         {"system:serviceaccount:mine:reschedule-controller", "system:serviceaccount:mine:reschedule-adapter"},
	} {
		text, err := json.Marshal(got["ValidatingAdmissionPolicy/"+policy])
		if err != nil {
			t.Fatal(err)
		}
		all := string(text)
		for _, text := range texts {
			if !strings.Contains(all, text) || strings.Contains(all, "serviceaccount:knative-eventing") {
				t.Errorf("%s has no %s: %s", policy, text, all)
			}
		}
	}
}

// Helm finds nothing wrong with the chart, and a bad value is refused by its name.
func TestChart_Lint(t *testing.T) {
	t.Parallel()
	if out, err := helm(t, "lint", "--strict"); err != nil {
		t.Errorf("helm lint: %v\n%s", err, out)
	}
	for value, field := range map[string]string{
		"knative=maybe": "/knative", "unknown=1": "unknown", "namespace=A_b": "/namespace", "adapter.storage.size=big": "/adapter/storage/size",
		"adapter.resources.limits.memory=2G": "/adapter/resources/limits/memory", "adapter.replicas=3": "replicas", "controller.replicas=-1": "/controller/replicas",
		"adapter.extraArgs[0]=x": "/adapter/extraArgs/0", "tls.issuerRef.name=": "/tls/issuerRef/name",
	} {
		if out, err := helm(t, "template", "--kube-version", "1.34.0", "--set", value, "reschedule"); err == nil || !strings.Contains(string(out), field) {
			t.Errorf("%s is not refused by its name: %s", value, out)
		}
	}
}
