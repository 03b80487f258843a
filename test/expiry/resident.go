package main

import (
	"context"
	"errors"
	"log"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// resident runs Reconcile in the usual way: an informer and a work queue keep the keys
// and their times in memory.
func resident(ctx context.Context, client kubernetes.Interface) error {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	factory := informers.NewSharedInformerFactoryWithOptions(client, 10*time.Hour,
		informers.WithNamespace(os.Getenv("NAMESPACE")), // empty: all
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = label }))
	configMaps := factory.Core().V1().ConfigMaps()
	enqueue := func(object any) {
		if key, err := cache.MetaNamespaceKeyFunc(object); err == nil {
			queue.Add(key)
		}
	}
	if _, err := configMaps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: enqueue, UpdateFunc: func(_, object any) { enqueue(object) },
	}); err != nil {
		return err
	}
	e := expiry{configMaps: client.CoreV1(), get: func(_ context.Context, namespace, name string) (*corev1.ConfigMap, error) {
		return configMaps.Lister().ConfigMaps(namespace).Get(name)
	}}

	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), configMaps.Informer().HasSynced) {
		return errors.New("the cache did not fill before the end")
	}
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
