package controller

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	crevent "sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/reschedule-dev/reschedule/sdk/internal/cloudevent"
)

// log has the runs of several controllers.
type log struct {
	mu    sync.Mutex
	lines []string
}

func (l *log) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (l *log) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

// as is a reconciler that logs its runs under a name.
func (l *log) as(name string) reconcile.Reconciler {
	return reconcile.Func(func(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
		l.add(name + " " + r.String())
		return reconcile.Result{RequeueAfter: time.Hour}, nil
	})
}

// customSource is not a source of controller-runtime, and has no kind.
type customSource struct{ Handler handler.EventHandler }

// Start implements source.Source.
func (customSource) Start(context.Context, workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	return nil
}

// TestController_WatchesInEveryWay has several controllers for a kind, controllers
// without a kind, untyped objects, metadata only, and sources that are not watches.
func TestController_WatchesInEveryWay(t *testing.T) {
	t.Parallel()
	l := &log{}
	channel := make(chan crevent.GenericEvent)
	op := startManager(t, cluster(configMap("a", 1)), func(mgr ctrl.Manager) error {
		untyped := &unstructured.Unstructured{}
		untyped.SetAPIVersion("v1")
		untyped.SetKind("Secret")
		mapped := func(_ context.Context, o client.Object) []reconcile.Request {
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: "of-" + o.GetName()}}}
		}
		for _, err := range []error{
			ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(l.as("first")),
			ctrl.NewControllerManagedBy(mgr).Named("second").For(&corev1.ConfigMap{}).Complete(l.as("second")),
			ctrl.NewControllerManagedBy(mgr).For(untyped).Complete(l.as("untyped")),
			ctrl.NewControllerManagedBy(mgr).Named("metadata").For(&corev1.Pod{}, builder.OnlyMetadata).Complete(l.as("metadata")),
			ctrl.NewControllerManagedBy(mgr).Named("forless").Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(mapped)).
				WatchesRawSource(customSource{&handler.EnqueueRequestForObject{}}).WatchesRawSource(source.Channel(channel, &handler.EnqueueRequestForObject{})).Complete(l.as("forless")),
			ctrl.NewControllerManagedBy(mgr).Named("typed").WatchesRawSource(source.Kind(mgr.GetCache(), &corev1.Endpoints{}, //nolint:staticcheck // any type will do
				&handler.TypedEnqueueRequestForObject[*corev1.Endpoints]{}, predicate.TypedFuncs[*corev1.Endpoints]{})).Complete(l.as("typed")), //nolint:staticcheck // see above
		} {
			if err != nil {
				return err
			}
		}
		return nil
	})
	object := func(kind string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":%q,"metadata":{"name":"a","namespace":"ns","labels":{"a":"b"}}}`, kind)
	}
	name := func(kind string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":%q,"namespace":"ns","name":"a"}`, kind)
	}
	for _, e := range []struct {
		key, data, runs string
	}{
		{"ConfigMap/ns/a", object("ConfigMap"), "first ns/a, second ns/a"},
		{"Secret/ns/a", object("Secret"), "untyped ns/a"},
		{"Pod/ns/a", object("Pod"), "metadata ns/a"},
		{"Secret/ns/a", name("Secret"), "untyped ns/a"},
		{"Pod/ns/a", name("Pod"), "metadata ns/a"},
		{"Service/ns/a", object("Service"), "forless /of-a"},
		{"Endpoints/ns/a", object("Endpoints"), "typed ns/a"},
		{"ConfigMap/ns/a", "", "first ns/a, second ns/a"},
		{"configmap/ns/a", "", "first ns/a"},
		{"second/ns/a", "", "second ns/a"},
		{"Pod/ns/a", "", "metadata ns/a"},
		{"forless//of-a", "", "forless /of-a"},
		{"Endpoints/ns/a", "", "typed ns/a"},
	} {
		attributes := changed("resource.update", e.key)
		switch {
		case e.data == "":
			attributes = dueEvent(e.key)
		case !strings.Contains(e.data, "metadata"):
			attributes = changed("ref.update", e.key)
		}
		a := op.send(attributes, e.data)
		if runs := l.take(); a.String() != "200 1h0m0s" || runs != e.runs {
			t.Errorf("%s %s: answered with %s %s, ran %q, want %q", e.key, e.data, a, a.body, runs, e.runs)
		}
	}
	channel <- crevent.GenericEvent{Object: configMap("enqueued", 1)}
	eventually(t, "the run of a request without an event", func() (bool, string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return slices.Equal(l.lines, []string{"forless ns/enqueued"}), fmt.Sprint(l.lines)
	})
}

