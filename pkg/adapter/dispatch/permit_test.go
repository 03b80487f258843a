package dispatch_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// hang makes the deliveries of every source hang, except the sources of the namespace.
func (c *core) hang(except string) {
	c.answer = func(a schedule.Attempt, _ int) (time.Duration, schedule.Outcome) {
		if a.Source.Namespace != except {
			return 24 * time.Hour, schedule.Outcome{Kind: schedule.Failed}
		}
		return time.Millisecond, schedule.Outcome{Kind: schedule.Succeeded}
	}
}

func in1(namespace string, change func(*schedule.Spec)) func(*schedule.Spec) {
	return func(s *schedule.Spec) {
		s.Namespace, s.MaxInFlight = namespace, 5000
		if change != nil {
			change(s)
		}
	}
}

// A namespace of thirteen hanging sources leaves slots to the others.
func TestNamespace_HangingSourcesLeaveSlots(t *testing.T) {
	// However many sources a namespace has, their sinks hang in half of the slots
	// at most: another namespace's burst is delivered as if they were not there.
	bubble(t, 256, func(c *core) {
		c.hang("b")
		for i := range 13 {
			c.flood(c.source(fmt.Sprint("hung", i), in1("a", nil)), 200)
		}
		held := len(c.deliveries())
		if held > 128 || held < 100 {
			t.Errorf("%d of 256 slots are held", held)
		}
		well := c.source("well", in1("b", nil))
		c.flood(well, 400)
		c.pass(100 * time.Millisecond)
		if n := len(c.deliveries()) - held; n != 400 {
			t.Errorf("%d of 400 delivered in 100 ms", n)
		}
	})
}

// maxInFlight of a namespace bounds the sum of its sources, and a change of it applies at once.
func TestNamespace_CeilingsBoundTheSumOfItsSources(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.always(time.Second, schedule.Outcome{Kind: schedule.Succeeded})
		set := func(most int) {
			for i := range 4 {
				c.source(fmt.Sprint("s", i), in1("a", func(s *schedule.Spec) { s.Ceilings.MaxInFlight = most }))
			}
		}
		set(6)
		for i := range 4 {
			c.flood(c.source(fmt.Sprint("s", i), in1("a", func(s *schedule.Spec) { s.Ceilings.MaxInFlight = 6 })), 30)
		}
		if n := len(c.deliveries()); n != 6 {
			t.Errorf("%d deliveries at a time, the ceiling is 6", n)
		}
		set(20)
		if n := len(c.deliveries()); n != 20 {
			t.Errorf("%d deliveries at a time after the ceiling was raised to 20", n)
		}
		c.pass(10 * time.Second)
		by := map[string]int{}
		for _, s := range c.deliveries() {
			by[s.Source]++
		}
		for i := range 4 {
			if n := by[fmt.Sprint("s", i)]; n != 30 {
				t.Errorf("s%d: %d of 30 delivered", i, n)
			}
		}
	})
}

// maxPerSecond of a namespace bounds the sum of its sources, and the sources take turns.
func TestNamespace_CeilingOfDeliveriesASecond(t *testing.T) {
	bubble(t, 0, func(c *core) {
		for i := range 2 {
			c.flood(c.source(fmt.Sprint("s", i), in1("a", func(s *schedule.Spec) { s.Ceilings.MaxPerSecond = 5 })), 20)
		}
		c.pass(time.Millisecond)
		for second, want := range []int{5, 10, 15, 20} {
			if n := len(c.deliveries()); n != want {
				t.Errorf("after %d s: %d deliveries, want %d", second, n, want)
			}
			c.pass(time.Second)
		}
		by := map[string]int{}
		for _, s := range c.deliveries() {
			by[s.Source]++
		}
		if by["s0"] == 0 || by["s1"] == 0 {
			t.Errorf("not in turn: %v", by)
		}
	})
}

