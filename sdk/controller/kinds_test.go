package controller

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// TestPredicates_PassAnUnseenUpdate says that predicates let pass the update of an
// object that was not seen before.
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
		"updates only": predicate.Funcs{
			CreateFunc: func(crevent.CreateEvent) bool { return false },
			UpdateFunc: func(e crevent.UpdateEvent) bool { return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() },
		},
	} {
		l := &log{}
		op := startManager(t, cluster(), func(mgr ctrl.Manager) error {
			return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}, builder.WithPredicates(p)).Complete(l.as("run"))
		})
		o := configMap("a", 1)
		o.ResourceVersion = "7"
		for i, want := range []string{"run ns/a", ""} { // under a key of nothing, so that nothing else asks for a run
			a := op.send(changed("resource.update", "any"), toJSON(o))
			if runs := l.take(); runs != want {
				t.Errorf("%s: update %d is answered with %s, ran %q, want %q", name, i, a, runs, want)
			}
		}
	}
}

// laggingCache is a cache that is behind the API server.
type laggingCache struct {
	*informertest.FakeInformers
	client.Client
	looked chan struct{} // closed at the first read
	once   *sync.Once
}

func (c laggingCache) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	defer c.once.Do(func() { close(c.looked) })
	return c.Client.Get(ctx, key, o, opts...)
}

func (c laggingCache) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	return c.Client.List(ctx, l, opts...)
}

