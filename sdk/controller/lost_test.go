package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	crevent "sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/reschedule-dev/reschedule/sdk/internal/cloudevent"
)

// The tests of this file are about events, timers and failures that must not be lost,
// and about runs without a reason.

// TestMapFunction_FailedReadLosesNoEvent is about reads that a resident operator makes
// from its cache, where they do not fail. Here they are live, and a map function
// cannot return an error.
func TestMapFunction_FailedReadLosesNoEvent(t *testing.T) {
	t.Parallel()
	o := cluster()
	var fails error
	o.NewClient = func(*rest.Config, client.Options) (client.Client, error) {
		return fake.NewClientBuilder().WithObjects(configMap("site", 1)).WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
				if fails != nil {
					return fails
				}
				return c.List(ctx, l, opts...)
			},
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if fails != nil {
					return fails
				}
				return c.Get(ctx, key, o, opts...)
			},
		}).Build(), nil
	}
	l := &log{}
	var read func(context.Context) error
	var mgr ctrl.Manager
	op := startManager(t, o, func(m ctrl.Manager) error {
		mgr = m
		if err := ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(l.as("config")); err != nil {
			return err
		}
		return ctrl.NewControllerManagedBy(mgr).Named("reads").
			Watches(&corev1.ServiceAccount{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
				if read(ctx) != nil {
					return nil // as everybody does, after a line in the log
				}
				return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
			})).
			Complete(l.as("ran"))
	})
	get := func(r client.Reader) func(context.Context) error {
		return func(ctx context.Context) error {
			return r.Get(ctx, types.NamespacedName{Namespace: "ns", Name: "site"}, &corev1.ConfigMap{})
		}
	}
	list := func(r client.Reader) func(context.Context) error {
		return func(ctx context.Context) error { return r.List(ctx, &corev1.ConfigMapList{}) }
	}
	away, absent := errors.New("the API server cannot be reached"), apierrors.NewNotFound(corev1.Resource("configmaps"), "site")
	for name, f := range map[string]func(context.Context) error{
		"get of the client": get(mgr.GetClient()), "list of the client": list(mgr.GetClient()),
		"get of the cache": get(mgr.GetCache()), "list of the cache": list(mgr.GetCache()),
	} {
		read = f
		for i, want := range []string{"503 ", "200 ran ns/sa", "200 "} { // at last the timer of the last run
			fails = []error{away, nil, absent}[i]
			a := op.send(changed("resource.add", "any "+name), account("x"))
			if got := fmt.Sprint(a.code, " ", l.take()); got != want {
				t.Errorf("%s that ends with %v: answered with %s, %s, want %s", name, fails, a, got, want)
			}
		}
	}
	// The package itself reads an object that came as a name, and an object of the key
	// when another object came.
	fails = apierrors.NewTimeoutError("later", 1)
	for _, e := range []struct{ what, key, data string }{
		{"ref.update", "any", `{"apiVersion":"v1","kind":"ServiceAccount","namespace":"ns","name":"sa"}`},
		{"resource.update", "reads/ns/x", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"}}`},
		{"resource.update", "ConfigMap/ns/x", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"}}`},
	} {
		a := op.send(changed(e.what, e.key), e.data)
		if runs := l.take(); e.key == "reads/ns/x" && runs != "ran ns/x" || e.key != "reads/ns/x" && a.code != 503 {
			t.Errorf("%s %s: answered with %s %s, ran %q", e.what, e.key, a, a.body, runs)
		}
	}
	read = get(mgr.GetAPIReader()) // of a cluster that is not there
	if a := op.send(changed("resource.add", "any"), account("x")); a.code != 503 {
		t.Errorf("get of the API reader: answered with %s", a)
	}
}

// TestPredicates_DroppedObjectIsNotRun is about operators that share a kind: an object
// of another operator is never reconciled, whatever the process knows, and whatever
// makes its key due.
func TestPredicates_DroppedObjectIsNotRun(t *testing.T) {
	t.Parallel()
	ours, theirs := configMap("ours", 1), configMap("theirs", 1)
	ours.Labels, ours.Data = map[string]string{"class": "ours"}, map[string]string{"is": "ours"}
	l := &log{}
	op := startManager(t, cluster(ours, theirs), func(mgr ctrl.Manager) error {
		return ctrl.NewControllerManagedBy(mgr).
			For(&corev1.ConfigMap{}, builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
				return o.GetLabels()["class"] == "ours" && o.(*corev1.ConfigMap).Data["is"] == "ours"
			}))).
			Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return nil })).
			Complete(l.as("ran"))
	})
	same := changed("resource.update", "ConfigMap/ns/theirs")
	for i, e := range []struct {
		attributes map[string]string
		data, want string
	}{
		{changed("resource.add", "ConfigMap/ns/theirs"), toJSON(theirs), "204 never"},
		{changed("resource.update", "ConfigMap/ns/theirs"), toJSON(theirs), "204"}, // it may be ours, with nothing new
		{same, toJSON(theirs), "204"},
		{same, toJSON(theirs), "204 never"}, // as maxInterval brings it back
		{changed("ref.update", "ConfigMap/ns/theirs"), `{"apiVersion":"v1","kind":"ConfigMap","namespace":"ns","name":"theirs"}`, "204"},
		{changed("resource.update", "ConfigMap/ns/theirs"), secret("theirs"), "204"},
		{changed("resource.delete", "ConfigMap/ns/theirs"), toJSON(theirs), "204 never"},
		{changed("resource.update", "ConfigMap/ns/past"), toJSON(configMap("past", 1)), "204 never"},
		{changed("ref.delete", "ConfigMap/ns/past"), `{"apiVersion":"v1","kind":"ConfigMap","namespace":"ns","name":"past"}`, "204 never"}, // it was seen
	} {
		if a, runs := op.send(e.attributes, e.data), l.take(); a.String() != e.want || runs != "" {
			t.Errorf("%d: answered with %s, ran %q", i, a, runs)
		}
	}
	// Predicates cannot judge an object that is gone, and of which only the name is known.
	gone := `{"apiVersion":"v1","kind":"ConfigMap","namespace":"ns","name":"gone"}`
	for _, e := range []struct {
		attributes map[string]string
		data       string
	}{
		{changed("resource.update", "ConfigMap/ns/gone"), secret("gone")},
		{changed("ref.delete", "ConfigMap/ns/gone"), gone},
		{changed("ref.update", "any"), gone},
		{changed("ref.delete", "another"), gone},
	} {
		if a, runs := op.send(e.attributes, e.data), l.take(); runs != "ran ns/gone" {
			t.Errorf("%v: answered with %s, ran %q", e.attributes, a, runs)
		}
	}
	// The same of an object of ours, in a process that does not know it.
	for _, data := range []string{secret("ours"), toJSON(ours)} {
		if a, runs := op.send(changed("resource.update", "ConfigMap/ns/ours"), data), l.take(); a.code != 200 || runs != "ran ns/ours" {
			t.Errorf("an object of ours: answered with %s, ran %q", a, runs)
		}
	}
}

