package controller

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// The tests of this file are about WithCachedReads.

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

// cachedConfigs is an operator For ConfigMaps that Owns Secrets and reads both through a
// cache, which may be behind the API server.
type cachedConfigs struct {
	*operator
	log
	cache laggingCache
	live  client.Client
}

func startCached(t *testing.T, options cache.Options) *cachedConfigs {
	t.Helper()
	c := &cachedConfigs{live: fake.NewClientBuilder().Build()}
	informers := &informertest.FakeInformers{Scheme: scheme.Scheme}
	for _, watched := range []client.Object{&corev1.ConfigMap{}, &corev1.Secret{}} { // it has no lock for two that are made at once
		if _, err := informers.GetInformer(t.Context(), watched); err != nil {
			t.Fatal(err)
		}
	}
	c.cache = laggingCache{informers, fake.NewClientBuilder().Build(), make(chan struct{}), &sync.Once{}}
	o := cluster()
	o.Cache = options
	o.NewCache = func(*rest.Config, cache.Options) (cache.Cache, error) { return c.cache, nil }
	newClient := o.NewClient
	o.NewClient = func(cfg *rest.Config, co client.Options) (client.Client, error) {
		if co.Cache.Reader != client.Reader(c.cache) {
			t.Error("the client does not read through the cache")
		}
		return newClient(cfg, co)
	}
	c.operator = startManager(t, o, func(mgr ctrl.Manager) error {
		mgr.(*manager).informers.live = c.live
		if err := mgr.GetFieldIndexer().IndexField(t.Context(), &corev1.ConfigMap{}, "data.x", func(client.Object) []string { return nil }); err != nil {
			return err
		}
		return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Owns(&corev1.Secret{}).
			Complete(reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
				var own corev1.ConfigMap
				var owned corev1.Secret
				err := mgr.GetCache().Get(ctx, r.NamespacedName, &own)
				_ = mgr.GetCache().Get(ctx, client.ObjectKey{Namespace: "ns", Name: "s"}, &owned)
				c.add(fmt.Sprint(own.Labels["is"], owned.Labels["is"]))
				return reconcile.Result{}, client.IgnoreNotFound(err)
			}))
	}, WithCachedReads())
	return c
}

func ownedSecret() *corev1.Secret {
	s := &corev1.Secret{}
	s.Namespace, s.Name = "ns", "s"
	return s
}

// TestCache_IsAsNewAsTheEvent says that a run never reads an object older than the event that woke it, nor one that the event
// says is gone.
func TestCache_IsAsNewAsTheEvent(t *testing.T) {
	t.Parallel()
	c := startCached(t, cache.Options{})
	have := configMap("a", 1)
	if err := c.cache.Create(t.Context(), have); err != nil {
		t.Fatal(err)
	}
	have.Labels = map[string]string{"is": "new"}
	event := have.DeepCopy()
	event.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	event.ResourceVersion = "2" // the next one of the fake
	answers := make(chan string, 1)
	go func() {
		a, err := c.try(changed("resource.update", "ConfigMap/ns/a"), toJSON(event))
		answers <- fmt.Sprint(a, err)
	}()
	<-c.cache.looked
	if err := c.cache.Update(t.Context(), have); err != nil || have.ResourceVersion != event.ResourceVersion {
		t.Fatal(have.ResourceVersion, err)
	}
	if a, read := <-answers, c.take(); a != "204 <nil>" || read != "new" {
		t.Errorf("answered with %q, read %q", a, read)
	}
	if err := c.cache.Delete(t.Context(), have); err != nil {
		t.Fatal(err)
	}
	if a := c.send(changed("resource.delete", "ConfigMap/ns/a"), toJSON(event)); a.String() != "204 never" {
		t.Errorf("a deletion is answered with %s", a)
	}
}

// TestCache_WaitsForADeletion says when a deletion has come to the cache: the object is gone, or another one has its name.
func TestCache_WaitsForADeletion(t *testing.T) {
	o := configMap("a", 1)
	o.UID = "one"
	for uid, waits := range map[types.UID]bool{"one": true, "": true, "two": false} {
		synctest.Test(t, func(t *testing.T) {
			lagging := laggingCache{&informertest.FakeInformers{}, fake.NewClientBuilder().WithObjects(o.DeepCopy()).Build(), make(chan struct{}), &sync.Once{}}
			gone, began := configMap("a", 1), time.Now()
			gone.UID = uid
			time.AfterFunc(time.Second, func() { _ = lagging.Delete(t.Context(), o.DeepCopy()) })
			(&feeder{informers: &informers{cached: lagging}}).wait(t.Context(), deleted, fedObject{name: client.ObjectKeyFromObject(gone), new: gone}, &cacheScope{labels.Everything(), fields.Everything()})
			if waited := time.Since(began); (waited >= time.Second) != waits || waited > 2*time.Second {
				t.Errorf("%q: it waited for %s", uid, waited)
			}
			time.Sleep(time.Second)
		})
	}
}

