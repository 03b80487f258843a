package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/reschedule-dev/reschedule/sdk/examples/config-watcher/api/v1"
)

const namespace = "team-a"

// operator is the operator in a bubble of fake time, and a namespace with a ConfigWatcher, its ConfigMap and two pods, an
// hour old. What changes something returns it, so that changes can follow each other.
type operator struct {
	*ConfigWatcherReconciler
	t        *testing.T
	recorder *events.FakeRecorder
	fails    func(verb string, o client.Object) error // what the API server says; nil: nothing fails
	result   reconcile.Result                         // of the newest run
	err      error
}

func inFakeTime(t *testing.T, test func(*operator)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		scheme := runtime.NewScheme()
		if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
			t.Fatal(err)
		}
		o := &operator{t: t, recorder: events.NewFakeRecorder(10)}
		failure := func(verb string, about client.Object) error {
			if o.fails == nil {
				return nil
			}
			return o.fails(verb, about)
		}
		o.ConfigWatcherReconciler = &ConfigWatcherReconciler{Recorder: o.recorder, Client: fake.NewClientBuilder().
			WithScheme(scheme).WithStatusSubresource(&v1.ConfigWatcher{}).
			WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, about client.Object, opts ...client.GetOption) error {
					return firstOf(failure("get", about), func() error { return c.Get(ctx, key, about, opts...) })
				},
				List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
					return firstOf(failure("list", nil), func() error { return c.List(ctx, l, opts...) })
				},
				Delete: func(ctx context.Context, c client.WithWatch, about client.Object, opts ...client.DeleteOption) error {
					return firstOf(failure("delete", about), func() error { return c.Delete(ctx, about, opts...) })
				},
				SubResourceUpdate: func(ctx context.Context, c client.Client, resource string, about client.Object, opts ...client.SubResourceUpdateOption) error {
					return firstOf(failure("update", about), func() error { return c.SubResource(resource).Update(ctx, about, opts...) })
				},
			}).Build()}
		o.create(&v1.ConfigWatcher{
			ObjectMeta: metav1.ObjectMeta{Name: "webapp", Generation: 1},
			Spec: v1.ConfigWatcherSpec{
				ConfigMap: "webapp-config", PodSelector: map[string]string{"app": "webapp"}, RolloutDelay: metav1.Duration{Duration: time.Minute},
			},
		})
		o.createConfigMap("webapp-config").start("a", nil).start("b", nil).wait(time.Hour)
		test(o)
	})
}

func firstOf(failure error, call func() error) error {
	if failure != nil {
		return failure
	}
	return call()
}

func (o *operator) must(err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatal(err)
	}
}

// wait lets time pass.
func (o *operator) wait(d time.Duration) *operator {
	time.Sleep(d)
	return o
}

func (o *operator) create(about client.Object) *operator {
	o.t.Helper()
	if about.GetNamespace() == "" {
		about.SetNamespace(namespace)
	}
	o.must(o.Create(o.t.Context(), about))
	return o
}

func (o *operator) createConfigMap(name string) *operator {
	return o.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"greeting": "Welcome"}})
}

// start makes a pod of the Deployment, or another one.
func (o *operator) start(name string, change func(*corev1.Pod)) *operator {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(name), Labels: map[string]string{"app": "webapp"}, CreationTimestamp: metav1.Now(),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "webapp", UID: "webapp", Controller: new(true)}},
	}}
	if change != nil {
		change(pod)
	}
	return o.create(pod)
}

// write changes the ConfigMap.
func (o *operator) write(greeting string) *operator {
	return o.edit(func(c *corev1.ConfigMap) { c.Data["greeting"] = greeting })
}

func (o *operator) edit(change func(*corev1.ConfigMap)) *operator {
	o.t.Helper()
	var c corev1.ConfigMap
	o.must(o.Get(o.t.Context(), types.NamespacedName{Namespace: namespace, Name: "webapp-config"}, &c))
	change(&c)
	o.must(o.Update(o.t.Context(), &c))
	return o
}

// respec changes what is wanted.
func (o *operator) respec(change func(*v1.ConfigWatcher)) *operator {
	o.t.Helper()
	w := o.watcher()
	change(w)
	w.Generation++
	o.must(o.Update(o.t.Context(), w))
	return o
}

func (o *operator) remove(about client.Object, name string) *operator {
	o.t.Helper()
	about.SetNamespace(namespace)
	about.SetName(name)
	o.must(o.Delete(o.t.Context(), about))
	return o
}

