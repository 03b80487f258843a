package reschedulesource

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/transport"
	kubeclient "knative.dev/pkg/client/injection/kube/client"
	"knative.dev/pkg/configmap"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/injection"
	"knative.dev/pkg/logging"
	"knative.dev/pkg/reconciler"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/client/injection/informers/sources/v1alpha1/reschedulesource"
	listers "github.com/reschedule-dev/reschedule/pkg/client/listers/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
)

const (
	watchAccountsName = "reschedule-watch-accounts"
	// After a write the next one waits for writeGap, and for a large role so much
	// longer that the writes come to writeRate bytes a second at most.
	writeGap  = time.Second
	writeRate = 100_000
)

var watchRoleKey = types.NamespacedName{Name: resources.WatchRoleName}

// WatchAccounts keeps the ClusterRole with the accounts that the adapter may watch and
// scale with: the accounts that the sources name in spec.watch and spec.scale, and the
// accounts of workloads that they hold. The role also has the audiences of the API server,
// by which a policy knows tokens for it. WatchAccounts only updates the role. Without it,
// nothing may be watched or scaled.
type WatchAccounts struct {
	reconciler.LeaderAwareFuncs

	kube    kubernetes.Interface
	roles   rbaclisters.ClusterRoleLister
	sources listers.RescheduleSourceLister
	token   func() string // of the controller
	next    time.Time     // no write before it
}

var (
	_ controller.Reconciler  = (*WatchAccounts)(nil)
	_ reconciler.LeaderAware = (*WatchAccounts)(nil)
)

// NewWatchAccounts makes the controller whose only key is the ClusterRole.
func NewWatchAccounts(ctx context.Context, _ configmap.Watcher) *controller.Impl {
	logger := logging.FromContext(ctx)
	sources := reschedulesource.Get(ctx)
	roleInformer, roleLister := watchRoles(ctx)
	w := &WatchAccounts{kube: kubeclient.Get(ctx), roles: roleLister, sources: sources.Lister(), token: ownToken(injection.GetConfig(ctx))}
	w.PromoteFunc = func(bucket reconciler.Bucket, enqueue func(reconciler.Bucket, types.NamespacedName)) error {
		enqueue(bucket, watchRoleKey)
		return nil
	}
	impl := controller.NewContext(ctx, w, controller.ControllerOptions{
		WorkQueueName: watchAccountsName, Logger: logger.Named(watchAccountsName), Concurrency: 1,
	})
	look := impl.EnqueueSentinel(watchRoleKey)
	for _, watch := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{sources.Informer(), onChange(func(before, after *v1alpha1.RescheduleSource) {
			if !slices.Equal(resources.Accounts(before), resources.Accounts(after)) {
				look(after)
			}
		})},
		{roleInformer, controller.HandleAll(look)},
	} {
		if _, err := watch.informer.AddEventHandler(watch.handler); err != nil {
			logger.Panicw("Cannot watch", zap.Error(err))
		}
	}
	return impl
}

// ownToken reads the token of the controller again when it was renewed.
func ownToken(c *rest.Config) func() string {
	if c.BearerTokenFile == "" {
		return func() string { return c.BearerToken }
	}
	file := transport.NewCachedFileTokenSource(c.BearerTokenFile)
	return func() string {
		token, err := file.Token()
		if err != nil {
			return "" // no call is answered either
		}
		return token.AccessToken
	}
}

// Reconcile implements controller.Reconciler.
func (w *WatchAccounts) Reconcile(ctx context.Context, key string) error {
	if key != watchRoleKey.Name { // it has no namespace
		logging.FromContext(ctx).Errorf("The controller of watch accounts got the key %q, which is not the ClusterRole", key)
		return nil
	}
	if !w.IsLeaderFor(watchRoleKey) {
		return controller.NewSkipKey(key)
	}
	if wait := time.Until(w.next); wait > 0 {
		return controller.NewRequeueAfter(wait)
	}
	role, err := w.roles.Get(resources.WatchRoleName)
	if apierrors.IsNotFound(err) {
		return nil // the administrator forbids watching and scaling
	}
	if err != nil {
		return fmt.Errorf("reading the ClusterRole %s: %w", resources.WatchRoleName, err)
	}
	all, err := w.sources.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing the sources in memory: %w", err)
	}
	rules, excess := resources.WatchRules(all, resources.APIAudiences(w.token()))
	if equality.Semantic.DeepEqual(role.Rules, rules) {
		return nil
	}
	role = role.DeepCopy()
	role.Rules = rules
	w.next = time.Now().Add(max(writeGap, time.Duration(role.Size())*time.Second/writeRate))
	if _, err := w.kube.RbacV1().ClusterRoles().Update(ctx, role, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("updating the ClusterRole %s: %w", resources.WatchRoleName, err)
	}
	if excess > 0 {
		logging.FromContext(ctx).Errorf(
			"The names of %d ServiceAccounts do not fit into the ClusterRole %s: their sources neither watch nor scale. Let sources share accounts, or use shorter names",
			excess, resources.WatchRoleName)
	}
	return nil
}