// TestCache_OwnedEventReadsNoStaleCache says that the event of an owned object waits for
// the object and for its owner: the event has the version of neither.
func TestCache_OwnedEventReadsNoStaleCache(t *testing.T) {
	t.Parallel()
	for _, cause := range []string{"v1/Secret/ns/s", "v1/Secret/ns/deleted"} {
		c := startCached(t, cache.Options{})
		deleted := ownedSecret()
		deleted.Name = "deleted"
		for _, o := range []client.Object{configMap("a", 1), ownedSecret()} {
			if err := c.cache.Create(t.Context(), o.DeepCopyObject().(client.Object)); err != nil {
				t.Fatal(err)
			}
			if err := c.live.Create(t.Context(), o.DeepCopyObject().(client.Object)); err != nil {
				t.Fatal(err)
			}
			labelled := o.DeepCopyObject().(client.Object)
			labelled.SetLabels(map[string]string{"is": "new"})
			labelled.SetResourceVersion("1")
			if err := c.live.Update(t.Context(), labelled); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.cache.Create(t.Context(), deleted); err != nil {
			t.Fatal(err)
		}
		answers := make(chan string, 1)
		go func() {
			a, err := c.try(caused("ConfigMap/ns/a", cause), "")
			answers <- fmt.Sprint(a, err)
		}()
		<-c.cache.looked
		if err := c.cache.Delete(t.Context(), deleted); err != nil {
			t.Fatal(err)
		}
		for _, o := range []client.Object{configMap("a", 1), ownedSecret()} {
			o.SetLabels(map[string]string{"is": "new"})
			o.SetResourceVersion("1")
			if err := c.cache.Update(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		// The last letters are of the Secret s, for which only its own event waits.
		if a, read := <-answers, c.take(); a != "204 <nil>" || read != "newnew" && (read != "new" || cause == "v1/Secret/ns/s") {
			t.Errorf("%s: answered with %q, read %q", cause, a, read)
		}
	}
}

// TestCache_OutsideIsDroppedAtOnce says that an object that is not in the namespaces of
// the cache is not waited for.
func TestCache_OutsideIsDroppedAtOnce(t *testing.T) {
	t.Parallel()
	c := startCached(t, cache.Options{DefaultNamespaces: map[string]cache.Config{"ns": {}}})
	other := configMap("a", 1)
	other.Namespace = "other"
	if err := c.live.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for _, send := range []func() (map[string]string, string){
		func() (map[string]string, string) { return sighted(updated, "ConfigMap/other/a", "1") },
		func() (map[string]string, string) { return sighted(updated, "Secret/other/s", "1") },
		func() (map[string]string, string) { return caused("ConfigMap/other/a", "v1/Secret/other/s"), "" },
	} {
		if a := c.send(send()); a.String() != "204 never" || time.Since(began) > catchUp {
			t.Errorf("answered with %s after %s", a, time.Since(began))
		}
	}
}

// TestCache_UnselectedObjectIsNoWait is about selectors of the cache: an object that they
// keep out never comes.
func TestCache_UnselectedObjectIsNoWait(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		of   cache.ByObject
		wait time.Duration
	}{
		"a label":                {cache.ByObject{Label: labels.SelectorFromSet(labels.Set{"is": "ours"})}, 0},
		"a name":                 {cache.ByObject{Field: fields.OneTermEqualSelector("metadata.name", "b")}, 0},
		"a label in a namespace": {cache.ByObject{Namespaces: map[string]cache.Config{"ns": {LabelSelector: labels.Nothing()}}}, 0},
		"a field of the spec":    {cache.ByObject{Field: fields.OneTermEqualSelector("spec.x", "b")}, catchUpUnsure},
	} {
		c := startCached(t, cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: row.of}})
		if err := c.live.Create(t.Context(), configMap("a", 1)); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		a := c.send(sighted(updated, "ConfigMap/ns/a", "1"))
		if waited := time.Since(began); a.String() != "204 never" || waited < row.wait || waited > catchUp {
			t.Errorf("%s: answered with %s after %s", name, a, waited)
		}
	}
}
