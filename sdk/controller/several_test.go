package controller

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	crcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/reschedule-dev/reschedule/sdk"
	"github.com/reschedule-dev/reschedule/sdk/internal/cloudevent"
)

// The tests of this file are about a key that stands for requests of several
// controllers.

// beside runs the reconcilers in controllers that are For ConfigMaps, behind a source
// whose key ConfigMap/ns/a is due once.
func beside(t *testing.T, until time.Duration, rs ...*play) {
	besideMoved(t, until, 0, 0, rs...)
}

// besideMoved is beside, and a caller moves the key: at an instant, to another.
func besideMoved(t *testing.T, until, at, to time.Duration, rs ...*play) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := newServer(nil)
	s.verify = func(*http.Request) error { return nil }
	for i, r := range rs {
		r.start = time.Now()
		q := newQueue(fmt.Sprint("c", i), nil)
		q.kind = kind{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap")}
		s.queues = append(s.queues, q)
		skip := true
		c, err := crcontroller.NewUnmanaged(q.name, crcontroller.Options{
			Reconciler: &observedReconciler{r, q}, SkipNameValidation: &skip,
			NewQueue: func(string, workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
				return q
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = c.Start(ctx) }()
	}
	f := newFakeSource(t, time.Second)
	f.sink = s
	f.ingest("ConfigMap/ns/a", sdk.Event{Type: cloudevent.DueType})
	time.Sleep(at)
	if at > 0 {
		f.mu.Lock()
		f.wait("ConfigMap/ns/a", time.Now().Add(to-at), false)
		f.mu.Unlock()
	}
	time.Sleep(until - at)
	f.close()
	cancel()
	synctest.Wait()
}

// forever is a reconciler that does the same step at each run.
func forever(s step) *play { return &play{steps: slices.Repeat([]step{s}, 100)} }

// seconds are the runs of a reconciler, in whole seconds.
func (p *play) seconds() string {
	var all []string
	for _, at := range p.at {
		all = append(all, fmt.Sprint(int(at/time.Second)))
	}
	return strings.Join(all, " ")
}

// TestSeveral_FailureLeavesTimers says that the failures of one controller neither
// delay the timer of another nor are repeated by it.
func TestSeveral_FailureLeavesTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks, failing := forever(after(2*time.Second)), forever(fails)
		beside(t, 17*time.Second, looks, failing)
		if got, want := looks.seconds(), "0 2 4 6 8 10 12 14 16"; got != want {
			t.Errorf("the controller that asks for every 2 s ran at %s, want %s", got, want)
		}
		if got, want := failing.seconds(), "0 1 3 7 15"; got != want {
			t.Errorf("the controller that fails ran at %s, want %s", got, want)
		}
	})
}

// TestSeveral_SuccessEndsTheBackOff says that a run that went well resets the count of the
// failures in a row, as controller-runtime does: also beside the timer of another, and when it
// asks for a timer itself.
func TestSeveral_SuccessEndsTheBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := forever(after(2 * time.Second))
		failing := &play{steps: []step{fails, fails, fails, after(time.Second), fails, fails, zero}}
		beside(t, 15*time.Second, looks, failing)
		if got, want := failing.seconds(), "0 1 3 7 8 9 11"; got != want {
			t.Errorf("the controller that fails ran at %s, want %s", got, want)
		}
	})
}

// TestSeveral_EachHasItsOwnTimer says that a controller that asks for an hour does not
// run whenever another one asks for a minute.
func TestSeveral_EachHasItsOwnTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		minute, hour := forever(after(25*time.Minute)), forever(after(time.Hour))
		beside(t, 130*time.Minute, minute, hour)
		if got, want := minute.seconds(), "0 1500 3000 4500 6000 7500"; got != want {
			t.Errorf("every 25 minutes: ran at %s, want %s", got, want)
		}
		if got, want := hour.seconds(), "0 3600 7200"; got != want {
			t.Errorf("every hour: ran at %s, want %s", got, want)
		}
	})
}

