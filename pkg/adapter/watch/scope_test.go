package watch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

func everywhere() *schedule.Spec {
	src := sourceOf()
	src.Watch.OwnNamespace = false
	return src
}

func labelled() *schedule.Spec {
	src := everywhere()
	src.Watch.Namespaces = "team=a"
	return src
}

func team(name string) func(*object) {
	return func(o *object) { o.labels = map[string]any{"team": name} }
}

// All namespaces have one watch; narrowing and widening schedule nothing that was
// watched already.
func TestScope_NarrowAndWiden(t *testing.T) {
	run(t, everywhere, func(t *testing.T, w *env) {
		for _, path := range []string{"a/1", "ops/1", "ops/2", "z/1"} {
			w.api.put("Website", path, true)
		}
		w.start()
		w.want("first start", time.Minute, "add Website/a/1", "add Website/ops/1", "add Website/ops/2", "add Website/z/1")
		if w.api.open != 1 {
			t.Errorf("%d watches are open", w.api.open)
		}
		w.change(func(src *schedule.Spec) { src.Watch.OwnNamespace = true })
		w.want("narrowed", time.Minute)
		w.api.put("Website", "a/1", true)
		w.api.put("Website", "ops/1", true)
		w.want("a change elsewhere does not count", time.Minute, "update Website/ops/1")
		if marks := fmt.Sprint(w.marks()); marks != "[ops/1 ops/2]" {
			t.Errorf("marks %s", marks)
		}
		w.stop()
		w.api.put("Website", "ops/2", true)
		w.api.compact()
		w.start()
		w.want("found after a restart", time.Minute, "update Website/ops/2")
		w.change(func(src *schedule.Spec) { src.Watch.OwnNamespace = false })
		wakes := w.want("widened", time.Minute, "add Website/a/1", "add Website/z/1")
		for _, k := range wakes {
			t.Logf("%s after %s", k.key, k.delay)
		}
		w.change(func(src *schedule.Spec) { src.Watch.Resources[0].Selector = "team=a" })
		w.want("another selector", time.Minute)
		if marks := w.marks(); len(marks) != 0 {
			t.Errorf("marks %q", marks)
		}
		w.api.put("Website", "z/1", true, team("a"))
		w.want("it matches", time.Minute, "add Website/z/1")
		w.api.put("Website", "z/1", true, team("b"))
		w.want("it does not match any more", time.Minute, "delete Website/z/1")
	})
}

// A source that watches nothing any more forgets everything, and schedules nothing.
func TestScope_Removed(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.api.put("Website", "ops/a", true)
		w.start()
		w.settle(time.Minute)
		watch := w.src.Watch
		w.change(func(src *schedule.Spec) { src.Watch = nil })
		w.want("removed", time.Minute)
		if states, err := w.s.States(); len(states) > 0 || err != nil {
			t.Errorf("states %v, %v", states, err)
		}
		w.change(func(src *schedule.Spec) { src.Watch = watch })
		w.want("again", time.Minute, "add Website/ops/a")
	})
}

// Namespaces are followed live, with one watch of all of them or with one for each.
func TestNamespaces_FollowTheirLabels(t *testing.T) {
	for _, all := range []bool{true, false} {
		t.Run(fmt.Sprint("one watch ", all), func(t *testing.T) {
			run(t, labelled, func(t *testing.T, w *env) {
				if !all {
					w.api.forbids = func(_ string, q objects.Query) bool { return q.Namespace == "" && q.Resource.Kind != "Namespace" }
				}
				for _, name := range []string{"a", "b", "c"} {
					w.api.put("Namespace", name, true, team(map[string]string{"a": "a", "b": "b", "c": "a"}[name]))
					w.api.put("Website", name+"/1", true)
					w.api.put("Website", name+"/2", true)
				}
				w.start()
				w.want("first start", 2*time.Minute, "add Website/a/1", "add Website/a/2", "add Website/c/1", "add Website/c/2")
				if s := w.status(); s.Status != schedule.WatchTrue || s.Objects != 4 {
					t.Errorf("status %+v", s)
				}
				w.api.put("Namespace", "b", true, team("a"))
				w.want("b is selected", time.Minute, "add Website/b/1", "add Website/b/2")
				w.api.put("Website", "b/1", true)
				w.api.remove("Website", "c/2")
				w.want("changes", time.Minute, "update Website/b/1", "delete Website/c/2")
				w.api.put("Namespace", "a", true, team("b"))
				w.want("a is not selected any more", time.Minute)
				w.api.put("Website", "a/1", true)
				w.want("a change in a", time.Minute)
				w.api.put("Namespace", "a", true, team("a"))
				w.want("a is selected again", time.Minute, "add Website/a/1", "add Website/a/2")
				w.stop()
				w.api.put("Website", "b/2", true)
				w.api.put("Namespace", "c", true, team("b"))
				w.api.remove("Website", "a/1")
				w.start()
				w.want("after a restart", 2*time.Minute, "update Website/b/2", "delete Website/a/1")
				w.api.remove("Website", "a/2")
				w.api.remove("Namespace", "a")
				w.want("a is deleted", time.Minute, "delete Website/a/2")
				w.stop()
				w.api.remove("Website", "b/1")
				w.api.remove("Website", "b/2")
				w.api.remove("Namespace", "b")
				w.api.compact()
				w.start()
				w.want("b was deleted while down", 2*time.Minute, "delete Website/b/1", "delete Website/b/2")
				w.api.put("Namespace", "new", true, team("a"))
				w.api.put("Website", "new/1", true)
				w.want("a new namespace", time.Minute, "add Website/new/1")
				w.want("quiet", 2*time.Hour)
				if s := w.status(); s.Status != schedule.WatchTrue || s.Objects != 1 {
					t.Errorf("status %+v", s)
				}
			})
		})
	}
}

