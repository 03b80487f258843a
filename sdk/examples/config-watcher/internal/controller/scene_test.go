package controller

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
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

// scene is a namespace with a ConfigWatcher, its ConfigMap and two pods, an hour
// old, in a bubble of fake time; and the operator.
type scene struct {
	*ConfigWatcherReconciler
	t        *testing.T
	recorder *events.FakeRecorder
	fails    func(verb string, o client.Object) error // what the API server says; nil: nothing fails
	result   reconcile.Result                         // of the newest run
	err      error
}

func play(t *testing.T, act func(*scene)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		scheme := runtime.NewScheme()
		if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
			t.Fatal(err)
		}
		s := &scene{t: t, recorder: events.NewFakeRecorder(10)}
		said := func(verb string, o client.Object) error {
			if s.fails == nil {
				return nil
			}
			return s.fails(verb, o)
		}
		s.ConfigWatcherReconciler = &ConfigWatcherReconciler{Recorder: s.recorder, Client: fake.NewClientBuilder().
			WithScheme(scheme).WithStatusSubresource(&v1.ConfigWatcher{}).
			WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if err := said("get", o); err != nil {
						return err
					}
					return c.Get(ctx, key, o, opts...)
				},
				List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
					if err := said("list", nil); err != nil {
						return err
					}
					return c.List(ctx, l, opts...)
				},
				Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
					if err := said("delete", o); err != nil {
						return err
					}
					return c.Delete(ctx, o, opts...)
				},
				SubResourceUpdate: func(ctx context.Context, c client.Client, resource string, o client.Object, opts ...client.SubResourceUpdateOption) error {
					if err := said("update", o); err != nil {
						return err
					}
					return c.SubResource(resource).Update(ctx, o, opts...)
				},
			}).Build()}
		s.create(&v1.ConfigWatcher{
			ObjectMeta: metav1.ObjectMeta{Name: "webapp", Generation: 1},
			Spec: v1.ConfigWatcherSpec{
				ConfigMap: "webapp-config", PodSelector: map[string]string{"app": "webapp"}, RolloutDelay: metav1.Duration{Duration: time.Minute},
			},
		})
		s.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "webapp-config"}, Data: map[string]string{"greeting": "Welcome"}})
		s.start("a", nil)
		s.start("b", nil)
		time.Sleep(time.Hour)
		act(s)
	})
}

// wait lets time pass.
func (*scene) wait(d time.Duration) { time.Sleep(d) }

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) create(o client.Object) {
	s.t.Helper()
	if o.GetNamespace() == "" {
		o.SetNamespace(namespace)
	}
	s.must(s.Create(s.t.Context(), o))
}

// start makes a pod of the Deployment, or another one.
func (s *scene) start(name string, change func(*corev1.Pod)) {
	s.t.Helper()
	controls := true
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(name), Labels: map[string]string{"app": "webapp"}, CreationTimestamp: metav1.Now(),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "webapp", UID: "webapp", Controller: &controls}},
	}}
	if change != nil {
		change(pod)
	}
	s.create(pod)
}

// write changes the ConfigMap.
func (s *scene) write(greeting string) {
	s.t.Helper()
	s.edit(func(c *corev1.ConfigMap) { c.Data["greeting"] = greeting })
}

func (s *scene) edit(change func(*corev1.ConfigMap)) {
	s.t.Helper()
	var c corev1.ConfigMap
	s.must(s.Get(s.t.Context(), types.NamespacedName{Namespace: namespace, Name: "webapp-config"}, &c))
	change(&c)
	s.must(s.Update(s.t.Context(), &c))
}

// respec changes what is wanted.
func (s *scene) respec(change func(*v1.ConfigWatcher)) {
	s.t.Helper()
	w := s.watcher()
	change(w)
	w.Generation++
	s.must(s.Update(s.t.Context(), w))
}

func (s *scene) remove(o client.Object, name string) {
	s.t.Helper()
	o.SetNamespace(namespace)
	o.SetName(name)
	s.must(s.Delete(s.t.Context(), o))
}

// run is a call of Reconcile.
func (s *scene) run() {
	s.t.Helper()
	s.result, s.err = s.Reconcile(s.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: "webapp"}})
}

// changed is a scene in which the operator has seen a change.
func (s *scene) changed() {
	s.t.Helper()
	s.run()
	s.write("Hello")
	s.run()
	s.must(s.err)
}

func (s *scene) watcher() *v1.ConfigWatcher {
	s.t.Helper()
	w := &v1.ConfigWatcher{}
	s.must(s.Get(s.t.Context(), types.NamespacedName{Namespace: namespace, Name: "webapp"}, w))
	return w
}

// pods are the pods of all namespaces that are not being deleted.
func (s *scene) pods() (names []string) {
	s.t.Helper()
	var pods corev1.PodList
	s.must(s.List(s.t.Context(), &pods))
	for _, p := range pods.Items {
		if p.DeletionTimestamp.IsZero() {
			names = append(names, p.Name)
		}
	}
	return names
}

// said are the Events since the last call.
func (s *scene) said() (said []string) {
	for {
		select {
		case e := <-s.recorder.Events:
			said = append(said, e)
		default:
			return said
		}
	}
}

func kindOf(s *scene, o client.Object) string {
	gvk, err := s.GroupVersionKindFor(o)
	s.must(err)
	return gvk.Kind
}
