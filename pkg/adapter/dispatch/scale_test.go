package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/scale"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// Replicas implements scale.API.
func (c *core) Replicas(context.Context, objects.Account, schedule.Workload) (int32, error) {
	return c.replicas.Load(), nil
}

// Examine implements scale.API: a pod is ready at once.
func (c *core) Examine(context.Context, objects.Account, schedule.Workload, schedule.Busy) (scale.Health, error) {
	h := scale.Health{Replicas: c.replicas.Load()}
	if h.Replicas > 0 {
		h.Pods = []scale.Pod{{UID: "1", Ready: true}}
	}
	return h, nil
}

// SetReplicas implements scale.API.
func (c *core) SetReplicas(_ context.Context, _ objects.Account, _ schedule.Workload, n int32) (int32, error) {
	if n > 0 {
		c.mu.Lock()
		c.woken = append(c.woken, time.Since(c.began))
		c.mu.Unlock()
	}
	return c.replicas.Swap(n), nil
}

// connect is scale.Config.Connect: the workload accepts a connection once it has started.
func (c *core) connect(context.Context, *schedule.Spec) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.replicas.Load() == 0 || time.Since(c.began) < c.woken[len(c.woken)-1]+c.toStart {
		return errors.New("refused")
	}
	return nil
}

func sleeping(s *schedule.Spec) {
	s.Scale = schedule.Scale{
		Workload: schedule.Workload{Kind: "Deployment", Name: "web", Replicas: 1}, Mode: schedule.ScaleAuto,
		Cooldown: 10 * time.Second, StartTimeout: time.Minute, Recorded: true,
	}
	s.Scale.Held = s.Scale.Workload
}

// unreached is the outcome of an attempt that made no connection.
var unreached = schedule.Outcome{Kind: schedule.Failed, Unreached: true}

// done is the outcome of an attempt that was answered.
var done = schedule.Outcome{Kind: schedule.Succeeded, Status: 200}

// A due key wakes the workload and waits for its connection; that is no attempt. A row that is stale, and a dead
// letter, wake nothing and wait for nothing.
func TestScale_WakesForDueKeys(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.toStart = time.Second
		c.answer = func(a schedule.Attempt, _ int) (time.Duration, schedule.Outcome) {
			switch {
			case a.Entry.DeadLetter != nil:
				return 0, schedule.Outcome{Kind: schedule.Failed, Status: 500}
			case a.Key == "bad":
				return 0, schedule.Outcome{Kind: schedule.Rejected, Status: 400}
			}
			return time.Second, done
		}
		s := c.source("s", func(s *schedule.Spec) {
			sleeping(s)
			s.DeadLetter = &schedule.Target{URL: "http://letters"}
			s.Delivery = schedule.Delivery{Linear: true, BackoffDelay: 10 * time.Second, BackoffMax: new(10 * time.Second)}
		})
		c.put(s, "a", in(time.Minute))
		c.put(s, "moved", in(5*time.Minute))
		c.put(s, "moved", in(3*time.Hour))
		c.put(s, "bad", in(time.Hour)) // its letter is tried each 10 s from then on
		c.pass(2 * time.Hour)
		if got, want := c.woken, []time.Duration{time.Minute, time.Hour}; !slices.Equal(got, want) {
			t.Errorf("woken after %v, want %v", got, want)
		}
		all := c.deliveries()
		if len(all) < 100 || all[0].Key != "a" || all[0].At < 61*time.Second || all[0].At > 61*time.Second+100*time.Millisecond || all[0].Attempt != 0 {
			t.Errorf("%d deliveries, the first one %+v", len(all), all[:1])
		}
		if n := c.replicas.Load(); n != 0 {
			t.Errorf("%d replicas at the end", n)
		}
		// A key whose workload starts stands before the letter, and does not hold it up.
		c.mu.Lock()
		c.toStart = time.Hour
		c.mu.Unlock()
		c.put(s, "waits", in(0))
		c.pass(55 * time.Second)
		if more := c.deliveries()[len(all):]; len(more) < 5 || slices.ContainsFunc(more, func(d sent) bool { return !d.Dead }) {
			t.Errorf("while a key waits: %+v", more)
		}
	})
}

// A key that waits for company wakes the workload at the end of its slack, and not with a stale row before.
func TestScale_WakesAtTheEndOfTheSlack(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.always(0, done)
		s := c.source("s", func(s *schedule.Spec) {
			sleeping(s)
			s.Slack, s.Company = time.Hour, s.Scale.Cooldown
		})
		c.pass(time.Second) // the page is loaded: only then it has rows that become stale
		moved := in(3 * time.Hour)
		moved.Slack = new(time.Duration)
		first := moved
		first.Delay = new(5 * time.Minute)
		c.put(s, "a", in(time.Minute))
		c.put(s, "b", in(40*time.Minute))
		c.put(s, "moved", first)
		c.put(s, "moved", moved)
		c.pass(2 * time.Hour)
		if got, want := c.woken, []time.Duration{61*time.Minute + time.Second}; !slices.Equal(got, want) || len(c.deliveries()) != 2 {
			t.Errorf("woken after %v, want %v, for %+v", got, want, c.deliveries())
		}
	})
}