// A change of the selected namespaces lists the new ones only.
func TestNamespaces_ListTheNewOnesOnly(t *testing.T) {
	run(t, labelled, func(t *testing.T, w *env) {
		for i := range 20 {
			name := fmt.Sprintf("n%d", i)
			w.api.put("Namespace", name, true, team("a"))
			w.api.put("Website", name+"/1", true)
		}
		w.start()
		w.settle(time.Minute)
		lists := w.api.lists
		if lists != 2 || w.api.open != 2 {
			t.Errorf("%d lists and %d watches of 20 namespaces, want one of websites and one of namespaces", lists, w.api.open)
		}
		w.api.put("Namespace", "n20", true, team("a"))
		w.api.put("Website", "n20/1", true)
		w.want("one more", time.Minute, "add Website/n20/1")
		if n := w.api.lists - lists; n != 1 {
			t.Errorf("%d lists for one more namespace", n)
		}
	})
}

// An account that is given the right to watch all namespaces gets one watch for them,
// without a restart, and nothing is scheduled.
func TestNamespaces_RightForAllComesLater(t *testing.T) {
	run(t, labelled, func(t *testing.T, w *env) {
		w.api.forbids = func(_ string, q objects.Query) bool { return q.Namespace == "" && q.Resource.Kind != "Namespace" }
		for i := range 5 {
			name := fmt.Sprintf("n%d", i)
			w.api.put("Namespace", name, true, team("a"))
			w.api.put("Website", name+"/1", true)
		}
		open := func() (n int) {
			w.api.set(func() { n = w.api.open })
			return n
		}
		w.start()
		w.settle(time.Minute)
		if n := open(); n != 6 {
			t.Errorf("%d watches are open, want one for each namespace and one of namespaces", n)
		}
		w.want("still forbidden", time.Hour)
		w.api.set(func() { w.api.forbids = nil })
		w.want("allowed", 30*time.Minute)
		if n, s := open(), w.status(); n != 2 || s.Status != schedule.WatchTrue {
			t.Errorf("%d watches are open, want one of all namespaces and one of namespaces; status %+v", n, s)
		}
		w.api.put("Website", "n3/1", true)
		w.want("a change", time.Minute, "update Website/n3/1")
	})
}

// An account without its right for seconds, as after a start of the API server, kept a watch for each namespace for
// 10 to 20 minutes, of which a namespace may have too few. The source says nothing of it.
func TestNamespaces_ShortDenialKeepsOneWatch(t *testing.T) {
	for _, down := range []bool{false, true} {
		t.Run(fmt.Sprint("down before ", down), func(t *testing.T) {
			run(t, labelled, func(t *testing.T, w *env) {
				w.api.put("Namespace", "a", true, team("a"))
				w.api.put("Website", "a/1", true)
				w.start()
				w.want("first start", time.Minute, "add Website/a/1")
				parts, denied := 0, false
				w.api.forbids = func(_ string, q objects.Query) bool {
					if q.Namespace != "" {
						parts++
					}
					return denied
				}
				for range 2 {
					w.api.set(func() { w.api.down, denied = down, true })
					w.api.cut()
					if down {
						w.settle(time.Minute)
						w.api.set(func() { w.api.down = false })
					}
					for range 5 {
						w.settle(time.Second)
						if s := w.status(); s.Status != schedule.WatchTrue && !down {
							t.Errorf("status %+v", s)
						}
					}
					w.api.set(func() { denied = false })
					w.api.put("Website", "a/1", true)
					w.want("a change", time.Hour, "update Website/a/1")
				}
				if s := w.status(); parts > 0 || s.Status != schedule.WatchTrue {
					t.Errorf("%d calls for one namespace; status %+v", parts, s)
				}
			})
		})
	}
}

