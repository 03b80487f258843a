// Command metacontroller runs Metacontroller's controllers from zero replicas. It reads
// CompositeControllers and DecoratorControllers from files and calls their hooks when a
// RescheduleSource says so. docs/metacontroller.md is about it.
//
// It guarantees that a hook is called only with everything that it must see, that an
// object that is not a child is not overwritten, and that what a hook sends is bounded.
// It leaves to the RescheduleSource: the watches, the timers, the back-off.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/reschedule-dev/reschedule/sdk"
	reschedule "github.com/reschedule-dev/reschedule/sdk/controller"
)

func main() {
	ctrl.SetLogger(zap.New())
	if err := run(ctrl.SetupSignalHandler()); err != nil {
		ctrl.Log.Error(err, "The bridge ends")
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var related []string
	audience := flag.String("audience", "", "the sink.audience of the RescheduleSource; without one every sender is accepted")
	workers := flag.Int("workers", 5, "how many objects are synced at once, for each controller")
	own := flag.Bool("own-namespace", false, "the parents are in the namespace of the pod, in the place of WATCH_NAMESPACE")
	flag.Func("related", "APIVERSION/RESOURCE of objects that customize hooks ask for, such as apps/v1/deployments; may be repeated", func(s string) error {
		related = append(related, s)
		return nil
	})
	flag.Parse()
	manifests, err := readManifests(flag.Args())
	if err != nil {
		return err
	}
	var options []reschedule.Option
	if *audience != "" {
		options = append(options, reschedule.WithAudience(*audience))
	}
	if os.Getenv("RESCHEDULE_URL") != "" {
		source, err := sdk.FromEnv()
		if err != nil {
			return err
		}
		options = append(options, reschedule.WithClient(source))
	}
	namespace := os.Getenv("WATCH_NAMESPACE")
	if *own { // Knative allows no fieldRef in the environment of a pod
		b, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
		if err != nil {
			return fmt.Errorf("-own-namespace: %w", err)
		}
		namespace = strings.TrimSpace(string(b))
	}
	o := cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}} // "" is all
	for _, m := range manifests {
		if period := time.Duration(m.Spec.ResyncPeriodSeconds) * time.Second; period > 0 && (o.SyncPeriod == nil || period < *o.SyncPeriod) {
			o.SyncPeriod = &period
		}
	}
	mgr, err := reschedule.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{Cache: o}, options...)
	if err != nil {
		return err
	}
	for _, m := range manifests {
		for i := range m.parents() {
			if err := setup(mgr, m, m.parents()[i], namespace, related, *workers); err != nil {
				return fmt.Errorf("%s %s: %w", m.Kind, m.Metadata.Name, err)
			}
		}
	}
	return mgr.Start(ctx)
}

// setup makes a controller for the objects of one parent rule.
func setup(mgr ctrl.Manager, m *manifest, rule parentRule, namespace string, related []string, workers int) error {
	b := &bridge{Client: mgr.GetClient(), manifest: m, rule: rule, namespace: namespace}
	if err := b.resolve(mgr.GetRESTMapper()); err != nil {
		return err
	}
	about := []builder.ForOption{builder.OnlyMetadata}
	if rule.IgnoreStatusChanges {
		about = append(about, builder.WithPredicates(predicate.Or(
			predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{})))
	}
	of := func(r resource) client.Object {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(r.GroupVersionKind)
		return o
	}
	c := ctrl.NewControllerManagedBy(mgr).Named(m.Metadata.Name+"-"+rule.Resource).For(of(b.parent), about...)
	for _, child := range b.children {
		c = c.Owns(of(child.resource), builder.OnlyMetadata)
	}
	if m.Spec.Hooks.Customize != nil {
		for _, name := range related {
			i := max(strings.LastIndex(name, "/"), 0)
			r, err := resolve(mgr.GetRESTMapper(), name[:i], strings.TrimPrefix(name[i:], "/"))
			if err != nil {
				return fmt.Errorf("-related %s: %w", name, err)
			}
			c = c.Watches(of(r), handler.EnqueueRequestsFromMapFunc(b.relatedTo(r)), builder.OnlyMetadata)
		}
	}
	return c.WithOptions(controller.Options{MaxConcurrentReconciles: workers}).Complete(b)
}

func (b *bridge) resolve(mapper meta.RESTMapper) (err error) {
	if b.parent, err = resolve(mapper, b.rule.APIVersion, b.rule.Resource); err != nil {
		return err
	}
	for _, rule := range b.manifest.children() {
		r, err := resolve(mapper, rule.APIVersion, rule.Resource)
		if err != nil {
			return err
		}
		if b.parent.namespaced && !r.namespaced {
			return fmt.Errorf("%s have no namespace, so that %s, which have one, cannot own them", rule.Resource, b.rule.Resource)
		}
		if !slices.ContainsFunc(b.children, func(c child) bool { return c.resource == r }) {
			b.children = append(b.children, child{r, rule.UpdateStrategy.Method})
		}
	}
	return nil
}

// relatedTo maps an object to the parents whose customize hook asks for it. Labels are
// left out: an object that a selector does not match any more is a change too.
func (b *bridge) relatedTo(r resource) handler.MapFunc {
	return func(ctx context.Context, o client.Object) (all []reconcile.Request) {
		err := b.list(ctx, b.parent, b.namespace, nil, func(parent *unstructured.Unstructured) error {
			if !b.marked(parent) && !b.rule.selects(parent) {
				return nil
			}
			rules, err := b.customize(ctx, parent)
			if err != nil { // its own run says what is wrong
				log.FromContext(ctx).Info("Syncing a parent whose related objects are not known", "parent", client.ObjectKeyFromObject(parent), "error", err.Error())
			}
			if err != nil || slices.ContainsFunc(rules, func(rule relatedRule) bool { return b.mayMean(rule, r, parent, o) }) {
				all = append(all, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: parent.GetNamespace(), Name: parent.GetName()}})
			}
			return nil
		})
		if err != nil && !errors.Is(err, context.Canceled) {
			log.FromContext(ctx).Error(err, "The parents of a related object cannot be read") // the event comes again
		}
		return all
	}
}

// mayMean reports whether a rule selects an object, if its labels are right.
func (b *bridge) mayMean(rule relatedRule, r resource, parent, o client.Object) bool {
	is, err := resolve(b.RESTMapper(), rule.APIVersion, rule.Resource)
	if err != nil || is.GroupKind() != r.GroupKind() {
		return false
	}
	if len(rule.Names) > 0 && !slices.Contains(rule.Names, o.GetName()) {
		return false
	}
	namespace := rule.Namespace
	if namespace == "" && !b.Spec.Hooks.Customize.v2() {
		namespace = parent.GetNamespace()
	}
	return namespace == "" || !r.namespaced || namespace == o.GetNamespace()
}