// TestCache_IsAsNewAsTheEvent says that a run never reads an object older than the
// event that woke it.
func TestCache_IsAsNewAsTheEvent(t *testing.T) {
	t.Parallel()
	lagging := laggingCache{&informertest.FakeInformers{Scheme: scheme.Scheme}, fake.NewClientBuilder().WithObjects(configMap("a", 1)).Build(), make(chan struct{}), &sync.Once{}}
	o := cluster()
	newClient := o.NewClient
	o.NewCache = func(*rest.Config, cache.Options) (cache.Cache, error) { return lagging, nil }
	o.NewClient = func(cfg *rest.Config, co client.Options) (client.Client, error) {
		if co.Cache.Reader != client.Reader(lagging) {
			t.Error("the client does not read through the cache")
		}
		return newClient(cfg, co)
	}
	l := &log{}
	op := startManager(t, o, func(mgr ctrl.Manager) error {
		if err := mgr.GetFieldIndexer().IndexField(t.Context(), &corev1.ConfigMap{}, "data.x", func(client.Object) []string { return nil }); err != nil {
			return err
		}
		return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
			var o corev1.ConfigMap
			err := mgr.GetCache().Get(ctx, r.NamespacedName, &o)
			l.add(fmt.Sprint(o.Data["x"], err))
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}))
	}, WithCachedReads())
	var have corev1.ConfigMap
	if err := lagging.Client.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "a"}, &have); err != nil {
		t.Fatal(err)
	}
	have.Data = map[string]string{"x": "new"}
	event := have.DeepCopy()
	event.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	event.ResourceVersion = "1000" // the next one of the fake
	answers := make(chan string, 1)
	go func() {
		a, err := op.try(changed("resource.update", "ConfigMap/ns/a"), toJSON(event))
		answers <- fmt.Sprint(a, err)
	}()
	<-lagging.looked
	if err := lagging.Update(t.Context(), &have); err != nil || have.ResourceVersion != "1000" {
		t.Fatal(have.ResourceVersion, err)
	}
	if a, runs := <-answers, l.take(); a != "204 <nil>" || runs != "new<nil>" {
		t.Errorf("answered with %q, read %q", a, runs)
	}
	if err := lagging.Delete(t.Context(), &have); err != nil {
		t.Fatal(err)
	}
	if a := op.send(changed("resource.delete", "ConfigMap/ns/a"), toJSON(event)); a.String() != "204 never" {
		t.Errorf("a deletion is answered with %s", a)
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

// TestCache_WaitsForADeletion says when a deletion has come to the cache.
func TestCache_WaitsForADeletion(t *testing.T) {
	t.Parallel()
	o := configMap("a", 1)
	o.UID = "one"
	for _, row := range []struct {
		uid   types.UID
		waits bool
	}{{"one", true}, {"", true}, {"two", false}} {
		lagging := laggingCache{&informertest.FakeInformers{}, fake.NewClientBuilder().WithObjects(o.DeepCopy()).Build(), make(chan struct{}), &sync.Once{}}
		f := &feeder{informers: &informers{cached: lagging}}
		gone := configMap("a", 1)
		gone.UID = row.uid
		waited := make(chan struct{})
		go func() {
			f.wait(t.Context(), deleted, fedObject{name: client.ObjectKeyFromObject(gone), new: gone}, &cacheScope{labels.Everything(), fields.Everything()})
			close(waited)
		}()
		<-lagging.looked
		if row.waits {
			select {
			case <-waited:
				t.Errorf("%q: what is still there was taken for gone", row.uid)
			case <-time.After(20 * ms): // it looks every 10 ms
			}
			if err := lagging.Delete(t.Context(), o.DeepCopy()); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-waited:
		case <-time.After(catchUp - time.Second):
			t.Errorf("%q: it waits for what is gone", row.uid)
		}
	}
}

// TestInformer_HandlersOfTheOperator adds handlers to the informers of the manager's
// cache, without a controller.
func TestInformer_HandlersOfTheOperator(t *testing.T) {
	t.Parallel()
	for _, real := range []*informertest.FakeInformers{nil, {Scheme: scheme.Scheme}} {
		o := cluster()
		var opts []Option
		if real != nil {
			o.NewCache = func(*rest.Config, cache.Options) (cache.Cache, error) { return real, nil }
			opts = append(opts, WithCachedReads())
		}
		l := &log{}
		op := startManager(t, o, func(ctrl.Manager) error { return nil }, opts...)
		c, ctx := op.manager.GetCache(), t.Context()
		gvk := corev1.SchemeGroupVersion.WithKind("ConfigMap")
		i, err := c.GetInformerForKind(ctx, gvk)
		if err != nil {
			t.Fatal(err)
		}
		if same, err := c.GetInformer(ctx, &corev1.ConfigMap{}); same != i || err != nil {
			t.Errorf("another informer: %v", err)
		}
		if _, there := byKind(real)[gvk]; there != (real != nil) {
			t.Error("the real cache does not know of the kind")
		}
		handle := toolscache.ResourceEventHandlerFuncs{AddFunc: func(o any) { l.add(o.(*corev1.ConfigMap).Name) }}
		first, err := i.AddEventHandler(handle)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := i.AddEventHandlerWithResyncPeriod(handle, time.Hour); err != nil {
			t.Fatal(err)
		}
		handled := func(want string) {
			t.Helper()
			if a, got := op.send(changed("resource.add", "any"), toJSON(configMap("a", 1))), l.take(); a.code != 204 || got != want {
				t.Errorf("answered with %s, handled %q, want %q", a, got, want)
			}
		}
		handled("a, a")
		if err := i.RemoveEventHandler(first); err != nil {
			t.Fatal(err)
		}
		handled("a")
		for range 2 {
			if err := c.RemoveInformer(ctx, &corev1.ConfigMap{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, there := byKind(real)[gvk]; there {
			t.Error("the real cache still knows of the kind")
		}
		handled("")
		if _, err := c.GetInformerForKind(ctx, gvk.GroupVersion().WithKind("Nothing")); err == nil {
			t.Error("an informer of a kind that is not in the scheme")
		}
		if err := c.RemoveInformer(ctx, &unstructured.Unstructured{}); err == nil {
			t.Error("an object without a kind had an informer")
		}
		if err := i.AddIndexers(nil); err == nil {
			t.Error("an index of nothing")
		}
		if !i.HasSynced() || i.IsStopped() || !first.HasSynced() || !c.WaitForCacheSync(ctx) {
			t.Error("it waits for something")
		}
		<-i.HasSyncedChecker().Done()
		<-first.HasSyncedChecker().Done()
	}
}

func byKind(c *informertest.FakeInformers) map[schema.GroupVersionKind]toolscache.SharedIndexInformer {
	if c == nil {
		return nil
	}
	return c.InformersByGVK
}
