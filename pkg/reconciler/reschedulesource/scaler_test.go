package reschedulesource

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgotesting "k8s.io/client-go/testing"
	"knative.dev/pkg/reconciler"
	. "knative.dev/pkg/reconciler/testing"

	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
)

func patched(body string) []clientgotesting.PatchActionImpl {
	return []clientgotesting.PatchActionImpl{{Name: adapterKey.Name, Patch: []byte(body)}}
}

// An adapter has one replica while there is a source, and else none; a group has its own number. Nothing is scaled
// while it is unknown whether there is a source.
func TestScale_ZeroAndOne(t *testing.T) {
	t.Parallel()
	const (
		toOne  = `{"metadata":{"resourceVersion":"41"},"spec":{"replicas":1}}`
		toZero = `{"metadata":{"resourceVersion":"41"},"spec":{"replicas":0}}`
	)
	unset := adapter(1, 1)
	unset.Spec.Replicas = nil
	deleting := source(deleted)
	group := func(replicas int32) *appsv1.StatefulSet {
		s := adapter(replicas, replicas)
		s.Annotations = map[string]string{resources.ReplicatedAnnotation: "true"}
		return s
	}
	toThree := patched(`{"metadata":{"resourceVersion":"41"},"spec":{"replicas":3}}`)
	down := []string{Eventf("Normal", "ScaledDown", "Scaled from 1 to 0: there is no RescheduleSource; the volume is kept")}
	for _, row := range (TableTest{{
		Name: "bad workqueue key",
		Key:  "too/many/parts",
	}, {
		Name:    "another key",
		Key:     "ops/reschedule-adapter",
		Objects: []runtime.Object{source(), adapter(0, 0)},
	}, {
		Name:    "key not found",
		Objects: []runtime.Object{source()},
	}, {
		Name:        "the first source",
		Objects:     []runtime.Object{source(), adapter(0, 0)},
		WantPatches: patched(toOne),
		WantEvents:  []string{Eventf("Normal", "ScaledUp", "Scaled from 0 to 1: there is a RescheduleSource")},
	}, {
		Name:    "a source, and one replica",
		Objects: []runtime.Object{source(), adapter(1, 0)},
	}, {
		Name:    "a source, and the default of one replica",
		Objects: []runtime.Object{source(), unset},
	}, {
		Name:        "a source, and three replicas by hand",
		Objects:     []runtime.Object{source(), adapter(3, 3)},
		WantPatches: patched(toOne),
		WantEvents:  []string{Eventf("Warning", "TooManyReplicas", "Scaled from 3 to 1: each replica would have its own volume and its own schedules")},
	}, {
		Name:    "no source, and no replica",
		Objects: []runtime.Object{adapter(0, 0)},
	}, {
		Name:        "the last source is gone",
		Objects:     []runtime.Object{adapter(1, 1)},
		WantPatches: patched(toZero),
		WantEvents:  down,
	}, {
		Name:        "the last source is gone, and the replica is the default one",
		Objects:     []runtime.Object{unset},
		WantPatches: patched(toZero),
		WantEvents:  down,
	}, {
		Name:        "no source, and two replicas by hand",
		Objects:     []runtime.Object{adapter(2, 2)},
		WantPatches: patched(toZero),
		WantEvents:  []string{Eventf("Warning", "TooManyReplicas", "Scaled from 2 to 0: each replica would have its own volume and its own schedules")},
	}, {
		Name:    "a group, and no source",
		Objects: []runtime.Object{group(3)},
	}, {
		Name:    "a group, and a source",
		Objects: []runtime.Object{source(), group(3)},
	}, {
		Name:        "a group that was one adapter",
		Objects:     []runtime.Object{source(), group(1)},
		WantPatches: toThree,
		WantEvents:  []string{Eventf("Normal", "Scaled", "Scaled from 1 to 3: it is a group of adapters")},
	}, {
		Name:        "a group of too many",
		Objects:     []runtime.Object{group(5)},
		WantPatches: toThree,
		WantEvents:  []string{Eventf("Normal", "Scaled", "Scaled from 5 to 3: it is a group of adapters")},
	}, {
		Name:    "a source that a finalizer holds is still one",
		Objects: []runtime.Object{deleting, adapter(1, 1)},
	}, {
		Name:          "memory is not filled yet",
		Objects:       []runtime.Object{adapter(1, 1)},
		OtherTestData: map[string]any{"unsynced": true},
	}, {
		Name:          "memory has not heard of a source that is stored",
		Objects:       []runtime.Object{adapter(1, 1)},
		OtherTestData: map[string]any{"stored": []runtime.Object{source()}},
	}, {
		Name:         "whether there is a source is not known",
		Objects:      []runtime.Object{adapter(1, 1)},
		WithReactors: reactors(InduceFailure("list", "reschedulesources")),
		WantErr:      true,
	}, {
		Name:         "scaling fails",
		Objects:      []runtime.Object{source(), adapter(0, 0)},
		WithReactors: reactors(InduceFailure("patch", "statefulsets")),
		WantErr:      true,
		WantPatches:  patched(toOne),
	}, {
		Name:          "a follower does nothing",
		Objects:       []runtime.Object{source(), adapter(0, 0)},
		OtherTestData: map[string]any{"follower": true},
		WantErr:       true, // the key is skipped
	}}) {
		if row.Key == "" {
			row.Key = adapterKey.String()
		}
		row.PostConditions = append(row.PostConditions, onlyTheScale)
		TableTest{row}.Test(t, scaling)
	}
}

// onlyTheScale wants the StatefulSet to be reached through no other door.
func onlyTheScale(t *testing.T, row *TableRow) {
	t.Helper()
	for _, action := range row.OtherTestData[kubeOf].(interface {
		Actions() []clientgotesting.Action
	}).Actions() {
		if action.GetSubresource() != "scale" {
			t.Errorf("%s of %s %q", action.GetVerb(), action.GetResource().Resource, action.GetSubresource())
		}
	}
}

// A new leader checks the adapter.
func TestScaler_NewLeader(t *testing.T) {
	t.Parallel()
	ctx, _ := faked(t)
	impl := NewScaler(ctx, nil)
	var got []types.NamespacedName
	err := impl.Reconciler.(reconciler.LeaderAware).Promote(reconciler.UniversalBucket(),
		func(_ reconciler.Bucket, key types.NamespacedName) { got = append(got, key) })
	if err != nil || len(got) != 1 || got[0] != adapterKey {
		t.Errorf("enqueued %v, %v", got, err)
	}
}