// TestMemory_NewUIDIsNews says that a new object of the same name runs, also with the
// generation of the old object, and without an event of its deletion.
func TestMemory_NewUIDIsNews(t *testing.T) {
	t.Parallel()
	c := &configs{}
	op := start(t, c, nil)
	for i, e := range []struct {
		uid  types.UID
		runs int
	}{{"one", 1}, {"one", 0}, {"two", 1}, {"two", 0}} {
		o := configMap("a", 1)
		o.UID = e.uid
		if a := op.send(changed("resource.update", "ConfigMap/ns/a"), toJSON(o)); len(c.ran()) != e.runs {
			t.Errorf("%d: answered with %s, want %d runs", i, a, e.runs)
		}
	}
}

// TestTimer_OfAnotherRequestStays is about keys that stand for several requests, when
// an event leads to some of them only.
func TestTimer_OfAnotherRequestStays(t *testing.T) {
	t.Parallel()
	after, fails := map[string]time.Duration{"all": time.Hour, "labels": time.Minute}, error(nil)
	l := &log{}
	as := func(name string) reconcile.Reconciler {
		return reconcile.Func(func(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
			l.add(name + " " + r.String())
			return reconcile.Result{RequeueAfter: after[name]}, fails
		})
	}
	o := configMap("a", 1)
	set := func(mgr ctrl.Manager) error {
		return errors.Join(
			ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(as("all")),
			ctrl.NewControllerManagedBy(mgr).Named("labels").For(&corev1.ConfigMap{}, builder.WithPredicates(predicate.LabelChangedPredicate{})).
				Watches(&corev1.ServiceAccount{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
					return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: "ns", Name: o.GetAnnotations()["configs"]}}}
				})).
				Complete(as("labels")))
	}
	op := startManager(t, cluster(o), set)
	for i, e := range []struct {
		what, key, object, runs string
		atMost                  time.Duration
	}{
		{"update", "ConfigMap/ns/a", toJSON(o), "all ns/a, labels ns/a", time.Minute},
		{"update", "ConfigMap/ns/a", toJSON(o), "all ns/a", time.Minute}, // the other one still waits
		{"add", "ServiceAccount/ns/sa", account("x"), "labels ns/x", time.Minute},
		{"add", "ServiceAccount/ns/sa", account("y"), "labels ns/y", time.Minute}, // with x
	} {
		a := op.send(changed("resource."+e.what, e.key), e.object)
		runs := l.take()
		if d, err := time.ParseDuration(a.after); err != nil || runs != e.runs || d > e.atMost || d < e.atMost-patience {
			t.Errorf("%d: answered with %s, ran %q", i, a, runs)
		}
		if i%2 == 1 && !strings.Contains(a.body, `"requests":[`) {
			t.Errorf("%d: what comes back is %s", i, a.body)
		}
	}
	// Also when one of them fails, and when its time has come.
	fails, after["labels"] = errBoom, ms
	for i := range 2 {
		a := op.send(changed("resource.add", "ServiceAccount/ns/sa"), account("z"))
		if runs := l.take(); a.code != 200 || runs != "labels ns/z" {
			t.Errorf("%d with a failure: answered with %s, ran %q", i, a, runs)
		}
		fails = nil
	}
	<-time.After(5 * ms) // z is due: the event took its place; x and y wait on
	if a, runs := op.send(changed("resource.add", "ServiceAccount/ns/sa"), account("w")), l.take(); runs != "labels ns/w, labels ns/z" {
		t.Errorf("answered with %s, ran %q", a, runs)
	}
	// A process that remembers nothing checks both, unless each has a key of its own.
	f := newFakeSource(t, time.Second)
	defer f.close()
	for want, opts := range map[string][]Option{"all ns/a, labels ns/a": nil, "all ns/a": {WithClient(f.client())}} {
		op = startManager(t, cluster(o), set, opts...)
		if a, runs := op.send(changed("resource.update", "ConfigMap/ns/a"), `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"ns"}}`), l.take(); runs != want {
			t.Errorf("answered with %s, ran %q, want %q", a, runs, want)
		}
	}
}

