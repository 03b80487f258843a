package scale

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// An account that may read the replicas and not change them backs off, is reported once, and startTimeout counts.
func TestFault_MayReadOnly(t *testing.T) {
	for _, what := range []string{"sleep", "wake"} {
		t.Run(what, func(t *testing.T) {
			in(t, func(w *world) {
				var patches, changed atomic.Int64
				w.fails(func(account, verb, _ string) error {
					if verb == "patch" {
						patches.Add(1)
						return &objects.Forbidden{Account: objects.Account{Namespace: "ops", Name: account}, Verb: verb}
					}
					return nil
				})
				w.k.cfg.Changed = func(*schedule.Spec) { changed.Add(1) }
				if what == "sleep" {
					w.replicas["web"] = 1
				}
				o := w.source("s", nil)
				if what == "wake" {
					o.key(0)
				}
				pass(time.Hour)
				if patches.Load() > 200 || changed.Load() > 10 || o.status().Reason != ReasonForbidden || what == "wake" && o.refused() == 0 {
					t.Errorf("in an hour: %d patches, %d changes of the status, %d attempts, %+v", patches.Load(), changed.Load(), o.refused(), o.status())
				}
			})
		})
	}
}

// A start that another hand made, and that never ends, does not hold its slot.
func TestFault_SlotOfAStartByHand(t *testing.T) {
	in(t, func(w *world) {
		bounded := func(name string) *operator {
			o := w.source(name, func(s *schedule.Scale) { s.Name, s.StartTimeout = name, 1000*time.Hour; s.Held = s.Workload })
			spec := *o.spec
			spec.Ceilings.MaxStartsOfAll = 1
			o.spec = &spec
			o.set(func(*schedule.Scale) {})
			return o
		}
		bad, good := bounded("bad"), bounded("good")
		pass(time.Minute)
		w.now(func() { w.starts = 1000 * time.Hour })
		w.hand("bad", 1)
		bad.key(0)
		pass(time.Minute)
		w.now(func() { w.starts = time.Second })
		good.key(0)
		pass(time.Minute)
		if good.runs() != 1 {
			t.Errorf("%d runs of the neighbour", good.runs())
		}
	})
}

// A row that is stale, or a dead letter's, within warmUp is looked at once.
func TestFault_StaleRowWithinWarmUp(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("s", nil)
		pass(time.Minute)
		spec := *o.spec
		spec.WarmUp = time.Minute
		var reads atomic.Int64
		at := time.Now().Add(30 * time.Second)
		next := func() { o.m.Next(time.Until(at), at) }
		o.mu.Lock()
		o.ended = true
		o.m.isDue = func(time.Duration) bool { reads.Add(1); return false }
		o.m.ready = next
		o.m.Set(&spec)
		next()
		o.mu.Unlock()
		synctest.Wait()
		o.mu.Lock()
		next()
		o.mu.Unlock()
		synctest.Wait()
		if reads.Load() != 1 || w.have("web") != 0 {
			t.Errorf("%d reads of the index, %d replicas", reads.Load(), w.have("web"))
		}
	})
}

// A delivery that began before the source had a workload counts; one that ends without a workload counts no more.
func TestFault_EditUnderADelivery(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("s", nil)
		scale := o.spec.Scale
		none := func(s *schedule.Scale) { s.Mode, s.Held = "", schedule.Workload{} }
		o.took = time.Minute
		o.key(0)
		pass(10 * time.Second)
		o.set(none)
		pass(2 * time.Minute) // it ends
		o.set(func(s *schedule.Scale) { *s = scale })
		pass(time.Minute)
		if n := w.have("web"); n != 0 {
			t.Errorf("%d replicas, with nothing to do", n)
		}
		o.set(none)
		w.hand("web", 1)
		pass(10 * time.Second)
		o.key(0)
		pass(10 * time.Second)
		o.set(func(s *schedule.Scale) { *s = scale })
		pass(40 * time.Second) // SetReplicas fails the test if it sleeps under the delivery
		if n := w.have("web"); n != 1 {
			t.Errorf("%d replicas under a delivery", n)
		}
		pass(time.Minute)
	})
}

