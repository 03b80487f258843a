package scale

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// A due key wakes the workload, waits for its connection, and cooldown later the workload sleeps again.
func TestKeeper_WakesAndSleeps(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("s", nil)
		pass(time.Minute)
		o.key(time.Hour)
		pass(time.Hour - time.Millisecond)
		if n := w.have("web"); n != 0 {
			t.Fatalf("%d replicas before the key is due", n)
		}
		pass(500 * time.Millisecond)
		if s := o.status(); s.State != starting || w.have("web") != 1 || o.runs() != 0 {
			t.Errorf("half a second after the due time: %+v, %d replicas, %d runs", s, w.have("web"), o.runs())
		}
		pass(1600 * time.Millisecond)
		s := o.status()
		if s.State != awake || s.Starts != 1 || o.runs() != 1 || o.refused() != 0 || s.LastStart < time.Second || s.LastStart > time.Second+dialEvery {
			t.Errorf("after the run: %+v, %d runs, %d refused", s, o.runs(), o.refused())
		}
		pass(9 * time.Second)
		if n := w.have("web"); n != 1 {
			t.Errorf("%d replicas within the cooldown", n)
		}
		pass(time.Second)
		if s = o.status(); w.have("web") != 0 || s.State != asleep || s.Awake > 13*time.Second || s.Observed < time.Hour {
			t.Errorf("after the cooldown: %d replicas, %+v", w.have("web"), s)
		}
	})
}

// A workload that another hand scales, deletes or makes again ends as the schedule asks for.
func TestKeeper_HealsAfterOtherHands(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("s", nil)
		pass(time.Minute)
		w.hand("web", 3)
		pass(35 * time.Second)
		if s := o.status(); w.have("web") != 0 || s.Awake != 10*time.Second || s.Starts != 0 {
			t.Errorf("scaled up by hand: %d replicas, %+v", w.have("web"), s)
		}
		o.took = time.Minute
		o.key(0)
		o.key(20 * time.Second)
		pass(10 * time.Second)
		w.hand("web", 0) // under a delivery
		pass(2 * time.Minute)
		if o.runs() != 2 || o.refused() != 0 {
			t.Errorf("scaled down by hand: %d runs, %d refused", o.runs(), o.refused())
		}
		w.hand("web", -1)
		o.key(0)
		pass(time.Minute)
		if s := o.status(); s.Reason != ReasonNoTarget {
			t.Errorf("deleted: %+v", s)
		}
		w.hand("web", 0)
		pass(2 * time.Minute)
		if s := o.status(); s.Reason != "" || o.runs() != 3 {
			t.Errorf("made again: %+v, %d runs", s, o.runs())
		}
	})
}

// What never starts, or may not be scaled, fails as a sink that cannot be reached; it says why, and recovers.
func TestKeeper_StartThatFails(t *testing.T) {
	in(t, func(w *world) {
		w.now(func() { w.starts = 1000 * time.Hour })
		o := w.source("s", nil)
		o.key(0)
		pass(2*time.Minute - time.Second)
		if o.refused() != 0 {
			t.Error("a delivery was attempted before startTimeout")
		}
		pass(12 * time.Second)
		if s := o.status(); o.refused() != 3 || s.Reason != ReasonStartTimeout || s.State != starting {
			t.Errorf("after startTimeout: %d refused, %+v", o.refused(), s)
		}
		w.mu.Lock()
		w.up["web"] = time.Now()
		w.mu.Unlock()
		pass(6 * time.Second)
		if s := o.status(); o.runs() != 1 || s.Reason != "" || s.State != awake {
			t.Errorf("after a start: %d runs, %+v", o.runs(), s)
		}
		w.fails(func(account, verb, _ string) error {
			return &objects.Forbidden{Account: objects.Account{Namespace: "ops", Name: account}, Verb: verb, Resource: "deployments.apps/scale"}
		})
		w.hand("web", 0)
		pass(time.Minute)
		before := o.refused()
		o.key(0)
		pass(3 * time.Minute)
		if s := o.status(); s.Reason != ReasonForbidden || o.refused() == before {
			t.Errorf("without a right: %+v, %d refused", s, o.refused())
		}
		w.now(func() { w.fail, w.starts = nil, time.Second })
		pass(time.Minute)
		if s := o.status(); s.Reason != "" || o.runs() != 2 {
			t.Errorf("with the right: %+v, %d runs", s, o.runs())
		}
	})
}

