package scale

import (
	"slices"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

func sinkless(s *schedule.Scale) { s.Sinkless = true }

func withMetrics(s *schedule.Scale) {
	s.Sinkless, s.Busy = true, schedule.Busy{Port: 8080, Path: "/metrics"}
}

// A key is done when its workload was up and idle for the cooldown, and the workload sleeps then.
func TestSinkless_IsDoneWhenIdleForTheCooldown(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("web", sinkless)
		o.key(0)
		pass(1100 * time.Millisecond)
		if got := o.status(); got.State != awake || got.LastStart < time.Second {
			t.Errorf("after the start: %+v", got)
		}
		pass(9 * time.Second)
		if w.have("web") != 1 || o.runs() != 0 {
			t.Errorf("before the cooldown ended: %d replicas, %d runs", w.have("web"), o.runs())
		}
		pass(2 * time.Second)
		if w.have("web") != 0 || o.runs() != 1 || o.status().Starts != 1 {
			t.Errorf("after it: %d replicas, %d runs, %+v", w.have("web"), o.runs(), o.status())
		}
	})
}

// A key that becomes due while the workload is awake keeps it awake, and starts nothing.
func TestSinkless_AChangeWhileAwakeNeedsNoStart(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("web", sinkless)
		o.key(0)
		o.key(8 * time.Second)
		o.key(15 * time.Second)
		pass(24 * time.Second)
		if w.have("web") != 1 || o.runs() != 2 {
			t.Errorf("%d replicas, %d runs; want it awake for the last key", w.have("web"), o.runs())
		}
		pass(2 * time.Second)
		if w.have("web") != 0 || o.runs() != 3 || o.status().Starts != 1 {
			t.Errorf("%d replicas, %d runs, %+v", w.have("web"), o.runs(), o.status())
		}
	})
}

// A key that becomes due while the workload is told to sleep starts it again.
func TestSinkless_AChangeUnderThePatchStarts(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("web", sinkless)
		w.now(func() { w.takes = 200 * time.Millisecond })
		o.key(0)
		for w.have("web") == 0 || o.waiting() > 0 {
			pass(10 * time.Millisecond)
		}
		o.key(0) // the patch is under way
		pass(40 * time.Second)
		if got := o.status(); got.Starts != 2 || o.runs() != 2 || w.have("web") != 0 {
			t.Errorf("%+v, %d runs, %d replicas", got, o.runs(), w.have("web"))
		}
	})
}

// Keys that are due together need one start, and end at one time.
func TestSinkless_AThousandKeysEndTogether(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("web", sinkless)
		for range 1000 {
			o.key(0)
		}
		pass(13 * time.Second)
		if got := o.status(); got.Starts != 1 || o.runs() != 1000 || got.State != asleep {
			t.Errorf("%+v, %d runs", got, o.runs())
		}
	})
}

// A workload that works, by its metrics, is not told to sleep, however long.
func TestSinkless_BusyKeepsItAwake(t *testing.T) {
	in(t, func(w *world) {
		w.work = Work{Known: true, Busy: true}
		o := w.source("web", withMetrics)
		o.key(0)
		pass(time.Hour)
		if w.have("web") != 1 || o.runs() != 0 {
			t.Errorf("while it works: %d replicas, %d runs", w.have("web"), o.runs())
		}
		w.now(func() { w.work.Busy = false })
		pass(13 * time.Second)
		if w.have("web") != 0 || o.runs() != 1 || o.status().Starts != 1 {
			t.Errorf("%d replicas, %d runs, %+v", w.have("web"), o.runs(), o.status())
		}
	})
}