// Between Admit and Begin the key has left the page; the workload stays awake.
func TestFault_NextBeforeBegin(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("s", nil)
		o.key(0)
		o.key(14 * time.Second)
		pass(13900 * time.Millisecond)
		o.mu.Lock()
		o.ended = true
		o.timer.Stop()
		o.mu.Unlock()
		pass(200 * time.Millisecond)
		if !o.m.Admit(0) {
			t.Fatal("it is not awake")
		}
		o.m.Next(time.Hour, time.Now().Add(time.Hour))
		if n := w.have("web"); n != 1 {
			t.Errorf("a delivery begins with %d replicas", n)
		}
	})
}

// A key that was cancelled while it waited leaves no startTimeout to the next one.
func TestFault_StaleWait(t *testing.T) {
	in(t, func(w *world) {
		w.replicas["web"], w.starts = 1, 1000*time.Hour
		w.up["web"] = time.Now().Add(w.starts)
		o := w.source("s", func(s *schedule.Scale) { s.Mode = schedule.ScaleAwake })
		o.key(0)
		pass(time.Second)
		o.mu.Lock()
		o.keys = nil
		o.pump()
		o.mu.Unlock()
		pass(10 * time.Minute)
		o.key(0)
		pass(time.Minute)
		if o.refused() > 0 {
			t.Errorf("%d attempts before startTimeout", o.refused())
		}
	})
}

// A workload that a source lets go of is awake, although another source that names it has not taken it yet.
func TestFault_GivenToOneThatIsNotReady(t *testing.T) {
	in(t, func(w *world) {
		a := w.source("a", nil)
		pass(time.Minute)
		b := w.source("b", func(s *schedule.Scale) { s.Held, s.Recorded = schedule.Workload{}, false })
		a.set(func(s *schedule.Scale) { *s = schedule.Scale{Held: s.Held} })
		if n := w.have("web"); n != 1 || a.status().Held != (schedule.Workload{}) {
			t.Errorf("let go of with %d replicas, held %+v", n, a.status().Held)
		}
		b.leave()
		if n := w.have("web"); n != 1 {
			t.Errorf("%d replicas, and no source", n)
		}
	})
}

// Two versions of a kind are one workload.
func TestFault_TwoVersions(t *testing.T) {
	in(t, func(w *world) {
		a, b := w.source("a", nil), w.source("b", func(s *schedule.Scale) { s.APIVersion = "apps/v1beta1"; s.Held = s.Workload })
		a.took = time.Minute
		a.key(0)
		pass(5 * time.Second)
		b.key(0)
		pass(2 * time.Minute)
		if n := w.have("web"); n != 0 || a.runs()+b.runs() != 2 {
			t.Errorf("%d replicas, %d runs", n, a.runs()+b.runs())
		}
	})
}

// Sources that only observe make no look later.
func TestFault_ManyObservers(t *testing.T) {
	in(t, func(w *world) {
		for i := range 1000 {
			w.source(fmt.Sprint(i), func(s *schedule.Scale) {
				s.Mode, s.Recorded = schedule.ScaleObserve, false
				s.Held = schedule.Workload{}
			})
		}
		if d := w.k.pollAfter(); d > 2*pollLeast {
			t.Errorf("a workload is looked at after %v", d)
		}
	})
}

// warmUp starts the workload before the due time. It connects, so that a start is measured until the pod accepts, and
// not until the key is due.
func TestFault_StartMeasuredInWarmUp(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("s", nil)
		spec := *o.spec
		spec.WarmUp = 30 * time.Second
		o.spec = &spec
		o.set(func(*schedule.Scale) {})
		o.key(time.Hour)
		pass(time.Hour + 2*time.Second)
		if s := o.status(); o.runs() != 1 || o.latest() > dialEvery || s.LastStart > 2*time.Second {
			t.Errorf("%d runs, %v late, %+v", o.runs(), o.latest(), s)
		}
	})
}
