package queue

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// onSchedule is a source with a schedule; "" is none.
func onSchedule(cron string) *schedule.Spec {
	s := tenantSource("a", "s", schedule.Ceilings{})
	if cron != "" {
		s.Calendar = &schedule.Calendar{Cron: cron}
	}
	return s
}

// minutes are the minutes of the hour at which keys wait.
func minutes(t *testing.T, s *Source, keys ...string) (at []int) {
	t.Helper()
	for _, key := range keys {
		v, _, err := s.Get(key)
		must(t, err)
		at = append(at, v.DueAt.Minute())
	}
	return at
}

// A run that outlasts instants of the calendar is followed by one occurrence at once, also when an event came in.
func TestCalendar_RunOutlastsInstants(t *testing.T) {
	for _, events := range []int{0, 1} {
		t.Run(fmt.Sprint(events, " events"), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFixture(t, onSchedule("")).sources[0]
				must(t, errorOf(s.Schedule("k", &schedule.Request{Calendar: &schedule.Calendar{Cron: "*/5 * * * *"}}, nil)))
				time.Sleep(5 * time.Minute)
				d := take(t, s)
				time.Sleep(13 * time.Minute)
				for range events {
					must(t, errorOf(s.Schedule("k", &schedule.Request{Delay: new(time.Hour), Ingested: true, Event: &schedule.Event{ID: "1", Source: "/s"}}, nil)))
				}
				must(t, errorOf(s.Finish(d, schedule.Outcome{Kind: schedule.Succeeded})))
				time.Sleep(schedule.MinWait)
				d = take(t, s)
				for range events { // no instant has passed
					must(t, errorOf(s.Schedule("k", &schedule.Request{Delay: new(time.Hour), Ingested: true, Event: &schedule.Event{ID: "2", Source: "/s"}}, nil)))
				}
				must(t, errorOf(s.Finish(d, schedule.Outcome{Kind: schedule.Succeeded})))
				if got := minutes(t, s, "k"); got[0] != 20 {
					t.Errorf("the next one is at minute %d", got[0])
				}
			})
		})
	}
}

// After an edit of the schedule the keys that wait for an instant of it move at once, all others stay. Time begins at
// a full hour.
func TestFollow_KeysMoveWithTheSchedule(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newFixture(t, onSchedule("10 * * * *"))
		s := h.sources[0]
		put := func(key string, r *schedule.Request) { must(t, errorOf(s.Schedule(key, r, nil))) }
		const many = 3*pageOfSchedule + 7
		for i := range many {
			put(fmt.Sprintf("key-%04d", i), &schedule.Request{})
		}
		put("delayed", &schedule.Request{Delay: new(40 * time.Minute)})
		put("of its own", &schedule.Request{Calendar: &schedule.Calendar{Cron: "50 * * * *"}})
		for _, c := range []struct {
			cron string
			want int
		}{{"20 * * * *", 20}, {"", 20}, {"30 * * * *", 30}, {"5 * * * *", 5}} {
			must(t, errorOf(h.q.Set(onSchedule(c.cron))))
			synctest.Wait()
			for i := range many {
				if got := minutes(t, s, fmt.Sprintf("key-%04d", i))[0]; got != c.want {
					t.Fatalf("%q: key %d waits until minute %d", c.cron, i, got)
				}
			}
			if got := minutes(t, s, "delayed", "of its own"); got[0] != 40 || got[1] != 50 {
				t.Errorf("%q: other keys have moved to %v", c.cron, got)
			}
			h.check(c.cron)
		}
		time.Sleep(5 * time.Minute)
		if d, err := s.Take(); d == nil || err != nil {
			t.Error("no key is due at its new time", err)
		}
	})
}

