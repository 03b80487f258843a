package reschedulesource

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clientgotesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
)

// installing is an installer whose applies get an answer, and the bodies that it sends.
func installing(t *testing.T, answer func() (runtime.Object, error)) (*installer, *record.FakeRecorder, *[]string) {
	t.Helper()
	text, err := os.ReadFile("../../../config/500-adapter.yaml")
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := resources.AdapterStatefulSet(text, resources.AdapterSettings{Version: "v1", Image: "registry/adapter"})
	if err != nil {
		t.Fatal(err)
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: resources.ControllerName, UID: "the-owner"}}
	kube := fake.NewSimpleClientset(deployment)
	var sent []string
	kube.PrependReactor("patch", "statefulsets", func(a clientgotesting.Action) (bool, runtime.Object, error) {
		patch := a.(clientgotesting.PatchAction)
		if patch.GetPatchType() != types.ApplyPatchType || patch.GetSubresource() != "" || patch.GetName() != adapterKey.Name {
			t.Errorf("%+v is no apply of the adapter", patch)
		}
		sent = append(sent, string(patch.GetPatch()))
		o, err := answer()
		return true, o, err
	})
	events := record.NewFakeRecorder(10)
	return &installer{kube: kube, recorder: events, wanted: wanted}, events, &sent
}

// The apply has the owner and no number of replicas; what it made is not applied again.
func TestInstaller_AppliesOnceForEachChange(t *testing.T) {
	t.Parallel()
	made := adapter(1, 1)
	i, events, sent := installing(t, func() (runtime.Object, error) { return made, nil })
	for range 2 {
		got, err := i.apply(t.Context(), systemNamespace, nil)
		if err != nil || got.ResourceVersion != made.ResourceVersion {
			t.Fatalf("%+v: %v", got, err)
		}
	}
	if _, err := i.apply(t.Context(), systemNamespace, made); err != nil || len(*sent) != 2 {
		t.Errorf("%d applies, want 2: %v", len(*sent), err)
	}
	changed := adapter(1, 1)
	changed.ResourceVersion = "42"
	if _, err := i.apply(t.Context(), systemNamespace, changed); err != nil || len(*sent) != 3 {
		t.Errorf("%d applies after a change, want 3: %v", len(*sent), err)
	}
	var body appsv1.StatefulSet
	if err := json.Unmarshal([]byte((*sent)[0]), &body); err != nil {
		t.Fatal(err)
	}
	if body.Spec.Replicas != nil || len(body.OwnerReferences) != 1 || body.OwnerReferences[0].UID != "the-owner" || body.Namespace != systemNamespace {
		t.Errorf("applied is %s", (*sent)[0])
	}
	if e := <-events.Events; !strings.Contains(e, "AdapterApplied") {
		t.Error(e)
	}
}

// A change that cannot be made is told once, and the adapter goes on as it is.
func TestInstaller_RefusalIsToldOnce(t *testing.T) {
	t.Parallel()
	i, events, sent := installing(t, func() (runtime.Object, error) {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "StatefulSet"}, adapterKey.Name, nil)
	})
	for range 3 {
		if got, err := i.apply(t.Context(), systemNamespace, adapter(1, 1)); err != nil || got == nil {
			t.Fatalf("%+v: %v", got, err)
		}
	}
	if len(*sent) != 1 || len(events.Events) != 1 {
		t.Fatalf("%d applies and %d Events, want one of each", len(*sent), len(events.Events))
	}
	if e := <-events.Events; !strings.Contains(e, "AdapterNotApplied") || !strings.Contains(e, "set ADAPTER_VOLUME_SIZE") {
		t.Error(e)
	}
	if _, err := i.apply(t.Context(), systemNamespace, nil); err == nil {
		t.Error("there is no adapter, and no error")
	}
}

// Without its Deployment the controller makes nothing that would outlive it.
func TestInstaller_NeedsItsDeployment(t *testing.T) {
	t.Parallel()
	i, _, sent := installing(t, func() (runtime.Object, error) { return adapter(1, 1), nil })
	i.kube = fake.NewSimpleClientset()
	if _, err := i.apply(t.Context(), systemNamespace, nil); err == nil || len(*sent) > 0 {
		t.Errorf("%d applies: %v", len(*sent), err)
	}
}
