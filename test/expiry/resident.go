package main

import (
	"context"
	"errors"
	"log"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// resident runs Reconcile in the usual way: an informer and a work queue keep the keys
// and their times in memory.
func resident(ctx context.Context, of kind) error {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	informer := of.informer()
	enqueue := func(object any) {
		if key, err := cache.MetaNamespaceKeyFunc(object); err == nil {
			queue.Add(key)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: enqueue, UpdateFunc: func(_, object any) { enqueue(object) },
	}); err != nil {
		return err
	}
	e := expiry{of}
	lister := cache.NewGenericLister(informer.GetIndexer(), schema.GroupResource{})
	e.get = func(_ context.Context, namespace, name string) (metav1.Object, error) {
		object, err := lister.ByNamespace(namespace).Get(name)
		if err != nil {
			return nil, err
		}
		return meta.Accessor(object)
	}

	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	defer running.Wait()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return errors.New("the cache did not fill before the end")
	}
	log.Print(ready)
	go func() {
		<-ctx.Done()
		queue.ShutDown()
	}()
	for {
		key, end := queue.Get()
		if end {
			return nil
		}
		again, err := e.Reconcile(ctx, key)
		log.Printf("key=%s again=%s err=%v", key, again, err)
		switch {
		case err != nil:
			queue.AddRateLimited(key)
		case again > 0:
			queue.Forget(key)
			queue.AddAfter(key, again)
		default:
			queue.Forget(key)
		}
		queue.Done(key)
	}
}
