package cluster

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/reschedule-dev/reschedule/pkg/adapter/kube"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/capacity"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

const (
	// SourceBytes is what all sources may take, with the memory limit that the adapter is
	// shipped with.
	SourceBytes = 64 << 20
	// shippedLimit is the GOMEMLIMIT of config/500-adapter.yaml.
	shippedLimit = 880 << 20
	// shippedToMembers is the GOMEMLIMIT of config/replicated: what it is larger is for etcd.
	shippedToMembers = 1648 << 20
	// sourceBytes is what a source without parts takes in the registry, the queue and the store.
	sourceBytes = 6 << 10
	// retryEvery is how late a refused object is admitted that fits.
	retryEvery = 30 * time.Second
)

// totalFor is what all sources may take with this process' memory limit.
func totalFor(replicated bool) int64 {
	if replicated {
		return capacity.TotalForMemoryLimit(SourceBytes, shippedToMembers)
	}
	return capacity.TotalForMemoryLimit(SourceBytes, shippedLimit)
}

// WatchBytes is what watches may take beside what they are shipped with: half as much more as sources.
func WatchBytes(replicated bool) int64 { return (totalFor(replicated) - SourceBytes) / 2 }

// newCapacity bounds what sources take: their objects, and as much again for what is in force,
// which has texts of an older object.
func newCapacity(total int64) *capacity.Sources {
	return capacity.New(capacity.Config{Total: total, Fixed: sourceBytes, Copies: 2, Settles: true, Restores: true})
}

// fetch reads an object again that was refused, and counts it.
func (c *Cluster) fetch(ctx context.Context, name cache.ObjectName) (*v1alpha1.RescheduleSource, error) {
	ctx, cancel := context.WithTimeout(ctx, kube.CallTimeout)
	defer cancel()
	o, err := c.clients.GetSource(ctx, name)
	if err != nil {
		return nil, err
	}
	slim, err := c.informers.slim.slim(o)
	if err != nil {
		return nil, err
	}
	return slim.(*v1alpha1.RescheduleSource), nil
}

// retryRefused adds the names of refused objects that fit by now, until ctx ends.
func (c *Cluster) retryRefused(ctx context.Context, add func(cache.ObjectName)) {
	for {
		wait(ctx, time.Now().Add(retryEvery))
		if ctx.Err() != nil {
			return
		}
		c.capacity.Forget(func(name cache.ObjectName, uid types.UID) bool {
			o, err := find(c.sources, name)
			return err != nil || o != nil && o.UID == uid
		})
		for _, name := range c.capacity.Retry() {
			add(name)
		}
	}
}
