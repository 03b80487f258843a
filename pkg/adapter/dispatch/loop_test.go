package dispatch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Events that come often to a failing key do not undo its back-off, whether one comes between two attempts or during one.
func TestEventStorm_KeepsTheBackoff(t *testing.T) {
	t.Parallel()
	for _, policy := range []schedule.Policy{schedule.Earliest, schedule.Replace} {
		for _, took := range []time.Duration{0, 50 * time.Millisecond} {
			t.Run(fmt.Sprint(policy, " ", took), func(t *testing.T) {
				bubble(t, 0, func(c *core) {
					c.always(took, schedule.Outcome{Kind: schedule.Failed})
					s := c.source("s", func(s *schedule.Spec) { s.Delivery.Retry = new(3) })
					for i := range 2000 { // an event each 10 ms, for 20 s
						r := in(0)
						r.Ingested, r.Policy, r.Event = true, policy, &schedule.Event{ID: fmt.Sprint(i), Source: "/s", Type: "t"}
						c.put(s, "k", r)
						c.pass(10 * time.Millisecond)
					}
					if n := len(c.deliveries()); n < 20 || n > 29 { // eight below a second
						t.Errorf("%d attempts in 20 s", n)
					}
				})
			})
		}
	}
}
