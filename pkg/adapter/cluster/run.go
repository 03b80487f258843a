package cluster

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

const (
	// What fails is tried again after 100 ms, then twice as long, and at last
	// twice a minute: a full disk has room again within that of getting it.
	retryAfter    = 100 * time.Millisecond
	retryAfterMax = 30 * time.Second
	// followers bound the sources that are changed at a time: purging one that
	// is large must not hold up the others.
	followers = 4
)

// follow keeps the plane's sources in step until ctx ends.
func (c *Cluster) follow(ctx context.Context, p Plane) {
	queue := workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](retryAfter, retryAfterMax))
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
	}, cache.HandlerOptions{Logger: &c.told})
	if err != nil { // the informers have ended: so has ctx, or is about to
		c.log.Warn("the sources are not followed", "error", err)
	} else {
		defer func() { _ = c.informers.sources.RemoveEventHandler(registration) }()
	}
	c.configs.onFlags(all)
	defer c.configs.onFlags(func() {})
	all() // those that went since Sources was called, too

	var workers sync.WaitGroup
	for range followers {
		workers.Go(func() {
			for ctx.Err() == nil && c.reconcileNext(queue, p) {
			}
		})
	}
	<-ctx.Done()
	queue.ShutDown()
	workers.Wait()
}

// reconcileNext takes one name; false when there will be no more.
func (c *Cluster) reconcileNext(queue workqueue.TypedRateLimitingInterface[cache.ObjectName], p Plane) bool {
	name, ended := queue.Get()
	if ended {
		return false
	}
	defer queue.Done(name)
	if err := c.follower.reconcile(name, p); err != nil {
		c.log.Error("a source is not in step; it is tried again", "source", name.String(), "tries", queue.NumRequeues(name)+1, "error", err)
		queue.AddRateLimited(name)
		return true
	}
	queue.Forget(name)
	return true
}