// A row that is stale wakes nothing.
func TestKeeper_StaleKeyDoesNotWake(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("s", nil)
		o.key(time.Minute)
		var passes atomic.Int64
		o.mu.Lock()
		o.timer.Stop()
		o.keys = nil // cancelled: only the timer knows it
		o.m.ready = func() { passes.Add(1) }
		o.mu.Unlock()
		pass(2 * time.Minute)
		if w.have("web") != 0 || passes.Load() != 1 {
			t.Errorf("%d replicas, %d stale rows dropped", w.have("web"), passes.Load())
		}
	})
}

// Nothing sleeps before the status names it: a later adapter could not wake it.
func TestKeeper_SleepsOnceItIsRecorded(t *testing.T) {
	in(t, func(w *world) {
		w.replicas["web"] = 1
		o := w.source("s", func(s *schedule.Scale) { s.Held, s.Recorded = schedule.Workload{}, false })
		pass(time.Hour)
		if s := o.status(); w.have("web") != 1 || s.Held != o.spec.Scale.Workload {
			t.Errorf("%d replicas, reported %+v", w.have("web"), s.Held)
		}
		o.set(func(s *schedule.Scale) { s.Held, s.Recorded = s.Workload, true })
		if n := w.have("web"); n != 0 {
			t.Errorf("%d replicas once it is recorded", n)
		}
	})
}

// Without scale, with mode Awake or Observe, with another target, or at its end a source leaves its workload awake.
func TestKeeper_GivesWorkloadBack(t *testing.T) {
	for name, change := range map[string]func(*schedule.Scale){
		"removed, or ended": func(s *schedule.Scale) { *s = schedule.Scale{Held: s.Held} },
		"Awake":             func(s *schedule.Scale) { s.Mode = schedule.ScaleAwake },
		"Observe":           func(s *schedule.Scale) { s.Mode = schedule.ScaleObserve },
		"another target":    func(s *schedule.Scale) { s.Workload.Name, s.Recorded = "other", false },
	} {
		for _, when := range []string{"now", "while the adapter was down", "while the API server was down"} {
			t.Run(name+" "+when, func(t *testing.T) {
				in(t, func(w *world) {
					w.replicas["other"] = 1
					o := w.source("s", nil)
					pass(time.Minute)
					if when == "while the API server was down" {
						w.fails(func(string, string, string) error { return errors.New("down") })
					}
					if when == "while the adapter was down" {
						o.leave()
						w.restart()
						spec := *o.spec
						change(&spec.Scale)
						o.spec, o.ended = &spec, false
						o.join()
					} else {
						o.set(change)
					}
					if w.fail != nil {
						pass(time.Minute)
						if s := o.status(); s.Held.Name != "web" {
							t.Errorf("not given back yet, but reported %+v", s.Held)
						}
						w.now(func() { w.fail = nil })
						pass(lastRetry)
					}
					if n := w.have("web"); n != 1 {
						t.Errorf("%d replicas", n)
					}
					want := schedule.Workload{}
					if o.spec.Scale.Scales() {
						want = o.spec.Scale.Workload
					}
					if s := o.status(); s.Held != want {
						t.Errorf("reported %+v, want %+v", s.Held, want)
					}
				})
			})
		}
	}
}

// A workload of two sources sleeps when both have nothing to do, and one that ends does not take it from the other.
func TestKeeper_SharedWorkload(t *testing.T) {
	in(t, func(w *world) {
		a, b := w.source("a", nil), w.source("b", func(s *schedule.Scale) { s.Account = "other" })
		w.fails(func(account, verb, _ string) error {
			if account == "other" {
				return &objects.Forbidden{Verb: verb}
			}
			return nil
		})
		b.took = time.Minute
		b.key(0)
		a.key(0)
		pass(50 * time.Second)
		if a.runs() != 1 || w.have("web") != 1 {
			t.Errorf("%d runs, %d replicas", a.runs(), w.have("web"))
		}
		a.set(func(s *schedule.Scale) { *s = schedule.Scale{Held: s.Held} })
		if s := a.status(); s.Held != (schedule.Workload{}) {
			t.Errorf("the source that let go reports %+v", s.Held)
		}
		w.now(func() { w.fail = nil })
		pass(time.Minute)
		if n := w.have("web"); n != 0 || b.runs() != 1 {
			t.Errorf("%d replicas, %d runs", n, b.runs())
		}
	})
}

