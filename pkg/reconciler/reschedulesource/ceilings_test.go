package reschedulesource

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"knative.dev/pkg/apis"
	"knative.dev/pkg/configmap"
	"knative.dev/pkg/controller"
	logtesting "knative.dev/pkg/logging/testing"
	. "knative.dev/pkg/reconciler/testing"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// Limited is there while the spec asks for more than the ceilings allow, says
// what is cut, and has no part in Ready.
func TestLimited_NamesTheFields(t *testing.T) {
	t.Parallel()
	config, err := ceilings.Parse(map[string]string{"max-pending": "10", "namespaces": "ops: {max-in-flight: 5}"})
	if err != nil {
		t.Fatal(err)
	}
	much := func(s *v1alpha1.RescheduleSource) {
		s.Spec.Limits = &v1alpha1.RescheduleSourceLimits{MaxPending: new(int64(11)), MaxInFlight: new(int32(6))}
	}
	limited := func(s *v1alpha1.RescheduleSource) {
		s.Status.Conditions = append(s.Status.Conditions, apis.Condition{
			Type: "Limited", Status: "True", Severity: "Info", Reason: "AboveCeiling",
			Message: "The administrator's ceilings in ConfigMap knative-eventing/config-reschedule: " +
				"limits.maxPending: 11 is cut to 10 (max-pending); limits.maxInFlight: 6 is cut to 5 (max-in-flight).",
		})
		// They are kept in the order of their names.
		conditions := s.Status.Conditions
		for i := len(conditions) - 1; i > 0 && conditions[i].Type < conditions[i-1].Type; i-- {
			conditions[i], conditions[i-1] = conditions[i-1], conditions[i]
		}
	}
	under := map[string]any{ceilingsOf: config}
	TableTest{
		{Name: "too much", Key: key, OtherTestData: under, Objects: []runtime.Object{settled(much), adapter(1, 1)}, WantStatusUpdates: becomes(settled(much, limited))},
		{Name: "it stays", Key: key, OtherTestData: under, Objects: []runtime.Object{settled(much, limited), adapter(1, 1)}},
		{Name: "not any more", Key: key, OtherTestData: under, Objects: []runtime.Object{settled(limited), adapter(1, 1)}, WantStatusUpdates: becomes(settled())},
		{Name: "without ceilings", Key: key, Objects: []runtime.Object{settled(much), adapter(1, 1)}},
	}.Test(t, reconciling)
}

// A change of config-reschedule has all sources looked at again; a bad one is
// told on the ConfigMap, and like its deletion changes nothing.
func TestCeilings_FollowConfigReschedule(t *testing.T) {
	t.Parallel()
	events := record.NewFakeRecorder(10)
	cmw := &manual{}
	c := watched(t, func(ctx context.Context, cmw configmap.Watcher) *controller.Impl {
		return NewController(controller.WithEventRecorder(ctx, events), cmw)
	}, cmw)
	c.save(t, "create", source())
	c.expect(t, gitRepos)
	change := func(data map[string]string) {
		cmw.OnChange(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: ceilings.ConfigMapName, UID: "uid"}, Data: data})
	}
	change(map[string]string{"max-pending": "10"})
	c.expect(t, gitRepos)
	change(map[string]string{"max-pendig": "10"})
	select {
	case e := <-events.Events:
		if !strings.Contains(e, "Warning InvalidConfig") || !strings.Contains(e, "max-pendig") {
			t.Error(e)
		}
	default:
		t.Error("a bad ConfigMap is not told")
	}
}

// What holds is what was understood last.
func TestCeilings_ABadConfigMapChangesNothing(t *testing.T) {
	t.Parallel()
	events, changes := record.NewFakeRecorder(10), 0
	a := newAdministrator(logtesting.TestLogger(t), events, func() { changes++ })
	expect := func(what string, wantPending int64, wantChanges int) {
		t.Helper()
		if got := a.current.Load().For("ops").MaxPending; got != wantPending || changes != wantChanges {
			t.Errorf("%s: %d keys after %d changes, want %d after %d", what, got, changes, wantPending, wantChanges)
		}
	}
	cm := func(uid types.UID, data map[string]string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: ceilings.ConfigMapName, UID: uid}, Data: data}
	}
	expect("at first", ceilings.Shipped.MaxPending, 0)
	a.observe(cm("", nil))
	expect("without one", ceilings.Shipped.MaxPending, 1)
	a.observe(cm("uid", map[string]string{"max-pending": "10"}))
	expect("with one", 10, 2)
	a.observe(cm("uid", map[string]string{"max-pending": "-1"}))
	expect("a bad one", 10, 2)
	a.observe(cm("", nil))
	expect("gone", 10, 2)
	a.observe(cm("uid", nil))
	expect("an empty one", ceilings.Shipped.MaxPending, 3)
	if len(events.Events) != 1 {
		t.Errorf("%d events", len(events.Events))
	}
}