// TestPredicates_PassAnUnseenUpdate says that predicates let pass the update of an object that was not seen before, also
// beside a controller without any. One that cannot read an object without fields lets pass none.
func TestPredicates_PassAnUnseenUpdate(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]predicate.Predicate{
		"data": predicate.Funcs{UpdateFunc: func(e crevent.UpdateEvent) bool {
			return !reflect.DeepEqual(e.ObjectOld.(*corev1.ConfigMap).Data, e.ObjectNew.(*corev1.ConfigMap).Data)
		}},
		"labels":           predicate.LabelChangedPredicate{},
		"annotations":      predicate.AnnotationChangedPredicate{},
		"generation":       predicate.GenerationChangedPredicate{},
		"resource version": predicate.ResourceVersionChangedPredicate{},
		"updates of a field only": predicate.Funcs{
			CreateFunc: func(crevent.CreateEvent) bool { return false },
			UpdateFunc: func(e crevent.UpdateEvent) bool {
				return e.ObjectOld.(*corev1.ConfigMap).Data["text"] != e.ObjectNew.(*corev1.ConfigMap).Data["text"]
			},
		},
		"panics": predicate.Funcs{
			CreateFunc: func(crevent.CreateEvent) bool { return false },
			UpdateFunc: func(e crevent.UpdateEvent) bool { return e.ObjectOld.(*corev1.ConfigMap).Data["text"][0] == 0 },
		},
		"updates only": predicate.Funcs{
			CreateFunc: func(crevent.CreateEvent) bool { return false },
			UpdateFunc: func(e crevent.UpdateEvent) bool { return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() },
		},
	} {
		l := &log{}
		op := startManager(t, cluster(), func(mgr ctrl.Manager) error {
			return errors.Join(
				ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(l.as("all")),
				ctrl.NewControllerManagedBy(mgr).Named("run").For(&corev1.ConfigMap{}, builder.WithPredicates(p)).Complete(l.as("run")))
		})
		o := configMap("a", 1)
		o.ResourceVersion, o.Data = "7", map[string]string{"text": "1"}
		wants := []string{"all ns/a, run ns/a", "all ns/a"}
		if name == "panics" {
			wants = wants[1:]
		}
		for i, want := range wants { // under a key of nothing, so that nothing else asks for a run
			a := op.send(changed("resource.update", "any"), toJSON(o))
			if runs := l.take(); runs != want {
				t.Errorf("%s: update %d is answered with %s, ran %q, want %q", name, i, a, runs, want)
			}
		}
	}
}

