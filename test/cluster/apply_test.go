package cluster

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"

	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// The tests of this file replace the adapter's StatefulSet, which all tests
// share, so none of them is parallel.

const adapterName = "reschedule-adapter"

func statefulSets() appsclient.StatefulSetInterface {
	return server.Client.AppsV1().StatefulSets(kube.SystemNamespace)
}

// scaled waits until the adapter has so many replicas, and returns its
// StatefulSet.
func scaled(t *testing.T, want int32) *appsv1.StatefulSet {
	t.Helper()
	var set *appsv1.StatefulSet
	settle(t, func() bool {
		var err error
		set, err = statefulSets().Get(t.Context(), adapterName, metav1.GetOptions{})
		return err == nil && *set.Spec.Replicas == want
	}, "the adapter does not have %d replicas", want)
	return set
}

// Tools such as Argo CD, Flux and the Knative Operator apply the manifests
// again and again. That must neither scale nor restart anything.
func TestApply_Repeated(t *testing.T) {
	p, sink := running(t), newSink(t)
	s := p.create(t, namespace(t, "apply"), "x", to(sink, "in"))
	applyRepeatedly(t, 1)
	s.delete()
	applyRepeatedly(t, 0)
}

// applyRepeatedly applies the workloads 100 times. Every version of the
// StatefulSet must have so many replicas, and the generation that it had before.
func applyRepeatedly(t *testing.T, replicas int32) {
	t.Helper()
	files, err := filepath.Glob("../../config/500-*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("the manifests are %v: %v", files, err)
	}
	before, controller := scaled(t, replicas), deployment(t)
	follow, err := statefulSets().Watch(t.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, adapterName).String(), ResourceVersion: before.ResourceVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer follow.Stop()
	for range 100 {
		if err := server.ApplyFiles(t.Context(), files...); err != nil {
			t.Fatal(err)
		}
	}
	// An annotation of the test is the last change that the watch has to show.
	annotate(t, `"end"`)
	for event := range follow.ResultChan() {
		set, ok := event.Object.(*appsv1.StatefulSet)
		if !ok || event.Type != watch.Modified || set.Generation != before.Generation || *set.Spec.Replicas != replicas {
			t.Fatalf("with %d replicas: %s of %+v", replicas, event.Type, event.Object)
		}
		if set.Annotations["test"] == "end" {
			annotate(t, "null")
			if after := deployment(t); after.Generation != controller.Generation {
				t.Errorf("the controller's generation was %d and is %d", controller.Generation, after.Generation)
			}
			return
		}
	}
	t.Error("the watch ended before the last change")
}