// run is a call of Reconcile.
func (o *operator) run() *operator {
	o.result, o.err = o.Reconcile(o.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: "webapp"}})
	return o
}

// sees lets the operator see a change of the ConfigMap.
func (o *operator) sees() *operator {
	o.t.Helper()
	o.run().write("Hello").run()
	o.must(o.err)
	return o
}

func (o *operator) watcher() *v1.ConfigWatcher {
	o.t.Helper()
	w := &v1.ConfigWatcher{}
	o.must(o.Get(o.t.Context(), types.NamespacedName{Namespace: namespace, Name: "webapp"}, w))
	return w
}

// pods are the pods of all namespaces that are not being deleted.
func (o *operator) pods() (names []string) {
	o.t.Helper()
	var pods corev1.PodList
	o.must(o.List(o.t.Context(), &pods))
	for _, p := range pods.Items {
		if p.DeletionTimestamp.IsZero() {
			names = append(names, p.Name)
		}
	}
	return names
}

// said is the one Event since the last call, "" if there is none.
func (o *operator) said() (said string) {
	for len(o.recorder.Events) > 0 {
		said += <-o.recorder.Events
	}
	return said
}

// Pods are restarted once, the delay after a change.
func TestReconcile_RestartsAfterTheDelay(t *testing.T) {
	t.Parallel()
	all := []string{"a", "b"}
	configMap, pod := func() client.Object { return &corev1.ConfigMap{} }, func() client.Object { return &corev1.Pod{} }
	for name, c := range map[string]struct {
		act       func(*operator)
		after     time.Duration // what the last run asked for
		reason    string
		pods      []string // that are left
		restarted int      // pods
	}{
		"seen for the first time": {func(o *operator) { o.run() }, 0, v1.UpToDate, all, 0},
		"nothing has changed":     {func(o *operator) { o.run().wait(time.Hour).run() }, 0, v1.UpToDate, all, 0},
		"changed":                 {func(o *operator) { o.sees() }, time.Minute, v1.RestartPending, all, 0},
		"woken before the time":   {func(o *operator) { o.sees().wait(time.Minute - time.Millisecond).run() }, time.Millisecond, v1.RestartPending, all, 0},
		"due, and woken again":    {func(o *operator) { o.sees().wait(time.Minute).run().start("new", nil).run() }, 0, v1.UpToDate, []string{"new"}, 2},
		"changed again meanwhile": {func(o *operator) {
			o.sees().wait(40 * time.Second).write("Good morning").run().wait(20 * time.Second).run().wait(40 * time.Second).run()
		}, 0, v1.UpToDate, nil, 2},
		"changed again, unseen": {func(o *operator) {
			o.sees().write("Good morning").wait(time.Minute).run().start("new", nil).wait(time.Hour).run()
		}, 0, v1.UpToDate, []string{"new"}, 2},
		"a change taken back, which pods may have": {func(o *operator) {
			o.sees().wait(10*time.Second).start("between", nil).wait(10 * time.Second).write("Welcome").run().wait(40 * time.Second).run()
		}, 0, v1.UpToDate, nil, 3},
		"binary data": {func(o *operator) {
			o.run().edit(func(c *corev1.ConfigMap) { c.BinaryData = map[string][]byte{"logo": {0}} }).run()
		}, time.Minute, v1.RestartPending, all, 0},
		"only its labels": {func(o *operator) {
			o.run().edit(func(c *corev1.ConfigMap) { c.Labels = map[string]string{"team": "a"} }).run()
		}, 0, v1.UpToDate, all, 0},
		"without a delay": {func(o *operator) {
			o.respec(func(w *v1.ConfigWatcher) { w.Spec.RolloutDelay.Duration = 0 }).sees()
		}, 0, v1.UpToDate, nil, 2},
		"another delay is for the next change": {func(o *operator) {
			o.sees().respec(func(w *v1.ConfigWatcher) { w.Spec.RolloutDelay.Duration = time.Hour }).run()
		}, time.Minute, v1.RestartPending, all, 0},
		"another ConfigMap is a change": {func(o *operator) {
			o.sees().wait(time.Minute).run().createConfigMap("other").respec(func(w *v1.ConfigWatcher) { w.Spec.ConfigMap = "other" }).run()
		}, time.Minute, v1.RestartPending, nil, 2},
		"pods that have it already": {func(o *operator) {
			o.sees().wait(time.Second).start("new", nil).wait(time.Minute).run()
		}, 0, v1.UpToDate, []string{"new"}, 2},
		"only pods that have it already": {func(o *operator) {
			o.remove(pod(), "a").remove(pod(), "b").sees().wait(time.Second).start("new", nil).wait(time.Minute).run()
		}, 0, v1.UpToDate, []string{"new"}, 0},
		"pods that are not ours, finished, being deleted, or without an owner": {func(o *operator) {
			o.start("c-elsewhere", func(p *corev1.Pod) { p.Namespace = "team-b" })
			o.start("c-other", func(p *corev1.Pod) { p.Labels["app"] = "database" })
			o.start("d-succeeded", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
			o.start("e-failed", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
			o.start("f-bare", func(p *corev1.Pod) { p.OwnerReferences = nil })
			o.start("g-going", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/slow"} }).remove(pod(), "g-going")
			o.wait(time.Second).sees().wait(time.Minute).run()
		}, 0, v1.UpToDate, []string{"c-other", "d-succeeded", "e-failed", "f-bare", "c-elsewhere"}, 2},
		"no ConfigMap":      {func(o *operator) { o.remove(configMap(), "webapp-config").run() }, 0, v1.ConfigMapNotFound, all, 0},
		"deleted meanwhile": {func(o *operator) { o.sees().remove(configMap(), "webapp-config").run().wait(time.Minute).run() }, 0, v1.ConfigMapNotFound, all, 0},
		"deleted meanwhile, and created again": {func(o *operator) {
			o.sees().remove(configMap(), "webapp-config").run().wait(time.Minute).createConfigMap("webapp-config").run()
		}, 0, v1.UpToDate, nil, 2},
		"created again, and changed": {func(o *operator) {
			o.run().remove(configMap(), "webapp-config").run().createConfigMap("webapp-config").write("Hello").run()
		}, time.Minute, v1.RestartPending, all, 0},
		"created again as it was": {func(o *operator) {
			o.run().remove(configMap(), "webapp-config").run().createConfigMap("webapp-config").run()
		}, 0, v1.UpToDate, all, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, func(o *operator) {
				c.act(o)
				if o.err != nil || o.result != (reconcile.Result{RequeueAfter: c.after}) {
					t.Errorf("the last run returned %+v, %v; want RequeueAfter %s", o.result, o.err, c.after)
				}
				if pods := o.pods(); !slices.Equal(pods, c.pods) {
					t.Errorf("pods %v are left, want %v", pods, c.pods)
				}
				w, restarts, event := o.watcher(), int64(0), ""
				if c.restarted > 0 {
					restarts, event = 1, fmt.Sprint("Normal RestartedPods ConfigMap webapp-config has changed; pods restarted: ", c.restarted)
				}
				ready := meta.FindStatusCondition(w.Status.Conditions, v1.Ready)
				if ready == nil || ready.Reason != c.reason || (ready.Status == metav1.ConditionTrue) != (c.reason == v1.UpToDate) {
					t.Errorf("the condition is %+v, want %s", ready, c.reason)
				}
				if w.Status.Restarts != restarts || (w.Status.LastRestart != nil) != (restarts > 0) || w.Status.ObservedGeneration != w.Generation {
					t.Errorf("the status of generation %d is %+v, want %d restarts", w.Generation, w.Status, restarts)
				}
				if said := o.said(); said != event {
					t.Errorf("Events %q, want %q", said, event)
				}
			})
		})
	}
}

// A ConfigWatcher that is gone, or being deleted, restarts nothing.
func TestReconcile_IgnoresADeletedWatcher(t *testing.T) {
	t.Parallel()
	for name, finalizers := range map[string][]string{"gone": nil, "going": {"example.com/slow"}} {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, func(o *operator) {
				o.respec(func(w *v1.ConfigWatcher) { w.Finalizers = finalizers }).sees().remove(&v1.ConfigWatcher{}, "webapp").wait(time.Minute).run()
				if o.err != nil || !o.result.IsZero() || len(o.pods()) != 2 {
					t.Errorf("it returned %+v, %v, and pods %v are left", o.result, o.err, o.pods())
				}
			})
		})
	}
}

