package dispatch_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

func hangs(schedule.Attempt, int) (time.Duration, schedule.Outcome) {
	return 24 * time.Hour, schedule.Outcome{Kind: schedule.Succeeded}
}

// Stop waits for deliveries, and cuts off deliveries that take too long.
func TestStop_WaitsThenCutsOff(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.answer = func(a schedule.Attempt, _ int) (time.Duration, schedule.Outcome) {
			if a.Key == "slow" {
				return time.Hour, schedule.Outcome{Kind: schedule.Succeeded}
			}
			return 3 * time.Second, schedule.Outcome{Kind: schedule.Succeeded}
		}
		s := c.source("s", nil)
		c.put(s, "quick", in(0))
		c.put(s, "slow", in(0))
		c.put(s, "next", in(time.Second))
		synctest.Wait()
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		c.d.Stop(ctx)
		c.d.Stop(ctx) // idempotent
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("Stop took %s", took)
		}
		for key, want := range map[string]bool{"quick": false, "slow": true, "next": true} {
			if _, there, _ := s.Get(key); there != want {
				t.Errorf("%s is there: %v", key, there)
			}
		}
		if diff := cmp.Diff([]string{"0s quick", "0s slow"}, c.starts()); diff != "" {
			t.Error(diff)
		}
	})
}

// A removed source delivers nothing more, and its slots are free.
func TestRemove_FreesTheSlots(t *testing.T) {
	bubble(t, 2, func(c *core) {
		c.answer = hangs
		s := c.source("s", nil)
		c.flood(s, 20)
		must(t, c.q.Remove("s"))
		c.d.Remove(s)
		c.d.Wake(s) // a late one
		c.pass(time.Hour)
		n := len(c.deliveries())
		c.mu.Lock()
		if n != 1 || c.aborted != 1 {
			t.Errorf("%d deliveries, %d cut off", n, c.aborted)
		}
		c.answer = nil
		c.mu.Unlock()
		if _, _, err := s.Get("k000000"); err == nil {
			t.Error("a removed source answers")
		}
		// The same uid again is an empty source.
		s = c.source("s", nil)
		if counts, err := s.Counts(); counts.Pending+counts.InFlight+counts.DeadLetters != 0 || err != nil {
			t.Errorf("%+v %v", counts, err)
		}
		c.put(s, "k", in(time.Second))
		c.pass(time.Minute)
		if got := c.starts(); len(got) != 2 || got[1] != "1h0m1s k" {
			t.Error(got)
		}
	})
}

// A dead letter whose sink is gone is dropped.
func TestDeadLetter_WithoutItsSinkIsDropped(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.answer = func(a schedule.Attempt, _ int) (time.Duration, schedule.Outcome) {
			if a.Entry.DeadLetter != nil {
				return 0, schedule.Outcome{Kind: schedule.Failed}
			}
			return 0, schedule.Outcome{Kind: schedule.Rejected}
		}
		s := c.source("s", func(s *schedule.Spec) { s.DeadLetter = &schedule.Target{URL: "http://dead"} })
		c.put(s, "k", in(0))
		c.pass(10 * time.Second)
		if counts, _ := s.Counts(); counts.DeadLetters != 1 || counts.Pending != 0 {
			t.Errorf("%+v", counts)
		}
		c.source("s", nil)
		c.pass(time.Hour)
		if counts, _ := s.Counts(); counts.DeadLetters != 0 {
			t.Errorf("%+v", counts)
		}
	})
}

// Nothing is delivered after its expiry, not even a retry.
func TestExpiry_NoDeliveryAfterIt(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.always(time.Second, schedule.Outcome{Kind: schedule.Failed})
		s := c.source("s", func(s *schedule.Spec) { s.MaxInFlight = 1 })
		r := in(0)
		r.ExpiresAt = c.now().Add(10 * time.Second)
		c.put(s, "retried", r) // tried at 0, 2, 5 and then, after the expiry, at 10
		r.ExpiresAt = c.now().Add(900 * time.Millisecond)
		c.put(s, "waits for its turn", r)
		r.ExpiresAt = c.now()
		if got := c.put(s, "past", r); got.Result != schedule.Created {
			t.Errorf("%+v", got)
		}
		if _, there, _ := s.Get("past"); there {
			t.Error("what is accepted and dropped is there")
		}
		c.pass(time.Hour)
		if diff := cmp.Diff([]string{"0s retried", "2s retried", "5s retried"}, c.starts()); diff != "" {
			t.Error(diff)
		}
		if counts, _ := s.Counts(); counts.Pending != 0 {
			t.Errorf("%+v", counts)
		}
	})
}

// The wall clock decides, even when it jumps.
func TestClock_WallClockDecides(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		jumps []time.Duration // after 1 s, 2 s and so on
		from  time.Duration   // the delivery of what is due in 1 h by the wall clock
		to    time.Duration
	}{
		{"no jump", nil, time.Hour, time.Hour},
		{"forward over it", []time.Duration{2 * time.Hour}, time.Second, 11 * time.Second},
		{"forward to before it", []time.Duration{30 * time.Minute}, 30 * time.Minute, 30 * time.Minute},
		{"backward", []time.Duration{-30 * time.Minute}, 90 * time.Minute, 90 * time.Minute},
		{"forward and back", []time.Duration{30 * time.Minute, -30 * time.Minute}, time.Hour, time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, 0, func(c *core) {
				c.put(c.source("s", nil), "k", in(time.Hour))
				for _, j := range tc.jumps {
					c.pass(time.Second)
					c.offset.Add(int64(j))
				}
				c.pass(24 * time.Hour)
				if all := c.deliveries(); len(all) != 1 || all[0].At < tc.from || all[0].At > tc.to {
					t.Errorf("%+v, want one from %s to %s", all, tc.from, tc.to)
				}
			})
		})
	}
}

// Two jumps that make up for each other between two heartbeats.
func TestTimer_SetAgainAfterAClockJump(t *testing.T) {
	bubble(t, 0, func(c *core) {
		s := c.source("s", nil)
		c.pass(time.Second)
		at := c.now().Add(time.Minute)
		c.offset.Store(-int64(time.Hour))
		c.put(s, "k", schedule.Request{DueAt: at})
		c.pass(time.Second)
		c.offset.Store(0)
		c.pass(24 * time.Hour)
		if all := c.deliveries(); len(all) != 1 || all[0].At < 61*time.Second || all[0].At > 71*time.Second {
			t.Errorf("%+v, want one after 1m1s and at most 10 s", all)
		}
	})
}