// Observe calls nothing, and counts as if it had scaled.
func TestKeeper_Observe(t *testing.T) {
	in(t, func(w *world) {
		w.replicas["web"] = 1
		w.fails(func(string, string, string) error {
			t.Error("a call was made")
			return nil
		})
		o := w.source("s", func(s *schedule.Scale) {
			s.Mode, s.Held, s.Recorded = schedule.ScaleObserve, schedule.Workload{}, false
		})
		for range 10 {
			o.key(0)
			pass(time.Minute)
		}
		if s := o.status(); s.Starts != 10 || s.Awake != 110*time.Second || s.Observed != 10*time.Minute || s.State != asleep || s.Held != (schedule.Workload{}) {
			t.Errorf("%+v", s)
		}
	})
}

// Starts at one time are bounded, and one that never starts takes no slot for long.
func TestKeeper_StartsInTurn(t *testing.T) {
	in(t, func(w *world) {
		const all = 40
		var sources []*operator
		for i := range all {
			o := w.source(strconv.Itoa(i), func(s *schedule.Scale) { s.Name = fmt.Sprint("w", i) })
			spec := *o.spec
			spec.Ceilings.MaxStarts = 4
			o.spec = &spec
			o.set(func(*schedule.Scale) {})
			sources = append(sources, o)
		}
		pass(time.Minute)
		most, starts := 0, w.starts
		for _, o := range sources {
			o.key(0)
		}
		for range 200 {
			pass(100 * time.Millisecond)
			n := 0
			for _, o := range sources {
				if o.status().State == starting {
					n++
				}
			}
			most = max(most, n)
		}
		if most != 4 {
			t.Errorf("%d starts at a time", most)
		}
		for _, o := range sources {
			if o.runs() != 1 || o.latest() > all/4*(starts+time.Second) {
				t.Errorf("%s: %d runs, %v late", o.spec.Name, o.runs(), o.latest())
			}
		}
	})
}

// Whatever happens in whatever order: no delivery is under way on a workload that is told to sleep, no due key waits on
// one that sleeps, and in the end all keys have run and the workload sleeps.
func TestKeeper_RandomHistories(t *testing.T) {
	first := uint64(time.Now().UnixNano())
	if s := os.Getenv("SCALE_SEED"); s != "" {
		first, _ = strconv.ParseUint(s, 10, 64)
	}
	for n := range uint64(60) {
		seed := first + n
		t.Run("", func(t *testing.T) {
			in(t, func(w *world) {
				r := rand.New(rand.NewPCG(seed, 0))
				defer func() {
					if t.Failed() {
						t.Logf("SCALE_SEED=%d", seed)
					}
				}()
				w.now(func() {
					w.starts, w.takes = time.Duration(r.IntN(5000))*time.Millisecond, time.Duration(r.IntN(300))*time.Millisecond
				})
				sources := []*operator{w.source("a", nil)}
				if r.IntN(2) == 0 {
					sources = append(sources, w.source("b", nil))
				}
				keys := 0
				for range 200 {
					o := sources[r.IntN(len(sources))]
					switch r.IntN(12) {
					case 0:
						w.hand("web", r.Int32N(3))
					case 1:
						down := r.IntN(2) == 0
						w.mu.Lock()
						w.fail = func(string, string, string) error {
							if down {
								return errors.New("down")
							}
							return nil
						}
						w.mu.Unlock()
					case 2:
						synctest.Wait()
						w.k.Stop()
						for _, o := range sources { // deliveries end with the process: they are made again
							o.mu.Lock()
							o.m.Leave()
							o.mu.Unlock()
						}
						w.restart()
						for _, o := range sources {
							o.mu.Lock()
							o.m = w.k.Join(o.spec, o.m.underWay, o.wake, o.isDue)
							o.pump()
							o.mu.Unlock()
						}
					default:
						keys++
						o.key(time.Duration(r.IntN(60)) * time.Second)
					}
					pass(time.Duration(r.IntN(20000)) * time.Millisecond)
				}
				w.fails(nil)
				pass(10 * time.Minute)
				runs := 0
				for _, o := range sources {
					synctest.Wait()
					runs += o.runs()
					if n := o.waiting(); n > 0 {
						t.Errorf("%d keys wait: %+v", n, o.status())
					}
				}
				if runs != keys || w.have("web") != 0 {
					t.Errorf("%d keys, %d runs, %d replicas", keys, runs, w.have("web"))
				}
			})
		})
	}
}
