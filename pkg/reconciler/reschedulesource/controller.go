package reschedulesource

import (
	"context"
	"sync/atomic"

	"go.uber.org/zap"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"knative.dev/eventing/pkg/apis/feature"
	"knative.dev/eventing/pkg/auth"
	eventinglisters "knative.dev/eventing/pkg/client/listers/eventing/v1alpha1"
	"knative.dev/eventing/pkg/resolver"
	kubeclient "knative.dev/pkg/client/injection/kube/client"
	"knative.dev/pkg/client/injection/kube/informers/core/v1/serviceaccount/filtered"
	"knative.dev/pkg/configmap"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/injection/clients/dynamicclient"
	"knative.dev/pkg/logging"
	"knative.dev/pkg/system"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/features"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/client/injection/client"
	"github.com/reschedule-dev/reschedule/pkg/client/injection/informers/sources/v1alpha1/reschedulesource"
	generated "github.com/reschedule-dev/reschedule/pkg/client/injection/reconciler/sources/v1alpha1/reschedulesource"
	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
)

// NewController makes the controller of RescheduleSources. The context needs
// the informer of ServiceAccounts with auth.OIDCLabelSelector.
func NewController(ctx context.Context, cmw configmap.Watcher) *controller.Impl {
	logger := logging.FromContext(ctx)
	sources := reschedulesource.Get(ctx).Informer()
	statefulSetInformer, statefulSetLister := statefulSets(ctx)
	secretInformer, secretLister := secrets(ctx)
	accounts := filtered.Get(ctx, auth.OIDCLabelSelector)
	policies := eventPolicies(ctx)
	events := recorder(ctx, "reschedule-controller")
	cmw = lenient{cmw, logger, events}

	r := &Reconciler{
		systemNamespace: system.Namespace(),
		client:          client.Get(ctx),
		kube:            kubeclient.Get(ctx),
		dynamic:         dynamicclient.Get(ctx),
		statefulSets:    statefulSetLister,
		secrets:         secretLister,
		accounts:        accounts.Lister(),
		policies:        eventinglisters.NewEventPolicyLister(policies.GetIndexer()),
	}
	var impl *controller.Impl
	lookAtAll := func() {
		if impl != nil {
			impl.GlobalResync(sources)
		}
	}
	administrator := newAdministrator(logger.Named("ceilings"), events, lookAtAll)
	r.ceilings = administrator.current.Load
	administrator.watch(cmw)
	flags := feature.NewStore(logger.Named("features"), func(string, any) { lookAtAll() })
	flags.WatchConfigs(cmw)
	impl = generated.NewImpl(ctx, r, func(*controller.Impl) controller.Options {
		return controller.Options{ConfigStore: flags, SkipStatusUpdates: true}
	})
	takeTurns(impl)
	// Eventing's resolver writes two lines at info for each reference.
	quiet := logging.WithLogger(ctx, logger.Desugar().WithOptions(zap.IncreaseLevel(zap.WarnLevel)).Sugar())
	r.resolver = resolver.NewURIResolver(quiet, cmw, impl.Tracker)

	must := func(_ cache.ResourceEventHandlerRegistration, err error) {
		if err != nil {
			logger.Panicw("Cannot watch", zap.Error(err))
		}
	}
	bound := newCapacity()
	if err := sources.SetTransform(trimmer{bound}.trim); err != nil {
		logger.Panicw("Cannot keep sources small", zap.Error(err))
	}
	must(sources.AddEventHandler(bound.Handler()))
	must(sources.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: impl.Enqueue,
		UpdateFunc: func(before, after any) {
			if concerns(before.(*v1alpha1.RescheduleSource), after.(*v1alpha1.RescheduleSource)) {
				impl.Enqueue(after)
			}
		},
		DeleteFunc: func(source any) {
			impl.Tracker.OnDeletedObserver(source)
			impl.Enqueue(source)
		},
	}))
	must(statefulSetInformer.AddEventHandler(onChange(func(before, after *appsv1.StatefulSet) {
		if resources.AdapterAvailability("", before) != resources.AdapterAvailability("", after) {
			lookAtAll()
		}
	})))
	must(secretInformer.AddEventHandler(onChange(func(before, after *corev1.Secret) {
		if !resources.SameCertificates(before, after) {
			lookAtAll()
		}
	})))
	must(accounts.Informer().AddEventHandler(withLastState(cache.FilteringResourceEventHandler{
		FilterFunc: controller.FilterController(&v1alpha1.RescheduleSource{}),
		Handler:    controller.HandleAll(impl.EnqueueControllerOf),
	})))
	must(policies.AddEventHandler(withLastState(auth.EventPolicyEventHandler(
		sources.GetIndexer(), v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.Kind).GroupKind(), impl.EnqueueKey))))
	followPolicies(ctx, policies)
	return impl
}