// An attempt that could not connect, because the workload had gone, does not count: its key waits for a connection.
// If a second one cannot connect either, it fails as any other.
func TestScale_UnreachedIsNoAttempt(t *testing.T) {
	bubble(t, 0, func(c *core) {
		misses := 1
		c.answer = func(schedule.Attempt, int) (time.Duration, schedule.Outcome) {
			if misses--; misses >= 0 {
				return 0, unreached
			}
			return 0, done
		}
		s := c.source("s", sleeping)
		c.put(s, "a", in(0))
		c.pass(time.Second)
		misses = 2
		c.put(s, "b", in(0))
		c.pass(5 * time.Second)
		got := map[string]uint32{}
		for _, d := range c.deliveries() {
			got[d.Key] = d.Attempt
		}
		if want := map[string]uint32{"a": 0, "b": 1}; !maps.Equal(got, want) {
			t.Errorf("last attempts %v, want %v", got, want)
		}
	})
}

// A workload that does not start fails as any sink that cannot be reached, once startTimeout has passed.
func TestScale_StartTimeout(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.toStart = time.Hour
		c.always(0, unreached)
		s := c.source("s", sleeping)
		c.put(s, "a", in(0))
		c.pass(59 * time.Second)
		if all := c.deliveries(); len(all) > 0 {
			t.Errorf("before startTimeout: %+v", all)
		}
		c.pass(10 * time.Second)
		if all := c.deliveries(); len(all) < 3 || all[len(all)-1].Attempt < 2 {
			t.Errorf("after startTimeout: %+v", all)
		}
		if w, _ := c.d.Workload(s); w.Reason != "StartTimeout" {
			t.Errorf("%+v", w)
		}
		c.mu.Lock()
		c.toStart = 0
		c.always(0, done)
		c.mu.Unlock()
		c.pass(time.Minute)
		if _, found, err := s.Get("a"); found || err != nil {
			t.Error("the key is still there")
		}
	})
}

// A source that ends leaves nothing that scales.
func TestScale_RemovedSource(t *testing.T) {
	bubble(t, 0, func(c *core) {
		s := c.source("s", sleeping)
		c.put(s, "a", in(time.Minute))
		must(c, c.q.Remove("s"))
		c.d.Remove(s)
		c.pass(time.Hour)
		if len(c.woken) > 0 {
			t.Errorf("woken after %v", c.woken)
		}
	})
}

// Without a sink nothing is sent: a key ends when its workload was awake and idle for the cooldown. It ends for all keys
// that were due by then, with one start, and maxInterval counts from there.
func TestScale_SinklessKeysEndWhenItIsIdle(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.answer = func(a schedule.Attempt, _ int) (time.Duration, schedule.Outcome) {
			t.Errorf("key %s was sent", a.Key)
			return 0, done
		}
		s := c.source("s", func(s *schedule.Spec) {
			withoutSink(s)
			s.MaxInterval = time.Hour
		})
		for i := range 100 {
			c.put(s, fmt.Sprint(i), in(time.Minute))
		}
		c.put(s, "while awake", in(65*time.Second))
		c.pass(time.Minute + 70*time.Minute)
		if got, want := c.woken, []time.Duration{time.Minute, time.Minute + time.Hour + 10*time.Second}; len(got) != 2 || !slices.EqualFunc(got, want, func(a, b time.Duration) bool { return (a - b).Abs() < time.Second }) {
			t.Errorf("woken after %v, want %v", got, want)
		}
		if n := c.replicas.Load(); n != 0 {
			t.Errorf("%d replicas at the end", n)
		}
	})
}

func withoutSink(s *schedule.Spec) {
	sleeping(s)
	s.Scale.Sinkless, s.Sink = true, schedule.Target{}
}

// Only keys with slack: they go together at the end of the slack of the first, and the workload sleeps then.
func TestScale_SinklessSlackEndsTogether(t *testing.T) {
	bubble(t, 0, func(c *core) {
		s := c.source("s", func(s *schedule.Spec) {
			withoutSink(s)
			s.Slack, s.Company = time.Hour, s.Scale.Cooldown
		})
		c.pass(time.Second)
		c.put(s, "a", in(time.Minute))
		c.put(s, "b", in(40*time.Minute))
		c.pass(62 * time.Minute)
		_, left, _ := s.Get("b")
		if n := c.replicas.Load(); n != 0 || left {
			t.Errorf("a minute after the end of the slack: %d replicas, b is there: %t", n, left)
		}
		for range 10 {
			if c.replicas.Load() != 0 {
				c.pass(10 * time.Minute)
			}
		}
		t.Logf("woken after %v, asleep again after %v", c.woken, time.Since(c.began))
	})
}

