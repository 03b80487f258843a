package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"k8s.io/client-go/util/workqueue"
)

// workqueueConfig is the lateness scenario for client-go.
type workqueueConfig struct {
	Pending, N  int
	Every, Lead time.Duration
}

// workqueueJob does the same work with the in-memory queue of a resident
// operator, without disk and sink, and returns the lateness of each item.
func workqueueJob(ctx context.Context, config []byte) (any, error) {
	var c workqueueConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, fmt.Errorf("driver: workqueue: %w", err)
	}
	queue := workqueue.NewTypedDelayingQueue[string]()
	defer queue.ShutDown()
	far := farAway(time.Now())
	for i := range c.Pending {
		index := firstIndex(maxRounds-1) + uint32(i)
		queue.AddAfter(load.Key(index), time.Until(far(index).At))
	}

	start := time.Now().Add(c.Lead)
	due := func(i int) time.Time { return start.Add(time.Duration(i) * c.Every) }
	for i := range c.N {
		queue.AddAfter(load.Key(uint32(i)), time.Until(due(i)))
	}
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	late := make([]time.Duration, 0, c.N)
	for range c.N {
		key, shut := queue.Get()
		now := time.Now()
		if shut {
			return nil, fmt.Errorf("driver: workqueue: %w", context.Cause(ctx))
		}
		if i, ok := load.Index(key); ok {
			late = append(late, now.Sub(due(int(i))))
		}
		queue.Done(key)
	}
	return late, nil
}