// The deliveries a second of a namespace go to its sources in turn, however many keys of one are due.
func TestNamespace_RateIsSharedInTurn(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.answer = func(a schedule.Attempt, _ int) (time.Duration, schedule.Outcome) {
			o := schedule.Outcome{Kind: schedule.Succeeded}
			if a.Source.UID == "loop" {
				o.Again = &schedule.RescheduleAfter{}
			}
			return time.Millisecond, o
		}
		ten := in1("a", func(s *schedule.Spec) { s.Ceilings.MaxPerSecond = 10 })
		c.flood(c.source("loop", ten), 200)
		c.pass(2 * time.Second)
		before := len(c.deliveries())
		for _, name := range []string{"few", "fewer"} {
			c.flood(c.source(name, ten), 40)
		}
		well := c.source("well", in1("b", nil))
		for range 9 {
			c.put(well, "k", in(time.Second))
			c.pass(time.Second)
		}
		by := map[string]int{}
		for _, s := range c.deliveries()[before:] {
			by[s.Source]++
			if s.Source == "well" && s.At%time.Second > time.Millisecond {
				t.Errorf("another namespace was delivered at %s", s.At)
			}
		}
		for _, name := range []string{"loop", "few", "fewer"} {
			if n := by[name]; n < 29 || n > 31 {
				t.Errorf("%s got %d of 90 deliveries", name, n)
			}
		}
		if by["well"] != 9 {
			t.Errorf("another namespace got %d of 9 deliveries", by["well"])
		}
	})
}

// A namespace at its ceiling continues when its delivery has ended, however many other namespaces wait.
func TestNamespace_OthersWaitForTheirCeilings(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.hang("well")
		one := func(s *schedule.Spec) { s.Ceilings.MaxInFlight = 1 }
		for i := range 40 {
			c.flood(c.source(fmt.Sprint("hung", i), in1(fmt.Sprint("ns", i), one)), 2)
		}
		c.flood(c.source("well", in1("well", one)), 5)
		c.pass(time.Second)
		if n := len(c.deliveries()) - 40; n != 5 {
			t.Errorf("%d of 5 delivered", n)
		}
	})
}

// A namespace with a ceiling a second goes on, however many others wait for theirs.
func TestNamespace_OthersWaitForTheirRates(t *testing.T) {
	bubble(t, 0, func(c *core) {
		for i := range 100 {
			c.flood(c.source(fmt.Sprint("s", i), in1(fmt.Sprint("ns", i), func(s *schedule.Spec) { s.Ceilings.MaxPerSecond = 1 })), 5)
		}
		c.pass(5 * time.Second)
		if n := len(c.deliveries()); n != 500 {
			t.Errorf("%d of 500 delivered", n)
		}
	})
}

// A source that waits for the ceiling of its namespace and moves to another one does not wait any more.
func TestSource_MovesOutOfAFullNamespace(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.hang("well")
		one := func(s *schedule.Spec) { s.Ceilings.MaxInFlight = 1 }
		c.flood(c.source("hung", in1("a", one)), 1)
		c.flood(c.source("moves", in1("a", one)), 3)
		c.d.Wake(c.source("moves", in1("well", one)))
		c.pass(time.Second)
		if n := len(c.deliveries()) - 1; n != 3 {
			t.Errorf("%d of 3 delivered", n)
		}
	})
}

// Deliveries are bounded in bytes too, because large events would fill the memory before all slots are taken.
func TestDeliveries_OfLargeEventsAreBoundedInBytes(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.hang("")
		data := bytes.Repeat([]byte("x"), 255<<10)
		for _, structured := range []bool{false, true} {
			for i := range 20 {
				ns := fmt.Sprint("ns", structured, i%4)
				s := c.source(fmt.Sprint("s", structured, i), in1(ns, func(s *schedule.Spec) { s.Delivery.Structured = structured }))
				for k := range 10 {
					r := in(0)
					r.Event = &schedule.Event{Data: data}
					c.put(s, fmt.Sprint("k", k), r)
				}
			}
		}
		most := dispatch.DefaultMaxBytes / (2 * len(data)) // each is there twice at least
		if n := len(c.deliveries()); n > most || n < most/4 {
			t.Errorf("%d deliveries of 255 KiB are under way, want up to %d", n, most)
		}
	})
}

// Deliveries with TLS count more: their sinks' certificates stay in memory.
func TestDeliveries_WithTLSCountMore(t *testing.T) {
	for name, change := range map[string]func(*schedule.Spec){
		"the sink":        func(s *schedule.Spec) { s.Sink.URL = "HTTPS://sink" },
		"the dead letter": func(s *schedule.Spec) { s.DeadLetter = &schedule.Target{URL: "https://dead"} },
		"neither":         func(*schedule.Spec) {},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 0, func(c *core) {
				c.hang("")
				for i := range 4 {
					c.flood(c.source(fmt.Sprint("s", i), in1(fmt.Sprint("ns", i), change)), 1000)
				}
				most := dispatch.DefaultMaxBytes / (100 << 10)
				if n := len(c.deliveries()); (n > most) != (name == "neither") || n < most/2 {
					t.Errorf("%d are under way; with TLS up to %d may be", n, most)
				}
			})
		})
	}
}

