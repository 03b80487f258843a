package controller

import (
	"context"
	"errors"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
	"github.com/reschedule-dev/reschedule/sdk/internal/cloudevent"
)

// scheduleTimeout is more than the calls of a client take with their retries.
const scheduleTimeout = 30 * time.Second

// schedule gives targets deliveries of their own, under their own keys.
func (s *server) schedule(ctx context.Context, ds []delayed) error {
	items := make([]sdk.Item, len(ds))
	for i, d := range ds {
		s.answers.forget(d.key) // it is not everything any more that waits under the key
		items[i] = sdk.Item{Key: d.key, Request: sdk.Request{
			Delay: &ds[i].after, Policy: sdk.Earliest, Priority: bandOf(d.priority), Event: &sdk.Event{Type: cloudevent.DueType, Data: dueOf(d).json()},
		}}
	}
	outcomes, err := s.client.ScheduleAll(ctx, items...)
	for _, o := range outcomes {
		err = errors.Join(err, o.Err)
	}
	return err
}

// enqueuedWithoutEvent runs a request that was enqueued while no event was handled,
// by a source.Channel for example. No delivery waits for its outcome, so that only a
// client can keep it.
func (s *server) enqueuedWithoutEvent(q *queue, e enqueued) {
	t := q.target(e.request)
	t.priority = e.priority
	lost := func(err error) {
		if err != nil {
			s.log.Error(err, "A request that was enqueued without an event is lost", "key", t.key)
		}
	}
	switch {
	case s.client != nil:
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), scheduleTimeout)
			defer cancel()
			lost(s.schedule(ctx, []delayed{{t, e.after}}))
		}()
	case e.after > 0:
		lost(errors.New("it is for later, which needs WithClient"))
	default:
		r := q.join(t)
		go func() {
			<-r.done
			if r.after > 0 {
				lost(errors.New("it asks for another run later, which needs WithClient"))
			}
			lost(r.err)
		}()
	}
}
