package reschedulesource

import (
	"context"
	"fmt"

	"go.uber.org/zap"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	kubeclient "knative.dev/pkg/client/injection/kube/client"
	"knative.dev/pkg/configmap"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/logging"
	"knative.dev/pkg/reconciler"
	"knative.dev/pkg/system"

	"github.com/reschedule-dev/reschedule/pkg/client/clientset/versioned"
	"github.com/reschedule-dev/reschedule/pkg/client/injection/client"
	"github.com/reschedule-dev/reschedule/pkg/client/injection/informers/sources/v1alpha1/reschedulesource"
	listers "github.com/reschedule-dev/reschedule/pkg/client/listers/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
)

const scalerName = "reschedule-adapter-scaler"

// Scaler sets the adapter to one replica while there is a RescheduleSource, and
// to none otherwise. More than one is never right: each pod would have its own
// volume and its own schedules. A group of adapters always has all of its members. With
// an installer it makes the StatefulSet first.
type Scaler struct {
	reconciler.LeaderAwareFuncs

	key          types.NamespacedName
	client       versioned.Interface
	kube         kubernetes.Interface
	statefulSets appslisters.StatefulSetNamespaceLister
	sources      listers.RescheduleSourceLister
	synced       cache.InformerSynced
	recorder     record.EventRecorder
	installer    *installer // nil where the manifests have the adapter
}

var (
	_ controller.Reconciler  = (*Scaler)(nil)
	_ reconciler.LeaderAware = (*Scaler)(nil)
)

// NewScaler makes the controller whose only key is the adapter's StatefulSet.
func NewScaler(ctx context.Context, _ configmap.Watcher) *controller.Impl {
	logger := logging.FromContext(ctx)
	sources := reschedulesource.Get(ctx)
	statefulSetInformer, statefulSetLister := statefulSets(ctx)
	s := &Scaler{
		key:          types.NamespacedName{Namespace: system.Namespace(), Name: resources.AdapterName},
		client:       client.Get(ctx),
		kube:         kubeclient.Get(ctx),
		statefulSets: statefulSetLister,
		sources:      sources.Lister(),
		synced:       sources.Informer().HasSynced,
		recorder:     recorder(ctx, scalerName),
	}
	if wanted, ok := ctx.Value(adapterKeyInContext{}).(*appsv1ac.StatefulSetApplyConfiguration); ok {
		s.installer = &installer{kube: s.kube, recorder: s.recorder, wanted: wanted}
	}
	s.PromoteFunc = func(bucket reconciler.Bucket, enqueue func(reconciler.Bucket, types.NamespacedName)) error {
		enqueue(bucket, s.key)
		return nil
	}
	impl := controller.NewContext(ctx, s, controller.ControllerOptions{
		WorkQueueName: scalerName, Logger: logger.Named(scalerName), Concurrency: 1,
	})
	look := impl.EnqueueSentinel(s.key)
	for _, watch := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{sources.Informer(), cache.ResourceEventHandlerFuncs{AddFunc: look, DeleteFunc: look}},
		{statefulSetInformer, controller.HandleAll(look)},
	} {
		if _, err := watch.informer.AddEventHandler(watch.handler); err != nil {
			logger.Panicw("Cannot watch", zap.Error(err))
		}
	}
	return impl
}

// Reconcile implements controller.Reconciler.
func (s *Scaler) Reconcile(ctx context.Context, key string) error {
	if key != s.key.String() {
		logging.FromContext(ctx).Errorf("The scaler got the key %q, which is not the adapter", key)
		return nil
	}
	if !s.IsLeaderFor(s.key) {
		return controller.NewSkipKey(key)
	}
	adapter, err := s.statefulSets.Get(s.key.Name) // nil if there is none
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading the adapter's StatefulSet: %w", err)
	}
	if s.installer != nil {
		if adapter, err = s.installer.apply(ctx, s.key.Namespace, adapter); err != nil {
			return err
		}
	}
	if adapter == nil {
		return nil // the condition Deployed of each source reports it
	}
	wanted, err := s.wanted(ctx, adapter)
	if err != nil || wanted == resources.Replicas(adapter) {
		return err
	}
	return s.scale(ctx, adapter, wanted)
}

// wanted is the right number of replicas. Before it is 0 the API server, not the
// memory of the informer, must say that there is no source.
func (s *Scaler) wanted(ctx context.Context, adapter *appsv1.StatefulSet) (int32, error) {
	if resources.IsReplicated(adapter) {
		return resources.Members, nil
	}
	now := resources.Replicas(adapter)
	known, err := s.sources.List(labels.Everything())
	if err != nil {
		return 0, fmt.Errorf("listing the sources in memory: %w", err)
	}
	switch {
	case len(known) > 0:
		return 1, nil
	case now == 0:
		return 0, nil
	case !s.synced():
		return min(now, 1), nil
	}
	stored, err := s.client.SourcesV1alpha1().RescheduleSources(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, fmt.Errorf("listing sources before the adapter is scaled to 0: %w", err)
	}
	return int32(min(len(stored.Items), 1)), nil
}

func (s *Scaler) scale(ctx context.Context, adapter *appsv1.StatefulSet, wanted int32) error {
	patch, err := resources.ScalePatch(adapter, wanted)
	if err != nil {
		return err
	}
	now := resources.Replicas(adapter)
	_, err = s.kube.AppsV1().StatefulSets(adapter.Namespace).
		Patch(ctx, adapter.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "scale")
	if err != nil {
		return fmt.Errorf("scaling the adapter from %d to %d: %w", now, wanted, err)
	}
	switch {
	case resources.IsReplicated(adapter):
		s.recorder.Eventf(adapter, corev1.EventTypeNormal, "Scaled", "Scaled from %d to %d: it is a group of adapters", now, wanted)
	case now > 1:
		s.recorder.Eventf(adapter, corev1.EventTypeWarning, "TooManyReplicas",
			"Scaled from %d to %d: each replica would have its own volume and its own schedules", now, wanted)
	case wanted == 0:
		s.recorder.Event(adapter, corev1.EventTypeNormal, "ScaledDown", "Scaled from 1 to 0: there is no RescheduleSource; the volume is kept")
	default:
		s.recorder.Event(adapter, corev1.EventTypeNormal, "ScaledUp", "Scaled from 0 to 1: there is a RescheduleSource")
	}
	return nil
}

// recorder is the recorder in the context, which tests put there, or one that
// writes to the API server.
func recorder(ctx context.Context, component string) record.EventRecorder {
	if r := controller.GetEventRecorder(ctx); r != nil {
		return r
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: kubeclient.Get(ctx).CoreV1().Events("")})
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
}