func annotate(t *testing.T, value string) {
	t.Helper()
	patch := []byte(`{"metadata":{"annotations":{"test":` + value + `}}}`)
	if _, err := statefulSets().Patch(t.Context(), adapterName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func deployment(t *testing.T) *appsv1.Deployment {
	t.Helper()
	d, err := server.Client.AppsV1().Deployments(kube.SystemNamespace).Get(t.Context(), "reschedule-controller", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A StatefulSet is made with one replica, the default of the API. Without a
// source the controller sets 0, with one the adapter starts at once.
func TestApply_FirstTime(t *testing.T) {
	p, sink := running(t), newSink(t)
	scaled(t, 0)
	remove(t)
	if made := clientSideApply(t, shipped(t)); *made.Spec.Replicas != 1 {
		t.Errorf("it is made with %d replicas", *made.Spec.Replicas)
	}
	scaled(t, 0)

	s := p.create(t, namespace(t, "first"), "x", to(sink, "in"))
	remove(t)
	clientSideApply(t, shipped(t))
	s.ready()
	if set := scaled(t, 1); set.Generation != 1 {
		t.Errorf("the controller changed what was right: generation %d", set.Generation)
	}
	s.delete()
	scaled(t, 0)
}

// An older manifest had replicas: 0. kubectl apply resets a field that is gone
// from a manifest to its default, which is right with a source, and which the
// controller corrects without one.
func TestApply_OverReplicasZero(t *testing.T) {
	p, sink := running(t), newSink(t)
	older := shipped(t)
	if err := unstructured.SetNestedField(older.Object, int64(0), "spec", "replicas"); err != nil {
		t.Fatal(err)
	}
	for name, apply := range map[string]func(*testing.T, *unstructured.Unstructured) *appsv1.StatefulSet{
		"client side": clientSideApply, "server side": serverSideApply,
	} {
		remove(t)
		apply(t, older)
		if set := scaled(t, 0); set.Generation != 1 {
			t.Errorf("%s: generation %d without a source", name, set.Generation)
		}
		if reset := apply(t, shipped(t)); *reset.Spec.Replicas != 1 {
			t.Errorf("%s: without a source the newer manifest sets %d replicas", name, *reset.Spec.Replicas)
		}
		scaled(t, 0)

		remove(t)
		apply(t, older)
		s := p.create(t, namespace(t, "older"), "x", to(sink, "in"))
		before := scaled(t, 1)
		if after := apply(t, shipped(t)); after.Generation != before.Generation || *after.Spec.Replicas != 1 {
			t.Errorf("%s: generation %d was %d, with %d replicas", name, after.Generation, before.Generation, *after.Spec.Replicas)
		}
		s.ready()
		s.delete()
		scaled(t, 0)
	}
}

// Two fields cannot be changed. docs/upgrade.md has the command that takes
// the older StatefulSet away and leaves its pod.
func TestApply_OverImmutableFields(t *testing.T) {
	p, sink := running(t), newSink(t)
	older := shipped(t)
	unstructured.RemoveNestedField(older.Object, "spec", "podManagementPolicy")
	if err := unstructured.SetNestedField(older.Object, "reschedule-adapter", "spec", "serviceName"); err != nil {
		t.Fatal(err)
	}
	remove(t)
	clientSideApply(t, older)
	s := p.create(t, namespace(t, "immutable"), "x", to(sink, "in"))
	s.served()
	s.put("far", `{"delay":"1h"}`)
	_, err := tryClientSideApply(t, shipped(t))
	if !apierrors.IsInvalid(err) || !kube.RefusedAsImmutable(err) {
		t.Fatalf("over the older form: %v", err)
	}
	scaled(t, 1)
	remove(t)
	if got := s.status("far"); got != 200 {
		t.Errorf("without a StatefulSet the adapter answers %d", got)
	}
	clientSideApply(t, shipped(t))
	s.ready()
	if set := scaled(t, 1); set.Generation != 1 {
		t.Errorf("the controller changed what was right: generation %d", set.Generation)
	}
	s.delete()
	scaled(t, 0)
}

// shipped is the adapter's StatefulSet of config.
func shipped(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile("../../config/500-adapter.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := kube.Objects(text)
	if err != nil || len(objects) != 1 || objects[0].GetName() != adapterName {
		t.Fatalf("config/500-adapter.yaml has %d objects: %v", len(objects), err)
	}
	return objects[0]
}

// remove deletes the StatefulSet. There are no pods here that --cascade=orphan
// could leave: the adapter is a process of the tests and stays.
func remove(t *testing.T) {
	t.Helper()
	if err := statefulSets().Delete(t.Context(), adapterName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // whatever the test did, the others find it as shipped
		if err := server.ApplyFiles(context.Background(), "../../config/500-adapter.yaml"); err != nil {
			t.Error(err)
		}
	})
}

func serverSideApply(t *testing.T, o *unstructured.Unstructured) *appsv1.StatefulSet {
	t.Helper()
	text, err := o.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	// The answer, since the controller may correct the object a moment later.
	force := true
	set, err := statefulSets().Patch(t.Context(), adapterName, types.ApplyPatchType, text, metav1.PatchOptions{
		FieldManager: "kube-test", Force: &force, FieldValidation: metav1.FieldValidationStrict,
	})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func clientSideApply(t *testing.T, o *unstructured.Unstructured) *appsv1.StatefulSet {
	t.Helper()
	set, err := tryClientSideApply(t, o)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// tryClientSideApply does what kubectl apply does: it keeps the manifest in an
// annotation, and sends a patch made of the last manifest, the new one and the
// object.
func tryClientSideApply(t *testing.T, o *unstructured.Unstructured) (*appsv1.StatefulSet, error) {
	t.Helper()
	manifest, err := o.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	o = o.DeepCopy()
	o.SetAnnotations(map[string]string{lastApplied: string(manifest)})
	modified, err := o.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	current, err := statefulSets().Get(t.Context(), adapterName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		var set appsv1.StatefulSet
		if err := json.Unmarshal(modified, &set); err != nil {
			t.Fatal(err)
		}
		return statefulSets().Create(t.Context(), &set, metav1.CreateOptions{})
	}
	if err != nil {
		return nil, err
	}
	live, err := json.Marshal(current)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := strategicpatch.NewPatchMetaFromStruct(&appsv1.StatefulSet{})
	if err != nil {
		t.Fatal(err)
	}
	patch, err := strategicpatch.CreateThreeWayMergePatch([]byte(current.Annotations[lastApplied]), modified, live, schema, true)
	if err != nil {
		t.Fatal(err)
	}
	return statefulSets().Patch(t.Context(), adapterName, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
}

const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"