// TestEvent_RepeatedIsRunTwice is about the same event, which a source delivers again
// when it does not know the answer, or for maxInterval. That its object was seen is no
// reason to drop it.
func TestEvent_RepeatedIsRunTwice(t *testing.T) {
	t.Parallel()
	l := &log{}
	op := startManager(t, cluster(), func(mgr ctrl.Manager) error {
		return ctrl.NewControllerManagedBy(mgr).Named("maps").
			Watches(&corev1.ServiceAccount{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
			Complete(l.as("ran"))
	})
	same := changed("resource.update", "a key of any form")
	timeless := changed("resource.update", "another key")
	delete(timeless, "time")
	for i, e := range []map[string]string{same, same, timeless, timeless} {
		if a, runs := op.send(e, account("x")), l.take(); a.String() != "200 1h0m0s" || runs != "ran ns/sa" {
			t.Errorf("%d: answered with %s, ran %q", i, a, runs)
		}
	}
}

// TestClient_RetryOfAFailureSchedulesNothing says that the retries of a controller that fails
// do not schedule the requests of others again, which the first delivery scheduled.
func TestClient_RetryOfAFailureSchedulesNothing(t *testing.T) {
	t.Parallel()
	f := newFakeSource(t, time.Second)
	defer f.close()
	f.suspended = true
	op := startManager(t, cluster(configMap("a", 1)), func(mgr ctrl.Manager) error {
		return errors.Join(
			ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
				return reconcile.Result{}, errBoom
			})),
			ctrl.NewControllerManagedBy(mgr).For(&corev1.Secret{}).Watches(&corev1.ConfigMap{}, &handler.Funcs{
				UpdateFunc: func(_ context.Context, e crevent.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
					q.Add(requestOf("ns/" + e.ObjectNew.GetName() + "-secret"))
				},
			}).Complete((&log{}).as("secret")))
	}, WithClient(f.client()))
	first := changed("resource.update", "ConfigMap/ns/a")
	retry := maps.Clone(first)
	retry[cloudevent.AttemptAttribute] = "1"
	next := changed("resource.update", "ConfigMap/ns/a")
	next["id"] = "2"
	const scheduled = "earliest Secret/ns/a-secret 0s"
	for i, e := range []struct {
		attributes map[string]string
		want       string
	}{{first, scheduled}, {retry, ""}, {retry, ""}, {next, scheduled}} {
		if a, calls := op.send(e.attributes, toJSON(configMap("a", int64(i)))), f.called(); a.code != 503 || calls != e.want {
			t.Errorf("%d: answered with %s, called %q, want %q", i, a, calls, e.want)
		}
	}
}