// TestSeveral_MovedKeyKeepsTheOtherTimers says that a run on request, or a PUT with another
// time, moves the timer that the key has, and not the timers that come after it.
func TestSeveral_MovedKeyKeepsTheOtherTimers(t *testing.T) {
	for name, row := range map[string]struct {
		to   time.Duration
		soon string
	}{
		"brought forward": {10 * time.Minute, "0 600 2100 3600"},
		"postponed":       {40 * time.Minute, "0 2400 3900"},
		"past the other":  {50 * time.Minute, "0 3000"},
	} {
		synctest.Test(t, func(t *testing.T) {
			soon, late := forever(after(25*time.Minute)), forever(after(45*time.Minute))
			besideMoved(t, 66*time.Minute, 5*time.Minute, row.to, soon, late)
			want := "0 2700"
			if row.to > 45*time.Minute {
				want = "0 3000"
			}
			if got := late.seconds(); got != want {
				t.Errorf("%s: the later one ran at %s, want %s", name, got, want)
			}
			if got := soon.seconds(); got != row.soon {
				t.Errorf("%s: the sooner one ran at %s, want %s", name, got, row.soon)
			}
		})
	}
}

// TestSeveral_ResyncBesideATimer says that a controller that asks for nothing runs
// again after the SyncPeriod, although maxInterval does not count for a key with a timer.
func TestSeveral_ResyncBesideATimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timer, done := forever(after(3*time.Hour)), forever(zero)
		beside(t, 21*time.Hour, timer, done)
		if got, want := done.seconds(), fmt.Sprint(0, 36000, 72000); got != want {
			t.Errorf("ran at %s, want %s", got, want)
		}
	})
}

// TestQueue_LongWaitNamesTheLimit says that the operator's log names the setting of the
// source when deliveries wait for a worker, once. With more workers they wait less.
func TestQueue_LongWaitNamesTheLimit(t *testing.T) {
	for _, row := range []struct {
		wait          time.Duration
		workers, want int
	}{{longWait, 1, 0}, {longWait + time.Second, 1, 1}, {longWait + time.Second, 2, 0}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := newHandler(ctx, forever(zero.in(row.wait)), WithConcurrency(row.workers))
			var mu sync.Mutex
			var lines []string
			s.log = funcr.New(func(_, line string) {
				mu.Lock()
				defer mu.Unlock()
				lines = append(lines, line)
			}, funcr.Options{})
			var all sync.WaitGroup
			for i := range 2 * (row.want + 1) {
				all.Go(func() {
					s.ServeHTTP(httptest.NewRecorder(), request(fmt.Sprint("ConfigMap/ns/", i), sdk.Event{Type: cloudevent.DueType}))
				})
			}
			all.Wait()
			if len(lines) != row.want || row.want > 0 && !(strings.Contains(lines[0], "limits.maxInFlight") && strings.Contains(lines[0], `"maxInFlight"=1`)) {
				t.Errorf("%s with %d workers: logged %q", row.wait, row.workers, lines)
			}
			cancel()
			synctest.Wait()
		})
	}
}

// TestCombine_OfOutcomes has a row for each rule about outcomes that come to one answer.
func TestCombine_OfOutcomes(t *testing.T) {
	t.Parallel()
	done, gone, fails := outcome{}, outcome{gone: true}, outcome{err: errBoom}
	in := func(d time.Duration) outcome { return outcome{after: d} }
	for _, row := range []struct {
		outcomes []outcome
		resync   time.Duration // 0 is never
		want     string
		again    int // targets
	}{
		{nil, 0, "done", 0},
		{[]outcome{done, gone}, 0, "done", 0},
		{[]outcome{gone, gone}, 0, "gone", 0},
		{[]outcome{done, fails}, 0, "fails", 0},
		{[]outcome{in(time.Hour), in(time.Minute)}, 0, "1m0s", 2},
		{[]outcome{in(time.Hour), done}, 0, "1h0m0s", 1}, // without a resync it takes no timer of another
		{[]outcome{in(time.Hour), done}, time.Minute, "1m0s", 2},
		{[]outcome{in(time.Hour), gone}, time.Minute, "1h0m0s", 1},
		{[]outcome{in(time.Hour), fails}, 0, "1s", 2},
	} {
		var all []decision
		for _, o := range row.outcomes {
			all = append(all, decision{target{key: "k"}, o})
		}
		a := combine(all, row.resync, func(target) bool { return true })
		got := a.after.String()
		switch {
		case a.err != nil:
			got = "fails"
		case a.gone:
			got = "gone"
		case a.after == 0:
			got = "done"
		}
		if got != row.want || len(a.again) != row.again {
			t.Errorf("%+v come to %s with %d targets, want %s with %d", row.outcomes, got, len(a.again), row.want, row.again)
		}
	}
}