// The run after a failed run does what is left, and leaves alone what the Deployment has created again.
func TestReconcile_GoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		verb, of string   // of the call that fails; "": about any object
		left     []string // of the old pods, after the failure
	}{
		"reading the ConfigWatcher": {"get", "webapp", []string{"a", "b"}},
		"reading the ConfigMap":     {"get", "webapp-config", []string{"a", "b"}},
		"listing the pods":          {"list", "", []string{"a", "b"}},
		"deleting one":              {"delete", "a", []string{"a"}},
		"writing the status":        {"update", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, func(o *operator) {
				o.sees().wait(time.Minute)
				refused := errors.New("not now")
				o.fails = func(verb string, about client.Object) error {
					_, configMap := about.(*corev1.ConfigMap)
					if verb != c.verb || c.verb == "get" && configMap != (c.of == "webapp-config") || c.verb == "delete" && about.GetName() != c.of {
						return nil
					}
					return refused
				}
				if o.run(); !errors.Is(o.err, refused) {
					t.Errorf("it returned %+v, %v; want the error", o.result, o.err)
				}
				o.fails = nil
				if pods, w := o.pods(), o.watcher(); !slices.Equal(pods, c.left) || w.Status.Pending == nil {
					t.Errorf("pods %v are left, want %v; the status is %+v", pods, c.left, w.Status)
				}
				o.wait(time.Second).start("new", nil).run()
				if pods, w := o.pods(), o.watcher(); o.err != nil || !o.result.IsZero() || !slices.Equal(pods, []string{"new"}) || w.Status.Pending != nil {
					t.Errorf("then it returned %+v, %v; pods %v are left, the status is %+v", o.result, o.err, pods, w.Status)
				}
			})
		})
	}
}

