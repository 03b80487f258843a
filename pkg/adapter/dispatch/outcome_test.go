package dispatch_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Each policy delivers what it promises.
func TestPolicies_Deliver(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		policy schedule.Policy
		second time.Duration
		want   []string
	}{
		{schedule.Replace, 5 * time.Second, []string{"5s k second"}},
		{schedule.Replace, 20 * time.Second, []string{"20s k second"}},
		{schedule.Earliest, 5 * time.Second, []string{"5s k second"}},
		{schedule.Earliest, 20 * time.Second, []string{"10s k second"}},
		{schedule.Latest, 5 * time.Second, []string{"10s k second"}},
		{schedule.Latest, 20 * time.Second, []string{"20s k second"}},
		{schedule.Keep, 5 * time.Second, []string{"10s k first"}},
		{schedule.Fail, 5 * time.Second, []string{"10s k first"}},
	} {
		t.Run(string(tc.policy)+" "+tc.second.String(), func(t *testing.T) {
			bubble(t, 0, func(c *core) {
				s := c.source("s", nil)
				first, second := in(10*time.Second), in(tc.second)
				first.Event, second.Event = &schedule.Event{Type: "first"}, &schedule.Event{Type: "second"}
				second.Policy = tc.policy
				c.put(s, "k", first)
				if _, err := s.Schedule("k", &second, nil); (err != nil) != (tc.policy == schedule.Fail) {
					t.Error(err)
				}
				c.pass(time.Hour)
				if diff := cmp.Diff(tc.want, c.starts()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// Each answer of the sink is its outcome.
func TestAnswer_EachHasItsOutcome(t *testing.T) {
	t.Parallel()
	two := 2
	again := func(d time.Duration) schedule.Outcome {
		return schedule.Outcome{Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{After: d}}
	}
	failed := schedule.Outcome{Kind: schedule.Failed}
	asked := schedule.Outcome{Kind: schedule.Failed, RetryAfter: 30 * time.Second}
	done := schedule.Outcome{Kind: schedule.Succeeded}
	for _, tc := range []struct {
		name    string
		change  func(*schedule.Spec)
		answers []schedule.Outcome // the last one holds for all others
		want    []string
	}{
		{"2xx ends it", nil, []schedule.Outcome{done}, []string{"0s k"}},
		{"Reschedule-After", nil, []schedule.Outcome{again(time.Minute), done}, []string{"0s k", "1m0s k"}},
		{"retries back off and keep the key's time", nil, []schedule.Outcome{failed, failed, failed, done}, []string{"0s k", "1s k", "3s k", "7s k"}},
		{"linear back-off", func(s *schedule.Spec) { s.Delivery.Linear = true }, []schedule.Outcome{failed, failed, failed, done},
			[]string{"0s k", "1s k", "3s k", "6s k"}},
		{"Retry-After raises the wait", nil, []schedule.Outcome{asked, done}, []string{"0s k", "30s k"}},
		{"retryAfterMax caps it", func(s *schedule.Spec) { d := 5 * time.Second; s.Delivery.RetryAfterMax = &d }, []schedule.Outcome{asked, done}, []string{"0s k", "5s k"}},
		{"retries used up, dead letter", func(s *schedule.Spec) { s.Delivery.Retry, s.DeadLetter = &two, &schedule.Target{URL: "http://dead"} },
			[]schedule.Outcome{failed, failed, failed, done}, []string{"0s k", "1s k", "3s k", "3s k dead"}},
		{"rejected, dead letter at once", func(s *schedule.Spec) { s.DeadLetter = &schedule.Target{URL: "http://dead"} },
			[]schedule.Outcome{{Kind: schedule.Rejected}, failed, done}, []string{"0s k", "0s k dead", "1s k dead"}},
		{"rejected, dropped without a dead letter sink", nil, []schedule.Outcome{{Kind: schedule.Rejected}}, []string{"0s k"}},
		{"maxInterval after a success", func(s *schedule.Spec) { s.MaxInterval = time.Hour }, []schedule.Outcome{done, {Kind: schedule.Succeeded, Never: true}},
			[]string{"0s k", "1h0m0s k"}},
		{"maxInterval after the retries", func(s *schedule.Spec) { s.MaxInterval, s.Delivery.Retry = time.Hour, new(int) },
			[]schedule.Outcome{failed, {Kind: schedule.Succeeded, Never: true}}, []string{"0s k", "1h0m0s k"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, 0, func(c *core) {
				c.answer = func(_ schedule.Attempt, n int) (time.Duration, schedule.Outcome) {
					return 0, tc.answers[min(n, len(tc.answers)-1)]
				}
				s := c.source("s", tc.change)
				c.put(s, "k", in(0))
				c.pass(24 * time.Hour)
				if diff := cmp.Diff(tc.want, c.starts()); diff != "" {
					t.Error(diff)
				}
				if counts, err := s.Counts(); err != nil || counts.Pending != 0 || counts.InFlight != 0 || counts.DeadLetters != 0 {
					t.Errorf("left over: %+v %v", counts, err)
				}
			})
		})
	}
}

// A repeat carries the same id, a new occurrence another one.
func TestEventID_SameOnlyForRepeats(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.answer = func(_ schedule.Attempt, n int) (time.Duration, schedule.Outcome) {
			return 0, []schedule.Outcome{{Kind: schedule.Failed}, {Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{After: time.Second}}, {Kind: schedule.Succeeded}}[n]
		}
		c.put(c.source("s", nil), "k", in(0))
		c.pass(time.Minute)
		if all := c.deliveries(); len(all) != 3 || all[0].ID != all[1].ID || all[1].ID == all[2].ID {
			c.Errorf("%+v", all)
		}
	})
}

// A request during a delivery waits for its end.
func TestRequest_WaitsForTheDelivery(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		during func(*schedule.Request)
		first  schedule.Outcome
		want   []string
	}{
		{"a PUT, and the delivery succeeds", func(*schedule.Request) {}, schedule.Outcome{Kind: schedule.Succeeded}, []string{"0s k old", "1m0s k new"}},
		{"a PUT, and the delivery fails: it is not retried", func(*schedule.Request) {}, schedule.Outcome{Kind: schedule.Failed}, []string{"0s k old", "1m0s k new"}},
		{"a PUT, and Reschedule-After is sooner", func(*schedule.Request) {},
			schedule.Outcome{Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{After: 5 * time.Second}}, []string{"0s k old", "15s k new"}},
		{"an event, and the delivery fails: it is retried with the newer event", func(r *schedule.Request) { r.Ingested = true }, schedule.Outcome{Kind: schedule.Failed},
			[]string{"0s k old", "11s k new"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, 0, func(c *core) {
				c.answer = func(_ schedule.Attempt, n int) (time.Duration, schedule.Outcome) {
					if n > 0 {
						return 0, schedule.Outcome{Kind: schedule.Succeeded}
					}
					return 10 * time.Second, tc.first
				}
				s := c.source("s", nil)
				first, second := in(0), in(59*time.Second)
				first.Event, second.Event = &schedule.Event{Type: "old"}, &schedule.Event{Type: "new"}
				tc.during(&second)
				c.put(s, "k", first)
				c.pass(time.Second)
				if got := c.put(s, "k", second); got.Result != schedule.Created || !got.View.InFlight {
					t.Errorf("%+v", got)
				}
				c.pass(time.Hour)
				if diff := cmp.Diff(tc.want, c.starts()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// After a DELETE the answer has no effect.
func TestDelete_AnswerHasNoEffect(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]schedule.Outcome{
		"Reschedule-After": {Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{After: time.Second}},
		"maxInterval":      {Kind: schedule.Succeeded},
		"failure":          {Kind: schedule.Failed},
		"rejection":        {Kind: schedule.Rejected},
	} {
		for _, all := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				bubble(t, 0, func(c *core) {
					c.answer = func(schedule.Attempt, int) (time.Duration, schedule.Outcome) { return time.Minute, o }
					s := c.source("s", func(s *schedule.Spec) {
						s.MaxInterval, s.DeadLetter = time.Hour, &schedule.Target{URL: "http://dead"}
					})
					c.put(s, "k", in(0))
					c.pass(time.Second)
					var err error
					if all {
						_, err = s.CancelAll(t.Context(), "")
					} else {
						err = s.Cancel("k", schedule.Conditions{})
					}
					if _, there, _ := s.Get("k"); err != nil || there {
						t.Error(err, there)
					}
					c.pass(24 * time.Hour)
					if diff := cmp.Diff([]string{"0s k"}, c.starts()); diff != "" {
						t.Error(diff)
					}
				})
			})
		}
	}
}

// What came in behind a delivery and expired leaves no entry that a listing
// would meet.
func TestDelete_ByPrefixWithoutAnEntry(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.answer = func(schedule.Attempt, int) (time.Duration, schedule.Outcome) {
			return time.Minute, schedule.Outcome{Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{After: time.Second}}
		}
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

// The sweeper comes by within 5 s; an outcome before that must not take the
// expired occurrence for one that waits.
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
