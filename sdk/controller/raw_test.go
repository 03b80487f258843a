package controller

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// targets is an operator whose targets have a cache of their own, as in trust-manager 0.25. A second controller is For
// what only such a cache has.
func targets(l *log) func(ctrl.Manager) error {
	return func(mgr ctrl.Manager) error {
		target := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}}
		other := &informers{scheme: scheme.Scheme, byKind: map[kind]*informer{}}
		owner := handler.TypedEnqueueRequestForOwner[*metav1.PartialObjectMetadata](mgr.GetScheme(), mgr.GetRESTMapper(), &corev1.ConfigMap{}, handler.OnlyControllerOwner())
		if err := ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).WatchesRawSource(source.Kind(other, target, owner)).
			WatchesRawSource(source.Kind(other, &corev1.Pod{}, handler.TypedEnqueueRequestsFromMapFunc[*corev1.Pod, reconcile.Request](nil))).
			WatchesRawSource(customSource{}).Complete(l.as("bundle")); err != nil {
			return err
		}
		return ctrl.NewControllerManagedBy(mgr).Named("raw").WatchesRawSource(source.Kind(other, &corev1.Service{}, &handler.TypedEnqueueRequestForObject[*corev1.Service]{})).
			Complete(l.as("raw"))
	}
}

// A deleted target was not made again: the printed source had its kind without the owner, so that its events came
// under a key that is of no controller.
func TestRawSource_DeletedTargetIsMadeAgain(t *testing.T) {
	t.Parallel()
	l := &log{}
	var printed strings.Builder
	op := startManager(t, cluster(configMap("a", 1)), func(mgr ctrl.Manager) error {
		if err := targets(l)(mgr); err != nil {
			return err
		}
		return PrintSource(mgr, &printed, types.NamespacedName{Namespace: "ops", Name: "websites"})
	})
	if want := "{apiVersion: v1, kind: Secret, owner: {apiVersion: v1, kind: ConfigMap}}"; !strings.Contains(printed.String(), want) {
		t.Errorf("it does not print %s:\n%s", want, printed.String())
	}
	op.send(caused("ConfigMap/ns/a", "v1/Secret/ns/target"), "") // what that entry leads to
	if runs := l.take(); runs != "bundle ns/a" {
		t.Errorf("after the deletion of a target it ran %q", runs)
	}
	for _, v := range []verb{added, updated, deleted} {
		a := op.send(sighted(v, "Service/ns/s", "1"))
		if runs := l.take(); runs != "raw ns/s" {
			t.Errorf("the object of another cache, %s: answered with %s, ran %q", v, a, runs)
		}
	}
	if a := op.send(sighted(deleted, "Pod/ns/p", "1")); a.String() != "204 never" || l.take() != "" {
		t.Errorf("what no key maps: answered with %s", a)
	}
	if n := op.manager.server.lines.Load(); n != 0 {
		t.Errorf("of kinds of another cache it logged %d lines", n)
	}
	// A kind that is in the manager's cache too keeps the line about its namespaces.
	o := cluster()
	o.Cache.DefaultNamespaces = map[string]cache.Config{"ns": {}}
	op = startManager(t, o, func(mgr ctrl.Manager) error {
		second := ctrl.NewControllerManagedBy(mgr).For(&corev1.ServiceAccount{}).Owns(&corev1.Secret{})
		return errors.Join(targets(l)(mgr), second.Complete(l.as("second")))
	})
	op.send(sighted(updated, "Secret/other/s", "1"))
	if n := op.manager.server.lines.Load(); n != 1 {
		t.Errorf("of a kind outside the namespaces it logged %d lines", n)
	}
}
