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
	group := func(annotation string, replicas int32) *appsv1.StatefulSet {
		s := adapter(replicas, replicas)
		s.Annotations = map[string]string{resources.ReplicatedAnnotation: annotation}
		return s
	}
	toThree := patched(`{"metadata":{"resourceVersion":"41"},"spec":{"replicas":3}}`)
	down := []string{Eventf("Normal", "ScaledDown", "Scaled from 1 to 0: there is no RescheduleSource; the volume is kept")}
	scaledTo := func(from, to int, why string) []string {
		return []string{Eventf("Normal", "Scaled", "Scaled from %d to %d: %s", from, to, why)}
	}
	up := []string{Eventf("Normal", "ScaledUp", "Scaled from 0 to 1: there is a RescheduleSource")}
	tooMany := func(from, to int) []string {
		return []string{Eventf("Warning", "TooManyReplicas", "Scaled from %d to %d: each replica would have its own volume and its own schedules", from, to)}
	}
	row := func(name string, patches []clientgotesting.PatchActionImpl, events []string, objects ...runtime.Object) TableRow {
		return TableRow{Name: name, Objects: objects, WantPatches: patches, WantEvents: events}
	}
	const group3 = "it is a group of adapters"
	for _, row := range (TableTest{
		{Name: "bad workqueue key", Key: "too/many/parts"},
		{Name: "another key", Key: "ops/reschedule-adapter", Objects: []runtime.Object{source(), adapter(0, 0)}},
		row("key not found", nil, nil, source()),
		row("the first source", patched(toOne), up, source(), adapter(0, 0)),
		row("a source, and one replica", nil, nil, source(), adapter(1, 0)),
		row("a source, and the default of one replica", nil, nil, source(), unset),
		row("a source, and three replicas by hand", patched(toOne), tooMany(3, 1), source(), adapter(3, 3)),
		row("no source, and no replica", nil, nil, adapter(0, 0)),
		row("the last source is gone", patched(toZero), down, adapter(1, 1)),
		row("the last source is gone, and the replica is the default one", patched(toZero), down, unset),
		row("no source, and two replicas by hand", patched(toZero), tooMany(2, 0), adapter(2, 2)),
		row("a group, and no source", nil, nil, group("true", 3)),
		row("a group, and a source", nil, nil, source(), group("true", 3)),
		row("a group that was one adapter", toThree, scaledTo(1, 3, group3), source(), group("true", 1)),
		row("a group of too many", toThree, scaledTo(5, 3, group3), group("true", 5)),
		row("a source that a finalizer holds is still one", nil, nil, deleting, adapter(1, 1)),
		row("there is no adapter, and its workload may sleep", patched(toOne), up, source(holding("scaler"), deleted), adapter(0, 0)),
		{Name: "memory is not filled yet", Objects: []runtime.Object{adapter(1, 1)}, OtherTestData: map[string]any{"unsynced": true}},
		{
			Name: "memory has not heard of a source that is stored", Objects: []runtime.Object{adapter(1, 1)},
			OtherTestData: map[string]any{"stored": []runtime.Object{source()}},
		},
		{
			Name: "whether there is a source is not known", Objects: []runtime.Object{adapter(1, 1)},
			WithReactors: reactors(InduceFailure("list", "reschedulesources")), WantErr: true,
		},
		{
			Name: "scaling fails", Objects: []runtime.Object{source(), adapter(0, 0)},
			WithReactors: reactors(InduceFailure("patch", "statefulsets")), WantErr: true, WantPatches: patched(toOne),
		},
		// The key is skipped.
		{Name: "a follower does nothing", Objects: []runtime.Object{source(), adapter(0, 0)}, OtherTestData: map[string]any{"follower": true}, WantErr: true},
	}) {
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
