package scale

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// replace is a rollout, a drained node or a deleted pod: another pod takes its place, and is ready at once.
func (w *world) replace(name string) { w.now(func() { w.up[name] = time.Now() }) }

// A pod that takes the place of another one has the whole cooldown to find its work.
func TestSinkless_AReplacedPodHasTheCooldown(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("web", sinkless)
		o.key(0)
		pass(10 * time.Second)
		w.replace("web")
		replaced := time.Now()
		for o.runs() == 0 {
			pass(100 * time.Millisecond)
		}
		if ran := time.Since(replaced); ran < 9*time.Second {
			t.Errorf("the key was done %s after its pod began, want the cooldown of 10s", ran)
		}
	})
}

// With busy, a new pod has not begun before a queue has an item, however long the workload is awake.
func TestSinkless_AReplacedPodMayBeFresh(t *testing.T) {
	in(t, func(w *world) {
		w.work = Work{Known: true, Busy: true}
		o := w.source("web", withMetrics)
		o.key(0)
		pass(5 * time.Minute)
		w.replace("web")
		w.now(func() { w.work = Work{Known: true, Fresh: true} })
		replaced := time.Now()
		for o.runs() == 0 && time.Since(replaced) < 2*time.Minute {
			pass(100 * time.Millisecond)
		}
		if ran := time.Since(replaced); ran < 59*time.Second {
			t.Errorf("the key was done %s after its new pod began, which has had no item; a first pod gets 1m0s", ran)
		}
	})
}

// A key is not done by what was seen before it was due: while the look at the pods hangs it waits.
func TestSinkless_NotDoneByALookFromBefore(t *testing.T) {
	in(t, func(w *world) {
		w.work = Work{Known: true}
		o := w.source("web", withMetrics)
		o.key(0)
		o.key(9 * time.Second)
		pass(8 * time.Second)
		w.now(func() { w.takes, w.work.Busy = 28*time.Second, true }) // list and metrics take up to 30s
		examined := w.looks()
		for range 54 {
			pass(500 * time.Millisecond)
			o.wake() // an earlier key, a changed spec, a loaded page: the dispatcher asks again
			if o.runs() > 1 && w.looks() <= examined+1 {
				t.Errorf("the key that was due at 9s is done at %s, by a look from before", time.Since(start))
				return
			}
		}
	})
}

var start = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// NaN, infinity and huge values of a tenant's metrics do not spoil the counters.
func TestSinkless_HugeRequeues(t *testing.T) {
	in(t, func(w *world) {
		w.work = Work{Known: true}
		o := w.source("web", func(s *schedule.Scale) { withMetrics(s); s.Mode = schedule.ScaleObserve })
		w.hand("web", 1)
		pass(30 * time.Second)
		w.now(func() { w.work.Requeues = math.Inf(1) })
		pass(30 * time.Second)
		if got := o.status().Quiet; got.Requeues < 0 {
			t.Errorf("%+v", got)
		}
	})
}

// A single failed read of the API server an hour before must not keep it awake: a flaky read each 9s does for ever.
func TestSinkless_SleepsWithAFlakyRead(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("web", func(s *schedule.Scale) { withMetrics(s); s.Cooldown = 10 * time.Minute })
		w.work = Work{Known: true}
		o.key(0)
		for range 24 {
			pass(9 * time.Minute)
			w.now(func() { w.work = Work{Failed: errors.New("timeout")} })
			pass(2 * time.Second)
			w.now(func() { w.work = Work{Known: true} })
		}
		if o.runs() == 0 {
			t.Errorf("after %d reads of which 24 failed: the key has not ended, %d replicas", w.looks(), w.have("web"))
		}
	})
}

// A workload that works, and whose metrics cannot be read for a moment, is not idle: nothing says so.
func TestSinkless_UnreadMetricsAreNotIdle(t *testing.T) {
	in(t, func(w *world) {
		w.work = Work{Known: true, Busy: true}
		o := w.source("web", withMetrics)
		pass(time.Second)
		w.hand("web", 1)
		pass(time.Minute)
		w.now(func() { w.work = Work{Failed: errors.New("timeout: it works so hard that it does not answer")} })
		pass(13 * time.Second)
		if w.have("web") != 1 {
			t.Errorf("it was told to sleep in its work after 13s without an answer: %+v", o.status())
		}
	})
}