// TestMemory_ScheduledDuringARun schedules a request while it runs: then the answer to
// the run is not everything that waits under the key.
func TestMemory_ScheduledDuringARun(t *testing.T) {
	t.Parallel()
	f := newFakeSource(t, time.Second)
	defer f.close()
	f.suspended = true
	f.sink = http.NotFoundHandler()
	began, end := make(chan struct{}, 9), make(chan struct{})
	c := &configs{results: func(reconcile.Request) (reconcile.Result, error) {
		began <- struct{}{}
		<-end
		return reconcile.Result{RequeueAfter: time.Hour}, nil
	}}
	op := start(t, c, []client.Object{configMap("a", 1)}, WithClient(f.client()))
	answers := make(chan string)
	go func() {
		a, err := op.try(changed("resource.update", "ConfigMap/ns/a"), toJSON(configMap("a", 1)))
		answers <- fmt.Sprintln(a, err)
	}()
	<-began
	if a := op.send(changed("resource.update", "Secret/ns/s"), secret("a")); a.String() != "204" || f.called() != "earliest ConfigMap/ns/a 0s" {
		t.Fatalf("what it owns is answered with %s", a)
	}
	close(end)
	if a := <-answers; a != "200 1h0m0s <nil>\n" {
		t.Errorf("answered with %s", a)
	}
	c.ran()
	// Now a status takes the place of what was scheduled.
	if a := op.send(changed("resource.update", "ConfigMap/ns/a"), toJSON(configMap("a", 1))); len(c.ran()) != 1 {
		t.Errorf("the status is answered with %s, and nothing is run", a)
	}
}

// TestQueue_TellsRunsFromHandlers tells the calls of handlers from the calls of the
// controller, for a request that has just been run.
func TestQueue_TellsRunsFromHandlers(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(*queue){
		"AddAfter":       func(q *queue) { q.AddAfter(playRequest, time.Minute) },
		"AddRateLimited": func(q *queue) { q.AddRateLimited(playRequest) },
		"with a priority": func(q *queue) {
			q.AddWithOpts(priorityqueue.AddOpts{RateLimited: true, Priority: new(int)}, playRequest)
		},
	} {
		var withoutEvent []enqueued
		q := newQueue("q", func(_ *queue, e enqueued) { withoutEvent = append(withoutEvent, e) })
		r := q.join(q.target(playRequest))
		_, priority, _ := q.GetWithPriority()
		r.ended = true
		end := q.collect(0)
		call(q)
		collected := end()
		call(q)
		q.Forget(playRequest)
		q.AddWithOpts(priorityqueue.AddOpts{After: time.Hour, Priority: &priority}, playRequest)
		q.Done(playRequest)
		if <-r.done; r.outcome != (outcome{after: time.Hour}) || len(collected) != 1 || len(withoutEvent) != 1 {
			t.Errorf("%s: the outcome is %+v, the event led to %v, nothing to %v", name, r.outcome, collected, withoutEvent)
		}
	}
}

