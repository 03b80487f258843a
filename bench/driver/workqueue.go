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
	Ahead       time.Duration // how long before its time each is added; 0: all beforehand
}

// workqueueJob does with the in-memory queue of a resident operator what the
// adapter does with a disk and a sink, and tells how late each item was.
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

	start := time.Now().Add(c.Lead + c.Ahead)
	due := func(i int) time.Time { return start.Add(time.Duration(i) * c.Every) }
	go func() {
		for i := range c.N {
			if c.Ahead > 0 {
				time.Sleep(time.Until(due(i).Add(-c.Ahead)))
			}
			queue.AddAfter(load.Key(uint32(i)), time.Until(due(i)))
		}
	}()
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