// Dead letters have slots of their own: a dead letter sink that hangs delays no key, and gets each once it answers.
func TestDeadLetters_HangingOnesHaveOwnSlots(t *testing.T) {
	const dead = 3000 // more than are remembered while they wait
	bubble(t, 0, func(c *core) {
		hangs := true
		c.answer = func(a schedule.Attempt, _ int) (time.Duration, schedule.Outcome) {
			switch {
			case a.Entry.DeadLetter == nil && a.Key[0] == 'k':
				return 0, schedule.Outcome{Kind: schedule.Rejected, Failure: schedule.Failure{Code: 400}}
			case a.Entry.DeadLetter != nil && hangs:
				return 10 * time.Minute, schedule.Outcome{Kind: schedule.Failed}
			}
			return time.Millisecond, schedule.Outcome{Kind: schedule.Succeeded}
		}
		s := c.source("s", func(s *schedule.Spec) {
			s.MaxInFlight, s.DeadLetter = 8, &schedule.Target{URL: "http://dead"}
		})
		c.flood(s, dead)
		c.pass(time.Second)
		counts, err := s.Counts()
		if err != nil || counts.DeadLetters != dead || counts.LettersInFlight != 2 || counts.InFlight != 0 {
			t.Errorf("%+v %v", counts, err)
		}
		for i := range 20 {
			before := len(c.deliveries())
			c.put(s, fmt.Sprint("w", i), in(0))
			c.pass(time.Millisecond)
			if late := len(c.deliveries()) == before; late {
				t.Fatalf("key %d waits for dead letters", i)
			}
		}
		c.mu.Lock()
		hangs = false
		c.mu.Unlock()
		c.pass(time.Hour)
		if counts, err := s.Counts(); err != nil || counts.DeadLetters != 0 || counts.LettersInFlight != 0 {
			t.Errorf("in the end: %+v %v", counts, err)
		}
	})
}

// Dead letters that wait are not early when the clock goes back.
func TestDeadLetters_NotEarlyAfterAClockJump(t *testing.T) {
	// Dead letters that found no slot when they were due are not delivered early when the clock went back meanwhile.
	bubble(t, 0, func(c *core) {
		c.answer = func(a schedule.Attempt, _ int) (time.Duration, schedule.Outcome) {
			if a.Entry.DeadLetter == nil {
				return 0, schedule.Outcome{Kind: schedule.Rejected, Failure: schedule.Failure{Code: 400}}
			}
			return time.Minute, schedule.Outcome{Kind: schedule.Succeeded}
		}
		s := c.source("s", func(s *schedule.Spec) { s.MaxInFlight, s.DeadLetter = 4, &schedule.Target{URL: "http://dead"} })
		c.flood(s, 3)
		c.offset.Store(int64(-time.Hour))
		c.pass(30 * time.Minute)
		dead := func() (n int) {
			for _, d := range c.deliveries() {
				if d.Dead {
					n++
				}
			}
			return n
		}
		if n := dead(); n != 1 {
			t.Errorf("%d dead letters were sent before their time", n-1)
		}
		c.pass(time.Hour)
		if n := dead(); n != 3 {
			t.Errorf("%d of 3 dead letters sent in the end", n)
		}
	})
}

// A change ends a delivery that is still dialling: the key is free at once, and no attempt is counted.
func TestDelivery_CalledOffWhileItDials(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.dials = 10 * time.Second
		s := c.source("s", nil)
		c.put(s, "gone", in(0))
		c.put(s, "newer", in(0))
		c.pass(time.Second)
		must(t, s.Cancel("gone", schedule.Conditions{}))
		c.put(s, "newer", in(0))
		c.pass(0)
		if counts, err := s.Counts(); err != nil || counts.InFlight != 1 {
			t.Errorf("%+v %v", counts, err)
		}
		c.pass(time.Minute)
		if all := c.deliveries(); len(all) != 1 || all[0].Key != "newer" || all[0].At != 11*time.Second || all[0].Attempt != 0 {
			t.Errorf("%+v", all)
		}
	})
}

// An attempt that a change ends before it begins is none of maxPerSecond: the next one need not wait for a second.
func TestDelivery_CalledOffIsNoneOfTheRate(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.dials = 10 * time.Millisecond
		s := c.source("s", func(spec *schedule.Spec) { spec.MaxPerSecond = 1 })
		c.put(s, "k", in(0))
		c.pass(5 * time.Millisecond)
		c.put(s, "k", in(0))
		c.pass(time.Minute)
		if all := c.deliveries(); len(all) != 1 || all[0].At != 15*time.Millisecond {
			t.Errorf("%+v", all)
		}
	})
}