// The right came seconds after the source.
func TestNamespaces_RightForAllComesAMomentLater(t *testing.T) {
	run(t, labelled, func(t *testing.T, w *env) {
		w.api.forbids = func(_ string, q objects.Query) bool { return q.Namespace == "" && q.Resource.Kind != "Namespace" }
		w.api.put("Namespace", "a", true, team("a"))
		w.start()
		w.settle(5 * time.Second)
		part := false
		w.api.set(func() {
			w.api.forbids = func(verb string, q objects.Query) bool {
				part = part || verb == "watch" && q.Namespace != ""
				return false
			}
		})
		w.settle(5 * time.Minute)
		w.api.set(func() { part = false })
		w.api.cut()
		w.settle(time.Minute)
		w.api.set(func() {
			if part {
				t.Error("namespaces have watches of their own")
			}
		})
	})
}

// An account that may not list namespaces is told so.
func TestNamespaces_Forbidden(t *testing.T) {
	run(t, labelled, func(t *testing.T, w *env) {
		w.api.forbids = func(_ string, q objects.Query) bool { return q.Resource.Kind == "Namespace" }
		w.start()
		w.settle(time.Minute)
		if s := w.status(); s.Reason != schedule.WatchForbidden || !strings.Contains(s.Message, "list namespaces -A") {
			t.Errorf("status %+v", s)
		}
	})
}

// A source whose author changes spec.watch again and again begins its watches once a second, and at last with
// what is in force.
func TestScope_ManyChangesBeginFewWatches(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.api.put("Website", "ops/1", true)
		w.start()
		w.want("first start", time.Minute, "add Website/ops/1")
		const changes, apart = 200, 10 * time.Millisecond // two seconds
		for i := range changes {
			w.change(func(src *schedule.Spec) { src.Watch.Resources[0].Key = fmt.Sprintf("'key-%d'", i) })
			w.settle(apart)
		}
		last, wakes := fmt.Sprintf("key-%d", changes-1), w.settle(time.Minute)
		if n := len(wakes); n == 0 || wakes[n-1].key != last {
			t.Errorf("scheduled %q, the last one must be %s", keys(wakes), last)
		}
		if w.s.counted > 5 { // one for each begin with an expression of its own
			t.Errorf("the watches began %d times in 2 s", w.s.counted)
		}
	})
}

// Namespaces that are not selected come and go without reopening a watch.
func TestNamespaces_ForeignOnesReopenNothing(t *testing.T) {
	for _, all := range []bool{true, false} {
		t.Run(fmt.Sprint("one watch ", all), func(t *testing.T) {
			run(t, labelled, func(t *testing.T, w *env) {
				if !all {
					w.api.forbids = func(_ string, q objects.Query) bool { return q.Namespace == "" && q.Resource.Kind != "Namespace" }
				}
				w.api.put("Namespace", "a", true, team("a"))
				w.start()
				w.settle(time.Minute)
				watches := w.api.watches
				for i := range 60 {
					name := fmt.Sprint("foreign-", i)
					w.api.put("Namespace", name, true, team("b"))
					w.settle(time.Second)
					w.api.remove("Namespace", name)
				}
				w.settle(time.Minute)
				if n := w.api.watches - watches; n > 0 {
					t.Errorf("%d watches were opened", n)
				}
			})
		})
	}
}

// Power is lost between the batch that reports the objects of a deleted namespace and the removal of its row, and the
// namespace is made again: the watch goes on from before the deletions, and reported them once more.
func TestNamespaces_DeletedAndBackAfterACrash(t *testing.T) {
	run(t, labelled, func(t *testing.T, w *env) {
		w.api.put("Namespace", "a", true, team("a"))
		w.api.put("Website", "a/1", true)
		w.start()
		w.want("first list", time.Minute, "add Website/a/1")
		w.stop()
		w.api.remove("Website", "a/1")
		w.api.remove("Namespace", "a")
		w.start()
		w.mu.Lock()
		w.s.crash = func(batch int) (bool, bool) { return false, batch == 1 }
		w.mu.Unlock()
		w.want("deleted", 5*time.Minute, "delete Website/a/1")
		w.lose(0, nil)
		w.api.put("Namespace", "a", true, team("a"))
		w.api.put("Website", "a/2", true)
		w.start()
		w.want("made again", 5*time.Minute, "add Website/a/2")
	})
}