// A suspended source with a due key lets its workload sleep, as one with a sink does.
func TestScale_SinklessSleepsWhileSuspended(t *testing.T) {
	for _, name := range []string{"with a sink", "without a sink"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 0, func(c *core) {
				set := withoutSink
				if name == "with a sink" {
					c.always(3*time.Second, done)
					set = sleeping
				}
				s := c.source("s", set)
				c.put(s, "a", in(0))
				c.pass(5 * time.Second)
				s = c.source("s", func(s *schedule.Spec) { set(s); s.Suspend = true })
				c.put(s, "b", in(0))
				c.pass(time.Hour)
				if n := c.replicas.Load(); n != 0 {
					t.Errorf("%d replicas after an hour of suspend", n)
				}
			})
		})
	}
}

// A key that is deleted while the workload starts for it.
func TestScale_SinklessKeyIsDeletedWhileAwake(t *testing.T) {
	bubble(t, 0, func(c *core) {
		s := c.source("s", withoutSink)
		c.put(s, "a", in(0))
		c.pass(3 * time.Second)
		if err := s.Cancel("a", schedule.Conditions{}); err != nil {
			t.Fatal(err)
		}
		c.pass(30 * time.Second)
		if n := c.replicas.Load(); n != 0 {
			t.Errorf("%d replicas", n)
		}
		c.put(s, "b", in(0))
		c.pass(3 * time.Second)
		c.put(s, "b", in(time.Hour)) // it is postponed while the workload is awake for it
		c.pass(30 * time.Second)
		if n := c.replicas.Load(); n != 0 {
			t.Errorf("postponed: %d replicas", n)
		}
		c.pass(2 * time.Hour)
		if n := c.replicas.Load(); n != 0 || len(c.woken) != 3 {
			t.Errorf("%d replicas, woken %v", n, c.woken)
		}
	})
}

// Slack saves time awake: 60 keys of one hour, a minute apart.
func TestScale_SinklessSlackSaves(t *testing.T) {
	for _, slack := range []time.Duration{0, 10 * time.Minute} {
		t.Run(slack.String(), func(t *testing.T) {
			bubble(t, 0, func(c *core) {
				s := c.source("s", func(s *schedule.Spec) {
					withoutSink(s)
					s.Slack, s.Company, s.MaxInterval = slack, s.Scale.Cooldown, time.Hour
				})
				c.pass(time.Second)
				for i := range 60 {
					c.put(s, string(rune('A'+i)), in(time.Duration(i)*time.Minute))
				}
				c.pass(24 * time.Hour)
				w, _ := c.d.Workload(s)
				t.Logf("slack %s: %d starts, %s awake", slack, w.Starts, w.Awake)
				if slack > 0 && w.Awake > time.Hour {
					t.Errorf("awake for %s of 24h with %d starts; 6 wakes an hour of 10s are 24m", w.Awake, w.Starts)
				}
			})
		})
	}
}

// A key that is changed again while its workload is awake for it is done a cooldown after the second change.
func TestScale_SinklessSecondChangeWaits(t *testing.T) {
	bubble(t, 0, func(c *core) {
		s := c.source("s", withoutSink)
		c.put(s, "a", in(0))
		c.pass(8 * time.Second)
		again := in(0)
		again.Policy = schedule.Earliest // as a watch does: the key stays due since its first change
		c.put(s, "a", again)
		c.pass(8 * time.Second)
		if _, there, _ := s.Get("a"); !there || c.replicas.Load() != 1 {
			t.Errorf("8 s after the second change: there %t, %d replicas", there, c.replicas.Load())
		}
		c.pass(4 * time.Second)
		if _, there, _ := s.Get("a"); there || c.replicas.Load() != 0 || len(c.woken) != 1 {
			t.Errorf("a cooldown after it: there %t, %d replicas, woken %v", there, c.replicas.Load(), c.woken)
		}
	})
}

// A source that waits for a slot, with a row that is stale, wakes its workload for a key that is due meanwhile.
func TestScale_WakesWhileItsLaneWaits(t *testing.T) {
	bubble(t, 2, func(c *core) {
		c.answer = func(a schedule.Attempt, _ int) (time.Duration, schedule.Outcome) { return time.Hour, done }
		s := c.source("s", withoutSink)
		c.pass(time.Second)
		c.put(s, "moved", in(time.Minute))
		c.put(s, "moved", in(3*time.Hour))
		for _, uid := range []string{"x", "y"} {
			c.put(c.source(uid, nil), "a", in(0))
		}
		c.put(s, "b", in(10*time.Minute))
		c.pass(10*time.Minute + 11*time.Second)
		if len(c.woken) != 1 {
			t.Errorf("woken after %v, want ten minutes and a heartbeat at most", c.woken)
		}
	})
}