// A workload that waits for its Lease has not begun: its time idle counts from when it leads.
func TestSinkless_DoesNotSleepBeforeItLeads(t *testing.T) {
	in(t, func(w *world) {
		w.work = Work{Known: true, Waits: true}
		o := w.source("web", withMetrics)
		o.key(0)
		pass(17 * time.Second)
		if o.runs() != 0 || w.have("web") != 1 || o.status().State != starting {
			t.Errorf("before it leads: %d runs, %d replicas, %+v", o.runs(), w.have("web"), o.status())
		}
		w.now(func() { w.work.Waits = false })
		pass(13 * time.Second)
		if o.runs() != 1 || w.have("web") != 0 || o.status().LastStart < 17*time.Second {
			t.Errorf("%d runs, %d replicas, %+v", o.runs(), w.have("web"), o.status())
		}
	})
}

// A workload whose queues have had no item may still fill its caches. After a while there is nothing to do, which is
// no failure.
func TestSinkless_DoesNotSleepBeforeItBegins(t *testing.T) {
	in(t, func(w *world) {
		w.work = Work{Known: true, Fresh: true}
		o := w.source("web", withMetrics)
		o.key(0)
		pass(50 * time.Second)
		if o.runs() != 0 || w.have("web") != 1 {
			t.Errorf("before it begins: %d runs, %d replicas", o.runs(), w.have("web"))
		}
		pass(25 * time.Second)
		if o.runs() != 1 || o.refused() != 0 || w.have("web") != 0 {
			t.Errorf("%d runs, %d failed, %d replicas", o.runs(), o.refused(), w.have("web"))
		}
	})
}

// A workload that is not up within startTimeout is a failed attempt, whose message has the reason of its pods.
func TestSinkless_FailsWhenItDoesNotStart(t *testing.T) {
	in(t, func(w *world) {
		w.starts = 24 * time.Hour
		o := w.source("web", sinkless)
		o.key(0)
		pass(121 * time.Second)
		if got := o.status(); o.refused() != 1 || got.Reason != ReasonStartTimeout || got.Message != "The workload did not start within 2m0s. ImagePullBackOff" {
			t.Errorf("%d failed attempts, %+v", o.refused(), got)
		}
		w.now(func() { w.up["web"] = time.Now() })
		pass(20 * time.Second)
		if got := o.status(); o.runs() != 1 || got.Reason != "" || got.State != asleep {
			t.Errorf("once it starts: %d runs, %+v", o.runs(), got)
		}
	})
}

// A container that ends is a failed attempt; the next one succeeds if it stays up.
func TestSinkless_FailsWhenItCrashes(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("web", sinkless)
		o.key(0)
		pass(4 * time.Second)
		w.now(func() { w.restarts = 1 })
		pass(2 * time.Second)
		if got := o.status(); o.refused() != 1 || got.Reason != ReasonCrashed {
			t.Errorf("%d failed attempts, %+v", o.refused(), got)
		}
		pass(30 * time.Second)
		if got := o.status(); o.runs() != 1 || o.refused() != 1 || got.Reason != "" || got.State != asleep {
			t.Errorf("after it: %d runs, %d failed, %+v", o.runs(), o.refused(), got)
		}
	})
}

// A workload whose last reconcile failed looks idle until it tries again. The key fails: the source tries again.
func TestSinkless_FailsWithItsLastReconcile(t *testing.T) {
	in(t, func(w *world) {
		w.work = Work{Known: true, Reconciles: 3, Errors: 1}
		o := w.source("web", withMetrics)
		o.key(0)
		pass(3 * time.Second)
		w.now(func() { w.work.Reconciles, w.work.Errors = 5, 3 })
		pass(3 * time.Second)
		w.now(func() { w.work.Known = false }) // one read fails
		pass(time.Second)
		w.now(func() { w.work.Known = true })
		pass(12 * time.Second)
		if o.runs() != 0 || o.refused() != 1 || o.status().Reason != "" {
			t.Errorf("%d runs, %d failed, %+v", o.runs(), o.refused(), o.status())
		}
		w.now(func() { w.work.Reconciles, w.work.Errors = 6, 3 })
		pass(30 * time.Second)
		if o.runs() != 1 || o.refused() != 1 || w.have("web") != 0 {
			t.Errorf("%d runs, %d failed, %d replicas", o.runs(), o.refused(), w.have("web"))
		}
	})
}

