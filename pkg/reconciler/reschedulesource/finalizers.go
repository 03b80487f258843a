package reschedulesource

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"knative.dev/pkg/configmap"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/logging"
	"knative.dev/pkg/reconciler"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/client/clientset/versioned"
	"github.com/reschedule-dev/reschedule/pkg/client/injection/client"
	"github.com/reschedule-dev/reschedule/pkg/client/injection/informers/sources/v1alpha1/reschedulesource"
	listers "github.com/reschedule-dev/reschedule/pkg/client/listers/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
)

const (
	finalizersName = "reschedule-finalizers"
	forbiddenRetry = 10 * time.Minute
)

// Finalizers keeps ScaleFinalizer on the sources that may scale a workload or hold one, and
// on no others. It removes the finalizer from a deleted source once the adapter has scaled
// the workload up, or after 5 minutes, which it reports. The generated reconciler would put
// a finalizer on each source.
type Finalizers struct {
	reconciler.LeaderAwareFuncs

	client   versioned.Interface
	sources  listers.RescheduleSourceLister
	recorder record.EventRecorder
}

var (
	_ controller.Reconciler  = (*Finalizers)(nil)
	_ reconciler.LeaderAware = (*Finalizers)(nil)
)

// NewFinalizers makes the controller, whose keys are sources.
func NewFinalizers(ctx context.Context, _ configmap.Watcher) *controller.Impl {
	logger := logging.FromContext(ctx)
	sources := reschedulesource.Get(ctx)
	f := &Finalizers{client: client.Get(ctx), sources: sources.Lister(), recorder: recorder(ctx, finalizersName)}
	f.PromoteFunc = func(bucket reconciler.Bucket, enqueue func(reconciler.Bucket, types.NamespacedName)) error {
		all, err := f.sources.List(labels.Everything())
		if err != nil {
			return fmt.Errorf("listing the sources in memory: %w", err)
		}
		for _, source := range all {
			if toDo(source) {
				enqueue(bucket, nameOf(source))
			}
		}
		return nil
	}
	impl := controller.NewContext(ctx, f, controller.ControllerOptions{WorkQueueName: finalizersName, Logger: logger.Named(finalizersName)})
	takeTurns(impl)
	enqueue := func(o any) {
		if toDo(o.(*v1alpha1.RescheduleSource)) {
			impl.Enqueue(o)
		}
	}
	if _, err := sources.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: enqueue, UpdateFunc: func(_, after any) { enqueue(after) },
	}); err != nil {
		logger.Panicw("Cannot watch", zap.Error(err))
	}
	return impl
}

// toDo reports whether the finalizer of a source has to change, now or later.
func toDo(source *v1alpha1.RescheduleSource) bool {
	has := resources.HasFinalizer(source)
	needs, _ := resources.NeedsFinalizer(source, time.Now())
	return needs != has || has && source.DeletionTimestamp != nil
}

// Reconcile implements controller.Reconciler.
func (f *Finalizers) Reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		logging.FromContext(ctx).Errorf("The controller of finalizers got the key %q, which is not a source", key)
		return nil //nolint:nilerr // it is logged, and another try would fail too
	}
	if !f.IsLeaderFor(types.NamespacedName{Namespace: namespace, Name: name}) {
		return controller.NewSkipKey(key)
	}
	source, err := f.sources.RescheduleSources(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the source in memory: %w", err)
	}
	needs, until := resources.NeedsFinalizer(source, time.Now())
	switch {
	case needs != resources.HasFinalizer(source):
		return f.write(ctx, source)
	case needs && !until.IsZero():
		return controller.NewRequeueAfter(time.Until(until))
	}
	return nil
}

// write decides again with the source as the API server has it: in memory it has no
// finalizers of others, and it may be older.
func (f *Finalizers) write(ctx context.Context, source *v1alpha1.RescheduleSource) error {
	of := f.client.SourcesV1alpha1().RescheduleSources(source.Namespace)
	source, err := of.Get(ctx, source.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the finalizers: %w", err)
	}
	needs, until := resources.NeedsFinalizer(source, time.Now())
	if needs == resources.HasFinalizer(source) {
		if needs && !until.IsZero() {
			return controller.NewRequeueAfter(time.Until(until))
		}
		return nil
	}
	patch, err := resources.FinalizerPatch(source, needs)
	if err != nil {
		return err
	}
	_, err = of.Patch(ctx, source.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	switch {
	case apierrors.IsForbidden(err): // under OLM, or 205-status-admission.yaml is left out: then nothing is scaled
		logging.FromContext(ctx).Warnf("The finalizers of %s/%s stay as they are: %v", source.Namespace, source.Name, err)
		return controller.NewRequeueAfter(forbiddenRetry)
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("patching the finalizers: %w", err)
	}
	if source.DeletionTimestamp != nil && resources.Holds(source) {
		f.giveUp(ctx, source)
	}
	return nil
}

// giveUp reports a source that ends without its workload having been scaled up.
func (f *Finalizers) giveUp(ctx context.Context, source *v1alpha1.RescheduleSource) {
	held := source.Status.Scale.Held
	group := schema.FromAPIVersionAndKind(held.APIVersion, held.Kind).GroupKind()
	text := fmt.Sprintf("The source is deleted, and the adapter did not scale %s %s up in time. It may have no replicas. "+
		"Scale it up: kubectl -n %s scale %s/%s --replicas=%d",
		held.Kind, held.Name, source.Namespace, strings.ToLower(group.String()), held.Name, held.Replicas)
	logging.FromContext(ctx).Warn(text)
	f.recorder.Event(source, corev1.EventTypeWarning, "WorkloadNotScaledUp", text)
}
