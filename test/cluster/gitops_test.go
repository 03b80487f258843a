package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"

	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// inventory is the label by which the tool of this test finds what it applied, as Flux does.
const inventory = "kustomize.toolkit.fluxcd.io/name"

// shippedAll are the objects of config, which reschedule.yaml holds with other images.
func shippedAll(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	files, err := filepath.Glob("../../config/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("the manifests are %v: %v", files, err)
	}
	var all []*unstructured.Unstructured
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := kube.Objects(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, objects...)
	}
	return all
}

// applyAs applies objects server-side with a field manager of its own, and
// returns what it made of them, by kind and name.
func applyAs(ctx context.Context, manager string, objects []*unstructured.Unstructured) (map[string]*unstructured.Unstructured, error) {
	made := map[string]*unstructured.Unstructured{}
	for _, o := range objects {
		resource, err := server.Resource(o.GroupVersionKind(), o.GetNamespace())
		if err != nil {
			return nil, err
		}
		got, err := resource.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: manager, Force: true})
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
		made[o.GetKind()+"/"+o.GetName()] = got
	}
	return made, nil
}

const adapterName = "reschedule-adapter"

func statefulSets() appsclient.StatefulSetInterface {
	return server.Client.AppsV1().StatefulSets(kube.SystemNamespace)
}

// scaled waits until the adapter has so many replicas, and returns its StatefulSet.
func scaled(t *testing.T, want int32) (set *appsv1.StatefulSet) {
	t.Helper()
	settle(t, func() bool {
		var err error
		set, err = statefulSets().Get(t.Context(), adapterName, metav1.GetOptions{})
		return err == nil && *set.Spec.Replicas == want && set.Status.ObservedGeneration == set.Generation
	}, "the adapter does not have %d replicas", want)
	return set
}

// Argo CD and Flux apply all manifests server-side again and again, and prune by an inventory. Nothing changes, and what
// the controller wrote stays, with a source and without one. It is not parallel: all tests share the StatefulSet.
func TestGitOps_RepeatedApplies(t *testing.T) {
	p, sink := running(t), newSink(t)
	ns := namespace(t, "gitops")
	accounts(t, ns, "watcher")
	s := &source{programs: p, t: t, namespace: ns, name: "x", client: typedSourcesIn(t, ns)}
	s.make(to(sink, "in") + "watch: {serviceAccountName: watcher, resources: [{apiVersion: v1, kind: Secret}]}\n")
	scaled(t, 1)
	settle(t, func() bool { return watchAccount(t, ns) }, "the controller does not allow the account")

	const manager = "kustomize-controller"
	plain, tracked := shippedAll(t), shippedAll(t)
	kinds := map[schema.GroupVersionKind]bool{}
	for _, o := range tracked {
		labels := o.GetLabels()
		labels[inventory] = "reschedule"
		o.SetLabels(labels)
		kinds[o.GroupVersionKind()] = true
	}
	t.Cleanup(func() { // without the label
		if _, err := applyAs(context.Background(), manager, plain); err != nil {
			t.Error(err)
		}
	})
	repeat := func() {
		t.Helper()
		before, err := applyAs(t.Context(), manager, tracked)
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			unchanged(t, before, manager, tracked, kinds)
		}
	}
	repeat()
	if !watchAccount(t, ns) {
		t.Error("the rules that the controller wrote are gone")
	}
	scaled(t, 1)
	s.delete()
	scaled(t, 0)
	settle(t, func() bool { return !watchAccount(t, ns) }, "the controller still allows the account")
	repeat()
	scaled(t, 0)
}

// watchAccount says whether the controller lets the adapter watch with an account of the namespace.
func watchAccount(t *testing.T, ns string) bool {
	t.Helper()
	role, err := server.Client.RbacV1().ClusterRoles().Get(t.Context(), resources.WatchRoleName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
		return slices.ContainsFunc(r.ResourceNames, func(account string) bool { return strings.HasPrefix(account, ns+":") })
	})
}

// unchanged applies the objects once more, and wants each to be as it was, and no other to have their label.
func unchanged(t *testing.T, before map[string]*unstructured.Unstructured, manager string, tracked []*unstructured.Unstructured, kinds map[schema.GroupVersionKind]bool) {
	t.Helper()
	after, err := applyAs(t.Context(), manager, tracked)
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range after {
		was := before[name]
		if o.GetUID() != was.GetUID() || o.GetGeneration() != was.GetGeneration() {
			t.Fatalf("%s has generation %d, and had %d", name, o.GetGeneration(), was.GetGeneration())
		}
		if o.GetResourceVersion() != was.GetResourceVersion() {
			t.Fatalf("%s has resourceVersion %s, and had %s", name, o.GetResourceVersion(), was.GetResourceVersion())
		}
	}
	for kind := range kinds {
		resource, err := server.Resource(kind, "")
		if err != nil {
			t.Fatal(err)
		}
		found, err := resource.List(t.Context(), metav1.ListOptions{LabelSelector: inventory + "=reschedule"})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range found.Items {
			if before[o.GetKind()+"/"+o.GetName()] == nil {
				t.Errorf("%s %s would be pruned: the tool did not apply it", o.GetKind(), o.GetName())
			}
		}
	}
}