// A change counts as seen when it is in the status: a run that could not write the status does not begin to wait.
func TestReconcile_SeesAnUnwrittenChangeAgain(t *testing.T) {
	inFakeTime(t, func(o *operator) {
		o.run().write("Hello")
		o.fails = func(verb string, _ client.Object) error {
			if verb == "update" {
				return errors.New("not now")
			}
			return nil
		}
		if o.run(); o.err == nil {
			t.Errorf("it returned %+v", o.result)
		}
		o.fails = nil
		if o.wait(10 * time.Second).run(); o.err != nil || o.result.RequeueAfter != time.Minute {
			t.Errorf("then it returned %+v, %v", o.result, o.err)
		}
	})
}

// A pod that is already gone is not a failure.
func TestReconcile_AcceptsAPodThatIsGone(t *testing.T) {
	t.Parallel()
	pods := corev1.Resource("pods")
	for name, refused := range map[string]error{
		"gone":                     apierrors.NewNotFound(pods, "a"),
		"another one of that name": apierrors.NewConflict(pods, "a", errors.New("the uid is another")),
	} {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, func(o *operator) {
				o.sees().wait(time.Minute)
				o.fails = func(verb string, about client.Object) error {
					if verb == "delete" && about.GetName() == "a" {
						return refused
					}
					return nil
				}
				if said := o.run().said(); o.err != nil || said != "Normal RestartedPods ConfigMap webapp-config has changed; pods restarted: 1" {
					t.Errorf("%v, Events %q", o.err, said)
				}
			})
		})
	}
}

// The API server refuses it; but if it did not, the namespace would be emptied.
func TestReconcile_EmptySelector(t *testing.T) {
	inFakeTime(t, func(o *operator) {
		o.respec(func(w *v1.ConfigWatcher) { w.Spec.PodSelector = nil }).sees().wait(time.Minute).run()
		if !errors.Is(o.err, reconcile.TerminalError(nil)) || len(o.pods()) != 2 {
			t.Errorf("it returned %v, and pods %v are left", o.err, o.pods())
		}
	})
}

// An event of a ConfigMap leads to its ConfigWatchers.
func TestWatchersOf_AConfigMap(t *testing.T) {
	inFakeTime(t, func(o *operator) {
		for _, w := range []struct{ namespace, name, configMap string }{
			{namespace, "another", "webapp-config"}, {namespace, "other", "database"}, {"team-b", "webapp", "webapp-config"},
		} {
			o.create(&v1.ConfigWatcher{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: w.name}, Spec: v1.ConfigWatcherSpec{ConfigMap: w.configMap}})
		}
		configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "webapp-config"}}
		if got, want := fmt.Sprint(o.watchersOf(t.Context(), configMap)), "[team-a/another team-a/webapp]"; got != want {
			t.Errorf("it leads to %v, want %v", got, want)
		}
		o.fails = func(string, client.Object) error { return errors.New("not now") }
		if requests := o.watchersOf(t.Context(), configMap); requests != nil {
			t.Errorf("what cannot be listed is %v", requests)
		}
	})
}
