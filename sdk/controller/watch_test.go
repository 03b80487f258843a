package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/reschedule-dev/reschedule/sdk/internal/cloudevent"
)

// The tests of this file send the events of spec.watch.

// sourcePath is the source attribute of the events that a source makes.
const sourcePath = "/apis/sources.reschedule.dev/v1alpha1/namespaces/default/reschedulesources/configs"

// sighted are the attributes and the data of an event about the object KIND/NAMESPACE/NAME
// itself, which is delivered under that key.
func sighted(v verb, object, uid string) (attributes map[string]string, data string) {
	return sightedAt(v, object, uid, "17")
}

// sightedAt is sighted of an object that has a version.
func sightedAt(v verb, object, uid, version string) (attributes map[string]string, data string) {
	parts := strings.Split(object, "/")
	a := changed("ref."+string(v), object)
	maps.Copy(a, map[string]string{"source": sourcePath, "kind": parts[0], "apiversion": "v1", "namespace": parts[1], "name": parts[2]})
	return a, toJSON(corev1.ObjectReference{Kind: parts[0], APIVersion: "v1", Namespace: parts[1], Name: parts[2], UID: types.UID(uid), ResourceVersion: version})
}

// caused are the attributes of an event that a change of another object led to.
func caused(key, cause string) map[string]string {
	a := dueEvent(key)
	a["source"], a[cloudevent.CauseAttribute] = sourcePath, cause
	return a
}

// TestWatch_EventsReachTheReconciler sends one event after the other to an operator, which
// remembers what it has seen.
func TestWatch_EventsReachTheReconciler(t *testing.T) {
	t.Parallel()
	const key = "ConfigMap/ns/a"
	account := func(name, configs string) *corev1.ServiceAccount {
		sa := &corev1.ServiceAccount{}
		sa.Namespace, sa.Name, sa.Annotations = "ns", name, map[string]string{"configs": configs}
		return sa
	}
	c := &configs{}
	op := start(t, c, []client.Object{configMap("a", 1), configMap("b", 1), account("sa", "a,b"), account("none", "")})
	for i, e := range []struct {
		about string
		send  func() (map[string]string, string)
		want  string
		runs  string
	}{
		{"a new object", func() (map[string]string, string) { return sighted(added, key, "1") }, "204", "ns/a"},
		{"a change", func() (map[string]string, string) { return sighted(updated, key, "1") }, "204", "ns/a"},
		{"a resync, of an object in the same state", func() (map[string]string, string) { return sighted(updated, key, "1") }, "204", "ns/a"},
		{"the same of an ApiServerSource", func() (map[string]string, string) {
			a, data := sighted(updated, key, "1")
			a["source"] = "https://10.96.0.1:443"
			return a, data
		}, "204", ""},
		{"an owned object", func() (map[string]string, string) { return caused(key, "v1/Secret/ns/s"), "" }, "204", "ns/a"},
		{"an owned object, whose owner is gone", func() (map[string]string, string) { return caused("ConfigMap/ns/gone", "v1/Secret/ns/s"), "" }, "204 never", "ns/gone"},
		{"an owned object of another kind of owner", func() (map[string]string, string) { return caused("Pod/ns/a", "v1/Secret/ns/s"), "" }, "400", ""},
		{"an object that maps to two", func() (map[string]string, string) { return sighted(updated, "ServiceAccount/ns/sa", "3") }, "204", "ns/a ns/b"},
		{"an object that maps to none", func() (map[string]string, string) { return sighted(updated, "ServiceAccount/ns/none", "4") }, "204", ""},
		{"an object that maps to none, gone before it was seen", func() (map[string]string, string) { return sighted(deleted, "ServiceAccount/ns/unseen", "5") }, "204", ""},
		{"a change of what is gone by now", func() (map[string]string, string) { return sighted(updated, "ConfigMap/ns/gone", "6") }, "204 never", "ns/gone"},
		{"a deletion", func() (map[string]string, string) { return sighted(deleted, "ConfigMap/ns/gone", "6") }, "204 never", "ns/gone"},
		{"a deletion of what is there again", func() (map[string]string, string) { return sighted(deleted, key, "1") }, "200 1ms", "ns/a"},
		{"an object again under its name", func() (map[string]string, string) { return sighted(added, key, "2") }, "204", "ns/a"},
		{"a kind that no controller watches", func() (map[string]string, string) { return sighted(added, "Pod/ns/p", "7") }, "204 never", ""},
	} {
		a := op.send(e.send())
		if runs := strings.Join(c.ran(), " "); a.String() != e.want || runs != e.runs {
			t.Errorf("%d, %s: answered with %s %q and ran %q, want %s and %q", i, e.about, a, a.body, runs, e.want, e.runs)
		}
	}
	// A map function that saw the object before maps its deletion too.
	if err := op.manager.GetClient().Delete(t.Context(), account("sa", "")); err != nil {
		t.Fatal(err)
	}
	if a, runs := op.send(sighted(deleted, "ServiceAccount/ns/sa", "3")), strings.Join(c.ran(), " "); runs != "ns/a ns/b" {
		t.Errorf("the deletion of an object that maps to two is answered with %s, ran %q", a, runs)
	}
}

