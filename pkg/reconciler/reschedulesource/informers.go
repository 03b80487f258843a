package reschedulesource

import (
	"context"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	rbacinformers "k8s.io/client-go/informers/rbac/v1"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/tools/cache"
	eventinginformers "knative.dev/eventing/pkg/client/informers/externalversions/eventing/v1alpha1"
	eventingclient "knative.dev/eventing/pkg/client/injection/client"
	kubeclient "knative.dev/pkg/client/injection/kube/client"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/injection"
	"knative.dev/pkg/logging"
	"knative.dev/pkg/system"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/optional"
	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
)

// Knative's injected informers watch all objects of a kind in the cluster.
// These informers watch one object each, so the controller keeps one object in
// memory and needs rights on one object: resourceNames allows list and watch with
// a field selector on the name.
func init() {
	injection.Default.RegisterInformer(withStatefulSetInformer)
	injection.Default.RegisterInformer(withSecretInformer)
	injection.Default.RegisterInformer(withWatchRoleInformer)
}

type (
	statefulSetKey struct{}
	secretKey      struct{}
	roleKey        struct{}
)

func withStatefulSetInformer(ctx context.Context) (context.Context, controller.Informer) {
	informer := appsinformers.NewFilteredStatefulSetInformer(
		kubeclient.Get(ctx), system.Namespace(), controller.GetResyncPeriod(ctx), byNamespace, only(resources.AdapterName))
	return context.WithValue(ctx, statefulSetKey{}, informer), informer
}

func withSecretInformer(ctx context.Context) (context.Context, controller.Informer) {
	informer := coreinformers.NewFilteredSecretInformer(
		kubeclient.Get(ctx), system.Namespace(), controller.GetResyncPeriod(ctx), byNamespace, only(resources.TLSSecretName))
	return context.WithValue(ctx, secretKey{}, informer), informer
}

// audiencesEvery is how often the audiences of the API server are looked at: a flag changes them, and no
// event tells.
const audiencesEvery = 10 * time.Minute

func withWatchRoleInformer(ctx context.Context) (context.Context, controller.Informer) {
	informer := rbacinformers.NewFilteredClusterRoleInformer(
		kubeclient.Get(ctx), audiencesEvery, cache.Indexers{}, only(resources.WatchRoleName))
	return context.WithValue(ctx, roleKey{}, informer), informer
}

var byNamespace = cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}

func only(name string) func(*metav1.ListOptions) {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	return func(o *metav1.ListOptions) { o.FieldSelector = selector }
}

func statefulSets(ctx context.Context) (cache.SharedIndexInformer, appslisters.StatefulSetNamespaceLister) {
	informer := registered(ctx, statefulSetKey{})
	return informer, appslisters.NewStatefulSetLister(informer.GetIndexer()).StatefulSets(system.Namespace())
}

func secrets(ctx context.Context) (cache.SharedIndexInformer, corelisters.SecretNamespaceLister) {
	informer := registered(ctx, secretKey{})
	return informer, corelisters.NewSecretLister(informer.GetIndexer()).Secrets(system.Namespace())
}

func watchRoles(ctx context.Context) (cache.SharedIndexInformer, rbaclisters.ClusterRoleLister) {
	informer := registered(ctx, roleKey{})
	return informer, rbaclisters.NewClusterRoleLister(informer.GetIndexer())
}

func registered(ctx context.Context, key any) cache.SharedIndexInformer {
	informer, ok := ctx.Value(key).(cache.SharedIndexInformer)
	if !ok {
		logging.FromContext(ctx).Panicf("There is no informer under %T in the context", key)
	}
	return informer
}

// eventPolicies is the informer of EventPolicies. It is not one of Knative's injected informers: the
// process would wait for its first list, which never comes in a cluster without Knative Eventing.
func eventPolicies(ctx context.Context) cache.SharedIndexInformer {
	return eventinginformers.NewEventPolicyInformer(eventingclient.Get(ctx), metav1.NamespaceAll, controller.GetResyncPeriod(ctx), byNamespace)
}

// followPolicies runs the informer, and returns when the EventPolicies are known: without them a
// status would list no policy for a moment.
func followPolicies(ctx context.Context, informer cache.SharedIndexInformer) {
	logger := logging.FromContext(ctx)
	kind, err := optional.Follow(informer, func() {
		logger.Info("The cluster has no EventPolicies; the controller looks for them again from time to time")
	})
	if err != nil {
		logger.Panicw("Cannot watch EventPolicies", zap.Error(err))
	}
	go informer.RunWithContext(ctx)
	cache.WaitForCacheSync(ctx.Done(), kind.Known)
}
