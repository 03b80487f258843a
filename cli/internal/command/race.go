package command

import (
	"context"
	"time"
)

// podTime is how long a pod is waited for before the next one is tried too.
const podTime = 2 * time.Second

// race starts something in one of the pods, the first one if it can, and returns what was made
// first. The next pod is tried when one before fails, or has not ended after podTime, as on a
// machine that is gone.
//
// start's context ends with the race. late is called with what is made after it. Without a
// winner the errors of the pods are returned; they are not complete when ctx has ended.
func race[T any](ctx context.Context, pods []string, start func(ctx context.Context, pod string) (T, error), late func(T)) (T, map[string]error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		pod  string
		made T
		err  error
	}
	results, errs := make(chan result), map[string]error{}
	next := time.NewTimer(0)
	defer next.Stop()
	for tried := 0; len(errs) < len(pods); {
		select {
		case <-next.C:
			if tried < len(pods) {
				pod := pods[tried]
				go func() {
					made, err := start(ctx, pod)
					select {
					case results <- result{pod, made, err}:
					case <-ctx.Done():
						if err == nil { // another pod was faster
							late(made)
						}
					}
				}()
				tried++
				next.Reset(podTime)
			}
		case r := <-results:
			if r.err == nil {
				return r.made, nil
			}
			errs[r.pod] = r.err
			next.Reset(0)
		case <-ctx.Done():
			var none T
			return none, errs
		}
	}
	var none T
	return none, errs
}