// TestWatch_OwnStatusDoesNotLoop says that a status that an operator writes in each run does
// not run a controller whose predicate drops it, though another one has the source report it.
// Where the event may have taken the place of an event about an owned object, it runs once,
// and then after a back-off.
func TestWatch_OwnStatusDoesNotLoop(t *testing.T) {
	t.Parallel()
	o := configMap("a", 1)
	l := &log{}
	as := func(name string) reconcile.Reconciler {
		return reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			l.add(name)
			return reconcile.Result{}, nil
		})
	}
	generation := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	op := startManager(t, cluster(o), func(mgr ctrl.Manager) error {
		return errors.Join(
			ctrl.NewControllerManagedBy(mgr).Named("any").For(&corev1.ConfigMap{}).Complete(as("any")),
			ctrl.NewControllerManagedBy(mgr).Named("owns").For(&corev1.ConfigMap{}, generation).Owns(&corev1.Secret{}).Complete(as("owns")),
			ctrl.NewControllerManagedBy(mgr).Named("spec").For(&corev1.ConfigMap{}, generation).Complete(as("spec")))
	})
	for i, e := range []struct {
		generation int64 // 0: nothing has changed, as in a resync
		runs, want string
	}{
		{1, "any, owns, spec", "204"}, // the first event of the process
		{1, "any, owns", "204"},
		{1, "any", "200 1s"},
		{0, "any, owns, spec", "204"},
		{2, "any, owns, spec", "204"},
		{2, "any, owns", "204"},
	} {
		if e.generation > 0 {
			o.Generation, o.Labels, o.ResourceVersion = e.generation, map[string]string{"status": fmt.Sprint(i)}, ""
			if err := op.manager.GetClient().Update(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		if a, runs := op.send(sightedAt(updated, "ConfigMap/ns/a", "1", o.ResourceVersion)), l.take(); runs != e.runs || a.String() != e.want {
			t.Errorf("%d: answered with %s, ran %q, want %s and %q", i, a, runs, e.want, e.runs)
		}
	}
}

// TestWatch_PredicatesKeepOthersOut says that an object of another class is not run, in
// whatever state the process is, and that it is when its class changes.
func TestWatch_PredicatesKeepOthersOut(t *testing.T) {
	t.Parallel()
	o := configMap("a", 1)
	l := &log{}
	op := startManager(t, cluster(o), func(mgr ctrl.Manager) error {
		ours := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()["class"] == "ours" })
		return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}, builder.WithPredicates(ours, predicate.GenerationChangedPredicate{})).Complete(l.as("ran"))
	})
	for i, e := range []struct {
		v     verb
		class string
		want  string
	}{{added, "theirs", ""}, {updated, "theirs", ""}, {updated, "ours", "ran ns/a"}, {updated, "ours", ""}, {updated, "theirs", ""}} {
		o.Labels = map[string]string{"class": e.class}
		o.ResourceVersion = ""
		if err := op.manager.GetClient().Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if a, runs := op.send(sightedAt(e.v, "ConfigMap/ns/a", "1", o.ResourceVersion)), l.take(); runs != e.want {
			t.Errorf("%d: answered with %s, ran %q, want %q", i, a, runs, e.want)
		}
	}
}

// TestTimer_OfAnotherProcessStays is about an object that predicates keep out, in a process that does not know of its
// timer and has a client: the source knows which timer the event took the place of.
func TestTimer_OfAnotherProcessStays(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		timer time.Duration // of the key before the event; 0: none
		want  time.Duration // 0: never
	}{"a timer": {time.Hour, time.Hour}, "its time has come": {-time.Hour, 0}, "none": {0, 0}} {
		f := newFakeSource(t, time.Second)
		if row.timer != 0 {
			f.previous = time.Now().Add(row.timer)
		}
		l := &log{}
		op := startManager(t, cluster(configMap("a", 1)), func(mgr ctrl.Manager) error {
			none := predicate.NewPredicateFuncs(func(client.Object) bool { return false })
			return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}, builder.WithPredicates(none)).Complete(l.as("ran"))
		}, WithClient(f.client()))
		a := op.send(sighted(updated, "ConfigMap/ns/a", "1"))
		after, _ := time.ParseDuration(a.after)
		if runs := l.take(); runs != "" || (a.String() == "204 never") != (row.want == 0) || (after-row.want).Abs() > patience {
			t.Errorf("%s: answered with %s, ran %q", name, a, runs)
		}
	}
}