// Restarts from before the adapter began to look are no crash.
func TestSinkless_OldRestartsAreNoCrash(t *testing.T) {
	in(t, func(w *world) {
		w.restarts = 3
		w.replicas["web"] = 1
		o := w.source("web", sinkless)
		o.key(0)
		pass(13 * time.Second)
		if o.runs() != 1 || o.refused() != 0 {
			t.Errorf("%d runs, %d failed", o.runs(), o.refused())
		}
	})
}

// A workload whose metrics do not say whether it works never counts as idle.
func TestSinkless_MetricsThatSayNothingFail(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("web", withMetrics)
		o.key(0)
		pass(121 * time.Second)
		if got := o.status(); o.refused() != 1 || got.Reason != ReasonNoMetrics {
			t.Errorf("%d failed attempts, %+v", o.refused(), got)
		}
	})
}

// mayNotList is the answer to an account that may scale, and not list pods.
func mayNotList(account, verb, _ string) error {
	if verb == "list" {
		return &objects.Forbidden{Account: objects.Account{Namespace: "ops", Name: account}, Verb: verb}
	}
	return nil
}

// While the account may not list pods, the condition says so all the time, and keys fail.
func TestSinkless_ForbiddenPodsStayForbidden(t *testing.T) {
	in(t, func(w *world) {
		w.fails(mayNotList)
		o := w.source("web", sinkless)
		o.key(0)
		for range 300 {
			pass(time.Second)
			if got := o.status(); got.Reason != ReasonForbidden {
				t.Fatalf("%+v", got)
			}
		}
		if o.runs() != 0 || o.refused() == 0 {
			t.Errorf("%d runs, %d failed", o.runs(), o.refused())
		}
	})
}

// A new adapter continues: the workload is not started twice, and is idle for the whole cooldown before it sleeps.
func TestSinkless_AnAdapterStartsAgain(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("web", sinkless)
		o.key(0)
		pass(5 * time.Second)
		w.restart()
		o.join()
		pass(9 * time.Second)
		if o.runs() != 0 {
			t.Error("a key was done before its workload was seen idle for the cooldown")
		}
		pass(5 * time.Second)
		if o.runs() != 1 || w.have("web") != 0 || len(w.calls) != 2 {
			t.Errorf("%d runs, %d replicas, calls %v", o.runs(), w.have("web"), w.calls)
		}
	})
}

// A workload that another hand has scaled up sleeps when its metrics say that it is idle.
func TestSinkless_ScaledUpByHandSleepsAfterItsWork(t *testing.T) {
	in(t, func(w *world) {
		w.work = Work{Known: true, Busy: true}
		o := w.source("web", withMetrics)
		pass(time.Second)
		w.hand("web", 1)
		pass(time.Minute)
		if w.have("web") != 1 {
			t.Error("it was told to sleep while it worked")
		}
		w.now(func() { w.work.Busy = false })
		pass(15 * time.Second)
		if w.have("web") != 0 || o.status().Starts != 0 {
			t.Errorf("%d replicas, %+v", w.have("web"), o.status())
		}
	})
}

// A workload that sleeps costs no reads of its pods.
func TestSinkless_IsNotExaminedAsleep(t *testing.T) {
	in(t, func(w *world) {
		w.source("web", withMetrics)
		pass(time.Hour)
		if w.looks() > 0 || slices.Contains(w.calls, "web=1") {
			t.Errorf("examined %d times, calls %v", w.looks(), w.calls)
		}
	})
}

