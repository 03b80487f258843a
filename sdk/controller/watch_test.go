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
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crevent "sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/reschedule-dev/reschedule/sdk"
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

// TestPredicates_UpdateOfAFieldRuns says that a predicate that refuses new objects, and
// compares a field of the old object, lets updates pass in a process that has not seen the
// object. One that cannot read an object without fields lets it pass by the others alone.
func TestPredicates_UpdateOfAFieldRuns(t *testing.T) {
	t.Parallel()
	o := configMap("a", 1)
	o.Data = map[string]string{"text": "1"}
	l := &log{}
	op := startManager(t, cluster(o), func(mgr ctrl.Manager) error {
		with := func(changed func(old, now *corev1.ConfigMap) bool) builder.Predicates {
			return builder.WithPredicates(predicate.Funcs{
				CreateFunc: func(crevent.CreateEvent) bool { return false },
				UpdateFunc: func(e crevent.UpdateEvent) bool {
					return changed(e.ObjectOld.(*corev1.ConfigMap), e.ObjectNew.(*corev1.ConfigMap))
				},
			})
		}
		return errors.Join(
			ctrl.NewControllerManagedBy(mgr).Named("text").For(&corev1.ConfigMap{}, with(func(old, now *corev1.ConfigMap) bool {
				return old.Data["text"] != now.Data["text"]
			})).Complete(l.as("text")),
			ctrl.NewControllerManagedBy(mgr).Named("panics").For(&corev1.ConfigMap{}, with(func(old, _ *corev1.ConfigMap) bool {
				if old.Data == nil {
					panic("there is always one")
				}
				return false
			})).Complete(l.as("panics")))
	})
	for v, want := range map[verb]string{added: "", updated: "text ns/a"} {
		if a, runs := op.send(sighted(v, "ConfigMap/ns/a", "1")), l.take(); runs != want {
			t.Errorf("%s: answered with %s, ran %q, want %q", v, a, runs, want)
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
	}{{added, "theirs", ""}, {updated, "theirs", ""}, {updated, "ours", "ran ns/a"}, {updated, "ours", "ran ns/a"}, {updated, "theirs", ""}} {
		o.Labels = map[string]string{"class": e.class}
		o.ResourceVersion = ""
		if err := op.manager.GetClient().Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if a, runs := op.send(sighted(e.v, "ConfigMap/ns/a", "1")), l.take(); runs != e.want {
			t.Errorf("%d: answered with %s, ran %q, want %q", i, a, runs, e.want)
		}
	}
}

// TestWatch_SeveralControllers has two controllers for a kind, and a kind without
// namespaces.
func TestWatch_SeveralControllers(t *testing.T) {
	t.Parallel()
	l := &log{}
	node := &corev1.Node{}
	node.Name = "n1"
	op := startManager(t, cluster(configMap("a", 1), node), func(mgr ctrl.Manager) error {
		return errors.Join(
			ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(l.as("first")),
			ctrl.NewControllerManagedBy(mgr).Named("second").For(&corev1.ConfigMap{}).Owns(&corev1.Secret{}).Complete(l.as("second")),
			ctrl.NewControllerManagedBy(mgr).For(&corev1.Node{}).Owns(&corev1.Pod{}).Complete(l.as("node")))
	})
	for key, want := range map[string]string{"ConfigMap/ns/a": "first ns/a, second ns/a", "Node//n1": "node /n1"} {
		for what, send := range map[string]func() (map[string]string, string){
			"the object":   func() (map[string]string, string) { return sighted(updated, key, "1") },
			"another one":  func() (map[string]string, string) { return caused(key, "v1/Secret/ns/s"), "" },
			"its deletion": func() (map[string]string, string) { return sighted(deleted, key, "1") },
		} {
			if a, runs := op.send(send()), l.take(); a.String() != "200 1h0m0s" || runs != want {
				t.Errorf("%s, %s: answered with %s, ran %q, want %q", key, what, a, runs, want)
			}
		}
	}
}

// TestWatch_OutsideTheCachesNamespaces says that an object outside them is dropped for
// good: a source may watch more namespaces than its operator works in.
func TestWatch_OutsideTheCachesNamespaces(t *testing.T) {
	t.Parallel()
	o := cluster()
	o.Cache.DefaultNamespaces = map[string]cache.Config{"ns": {}}
	c := &configs{busy: map[reconcile.Request]bool{}}
	op := startManager(t, o, func(mgr ctrl.Manager) error {
		c.Client = mgr.GetClient()
		return c.SetupWithManager(mgr)
	})
	for what, a := range map[string]answered{
		"the object":  op.send(sighted(added, "ConfigMap/other/a", "1")),
		"another one": op.send(caused("ConfigMap/other/a", "v1/Secret/other/s"), ""),
	} {
		if runs := c.ran(); a.String() != "204 never" || len(runs) > 0 {
			t.Errorf("%s: answered with %s %s, ran %q", what, a, a.body, runs)
		}
	}
}

// watchedConfigs is an operator behind the real adapter, whose source gets the items that
// a watching source makes.
type watchedConfigs struct {
	*diary
	t       *testing.T
	source  *sdk.Client
	objects client.Client
}

// watched starts it. A run of an object follows next, and asks for another one in an hour
// when next has no more steps.
func watched(t *testing.T, next map[string][]step, before func(reconcile.Request)) *watchedConfigs {
	t.Helper()
	l := listen(t)
	address := adapter(t, map[string]string{"configs": fmt.Sprintf("{sink: {uri: \"http://%s\"}, maxInterval: 10h, delivery: {backoffDelay: PT0.02S}}", l.Addr())})
	c, err := sdk.New(address + "configs")
	if err != nil {
		t.Fatal(err)
	}
	w := &watchedConfigs{&diary{next: next}, t, c, nil}
	startManager(t, cluster(), func(mgr ctrl.Manager) error {
		w.objects = mgr.GetClient()
		return ctrl.NewControllerManagedBy(mgr).
			For(&corev1.ConfigMap{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).Owns(&corev1.Secret{}).
			Complete(reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
				if before != nil {
					before(r)
				}
				if err := w.objects.Get(ctx, r.NamespacedName, &corev1.ConfigMap{}); err != nil {
					_, _ = w.result(r)
					return reconcile.Result{}, client.IgnoreNotFound(err)
				}
				result, err := w.result(r)
				if result.IsZero() && err == nil {
					result.RequeueAfter = time.Hour
				}
				return result, err
			}))
	}, WithListener(l))
	return w
}