// An edit of the schedule while a key is in delivery, and the clock was set back to before its time, leaves no second
// row of the key in the store: it is delivered once more, at the next instant of the new schedule.
func TestFollow_NoSecondRowInDelivery(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var offset atomic.Int64
		h := newFixture(t, onSchedule("10 * * * *"))
		h.now = func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }
		h.restart()
		s := h.sources[0]
		must(t, errorOf(s.Schedule("k", &schedule.Request{}, nil)))
		time.Sleep(10 * time.Minute)
		d := take(t, s)
		offset.Store(int64(-5 * time.Minute))
		must(t, errorOf(h.q.Set(onSchedule("20 * * * *"))))
		synctest.Wait()
		must(t, errorOf(s.Finish(d, schedule.Outcome{Kind: schedule.Succeeded})))
		if got := minutes(t, s, "k"); got[0] != 20 {
			t.Errorf("the next one is at minute %d", got[0])
		}
		h.check("after the run")
		if n, err := s.CancelAll(t.Context(), ""); n != 1 || err != nil {
			t.Errorf("%d keys wait: %v", n, err)
		}
		if c, err := s.Counts(); !c.NextDueAt.IsZero() || c.Due != 0 || err != nil {
			t.Errorf("a row is left: %+v, %v", c, err)
		}
	})
}

// Keys move after a restart too, when the schedule changed meanwhile, or the adapter ended while they moved; only then.
func TestFollow_SurvivesRestarts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var lists, allowed atomic.Int64
		allowed.Store(1000)
		h := newFixtureOn(t, func(s store.Store) store.Store {
			return &hooked{Store: s, before: func(call, _ string) error {
				if call == "List" && lists.Add(1) > allowed.Load() {
					return errors.New("the disk fails")
				}
				return nil
			}}
		}, onSchedule("10 * * * *"))
		synctest.Wait()
		const many = 2*pageOfSchedule + 7
		for i := range many {
			must(t, errorOf(h.sources[0].Schedule(fmt.Sprintf("key-%04d", i), &schedule.Request{}, nil)))
		}
		restart := func(cron string, reads int64, want ...int) {
			t.Helper()
			h.settings = []*schedule.Spec{onSchedule(cron)}
			lists.Store(0)
			h.restart()
			synctest.Wait()
			if got := minutes(t, h.sources[0], "key-0000", fmt.Sprintf("key-%04d", many-1)); got[0] != want[0] || got[1] != want[1] || lists.Load() != reads {
				t.Errorf("%q: keys wait until %v, want %v; %d pages were read, want %d", cron, got, want, lists.Load(), reads)
			}
		}
		restart("10 * * * *", 0, 10, 10)
		restart("20 * * * *", 3, 20, 20)
		allowed.Store(1)
		restart("30 * * * *", 2, 30, 20) // it ends in the middle
		allowed.Store(1000)
		restart("20 * * * *", 3, 20, 20)
		restart("20 * * * *", 0, 20, 20)
		restart("", 0, 20, 20)
		restart("20 * * * *", 3, 20, 20)
		if states, err := h.sources[0].Marks.States(); len(states) > 0 || err != nil {
			t.Errorf("a watch sees the note: %v, %v", states, err)
		}
		must(t, h.q.Remove("a/s"))
		if left, err := h.db.Sources(); len(left) > 0 || err != nil {
			t.Errorf("the purge left %v, %v", left, err)
		}
	})
}

// Keys that move wait while the disk has no space for outcomes, and then all of them move.
func TestFollow_WaitsForSpace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var full atomic.Bool
		h := newFixtureOn(t, func(s store.Store) store.Store {
			return &hooked{Store: s, before: func(call, _ string) error {
				if call == "SpaceForOutcomes" && full.Load() {
					return store.ErrFull
				}
				return nil
			}}
		}, onSchedule("10 * * * *"))
		synctest.Wait()
		must(t, errorOf(h.sources[0].Schedule("k", &schedule.Request{}, nil)))
		full.Store(true)
		must(t, errorOf(h.q.Set(onSchedule("20 * * * *"))))
		time.Sleep(time.Minute)
		if got := minutes(t, h.sources[0], "k"); got[0] != 10 {
			t.Errorf("without space the key has moved to minute %d", got[0])
		}
		full.Store(false)
		time.Sleep(spaceEvery)
		synctest.Wait()
		if got := minutes(t, h.sources[0], "k"); got[0] != 20 {
			t.Errorf("with space the key waits until minute %d", got[0])
		}
	})
}
