package reschedulesource

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgotesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/logging"
	logtesting "knative.dev/pkg/logging/testing"
	"knative.dev/pkg/reconciler"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	fakeclient "github.com/reschedule-dev/reschedule/pkg/client/injection/client/fake"
)

const foreign = "another.controller/f"

// finalized is a source with the finalizer of spec.scale, between two of others.
func finalized(s *v1alpha1.RescheduleSource) {
	s.Finalizers = []string{foreign, v1alpha1.ScaleFinalizer, "a.third/f"}
}

func others(s *v1alpha1.RescheduleSource) { s.Finalizers = []string{foreign} }

func version(s *v1alpha1.RescheduleSource) { s.ResourceVersion = "41" }

func deletedFor(d time.Duration) option {
	return func(s *v1alpha1.RescheduleSource) { s.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-d)} }
}

// The finalizer is there while a source may scale a workload or holds one, and after the deletion for 5 minutes at most.
// The finalizers of others stay, and what the API server has decides, not what is in memory.
func TestFinalizers_Reconcile(t *testing.T) {
	t.Parallel()
	const (
		added      = `{"metadata":{"resourceVersion":"41","finalizers":["another.controller/f","sources.reschedule.dev/scale"]}}`
		addedFirst = `{"metadata":{"resourceVersion":"41","finalizers":["sources.reschedule.dev/scale"]}}`
		removed    = `{"metadata":{"resourceVersion":"41","finalizers":["another.controller/f","a.third/f"]}}`
	)
	auto, awake, observed := scalingAs(v1alpha1.ScaleAuto, ""), scalingAs(v1alpha1.ScaleAwake, ""), scalingAs(v1alpha1.ScaleObserve, "")
	held := holding("scaler")
	hopeless := func(s *v1alpha1.RescheduleSource) {
		held(s)
		s.Status.Scale.Reason = v1alpha1.ReasonScaleForbidden
	}
	const gaveUp = "Warning WorkloadNotScaledUp The source is deleted, and the adapter did not scale Deployment worker up in time. It may have no replicas. " +
		"Scale it up: kubectl -n ops scale deployment.apps/worker --replicas=2"
	conflict := apierrors.NewConflict(v1alpha1.Resource("reschedulesources"), "git-repos", nil)
	forbidden := apierrors.NewForbidden(v1alpha1.Resource("reschedulesources"), "git-repos", nil)
	for _, c := range []struct {
		name   string
		known  []option // in memory
		stored []option // nil: the same
		fails  error    // the patch
		patch  string
		event  string
		again  time.Duration // when the source comes again; -1: an error
	}{
		{name: "no scale"},
		{name: "Auto", known: []option{auto, others}, patch: added},
		{name: "Awake, no other finalizer", known: []option{awake}, patch: addedFirst},
		{name: "Observe", known: []option{observed}},
		{name: "a workload that is still held", known: []option{observed, held}, patch: addedFirst},
		{name: "there already", known: []option{auto, finalized}},
		{name: "scale was removed", known: []option{finalized}, patch: removed},
		{name: "Observe is new", known: []option{observed, finalized}, patch: removed},
		{name: "scale was removed, and the workload is held", known: []option{held, finalized}},
		{name: "memory is late: it is held by now", known: []option{finalized}, stored: []option{held, finalized}},
		{name: "memory is late: it is deleted by now", known: []option{auto}, stored: []option{auto, others, deletedFor(0)}},
		{name: "deleted, and nothing is held", known: []option{auto, finalized, deletedFor(0)}, patch: removed},
		{name: "deleted, and never held", known: []option{auto, others, deletedFor(time.Hour)}},
		{name: "deleted, and the workload is held", known: []option{auto, held, finalized, deletedFor(time.Minute)}, again: 4 * time.Minute},
		{name: "deleted meanwhile", known: []option{finalized}, stored: []option{held, finalized, deletedFor(time.Minute)}, again: 4 * time.Minute},
		{name: "deleted, and the workload cannot be scaled", known: []option{auto, hopeless, finalized, deletedFor(5 * time.Second)}, again: 10 * time.Second},
		{name: "deleted, and the workload could not be scaled in time", known: []option{auto, hopeless, finalized, deletedFor(15 * time.Second)}, patch: removed, event: gaveUp},
		{name: "deleted, and held for 5 minutes", known: []option{auto, held, finalized, deletedFor(5 * time.Minute)}, patch: removed, event: gaveUp},
		{name: "a conflict", known: []option{auto}, fails: conflict, patch: addedFirst, again: -1},
		{name: "held for 5 minutes, and a conflict", known: []option{held, finalized, deletedFor(time.Hour)}, fails: conflict, patch: removed, again: -1},
		{name: "patches are forbidden", known: []option{auto}, fails: forbidden, patch: addedFirst, again: 10 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				known := source(append(c.known, version)...)
				stored := known.DeepCopy()
				if c.stored != nil {
					stored = source(append(c.stored, version)...)
				}
				known.TrimMetadata()
				ctx := logging.WithLogger(t.Context(), logtesting.TestLogger(t))
				_, client := fakeclient.With(ctx, stored)
				var patches []string
				client.PrependReactor("patch", "reschedulesources", func(a clientgotesting.Action) (bool, runtime.Object, error) {
					patches = append(patches, string(a.(clientgotesting.PatchAction).GetPatch())+a.GetSubresource())
					return true, stored, c.fails
				})
				events := record.NewFakeRecorder(2)
				f := &Finalizers{client: client, sources: sorted([]runtime.Object{known}).sources(), recorder: events}
				lead(t, f)
				err := f.Reconcile(ctx, key)
				requeued, again := controller.IsRequeueKey(err)
				if requeued && again != c.again || !requeued && c.again > 0 || (err != nil && !requeued) != (c.again < 0) {
					t.Errorf("%v, again after %s", err, again)
				}
				if got := strings.Join(patches, " "); got != c.patch {
					t.Errorf("patches %s, want %s", got, c.patch)
				}
				close(events.Events)
				if got := <-events.Events; got != c.event {
					t.Errorf("the Event %q, want %q", got, c.event)
				}
				if toDo(known) != (c.patch != "" || c.stored != nil || c.again != 0) {
					t.Error("it is queued for nothing, or not queued")
				}
			})
		})
	}
}

// A new leader looks at the sources whose finalizer has to change. A source that is gone, or is another's, is left alone.
func TestFinalizers_Leader(t *testing.T) {
	t.Parallel()
	c := watched(t, NewFinalizers, nil)
	c.save(t, "create", source())
	c.save(t, "create", source(called("second"), scalingAs(v1alpha1.ScaleAuto, "")))
	c.expect(t, second)
	var got []types.NamespacedName
	leader := c.impl.Reconciler.(reconciler.LeaderAware)
	if err := c.impl.Reconciler.Reconcile(c.ctx, "ops/second"); !controller.IsSkipKey(err) {
		t.Errorf("a follower: %v", err)
	}
	err := leader.Promote(reconciler.UniversalBucket(), func(_ reconciler.Bucket, key types.NamespacedName) { got = append(got, key) })
	if err != nil || !slices.Equal(got, []types.NamespacedName{second}) {
		t.Errorf("enqueued %v, %v", got, err)
	}
	for _, key := range []string{"ops/gone", "too/many/parts"} {
		if err := c.impl.Reconciler.Reconcile(c.ctx, key); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	if got := fmt.Sprint(fakeclient.Get(c.ctx).Actions()); strings.Contains(got, "patch") {
		t.Error(got)
	}
}