// With mode Observe keys end at once, and the counters go on as if the workload had been started.
func TestSinkless_ObservedKeysEndAtOnce(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("web", func(s *schedule.Scale) { sinkless(s); s.Mode = schedule.ScaleObserve })
		w.hand("web", 1)
		o.key(0)
		pass(time.Second)
		if got := o.status(); o.runs() != 1 || got.State != awake || got.Starts != 1 {
			t.Errorf("%d runs, %+v", o.runs(), got)
		}
		pass(10 * time.Second)
		if got := o.status(); got.State != asleep || w.have("web") != 1 || len(w.calls) > 0 {
			t.Errorf("%+v, %d replicas, calls %v", got, w.have("web"), w.calls)
		}
	})
}

// With mode Observe and metrics, reconciles without a change show that the workload has timers; they are counted on over a restart.
func TestSinkless_ObserveFindsTimers(t *testing.T) {
	in(t, func(w *world) {
		w.work = Work{Known: true}
		o := w.source("web", func(s *schedule.Scale) { withMetrics(s); s.Mode = schedule.ScaleObserve })
		w.hand("web", 1)
		run := func() { w.now(func() { w.work.Reconciles++; w.work.Requeues++ }) }
		o.key(0)
		pass(time.Second)
		run() // because of the change
		pass(time.Minute)
		for range 7 {
			run()
			run()
			pass(10 * time.Minute)
		}
		got := o.status().Quiet
		if got.Runs != 7 || got.Every.Round(time.Minute) != 10*time.Minute || got.Requeues != 15 {
			t.Errorf("%+v", got)
		}
		w.restart()
		w.k.cfg.Saved = func(*schedule.Spec) schedule.ScaleStatus { return schedule.ScaleStatus{Quiet: got} }
		o.join()
		pass(10 * time.Minute)
		run()
		pass(time.Minute)
		if got := o.status().Quiet; got.Runs != 8 || got.Every.Round(time.Minute) != 10*time.Minute {
			t.Errorf("after a restart of the adapter: %+v", got)
		}
	})
}

// A workload that is up at last, and works for long, has no problem any more, although no key has ended yet.
func TestSinkless_NoStartTimeoutOnceItIsUp(t *testing.T) {
	in(t, func(w *world) {
		w.starts, w.work = 3*time.Minute, Work{Known: true, Busy: true}
		o := w.source("web", withMetrics)
		o.key(0)
		pass(150 * time.Second)
		if got := o.status(); got.Reason != ReasonStartTimeout {
			t.Errorf("before it is up: %+v", got)
		}
		pass(time.Hour)
		if got := o.status(); o.runs() != 0 || got.Reason != "" || got.State != awake {
			t.Errorf("while it works: %d runs, %+v", o.runs(), got)
		}
	})
}

// A workload that has crashed once, and works for long since, has no problem any more; one that crashes each minute has.
func TestSinkless_NoCrashOnceItStaysUp(t *testing.T) {
	in(t, func(w *world) {
		w.work = Work{Known: true, Busy: true}
		o := w.source("web", withMetrics)
		o.key(0)
		for range 5 {
			pass(time.Minute)
			w.now(func() { w.restarts++ })
			pass(3 * time.Second)
			if got := o.status(); got.Reason != ReasonCrashed {
				t.Fatalf("while it crashes: %+v", got)
			}
		}
		pass(3 * time.Minute)
		if got := o.status(); got.Reason != "" || got.State != awake {
			t.Errorf("while it works: %+v", got)
		}
	})
}

// With mode Observe metrics that do not say whether the workload works are a problem before it is scaled.
func TestSinkless_ObserveSaysNoMetrics(t *testing.T) {
	in(t, func(w *world) {
		o := w.source("web", func(s *schedule.Scale) { withMetrics(s); s.Mode = schedule.ScaleObserve })
		w.hand("web", 1)
		pass(time.Minute)
		if got := o.status(); got.Reason != ReasonNoMetrics {
			t.Errorf("%+v", got)
		}
		w.now(func() { w.work.Known = true })
		pass(time.Minute)
		if got := o.status(); got.Reason != "" {
			t.Errorf("%+v", got)
		}
	})
}