// report schedules a key at once, with the policy, the event and the uid that a watching
// source gives it.
func (w *watchedConfigs) report(key, uid string, attributes map[string]string, data string) {
	w.t.Helper()
	e := &sdk.Event{Type: attributes["type"], Extensions: map[string]any{}, Data: []byte(data)}
	for _, name := range []string{"kind", "apiversion", "name", "namespace", cloudevent.CauseAttribute} {
		if value, ok := attributes[name]; ok && value != "x" {
			e.Extensions[name] = value
		}
	}
	r := sdk.After(0)
	r.Policy, r.UID, r.Event = sdk.Earliest, uid, e
	if _, err := w.source.Schedule(w.t.Context(), key, r); err != nil {
		w.t.Fatal(err)
	}
}

func (w *watchedConfigs) object(v verb, name, uid string) {
	w.t.Helper()
	attributes, data := sighted(v, "ConfigMap/ns/"+name, uid)
	w.report("ConfigMap/ns/"+name, uid, attributes, data)
}

func (w *watchedConfigs) owned(owner, uid string) {
	w.t.Helper()
	w.report("ConfigMap/ns/"+owner, uid, caused("", "v1/Secret/ns/s"), "")
}

// settled waits until an object was run so often and its key waits for its timer, or is
// gone.
func (w *watchedConfigs) settled(name string, runs int, gone bool) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%d runs of %s, and then a timer: %t", runs, name, !gone), func() (bool, string) {
		s, err := w.source.Get(w.t.Context(), "ConfigMap/ns/"+name)
		state := fmt.Sprint(len(w.runs(name)), " runs, ", s, err)
		if gone {
			return len(w.runs(name)) == runs && errors.Is(err, sdk.ErrNotFound), state
		}
		return len(w.runs(name)) == runs && err == nil && s.State == sdk.Waiting && time.Until(s.DueAt) > time.Hour-patience, state
	})
}

// TestAdapter_LifeOfAWatchedObject makes an object, changes what it owns, deletes it and
// makes it again, with failures.
func TestAdapter_LifeOfAWatchedObject(t *testing.T) {
	t.Parallel()
	w := watched(t, map[string][]step{"a": {{}, {}, fails}}, nil)
	if err := w.objects.Create(t.Context(), configMap("a", 1)); err != nil {
		t.Fatal(err)
	}
	w.object(added, "a", "1")
	w.settled("a", 1, false)
	w.owned("a", "1")
	w.settled("a", 2, false)
	w.object(updated, "a", "1") // as in a resync; its first run fails
	w.settled("a", 4, false)
	if err := w.objects.Delete(t.Context(), configMap("a", 1)); err != nil {
		t.Fatal(err)
	}
	w.object(deleted, "a", "1")
	w.settled("a", 5, true) // not even after maxInterval
	w.owned("a", "1")       // what it owned goes after it
	w.settled("a", 6, true)
	if err := w.objects.Create(t.Context(), configMap("a", 1)); err != nil {
		t.Fatal(err)
	}
	w.object(added, "a", "2")
	w.settled("a", 7, false)
	w.object(deleted, "a", "1") // late: the other one is there already
	eventually(t, "a run, and the timer stays", func() (bool, string) {
		s, err := w.source.Get(t.Context(), "ConfigMap/ns/a")
		return len(w.runs("a")) >= 8 && err == nil && s.State == sdk.Waiting && time.Until(s.DueAt) > time.Minute, fmt.Sprint(w.runs("a"), s, err)
	})
}

