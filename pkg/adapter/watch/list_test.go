package watch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// listed is how many lists were begun.
func listed(w *env) (n int) {
	w.api.set(func() { n = w.api.lists })
	return n
}

// away deletes objects while the API server cannot be reached, and its history is gone after.
func away(w *env, paths ...string) {
	w.api.set(func() { w.api.down = true })
	w.api.cut()
	synctest.Wait()
	for _, path := range paths {
		w.api.remove("Website", path)
	}
	w.api.compact()
	w.api.set(func() { w.api.down = false })
}

// Short outages make no long waits, however many there are: what changed in each is found soon after
// it. A deletion was found four minutes after the second restart of an API server.
func TestOutage_DeletionInEachGapIsFound(t *testing.T) {
	for name, back := range map[string]func(*env){
		"its history is there": func(*env) {},
		"its history is gone":  func(w *env) { w.api.compact() },
		"its kinds come late": func(w *env) {
			var kinds map[string]objects.Resource
			w.api.set(func() { kinds, w.api.kinds = w.api.kinds, map[string]objects.Resource{} })
			time.Sleep(2 * time.Second)
			w.api.set(func() { w.api.kinds = kinds })
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, own, func(t *testing.T, w *env) {
				w.start()
				for range 12 {
					w.api.put("Website", "ops/a", true)
					w.want("made", time.Minute, "add Website/ops/a")
					w.api.set(func() { w.api.down = true })
					w.api.cut()
					time.Sleep(4 * time.Second)
					w.api.set(func() { w.api.down = false })
					w.api.remove("Website", "ops/a")
					back(w)
					w.want("deleted in the gap", 30*time.Second, "delete Website/ops/a")
				}
			})
		})
	}
}

// The list after an expired version does not wait for the calls that failed before: its deletion was
// found 2 minutes and more after the API server was back.
func TestOutage_ExpiredVersionIsNoFailure(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.start()
		w.settle(time.Minute)
		for range 8 { // sooner than a watch has worked
			w.api.put("Website", "ops/a", true)
			w.want("made", 5*time.Second, "add Website/ops/a")
			w.api.set(func() { w.api.down = true })
			w.api.cut()
			time.Sleep(2 * time.Minute)
			away(w, "ops/a")
			w.want("deleted in the gap", maxUnreachableWait+goneJitter+time.Second, "delete Website/ops/a")
		}
	})
}

// After a long outage a change is found within half a minute and the wait before a list.
func TestOutage_LongOneIsNoLongWait(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.start()
		for i := range 8 {
			w.api.put("Website", "ops/a", true)
			w.want("made", time.Hour, "add Website/ops/a")
			w.api.set(func() { w.api.down = true })
			w.api.cut()
			time.Sleep(time.Hour + time.Duration(i)*37*time.Second)
			away(w, "ops/a")
			w.want("deleted in the gap", 30*time.Second+goneJitter+30*time.Second, "delete Website/ops/a")
		}
	})
}

// A namespace that is selected during an outage is watched soon after it. The watch of namespaces waited for up
// to five minutes, and once more when its version had expired.
func TestOutage_NamespacesAreFoundSoon(t *testing.T) {
	run(t, func() *schedule.Spec {
		src := own()
		src.Watch.OwnNamespace, src.Watch.Namespaces = false, "team=a"
		return src
	}, func(t *testing.T, w *env) {
		w.start()
		w.settle(time.Minute)
		for i := range 8 {
			w.api.set(func() { w.api.down = true })
			w.api.cut()
			time.Sleep(time.Hour + time.Duration(i)*37*time.Second)
			name := fmt.Sprint("n", i)
			w.api.put("Namespace", name, true, team("a"))
			w.api.put("Website", name+"/a", true)
			w.api.compact()
			w.api.set(func() { w.api.down = false })
			w.want("made in the gap", maxUnreachableWait+2*goneJitter+5*time.Second, "add Website/"+name+"/a")
		}
	})
}

// A list that finds more deletions than may be remembered is made again, until all are reported.
// Each of 200 lists that had passed their turns on remembered 16 MB.
func TestList_RemembersFewDeletions(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		var paths, want []string
		for i := range 100 {
			paths = append(paths, fmt.Sprintf("ops/%03d", i))
			want = append(want, "delete Website/"+paths[i])
			w.api.put("Website", paths[i], true)
		}
		w.start()
		w.settle(time.Minute)
		w.m.vanished = budget.New(40 * vanishedBytes) // of which it gets a half
		lists := listed(w)
		away(w, paths...)
		w.want("deleted meanwhile", time.Minute, want...)
		if n := listed(w) - lists; n < 5 || n > 10 {
			t.Errorf("%d lists", n)
		}
		if n := w.m.vanished.Used(); n != 0 {
			t.Errorf("%d bytes are held", n)
		}
	})
}

// While others remember all that may be remembered, a list waits, and loses nothing.
func TestList_WaitsForOthersDeletions(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.api.put("Website", "ops/a", true)
		w.start()
		w.settle(time.Minute)
		w.m.vanished = budget.New(1000)
		others := w.m.vanished.Claim("others", "x")
		if !others.TryGrow(500) {
			t.Fatal("no claim")
		}
		for i := range 5 { // each gets half of what is left
			more := w.m.vanished.Claim(fmt.Sprint(i), "x")
			for more.TryGrow(1) {
			}
		}
		lists := listed(w)
		away(w, "ops/a")
		w.want("nothing may be remembered", time.Minute)
		if n := listed(w) - lists; n < 5 || n > 60 {
			t.Errorf("%d lists in a minute", n)
		}
		others.Release()
		w.want("something may", 5*time.Second, "delete Website/ops/a")
	})
}

// Lists that are made again for their number of deletions pass their turns on, too: one whose pages
// hang kept the lists of all others waiting without an end.
func TestList_KeepsNoTurn(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.api.page = 1
		for i := range 40 {
			w.api.put("Website", fmt.Sprintf("ops/%03d", i), true)
		}
		w.start()
		w.settle(time.Minute)
		w.m.lists = budget.NewTurns(1, 1, 0)
		w.m.vanished = budget.New(4 * vanishedBytes)
		w.api.onPage = func(int) error {
			time.Sleep(listTurn)
			return nil
		}
		var gone []string
		for i := range 20 {
			gone = append(gone, fmt.Sprintf("ops/%03d", i))
		}
		away(w, gone...)
		w.settle(4 * time.Minute) // the second list, of a hundred seconds each
		for range 10 {
			began := time.Now()
			turn, err := w.m.lists.Take(t.Context(), "calm", "")
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 2*listTurn {
				t.Errorf("a list waited %s", took)
			}
			turn.Release()
			time.Sleep(20 * time.Second)
		}
	})
}
