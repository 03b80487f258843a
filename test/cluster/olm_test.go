package cluster

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// csv is the part of a ClusterServiceVersion that says what to install.
type csv struct {
	Metadata metav1.ObjectMeta
	Spec     struct {
		Install struct {
			Spec struct {
				Permissions, ClusterPermissions []struct {
					ServiceAccountName string
					Rules              []rbacv1.PolicyRule
				}
				Deployments []struct {
					Name  string
					Label map[string]string
					Spec  appsv1.DeploymentSpec
				}
			}
		}
	}
}

// digest is the digest of an image that is never pulled.
func digest(of string) string { return "@sha256:" + strings.Repeat(of, 64) }

// bundle makes the bundle as a release does, with images that do not exist, and returns
// the directory of its manifests.
func bundle(t *testing.T) string {
	t.Helper()
	config, out := filepath.Join(t.TempDir(), "config"), t.TempDir()
	if err := os.CopyFS(config, os.DirFS("../../config")); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"500-controller.yaml", "components/manage-adapter/controller.yaml"} {
		text, err := os.ReadFile(filepath.Join(config, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"adapter", "controller"} {
			text = []byte(strings.ReplaceAll(string(text), "ko://github.com/reschedule-dev/reschedule/cmd/"+name+"\n", "registry.test/"+name+digest("a")+"\n"))
		}
		if err := os.WriteFile(filepath.Join(config, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if said, err := exec.CommandContext(t.Context(), "../../hack/olm-bundle.sh", config, "v0.0.1", out).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return filepath.Join(out, "manifests")
}

// installBundle does what OLM does with a bundle: objects go into the namespace of the
// installation; each account of the install strategy is made, with roles of the strategy's
// rules; then the Deployments are made.
func installBundle(t *testing.T, dir string) csv {
	t.Helper()
	var c csv
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) < 10 {
		t.Fatalf("the bundle has the files %v: %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, ".clusterserviceversion.yaml") {
			if err := yaml.Unmarshal(text, &c); err != nil {
				t.Fatal(err)
			}
		} else if err := server.ApplyIn(t.Context(), kube.SystemNamespace, text); err != nil {
			t.Fatal(err)
		}
	}
	made := metav1.ObjectMeta{GenerateName: c.Metadata.Name + "-", Namespace: kube.SystemNamespace}
	ref := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	subject := func(account string) []rbacv1.Subject {
		err := server.Apply(t.Context(), fmt.Appendf(nil, "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: %s, namespace: %s}\n", account, kube.SystemNamespace))
		if err != nil {
			t.Fatal(err)
		}
		return []rbacv1.Subject{{Kind: "ServiceAccount", Name: account, Namespace: kube.SystemNamespace}}
	}
	strategy, rbac := c.Spec.Install.Spec, server.Client.RbacV1()
	for _, p := range strategy.Permissions {
		role, err := rbac.Roles(kube.SystemNamespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: made, Rules: p.Rules}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		binding := &rbacv1.RoleBinding{ObjectMeta: made, Subjects: subject(p.ServiceAccountName), RoleRef: ref("Role", role.Name)}
		if _, err := rbac.RoleBindings(kube.SystemNamespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	made.Namespace = ""
	for _, p := range strategy.ClusterPermissions {
		role, err := rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: made, Rules: p.Rules}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: made, Subjects: subject(p.ServiceAccountName), RoleRef: ref("ClusterRole", role.Name)}
		if _, err := rbac.ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range strategy.Deployments {
		o := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: d.Name, Labels: d.Label}, Spec: d.Spec}
		if _, err := server.Client.AppsV1().Deployments(kube.SystemNamespace).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := server.AggregateRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// underOLM installs the bundle into an API server of its own, and starts the programs as
// the pods of the Deployment and the StatefulSet would. The usual controller is stopped
// meanwhile, since the port of its probes has no setting.
func underOLM(t *testing.T) *programs {
	t.Helper()
	usual, before := running(t), server
	manifests, dir := bundle(t), filepath.Join(scratch, "olm")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	other, err := kube.Start(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := usual.controller.Terminate(t.Context()); err != nil {
		t.Error(err)
	}
	server = other // which the helpers of this package use
	p := &programs{dir: dir, namespace: kube.SystemNamespace, config: map[string]string{}, binary: usual.binary, listen: "127.0.0.1:0"}
	t.Cleanup(func() {
		if p.controller != nil {
			p.stop()
		}
		if err := other.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		server = before
		if err := usual.startController(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := server.InstallEventing(t.Context()); err != nil {
		t.Fatal(err)
	}
	container := installBundle(t, manifests).Spec.Install.Spec.Deployments[0].Spec.Template.Spec.Containers[0]
	p.flags = container.Args
	for _, e := range container.Env {
		if e.ValueFrom == nil {
			p.env = append(p.env, e.Name+"="+e.Value)
		}
	}
	for _, account := range []string{controllerAccount, adapterAccount} {
		if p.config[account], err = server.Kubeconfig(t.Context(), kube.SystemNamespace, account); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.startController(t.Context()); err != nil {
		t.Fatal(err)
	}
	node, end := context.WithCancel(context.Background())
	p.endNode = end
	go other.RunNode(node, kube.SystemNamespace)
	if err := p.startAdapter(); err != nil {
		t.Fatal(err)
	}
	return p
}

// The bundle is all that is installed. The controller makes the adapter, keeps it as its
// version wants it, and leaves the number of replicas to the scaler.
func TestOLM_BundleRunsTheQuickStart(t *testing.T) {
	p, sink := underOLM(t), newSink(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the controller:\n%s\nthe adapter:\n%s", tail(p.controller.Log()), tail(p.adapter.Log()))
		}
	})
	set := scaled(t, 0) // there is no source yet
	deployment, err := server.Client.AppsV1().Deployments(kube.SystemNamespace).Get(t.Context(), "reschedule-controller", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if o := set.OwnerReferences; len(o) != 1 || o[0].Kind != "Deployment" || o[0].UID != deployment.UID {
		t.Errorf("the owners are %+v", o)
	}
	if diff := cmp.Diff(shippedPods(t, "registry.test/adapter"+digest("a")), set.Spec.Template); diff != "" {
		t.Errorf("the pods (-config +made):\n%s", diff)
	}

	// A key is scheduled, asks for another time, and is cancelled.
	sink.Answer("in", "", func(w http.ResponseWriter, _ *http.Request, _ *harness.Delivery) {
		w.Header().Set("Reschedule-After", "1s")
		w.WriteHeader(http.StatusNoContent)
	})
	s := p.create(t, namespace(t, "quickstart"), "builds", to(sink, "in"))
	scaled(t, 1)
	s.served()
	s.put("Build/web", `{"delay":"1s","event":{"data":{"readyAt":"2099-01-01T00:00:00Z"}}}`)
	sink.Next(t, "in", "Build/web")
	sink.Next(t, "in", "Build/web") // it asked for that
	if r := s.call(s.token, http.MethodDelete, harness.KeyPath("Build/web"), ""); r.Status >= 300 {
		t.Errorf("DELETE: %d %s", r.Status, r.Body)
	}

	t.Run("drift is repaired", func(t *testing.T) {
		container := `{"spec":{"template":{"spec":{"containers":[{"name":"adapter","image":"example.com/other"}]}}}}`
		if _, err := statefulSets().Patch(t.Context(), adapterName, types.StrategicMergePatchType, []byte(container), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		hasImage(t, "registry.test/adapter"+digest("a"))
		if err := statefulSets().Delete(t.Context(), adapterName, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if again := scaled(t, 1); again.UID == set.UID {
			t.Error("the StatefulSet is the deleted one")
		}
	})

	s.delete()
	scaled(t, 0)
}

// hasImage waits until the adapter has the image, and one replica.
func hasImage(t *testing.T, image string) {
	t.Helper()
	settle(t, func() bool {
		o, err := statefulSets().Get(t.Context(), adapterName, metav1.GetOptions{})
		return err == nil && o.Spec.Template.Spec.Containers[0].Image == image && *o.Spec.Replicas == 1
	}, "the adapter does not have the image %s and one replica", image)
}

// shippedPods is the pod template of config with another image, as the API server stores it.
func shippedPods(t *testing.T, image string) corev1.PodTemplateSpec {
	t.Helper()
	text, err := os.ReadFile("../../config/500-adapter.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.StatefulSet
	if err := yaml.UnmarshalStrict(text, &set); err != nil {
		t.Fatal(err)
	}
	set.Name = "shipped"
	set.Spec.Template.Spec.Containers[0].Image = image
	stored, err := statefulSets().Create(t.Context(), &set, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Fatal(err)
	}
	return stored.Spec.Template
}