// TestAdapter_OwnedChangeIsNotMerged sends an event about an owned object and then one
// about its owner, which takes its place, while the owner is run. The owner's predicate
// sees no change, and yet there must be one more run.
func TestAdapter_OwnedChangeIsNotMerged(t *testing.T) {
	t.Parallel()
	began, end := make(chan struct{}, 9), make(chan struct{})
	w := watched(t, nil, func(reconcile.Request) {
		began <- struct{}{}
		<-end
	})
	if err := w.objects.Create(t.Context(), configMap("a", 1)); err != nil {
		t.Fatal(err)
	}
	w.object(added, "a", "1")
	<-began
	for range 3 {
		w.owned("a", "1")
	}
	attributes, data := sightedAt(updated, "ConfigMap/ns/a", "1", "18") // its finalizer, say
	w.report("ConfigMap/ns/a", "1", attributes, data)
	close(end)
	w.settled("a", 2, false)
}

// TestAdapter_NewProcessKeepsAnOldTimer takes the class from an object that has a
// timer, in a process that does not know of it, and that has a client. An object that never had
// the class is not brought back.
func TestAdapter_NewProcessKeepsAnOldTimer(t *testing.T) {
	t.Parallel()
	l := listen(t)
	address := adapter(t, map[string]string{"configs": fmt.Sprintf("{sink: {uri: \"http://%s\"}, maxInterval: 10h}", l.Addr())})
	c, err := sdk.New(address + "configs")
	if err != nil {
		t.Fatal(err)
	}
	w := &watchedConfigs{&diary{next: map[string][]step{"a": {after(time.Hour)}}}, t, c, nil}
	op := startManager(t, cluster(), func(mgr ctrl.Manager) error {
		w.objects = mgr.GetClient()
		ours := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()["class"] == "ours" })
		return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}, builder.WithPredicates(ours, predicate.GenerationChangedPredicate{})).
			Complete(reconcile.Func(func(_ context.Context, r reconcile.Request) (reconcile.Result, error) { return w.result(r) }))
	}, WithListener(l), WithClient(c))
	a, b := configMap("a", 1), configMap("b", 1)
	a.Labels = map[string]string{"class": "ours"}
	for _, o := range []client.Object{a, b} {
		if err := w.objects.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		w.object(added, o.GetName(), "1")
	}
	w.settled("a", 1, false)
	before, err := c.Get(t.Context(), "ConfigMap/ns/a")
	if err != nil {
		t.Fatal(err)
	}
	op.manager.server.answers.forget("ConfigMap/ns/a") // as in another process
	op.manager.server.answers.forget("ConfigMap/ns/b")
	a.Labels = nil
	if err := w.objects.Update(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	w.object(updated, "a", "1")
	w.object(updated, "b", "1")
	w.settled("b", 0, true)
	eventually(t, "the timer again", func() (bool, string) {
		s, err := c.Get(t.Context(), "ConfigMap/ns/a")
		return err == nil && s.State == sdk.Waiting && s.Revision > before.Revision && s.DueAt.Sub(before.DueAt).Abs() < time.Minute && len(w.runs("a")) == 1, fmt.Sprint(s, err)
	})
}

// TestAdapter_BurstOfWatchedChanges runs each object once after its last change, at least.
func TestAdapter_BurstOfWatchedChanges(t *testing.T) {
	t.Parallel()
	const objects, changes = 20, 10
	w := watched(t, nil, nil)
	for i := range objects {
		if err := w.objects.Create(t.Context(), configMap(fmt.Sprint(i), 1)); err != nil {
			t.Fatal(err)
		}
	}
	last := map[string]time.Time{}
	for n := range changes * objects {
		name := fmt.Sprint(n % objects)
		last[name] = time.Now()
		switch n / objects % 3 {
		case 0:
			w.object(added, name, "1")
		case 1:
			w.owned(name, "1")
		case 2:
			w.object(updated, name, "1")
		}
	}
	eventually(t, "a run of each object after its last change, and nothing left but timers", func() (bool, string) {
		n, err := w.source.Counts(t.Context())
		if err != nil || n.Due+n.InFlight > 0 || n.Pending != objects {
			return false, fmt.Sprint(n, err)
		}
		for name, at := range last {
			if runs := w.runs(name); len(runs) == 0 || runs[len(runs)-1].Before(at) {
				return false, fmt.Sprintf("%s was changed at %s, its runs are %v", name, at, runs)
			}
		}
		return true, ""
	})
}
