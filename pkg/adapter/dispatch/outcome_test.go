package dispatch_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// What came in behind a delivery and expired leaves no entry that a listing would meet.
func TestDelete_ByPrefixWithoutAnEntry(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.always(time.Minute, schedule.Outcome{Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{After: time.Second}})
		s := c.source("s", nil)
		c.put(s, "a/k", in(0))
		c.pass(time.Second)
		r := in(time.Hour)
		r.ExpiresAt = c.now().Add(time.Second)
		c.put(s, "a/k", r)
		c.pass(30 * time.Second)
		if n, err := s.CancelAll(t.Context(), "a/"); n != 0 || err != nil {
			c.Error(n, err)
		}
		c.pass(time.Hour)
		if diff := cmp.Diff([]string{"0s a/k"}, c.starts()); diff != "" {
			c.Error(diff)
		}
	})
}

// The sweeper comes by within 5 s; an outcome before that must not take the expired occurrence for one that waits.
func TestExpiry_KeepsTheAnswerOfTheOlderOne(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.answer = func(_ schedule.Attempt, n int) (time.Duration, schedule.Outcome) {
			if n > 0 {
				return 0, schedule.Outcome{Kind: schedule.Succeeded}
			}
			return 2 * time.Second, schedule.Outcome{Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{After: time.Minute}}
		}
		s := c.source("s", nil)
		c.put(s, "k", in(0))
		c.pass(time.Second)
		r := in(time.Hour)
		r.ExpiresAt = c.now().Add(time.Second - time.Millisecond)
		c.put(s, "k", r)
		c.pass(time.Hour)
		if diff := cmp.Diff([]string{"0s k", "1m2s k"}, c.starts()); diff != "" {
			c.Error(diff)
		}
	})
}
