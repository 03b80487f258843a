package dispatch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// A sink or a source that asks for no wait makes no loop without a floor: one key had thousands of attempts a second.
func TestLoop_IsBounded(t *testing.T) {
	t.Parallel()
	at := &schedule.RescheduleAfter{}
	for _, tc := range []struct {
		name   string
		change func(*schedule.Spec)
		answer schedule.Outcome
		most   int // attempts in ten seconds
	}{
		{"back-off of nothing", func(s *schedule.Spec) { s.Delivery.BackoffDelay = 0 }, schedule.Outcome{Kind: schedule.Failed}, 11},
		{"back-off capped at nothing", func(s *schedule.Spec) { s.Delivery.BackoffMax = new(time.Duration) }, schedule.Outcome{Kind: schedule.Failed}, 17},
		{"503 with a wait of nothing", nil, schedule.Outcome{Kind: schedule.Failed, Again: at}, 2001},
		{"400 with a wait of nothing", nil, schedule.Outcome{Kind: schedule.Rejected, Again: at}, 2001},
		{"2xx with a wait of nothing", nil, schedule.Outcome{Kind: schedule.Succeeded, Again: at}, 2001},
		{"2xx with an instant long ago", nil, schedule.Outcome{Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{At: time.Unix(1, 0)}}, 2001},
		{"maxInterval of a nanosecond", func(s *schedule.Spec) { s.MaxInterval = 1 }, schedule.Outcome{Kind: schedule.Succeeded}, 2001},
		{"refused, maxInterval of a nanosecond", func(s *schedule.Spec) { s.MaxInterval = 1 }, schedule.Outcome{Kind: schedule.Rejected}, 2001},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, 0, func(c *core) {
				c.always(0, tc.answer)
				c.put(c.source("s", tc.change), "k", in(0))
				c.pass(10 * time.Second)
				if n := len(c.deliveries()); n < 2 || n > tc.most {
					t.Errorf("%d attempts in ten seconds, want at most %d", n, tc.most)
				}
			})
		})
	}
}

// Events that come often to a failing key do not undo its back-off, whether one comes between two attempts or during one.
func TestEventStorm_KeepsTheBackoff(t *testing.T) {
	t.Parallel()
	for _, policy := range []schedule.Policy{schedule.Earliest, schedule.Replace} {
		for _, took := range []time.Duration{0, 50 * time.Millisecond} {
			t.Run(fmt.Sprint(policy, " ", took), func(t *testing.T) {
				bubble(t, 0, func(c *core) {
					c.always(took, schedule.Outcome{Kind: schedule.Failed})
					retry := 3
					s := c.source("s", func(s *schedule.Spec) { s.Delivery.Retry = &retry })
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