// TestFeeder_ReadsAnotherVersionAnew says that an object of another version is read
// into an empty object: a read leaves fields in place that it does not find.
func TestFeeder_ReadsAnotherVersionAnew(t *testing.T) {
	t.Parallel()
	sent := configMap("a", 1)
	sent.APIVersion, sent.Labels = "v2", map[string]string{"sent": "yes"}
	in := &informers{scheme: scheme.Scheme, byKind: map[kind]*informer{}, live: fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			if key.Name != "a" || o.GetLabels() != nil {
				t.Errorf("read into %v", o)
			}
			o.SetLabels(map[string]string{"read": "yes"})
			return nil
		},
	}).Build()}
	typed := kind{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap")}
	metadata := kind{typed.GroupVersionKind, metadataForm}
	in.of(typed)
	in.of(metadata)
	c, err := readChange(event{&cloudevent.Event{Attributes: map[string]string{"type": "dev.knative.apiserver.resource.update"}, Data: []byte(toJSON(sent))}})
	if err != nil {
		t.Fatal(err)
	}
	fed, err := (&feeder{informers: in}).read(t.Context(), c, true)
	if err != nil || len(fed.objects) != 2 {
		t.Fatal(fed, err)
	}
	for _, item := range fed.objects {
		want := map[kind]string{typed: "read", metadata: "sent"}[item.kind]
		if item.new.GetLabels()[want] == "" || item.bytes == 0 || fed.nameOnly {
			t.Errorf("%v: %v", item.kind, item.new)
		}
	}
}

// TestInformer_HandlersOfTheOperator adds handlers to the informers of the manager's cache, without a controller. A real cache
// knows of their kinds.
func TestInformer_HandlersOfTheOperator(t *testing.T) {
	t.Parallel()
	real := &informertest.FakeInformers{Scheme: scheme.Scheme}
	o := cluster()
	o.NewCache = func(*rest.Config, cache.Options) (cache.Cache, error) { return real, nil }
	gvk := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	for _, opts := range [][]Option{nil, {WithCachedReads()}} {
		l := &log{}
		op := startManager(t, o, func(ctrl.Manager) error { return nil }, opts...)
		c, ctx := op.manager.GetCache(), t.Context()
		i, err := c.GetInformerForKind(ctx, gvk)
		if err != nil {
			t.Fatal(err)
		}
		if same, err := c.GetInformer(ctx, &corev1.ConfigMap{}); same != i || err != nil || (real.InformersByGVK[gvk] != nil) != (opts != nil) {
			t.Errorf("another informer: %v; the real cache has %v", err, real.InformersByGVK)
		}
		handle := toolscache.ResourceEventHandlerFuncs{AddFunc: func(o any) { l.add(o.(*corev1.ConfigMap).Name) }}
		first, err := i.AddEventHandler(handle)
		if err == nil {
			_, err = i.AddEventHandlerWithResyncPeriod(handle, time.Hour)
		}
		if err != nil {
			t.Fatal(err)
		}
		if !i.HasSynced() || i.IsStopped() || !first.HasSynced() || !c.WaitForCacheSync(ctx) {
			t.Error("it waits for something")
		}
		for _, waitsFor := range []any{i, first} {
			if checker := reflect.ValueOf(waitsFor).MethodByName("HasSyncedChecker"); checker.IsValid() { // since client-go 0.36
				checker.Call(nil)[0].MethodByName("Done").Call(nil)[0].Recv()
			}
		}
		for _, step := range []struct {
			want string
			then func() error
		}{
			{"a, a", func() error { return i.RemoveEventHandler(first) }},
			{"a", func() error { return c.RemoveInformer(ctx, &corev1.ConfigMap{}) }},
			{"", func() error { return c.RemoveInformer(ctx, &corev1.ConfigMap{}) }},
		} {
			a, got := op.send(changed("resource.add", "any"), toJSON(configMap("a", 1))), l.take()
			if err := step.then(); a.code != 204 || got != step.want || err != nil {
				t.Errorf("answered with %s, handled %q, want %q; %v", a, got, step.want, err)
			}
		}
		if real.InformersByGVK[gvk] != nil {
			t.Error("the real cache still knows of the kind")
		}
		if _, err := c.GetInformerForKind(ctx, gvk.GroupVersion().WithKind("Nothing")); err == nil || c.RemoveInformer(ctx, &unstructured.Unstructured{}) == nil || i.AddIndexers(nil) == nil {
			t.Errorf("a kind that is not in the scheme, no kind at all, or an index, is no error: %v", err)
		}
	}
}
