package cluster

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
)

const (
	// A failed change is tried again after 100 ms, then after twice as long, and at
	// most 30 s later: that is how late the adapter notices free disk space.
	retryAfter    = 100 * time.Millisecond
	retryAfterMax = 30 * time.Second
	// reconcilers bound the sources that are changed at a time: purging a large one
	// must not delay the others.
	reconcilers = 4
)

// follow keeps the registry in step until ctx ends.
func (c *Cluster) follow(ctx context.Context, r sources.Registry) {
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](retryAfter, retryAfterMax),
		workqueue.TypedRateLimitingQueueConfig[cache.ObjectName]{DelayingQueue: newNames()})
	all := func() {
		for _, name := range c.follower.names() {
			queue.Add(name)
		}
	}
	changed := func(o any) {
		if name, err := cache.DeletionHandlingObjectToName(o); err == nil {
			queue.Add(name)
		}
	}
	registration, err := c.informers.sources.AddEventHandlerWithOptions(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, o any) { changed(o) }, DeleteFunc: changed,
	}, cache.HandlerOptions{Logger: &c.klog})
	if err != nil { // the informers ended, with ctx
		c.cfg.Log.Warn("the sources are not followed", "error", err)
	} else {
		defer func() { _ = c.informers.sources.RemoveEventHandler(registration) }()
	}
	c.configs.setOnChange(all)
	defer c.configs.setOnChange(func() {})
	all() // also objects that were deleted since Sources was called

	var workers sync.WaitGroup
	for range reconcilers {
		workers.Go(func() {
			for ctx.Err() == nil && c.reconcileNext(ctx, queue, r) {
			}
		})
	}
	workers.Go(func() { c.retryRefused(ctx, queue.Add) })
	<-ctx.Done()
	queue.ShutDown()
	workers.Wait()
}

// reconcileNext reconciles one name. It returns false when there will be no more.
func (c *Cluster) reconcileNext(ctx context.Context, queue workqueue.TypedRateLimitingInterface[cache.ObjectName], r sources.Registry) bool {
	name, ended := queue.Get()
	if ended {
		return false
	}
	defer queue.Done(name)
	if err := c.follower.reconcile(ctx, name, r); err != nil {
		c.cfg.Log.Error("a source could not be changed; it is tried again", "source", name.String(), "tries", queue.NumRequeues(name)+1, "error", err)
		queue.AddRateLimited(name)
		return true
	}
	queue.Forget(name)
	return true
}
