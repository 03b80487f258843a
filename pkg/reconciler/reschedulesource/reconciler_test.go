package reschedulesource

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgotesting "k8s.io/client-go/testing"
	"knative.dev/pkg/apis"
	"knative.dev/pkg/controller"
	. "knative.dev/pkg/reconciler/testing"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

var deadLettersResolved = condition("DeadLetterSinkResolved", "True", "", "")

// Reconcile makes every step and sets its condition even when other steps fail, and keeps the counts of the adapter.
func TestReconcile_EachStep(t *testing.T) {
	t.Parallel()
	row := func(name string, want *v1alpha1.RescheduleSource, objects ...runtime.Object) TableRow {
		r := TableRow{Name: name, Key: key, Objects: objects}
		if want != nil {
			r.WantStatusUpdates = becomes(want)
		}
		return r
	}
	fails := func(r TableRow, reactor clientgotesting.ReactionFunc, wantErr bool) TableRow {
		r.WithReactors, r.WantErr = reactors(reactor), wantErr
		return r
	}
	tracked := row("a new source", settled(), source(), adapter(1, 1))
	tracked.PostConditions = []func(*testing.T, *TableRow){tracks("serving.knative.dev/v1 Service ops/worker")}
	generation := func(observed int64) option {
		return func(s *v1alpha1.RescheduleSource) { s.Generation, s.Status.ObservedGeneration = 3, observed }
	}
	notPatched := fails(row("the patch of the status fails", source(), source(), adapter(1, 1)), InduceFailure("patch", "reschedulesources"), true)
	notPatched.WantEvents = []string{Eventf("Warning", "InternalError", "patching the status: inducing failure for patch reschedulesources")}
	TableTest{
		{Name: "bad workqueue key", Key: "too/many/parts"},
		row("key not found", nil),
		tracked,
		row("nothing to do", nil, settled(), adapter(1, 1)),
		row("a source that is being deleted is left alone", nil, source(deleted), adapter(1, 1)),
		row("a new generation is observed", settled(generation(3)), settled(generation(2)), adapter(1, 1)),
		row("what the adapter counts stays", settled(counted), source(counted), adapter(1, 1)),
		notPatched, // what is stored stays
		fails(row("a conflict: again, and no event", source(), source(), adapter(1, 1)), refuse(apierrors.NewConflict(v1alpha1.Resource("reschedulesources"), "git-repos", nil)), true),
		fails(row("the source went in between", source(), source(), adapter(1, 1)), refuse(apierrors.NewNotFound(v1alpha1.Resource("reschedulesources"), "git-repos")), false),
		{
			Name:    "every step is made when all fail, and the first failure is told",
			Key:     key,
			Objects: []runtime.Object{source(to(ref("serving.knative.dev/v1", "Service", "", "gone")), deadLettersTo(ref("v1", "Service", "", "gone")), ingesting(broken))},
			WantErr: true,
			WantStatusUpdates: becomes(settled(
				to(ref("serving.knative.dev/v1", "Service", "", "gone")), deadLettersTo(ref("v1", "Service", "", "gone")), ingesting(broken),
				func(s *v1alpha1.RescheduleSource) { s.Status.SinkURI = nil },
				but(
					condition("SinkProvided", "False", "NotFound", `Service ops/gone (serving.knative.dev/v1): failed to get object ops/gone: services.serving.knative.dev "gone" not found`),
					condition("DeadLetterSinkResolved", "False", "NotFound", `Service ops/gone (v1): failed to get object ops/gone: services "gone" not found`),
					condition("Deployed", "False", "AdapterNotInstalled", missingAdapter),
					condition("Addressable", "False", "IngestInvalid", brokenSays),
				))),
			WantEvents: []string{Eventf("Warning", "IngestInvalid", "%s", brokenSays)},
		},
	}.Test(t, reconciling)
}

func refuse(err error) clientgotesting.ReactionFunc {
	return func(action clientgotesting.Action) (bool, runtime.Object, error) {
		return action.Matches("patch", "reschedulesources/status"), nil, err
	}
}

func deleted(s *v1alpha1.RescheduleSource) {
	s.DeletionTimestamp, s.Finalizers = &metav1.Time{Time: then}, []string{"another.controller/s"}
}

// Ready quotes the first condition that is not True.
func TestReady_QuotesTheFirstCondition(t *testing.T) {
	t.Parallel()
	// The StatefulSet is missing since long, the sink since now.
	old := settled(but(condition("Deployed", "False", "AdapterNotInstalled", missingAdapter)), to(ref("v1", "Service", "", "gone")))
	const gone = `Service ops/gone (v1): failed to get object ops/gone: services "gone" not found`
	want := but(condition("SinkProvided", "False", "NotFound", gone), condition("Deployed", "False", "AdapterNotInstalled", missingAdapter))
	after := settled(to(ref("v1", "Service", "", "gone")), want)
	TableTest{{
		Name: "not the last one", Key: key, Objects: []runtime.Object{old}, WantErr: true,
		WantStatusUpdates: becomes(after),
		WantEvents:        []string{Eventf("Warning", "SinkNotFound", "Sink not found: %s", gone)},
	}, {
		Name: "and it stays at that", Key: key, Objects: []runtime.Object{after}, WantErr: true,
		WantEvents: []string{Eventf("Warning", "SinkNotFound", "Sink not found: %s", gone)},
	}}.Test(t, reconciling)
}

const missingAdapter = "There is no StatefulSet knative-eventing/reschedule-adapter. Install it with the release manifest, or from a checkout with: ko apply -f config/"

// The condition Deployed follows the StatefulSet.
func TestDeployed_FollowsTheStatefulSet(t *testing.T) {
	t.Parallel()
	const name = "StatefulSet knative-eventing/reschedule-adapter"
	row := func(name string, c apis.Condition, objects ...runtime.Object) TableRow {
		return TableRow{Name: name, Key: key, Objects: append(objects, settled()), WantStatusUpdates: becomes(settled(but(c)))}
	}
	TableTest{
		row("missing", condition("Deployed", "False", "AdapterNotInstalled", missingAdapter)),
		row("not scaled yet", condition("Deployed", "Unknown", "AdapterScalingUp", name+" has no replicas yet."), adapter(0, 0)),
		row("not ready", condition("Deployed", "Unknown", "AdapterNotReady", "No pod of "+name+" is ready."), adapter(1, 0)),
		{Name: "ready", Key: key, Objects: []runtime.Object{adapter(1, 1), settled(but(condition("Deployed", "Unknown", "AdapterNotReady", "")))},
			WantStatusUpdates: becomes(settled())},
	}.Test(t, reconciling)
}

// The first failure is returned, as one to retry if any later failure is.
func TestFirst_PrefersARetry(t *testing.T) {
	t.Parallel()
	forGood, laterForGood := controller.NewPermanentError(errors.New("a")), controller.NewPermanentError(errors.New("b"))
	passing := errors.New("c")
	for _, test := range []struct {
		name      string
		failures  []error
		says      string
		permanent bool
	}{
		{"one for good", []error{forGood}, "a", true},
		{"two for good", []error{forGood, laterForGood}, "a", true},
		{"one for good, one passing", []error{forGood, passing}, "a", false},
		{"one passing, one for good", []error{passing, forGood}, "c", false},
	} {
		err := first(test.failures)
		if err.Error() != test.says || controller.IsPermanentError(err) != test.permanent {
			t.Errorf("%s: %v, permanent: %t", test.name, err, controller.IsPermanentError(err))
		}
	}
	if err := first(nil); err != nil {
		t.Errorf("no failure: %v", err)
	}
}
