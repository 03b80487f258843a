package dispatch_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

func (c *core) flood(s *queue.Source, n int) {
	c.Helper()
	for from := 0; from < n; from += 1000 {
		items := make([]queue.Item, min(1000, n-from))
		for i := range items {
			items[i] = queue.Item{Key: fmt.Sprintf("k%06d", from+i), Request: in(0)}
		}
		_, err := s.ScheduleAll(items, nil)
		must(c, err)
	}
	synctest.Wait()
}

// A source whose sink hangs does not make another late.
func TestHangingSink_DelaysNoOtherSource(t *testing.T) {
	const slots = 32
	bubble(t, slots, func(c *core) {
		c.answer = func(a schedule.Attempt, _ int) (time.Duration, schedule.Outcome) {
			if a.Source.UID != "well" {
				return 10 * time.Minute, schedule.Outcome{Kind: schedule.Failed}
			}
			return time.Millisecond, schedule.Outcome{Kind: schedule.Succeeded}
		}
		for i := range 3 {
			c.flood(c.source(fmt.Sprintf("hung%d", i), nil), 50)
		}
		// A source may hold half of what its namespace may still have, which is what
		// is still free: 8 of 32, then 4, then 2.
		if want := map[string]int{"hung0": 8, "hung1": 4, "hung2": 2}; !cmp.Equal(want, c.atATime()) {
			t.Error(cmp.Diff(want, c.atATime()))
		}
		well := c.source("well", nil)
		for range 100 {
			before := len(c.deliveries())
			c.put(well, "k", in(time.Second))
			c.pass(time.Second)
			if late := len(c.deliveries()) == before; late {
				t.Fatal("a delivery of the healthy source did not start in time")
			}
		}
		if n := c.atATime()["well"]; n != 1 {
			t.Errorf("%d deliveries of one key at a time", n)
		}
	})
}

// Slots that are given back go to the waiting lanes in turn.
func TestSlots_GoToWaitingLanesInTurn(t *testing.T) {
	bubble(t, 4, func(c *core) {
		c.always(time.Second, schedule.Outcome{Kind: schedule.Succeeded})
		for i := range 6 {
			c.flood(c.source(fmt.Sprint("s", i), nil), 10)
		}
		// The namespace has two of the four slots, a source one. Which lane waits first is up to the scheduler, so at
		// the end one source may have keys left that it can only send one by one.
		c.pass(30 * time.Second)
		if n := len(c.deliveries()); n < 57 {
			t.Errorf("%d of 60 deliveries in half a minute", n)
		}
		c.pass(3 * time.Second)
		if n := len(c.deliveries()); n != 60 {
			t.Errorf("%d of 60 deliveries", n)
		}
		for i := range 6 {
			if n := c.atATime()[fmt.Sprint("s", i)]; n == 0 || n > 2 {
				t.Errorf("s%d had %d deliveries at a time", i, n)
			}
		}
	})
}

// maxInFlight is reached and never exceeded.
func TestMaxInFlight_ReachedNeverExceeded(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.always(time.Second, schedule.Outcome{Kind: schedule.Succeeded})
		s := c.source("s", func(s *schedule.Spec) { s.MaxInFlight = 3 })
		c.flood(s, 10)
		if counts, _ := s.Counts(); counts.InFlight != 3 || counts.Pending != 7 || counts.Due != 7 {
			t.Errorf("%+v", counts)
		}
		c.pass(4 * time.Second)
		if n, most := len(c.deliveries()), c.atATime()["s"]; n != 10 || most != 3 {
			t.Errorf("%d deliveries, at most %d at a time", n, most)
		}
	})
}

// maxPerSecond allows one second's worth at once and then its rate.
func TestMaxPerSecond_BurstThenRate(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.flood(c.source("s", func(s *schedule.Spec) { s.MaxPerSecond = 5 }), 20)
		c.pass(time.Millisecond) // a wait is rounded up
		for second, want := range []int{5, 10, 15, 20} {
			if n := len(c.deliveries()); n != want {
				t.Errorf("after %d s: %d deliveries, want %d", second, n, want)
			}
			c.pass(time.Second)
		}
		for i, all := 5, c.deliveries(); i < 20; i++ {
			if gap := all[i].At - all[i-1].At; gap < 200*time.Millisecond || gap > 201*time.Millisecond {
				t.Errorf("delivery %d came %s after the previous delivery", i, gap)
			}
		}
	})
}

// A stale row does not use up maxPerSecond.
func TestMaxPerSecond_StaleRowIsFree(t *testing.T) {
	bubble(t, 0, func(c *core) {
		s := c.source("s", func(s *schedule.Spec) { s.MaxPerSecond = 1 })
		for _, d := range []time.Duration{time.Second, 1500 * time.Millisecond} {
			c.put(s, "k", in(d))
			must(t, s.Cancel("k", schedule.Conditions{}))
		}
		c.put(s, "k", in(1600*time.Millisecond))
		c.pass(time.Hour)
		if diff := cmp.Diff([]string{"1.6s k"}, c.starts()); diff != "" {
			t.Error(diff)
		}
	})
}

// A limit that is raised is in force at once.
func TestLimit_RaisedIsInForceAtOnce(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.always(time.Hour, schedule.Outcome{Kind: schedule.Succeeded})
		c.flood(c.source("s", func(s *schedule.Spec) { s.MaxInFlight = 1 }), 10)
		c.source("s", func(s *schedule.Spec) { s.MaxInFlight = 4 })
		if n := c.atATime()["s"]; n != 4 {
			t.Errorf("%d deliveries at a time", n)
		}
	})
}

// A suspended source delivers nothing until it is resumed.
func TestSuspend_UntilResumed(t *testing.T) {
	bubble(t, 0, func(c *core) {
		s := c.source("s", func(s *schedule.Spec) { s.Suspend = true })
		c.put(s, "late", in(time.Second))
		c.put(s, "later", in(2*time.Second))
		r := in(time.Second)
		r.ExpiresAt = c.now().Add(10 * time.Second)
		c.put(s, "expired", r)
		c.pass(15*time.Second - 1)
		synctest.Wait()
		if counts, _ := s.Counts(); counts.Pending != 2 || counts.Due != 2 {
			t.Errorf("%+v: what expires is dropped within 5 s, also while suspended", counts)
		}
		c.source("s", nil)
		c.pass(time.Minute)
		if diff := cmp.Diff([]string{"14.999999999s late", "14.999999999s later"}, c.starts()); diff != "" {
			t.Error(diff)
		}
	})
}

// More comes in than the page can put aside while it is loading: it is loaded again.
func TestBurst_WhileTheFirstPageLoads(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.flood(c.source("s", nil), 1000)
		if n := len(c.deliveries()); n != 1000 {
			t.Errorf("%d of 1000 delivered", n)
		}
	})
}