// TestTimer_OutlivesAHandlersDelay is about handlers that wait for more events.
func TestTimer_OutlivesAHandlersDelay(t *testing.T) {
	t.Parallel()
	delays := map[string]time.Duration{"soon": time.Second, "late": 2 * time.Hour}
	l := &log{}
	setup := func(mgr ctrl.Manager) error {
		return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Watches(&corev1.ServiceAccount{}, handler.Funcs{
			UpdateFunc: func(_ context.Context, e crevent.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				for name := range strings.SplitSeq(e.ObjectNew.GetAnnotations()["configs"], ",") {
					q.AddAfter(playRequest, delays[name])
				}
			},
		}).Complete(l.as("ran"))
	}
	op := startManager(t, cluster(configMap("a", 1)), setup)
	for i, e := range []struct {
		object, runs string
		after        time.Duration
	}{
		{toJSON(configMap("a", 1)), "ran ns/a", time.Hour},
		{account("late"), "", time.Hour},
		{account("soon"), "", time.Second},
		{account("late,soon,late"), "", time.Second},
		{account("late,now,now,soon"), "ran ns/a", time.Hour},
	} {
		a := op.send(changed("resource.update", "ConfigMap/ns/a"), e.object)
		if d, _ := time.ParseDuration(a.after); l.take() != e.runs || d > e.after || d < e.after-patience || strings.Contains(a.body, "requests") {
			t.Errorf("%d: answered with %s %s", i, a, a.body)
		}
	}
	// With a client it is scheduled.
	f := newFakeSource(t, time.Second)
	defer f.close()
	f.sink = http.NotFoundHandler()
	op = startManager(t, cluster(configMap("a", 1)), setup, WithClient(f.client()))
	if a, calls := op.send(changed("resource.update", "ServiceAccount/ns/sa"), account("late")), f.called(); a.String() != "204" || calls != "earliest ConfigMap/ns/a 2h0m0s" {
		t.Errorf("with a client: answered with %s, called %q", a, calls)
	}
}

// TestEnqueuedWithoutEvent_IsScheduled is about a source that is not a watch.
func TestEnqueuedWithoutEvent_IsScheduled(t *testing.T) {
	t.Parallel()
	f := newFakeSource(t, time.Second)
	defer f.close()
	f.suspended = true
	queues := make(chan workqueue.TypedRateLimitingInterface[reconcile.Request], 1)
	startManager(t, cluster(configMap("a", 1)), func(mgr ctrl.Manager) error {
		return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).WatchesRawSource(source.Func(func(_ context.Context, of workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			queues <- of
			return nil
		})).Complete((&log{}).as("ran"))
	}, WithClient(f.client()))
	q := <-queues
	q.Add(playRequest)
	eventually(t, "a call", func() (bool, string) { c := f.called(); return c == "earliest ConfigMap/ns/a 0s", c })
	q.AddAfter(playRequest, time.Hour)
	eventually(t, "another call", func() (bool, string) { c := f.called(); return c == "earliest ConfigMap/ns/a 1h0m0s", c })
	q.(priorityqueue.PriorityQueue[reconcile.Request]).AddWithOpts(priorityqueue.AddOpts{Priority: new(low)}, playRequest)
	eventually(t, "a call with a priority", func() (bool, string) { c := f.called(); return c == "earliest ConfigMap/ns/a 0s low", c })
}