// An operator whose metrics cannot be read, by a NetworkPolicy for example, is not stopped in the middle of long work.
func TestSinkless_WorksWithoutMetrics(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("web", func(s *schedule.Scale) { withMetrics(s); s.Cooldown = 2 * time.Second })
		w.work = Work{Failed: errors.New("no route")}
		o.key(0)
		pass(10 * time.Minute)
		if got := o.status(); got.Starts != 1 {
			t.Errorf("it was stopped and started %d times in 10m, nothing ever said that it was idle: %+v", got.Starts, got)
		}
	})
}

// A pod that was ready late, and finds nothing to do, has started: beginTime counts from then, the deadline does not.
func TestSinkless_ASlowStartIsNoFailure(t *testing.T) {
	in(t, func(w *world) {
		w.starts, w.work = 70*time.Second, Work{Known: true, Fresh: true}
		o := w.source("web", withMetrics)
		o.key(0)
		pass(10 * time.Minute)
		if o.refused() > 0 {
			t.Errorf("%d failed attempts, %d runs; startTimeout is 2m, the pod was ready after 70s", o.refused(), o.runs())
		}
	})
}

// tokens notes with which account metrics are read.
type tokens struct {
	*world
	read map[string]bool
}

func (k tokens) Examine(ctx context.Context, a objects.Account, x schedule.Workload, busy schedule.Busy) (Health, error) {
	k.now(func() { k.read[a.Name] = k.read[a.Name] || busy.Port != 0 })
	return k.world.Examine(ctx, a, x, busy)
}

// The pods get a token of the account of the source that has busy, and of no other source.
func TestSinkless_TokenOfItsOwnAccount(t *testing.T) {
	in(t, func(w *world) {
		w.k.Stop()
		k := tokens{w, map[string]bool{}}
		w.k = New(Config{API: k, Connect: w.connect})
		w.work = Work{Known: true}
		w.source("admins", func(s *schedule.Scale) { s.Account = "admin" }) // with a sink: its owner gave no token to pods
		o := w.source("web", func(s *schedule.Scale) { withMetrics(s); s.Account = "own" })
		o.key(0)
		pass(20 * time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		if k.read["admin"] {
			t.Errorf("metrics were read as %v", k.read)
		}
	})
}

// Rights that are granted while the workload sleeps end the problem, not only the next start.
func TestSinkless_GrantedWhileAsleep(t *testing.T) {
	in(t, func(w *world) {
		w.fails(mayNotList)
		o := w.source("web", sinkless)
		o.key(0)
		pass(3 * time.Minute)
		o.mu.Lock()
		o.keys = nil
		o.pump()
		o.mu.Unlock()
		pass(time.Minute)
		w.fails(nil)
		pass(time.Hour)
		if got := o.status(); got.Reason != "" || got.State != asleep {
			t.Errorf("an hour after: %+v", got)
		}
	})
}

// A source with a sink that delivers all the time does not keep the key of a source without one from ending.
func TestSinkless_EndsBesideASink(t *testing.T) {
	in(t, func(w *world) {
		a := w.source("sink", nil)
		b := w.source("none", sinkless)
		b.key(0)
		for range 600 {
			a.key(0)
			pass(6 * time.Second)
		}
		if b.runs() == 0 {
			t.Errorf("after an hour the key without a sink is still due; %d deliveries to the sink", a.runs())
		}
	})
}

// The settings change while the workload is awake; each time it ends asleep, with each key done.
func TestSinkless_Edits(t *testing.T) {
	edits := map[string]func(*schedule.Scale){
		"sink added":  func(s *schedule.Scale) { s.Sinkless, s.Busy = false, schedule.Busy{} },
		"busy added":  withMetrics,
		"busy gone":   func(s *schedule.Scale) { s.Busy = schedule.Busy{} },
		"observed":    func(s *schedule.Scale) { s.Mode = schedule.ScaleObserve },
		"kept awake":  func(s *schedule.Scale) { s.Mode = schedule.ScaleAwake },
		"longer":      func(s *schedule.Scale) { s.Cooldown = time.Minute },
		"shorter":     func(s *schedule.Scale) { s.Cooldown = time.Second },
		"other":       func(s *schedule.Scale) { s.Name = "other" },
		"no sink any": sinkless,
	}
	for name, edit := range edits {
		for _, first := range []string{"sink", "sinkless", "busy"} {
			for _, after := range []time.Duration{0, 500 * time.Millisecond, 5 * time.Second, 10900 * time.Millisecond, 11 * time.Second, time.Minute} {
				t.Run(name+" of "+first+" after "+after.String(), func(t *testing.T) {
					in(t, func(w *world) {
						w.work = Work{Known: true}
						w.hand("other", 0)
						begin := map[string]func(*schedule.Scale){"sink": nil, "sinkless": sinkless, "busy": withMetrics}[first]
						o := w.source("web", begin)
						o.key(0)
						pass(after)
						o.set(edit)
						pass(3 * time.Minute)
						if o.waiting() > 0 {
							t.Errorf("the key is there after 3m: %+v", o.status())
						}
						o.key(0)
						pass(3 * time.Minute)
						want := int32(0)
						if name == "kept awake" {
							want = 1
						}
						observed := name == "observed"
						if n := w.have(o.spec.Scale.Name); o.waiting() > 0 || n != want && !observed {
							t.Errorf("the second key: %d wait, %d replicas, %+v", o.waiting(), n, o.status())
						}
					})
				})
			}
		}
	}
}

// While the API server does not answer it is not known whether a workload has failed. delivery.retry counts attempts.
func TestSinkless_AnOutageIsNoAttempt(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("web", sinkless)
		o.key(0)
		pass(5 * time.Second)
		w.fails(func(string, string, string) error { return errors.New("connection refused") })
		pass(10 * time.Minute)
		w.fails(nil)
		pass(time.Minute)
		if o.refused() > 0 {
			t.Errorf("%d failed attempts of a healthy workload, %d runs", o.refused(), o.runs())
		}
	})
}