// concerns says whether an update requires a reconciliation. An update of the
// counts does not; the adapter makes one for each source every 30 seconds. An
// update without a change is a resync, which renews the tracked objects.
func concerns(before, after *v1alpha1.RescheduleSource) bool {
	if before.ResourceVersion == after.ResourceVersion {
		return true
	}
	return !equality.Semantic.DeepEqual(significant(before), significant(after))
}

func significant(source *v1alpha1.RescheduleSource) v1alpha1.RescheduleSource {
	s := *source
	s.ResourceVersion, s.ManagedFields = "", nil
	s.Status.Pending, s.Status.NextDueAt, s.Status.Watched = nil, nil, nil
	s.Status.OldestDueAt, s.Status.InFlight, s.Status.Retrying = nil, nil, nil
	if report := s.Status.Scale; report != nil { // the condition Scaled does not depend on the rest
		s.Status.Scale = &v1alpha1.ScaleStatus{State: report.State, Reason: report.Reason, Message: report.Message}
		if report.State != "" {
			s.Status.Scale.State = "reported"
		}
	}
	return s
}

// onChange calls f with the object before and after; one of them is nil when the
// object was created or deleted.
func onChange[T any, O interface {
	*T
	metav1.Object
}](f func(before, after O)) cache.ResourceEventHandler {
	return withLastState(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { f(nil, o.(O)) },
		UpdateFunc: func(before, after any) { f(before.(O), after.(O)) },
		DeleteFunc: func(o any) { f(o.(O), nil) },
	})
}

// withLastState passes h the last known state of an object that was deleted while the
// watch was broken. Eventing's and Knative's handlers ignore such deletions.
func withLastState(h cache.ResourceEventHandler) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    h.OnAdd,
		UpdateFunc: h.OnUpdate,
		DeleteFunc: func(o any) {
			if tomb, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = tomb.Obj
			}
			if o != nil {
				h.OnDelete(o)
			}
		},
	}
}

// lenient watches ConfigMaps that may be missing; Knative's watcher would end
// the process. A missing ConfigMap has its defaults. A deleted ConfigMap stays in
// force: a cluster without config-features for a moment must not lose the
// identities of all sources. Nor must one with a slip in it.
type lenient struct {
	configmap.Watcher
	log    *zap.SugaredLogger
	events record.EventRecorder
}

// Watch implements configmap.Watcher.
func (l lenient) Watch(name string, observers ...configmap.Observer) {
	w, ok := l.Watcher.(configmap.DefaultingWatcher)
	if !ok {
		l.Watcher.Watch(name, observers...)
		return
	}
	// The watcher passes on only ConfigMaps of its namespace, the default included.
	usual := corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: system.Namespace(), Name: name}}
	var seen atomic.Bool
	w.WatchWithDefault(usual, func(cm *corev1.ConfigMap) {
		switch before := seen.Load(); {
		case cm.ResourceVersion != "": // the default is no object of the API server
			seen.Store(true)
			if cm = l.withoutSlips(cm, !before); cm == nil {
				return
			}
		case before:
			l.log.Errorw("A deleted ConfigMap stays in force until it exists again or the controller restarts", zap.String("configMap", name))
			return
		}
		for _, o := range observers {
			o(cm)
		}
	})
}

// withoutSlips is the ConfigMap, or nil for config-features with a value that is none of Knative's:
// then the flags stay as they were. The first one has the strictest value in its place.
func (l lenient) withoutSlips(cm *corev1.ConfigMap, first bool) *corev1.ConfigMap {
	if cm.Name != feature.FlagsConfigName {
		return cm
	}
	flags, err := features.Read(cm.Data)
	if err == nil {
		return cm
	}
	what := "The features stay as they were"
	if first {
		what = "The strictest features are in force"
	}
	l.log.Errorw(what+": the ConfigMap cannot be understood", zap.String("configMap", cm.Name), zap.Error(err))
	l.events.Eventf(cm, corev1.EventTypeWarning, "InvalidConfig", "%s: %v", what, err)
	if !first {
		return nil
	}
	strict := cm.DeepCopy()
	strict.Data = map[string]string{}
	for key, value := range flags {
		strict.Data[key] = string(value)
	}
	return strict
}
