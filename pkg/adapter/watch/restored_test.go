package watch

import (
	"fmt"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// After etcd was put back to an older state, a watch would go on from a version that the API server does
// not have yet, and hear nothing. It lists instead, and every object is scheduled once: with `changes: Spec`
// a generation that came again looks unchanged.
func TestWatch_EtcdIsPutBack(t *testing.T) {
	for _, restart := range []bool{false, true} {
		for name, src := range map[string]func() *schedule.Spec{"own": own, "everywhere": everywhere, "labelled": labelled} {
			t.Run(fmt.Sprintf("%s, restart %t", name, restart), func(t *testing.T) {
				run(t, src, func(t *testing.T, w *env) {
					w.src.Watch.Resources[0].Changes = schedule.ChangesSpec
					w.api.put("Namespace", "ops", true, team("a"))
					for _, name := range []string{"changed", "unchanged", "gone"} {
						w.api.put("Website", "ops/"+name, true)
					}
					w.start()
					w.want("first list", time.Minute, "add Website/ops/changed", "add Website/ops/gone", "add Website/ops/unchanged")
					back := w.api.version
					w.api.put("Website", "ops/changed", true)
					w.api.put("Website", "ops/lost", true)
					w.want("changes", time.Minute, "update Website/ops/changed", "add Website/ops/lost")
					for range 20 { // versions that the restored state does not have
						w.api.put("Node", "n", true)
					}
					w.settle(2 * time.Minute)
					if restart {
						w.stop()
					}
					w.api.restore(back)
					w.api.put("Website", "ops/changed", true) // its generation is the last one again
					w.api.put("Website", "ops/new", true)
					w.api.remove("Website", "ops/gone")
					if restart {
						w.start()
					}
					wakes := w.want("put back", time.Minute, "add Website/ops/new", "delete Website/ops/gone", "delete Website/ops/lost",
						"update Website/ops/changed", "update Website/ops/unchanged")
					for _, k := range wakes {
						if spread := k.delay > 0; spread != (k.verb == "update") {
							t.Errorf("%s %s has a delay of %s", k.verb, k.key, k.delay)
						}
					}
					w.api.put("Website", "ops/new", true)
					w.want("a change", time.Second, "update Website/ops/new")
					w.want("quiet", time.Hour)
					if n := w.m.find(w.src.UID).tally.lists[2].Load(); n != 1 {
						t.Errorf("%d lists because of an older state", n)
					}
				})
			})
		}
	}
}

// A crash while the list after a restore is under way leaves no object out.
func TestWatch_EtcdIsPutBackAndCrash(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.src.Watch.Resources[0].Changes = schedule.ChangesSpec
		for i := range 6 {
			w.api.put("Website", fmt.Sprintf("ops/%d", i), true)
		}
		back := w.api.version
		w.api.put("Website", "ops/5", true)
		w.api.put("Website", "ops/5", false)
		w.api.put("Website", "ops/5", false)
		w.start()
		w.settle(time.Minute)
		w.stop()
		w.api.restore(back)
		w.api.put("Website", "ops/5", true)
		w.api.remove("Website", "ops/0")
		w.api.compact()
		w.api.onPage = func(int) error { w.api.onPage = func(int) error { return errDown }; return nil }
		w.start()
		w.settle(10 * time.Second)
		w.lose(0, nil)
		w.api.onPage = nil
		w.start()
		found := false
		for _, k := range w.settle(time.Minute) {
			found = found || k.key == "Website/ops/5"
		}
		if !found {
			t.Error("a change is lost")
		}
	})
}

// Versions are compared as numbers of any length. Others cannot be compared.
func TestStandingOf_NumbersOnly(t *testing.T) {
	for _, c := range []struct {
		version, newest string
		want            standing
	}{
		{"10", "9", lost}, {"10", "10", held}, {"10", "11", held}, {"36893488147419103233", "36893488147419103232", lost},
		{"a", "10", uncertain}, {"10", "v1:b", uncertain}, {"a", "a", held},
	} {
		if is := standingOf(c.version, c.newest); is != c.want {
			t.Errorf("%s, newest %s: %d", c.version, c.newest, is)
		}
	}
}

// The namespaces that a source follows are listed again too, after etcd was put back.
func TestNamespaces_EtcdIsPutBack(t *testing.T) {
	run(t, labelled, func(t *testing.T, w *env) {
		w.api.put("Namespace", "a", true, team("a"))
		w.api.put("Namespace", "b", true, team("b"))
		w.api.put("Website", "b/1", true)
		w.start()
		w.settle(time.Minute)
		back := w.api.version
		for range 20 {
			w.api.put("Namespace", "a", true)
		}
		w.settle(2 * time.Minute)
		w.api.restore(back)
		w.api.put("Namespace", "b", true, team("a"))
		w.want("selected since", time.Minute, "add Website/b/1")
	})
}

// An aggregated API with several servers, of which one lags for a moment, is not put back to an older state.
func TestVersion_LagIsNoRestore(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		for i := range 5 {
			w.api.put("Website", fmt.Sprintf("ops/%d", i), true)
		}
		w.start()
		w.settle(time.Minute)
		for range 3 {
			w.api.set(func() { w.api.lags = 1 })
			w.api.cut()
			w.want("a server that lags", 10*time.Minute)
		}
	})
}
