package dispatch_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// A sink that may sleep is called once before the next due time.
func TestWarmUp_OnceBeforeADueTime(t *testing.T) {
	bubble(t, 0, func(c *core) {
		s := c.source("s", func(s *schedule.Spec) { s.WarmUp = 3 * time.Second })
		c.put(s, "a", in(time.Minute))
		c.put(s, "b", in(65*time.Second))
		c.put(s, "moved", in(30*time.Second)) // its row is stale when it is looked at
		c.put(s, "moved", in(3*time.Hour))
		c.pass(10 * time.Minute)
		c.put(s, "late", in(time.Second)) // less time than that is left
		c.pass(10 * time.Second)
		c.put(s, "soon", in(5*time.Second)) // the sink is awake
		c.pass(time.Hour)
		c.put(s, "now", in(0))
		c.pass(time.Second)
		c.source("s", func(s *schedule.Spec) { s.WarmUp, s.Suspend = 3*time.Second, true })
		c.put(s, "never", in(time.Minute))
		c.pass(time.Hour)
		want := []string{"57s s", "10m0s s"}
		if got := c.warmUps(); !slices.Equal(got, want) {
			t.Errorf("the sink was called at %v, want %v", got, want)
		}
		if got := len(c.deliveries()); got != 5 {
			t.Errorf("%d deliveries", got)
		}
	})
}

// A dead letter goes to another sink: its retry wakes none, and its delivery does not show that one is awake.
func TestWarmUp_IgnoresDeadLetters(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.answer = func(a schedule.Attempt, _ int) (time.Duration, schedule.Outcome) {
			switch {
			case a.Entry.DeadLetter != nil:
				return 0, schedule.Outcome{Kind: schedule.Failed}
			case a.Key == "bad":
				return 0, schedule.Outcome{Kind: schedule.Rejected}
			}
			return 0, schedule.Outcome{Kind: schedule.Succeeded}
		}
		s := c.source("s", func(s *schedule.Spec) {
			s.WarmUp, s.DeadLetter = 3*time.Second, &schedule.Target{URL: "http://letters"}
			s.Delivery = schedule.Delivery{Linear: true, BackoffDelay: 10 * time.Second, BackoffMax: new(10 * time.Second)}
		})
		c.put(s, "bad", in(0)) // its letter is tried each 10 s
		c.pass(time.Second)
		c.put(s, "key", in(5*time.Minute))
		c.pass(10 * time.Minute)
		if got := c.warmUps(); !slices.Equal(got, []string{"4m58s s"}) {
			t.Errorf("the sink was called at %v", got)
		}
	})
}

// A call that hangs delays neither a delivery nor the end.
func TestWarmUp_ThatHangs(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.warmsFor = time.Hour
		s := c.source("s", func(s *schedule.Spec) { s.WarmUp = 3 * time.Second })
		c.put(s, "a", in(time.Minute))
		c.pass(time.Minute)
		if got := c.starts(); !slices.Equal(got, []string{"1m0s a"}) {
			t.Errorf("delivered %v", got)
		}
		began := time.Now()
		c.d.Stop(context.Background())
		if took := time.Since(began); took != 0 {
			t.Errorf("the end took %s", took)
		}
	})
}

// Deliveries fail when three have failed and none has succeeded for a minute. The owner is told once each time.
func TestHealth_FailsAfterAMinute(t *testing.T) {
	bubble(t, 0, func(c *core) {
		var ok atomic.Bool
		c.answer = func(schedule.Attempt, int) (time.Duration, schedule.Outcome) {
			if ok.Load() {
				return 0, schedule.Outcome{Kind: schedule.Succeeded}
			}
			return 0, schedule.Outcome{Kind: schedule.Failed, Failure: schedule.Failure{Code: 503, Data: []byte("no \n upstream")}}
		}
		s := c.source("s", func(s *schedule.Spec) { s.Delivery = schedule.Delivery{Linear: true, BackoffDelay: 0} })
		states := func() string { h := c.d.Health(s); return fmt.Sprint(h.State, " ", h.Code, " ", h.Text) }
		if got := states(); got != fmt.Sprint(dispatch.Untried, " 0 ") {
			t.Errorf("at first %s", got)
		}
		c.source("s", func(s *schedule.Spec) { s.Delivery.BackoffDelay = 10 * time.Second })
		c.put(s, "k", in(0)) // fails at 0, 10, 30, 70 s
		c.pass(59 * time.Second)
		if got := states(); got != fmt.Sprint(dispatch.Untried, " 503 no upstream") {
			t.Errorf("after three failures in less than a minute %s", got)
		}
		c.pass(time.Second)
		if got := states(); got != fmt.Sprint(dispatch.Failing, " 503 no upstream") {
			t.Errorf("after a minute %s", got)
		}
		c.pass(time.Hour)
		ok.Store(true)
		c.pass(time.Hour)
		if got := c.d.Health(s).State; got != dispatch.Succeeding || c.failing.Load() != 1 {
			t.Errorf("after a success %d, told %d times", got, c.failing.Load())
		}
	})
}