// Looks at workloads that sleep are 10 a second of all, however many there are. Those at pods are 50.
func TestSinkless_LooksAtPodsAreBounded(t *testing.T) {
	in(t, func(w *world) {
		w.work = Work{Known: true, Busy: true}
		for i := range 200 {
			name := fmt.Sprint("web", i)
			o := w.source(name, func(s *schedule.Scale) { withMetrics(s); s.Name, s.Cooldown = name, time.Second })
			o.key(0)
		}
		pass(time.Minute)
		before := w.looks()
		pass(time.Minute)
		if each := (w.looks() - before) / 60; each > 100 {
			t.Errorf("200 workloads that work are examined %d times a second, each with a GET, a LIST, and reads of metrics", each)
		}
	})
}

// failedStart is a source whose workload has not started in time for its key.
func failedStart(t *testing.T, w *world) *operator {
	w.starts = 24 * time.Hour
	o := w.source("web", sinkless)
	o.key(0)
	pass(121 * time.Second)
	if o.refused() != 1 {
		t.Fatalf("%d failed attempts", o.refused())
	}
	return o
}

// A key that became due after the failure of others, by a clock that was set forward, has not failed with them.
func TestSinkless_OldFailureIsForgotten(t *testing.T) {
	in(t, func(w *world) {
		o := failedStart(t, w)
		if got := o.m.Settle(time.Hour, time.Hour); got.Kind != schedule.Failed {
			t.Errorf("a key that was due with it: %+v", got)
		}
		o.m.NoneDue()
		if got := o.m.Settle(time.Hour, time.Hour); got.Kind != schedule.Aborted {
			t.Errorf("a key that was not: %+v", got)
		}
	})
}

// A key that was due before a failure and changed after it fails with the others: else it would be taken again and
// again.
func TestSettle_ChangedAfterAFailureEnds(t *testing.T) {
	in(t, func(w *world) {
		o := failedStart(t, w)
		if got := o.m.Settle(time.Hour, 0); got.Kind != schedule.Failed {
			t.Errorf("%+v", got)
		}
	})
}
