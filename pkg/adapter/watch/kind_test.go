package watch

import (
	"fmt"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// A kind that is installed again with another plural or scope is watched again.
func TestKind_InstalledAgainOtherwise(t *testing.T) {
	for name, src := range map[string]func() *schedule.Spec{"own": own, "everywhere": everywhere, "labelled": labelled, "in parts": labelled} {
		for _, c := range []struct {
			what    string
			changed objects.Resource
			path    string
		}{
			{"plural", objects.Resource{Group: "example.com", Version: "v1", Kind: "Website", Plural: "sites", Namespaced: true}, "ops/a"},
			{"scope", objects.Resource{Group: "example.com", Version: "v1", Kind: "Website", Plural: "websites"}, "a"},
		} {
			t.Run(name+", "+c.what, func(t *testing.T) {
				run(t, src, func(t *testing.T, w *env) {
					if name == "in parts" {
						w.api.forbids = func(_ string, q objects.Query) bool {
							return q.Namespace == "" && q.Resource.Kind != "Namespace" && q.Resource.Namespaced
						}
					}
					w.api.put("Namespace", "ops", true, team("a"))
					w.api.put("Website", "ops/a", true)
					w.start()
					w.want("first list", time.Minute, "add Website/ops/a")
					w.api.set(func() { delete(w.api.kinds, "Website") })
					w.api.cut()
					w.want("the kind is gone", 10*time.Minute)
					if s := w.status(); s.Reason != schedule.WatchNoSuchKind {
						t.Errorf("status %+v", s)
					}
					w.api.remove("Website", "ops/a")
					w.api.set(func() { w.api.kinds["Website"] = c.changed })
					w.api.put("Website", c.path, true)
					keys := map[string]bool{}
					for _, k := range w.settle(time.Minute) {
						keys[k.key] = true
					}
					if key := keyOfPath("Website", c.path); !keys[key] {
						t.Errorf("the new object does not come: %v, %+v", keys, w.status())
					}
					w.api.put("Website", c.path, true)
					w.want("a change", time.Minute, "update "+keyOfPath("Website", c.path))
					if s := w.status(); s.Status != schedule.WatchTrue || s.Objects != 1 {
						t.Errorf("status %+v", s)
					}
				})
			})
		}
	}
}

// The kind of owners that is installed again with another scope has other keys.
func TestOwner_KindHasAnotherScope(t *testing.T) {
	run(t, owns, func(t *testing.T, w *env) {
		put := func() {
			w.api.put("Deployment", "ops/d", true, func(o *object) { o.owners = []any{ownerOf("example.com/v1", "Website", "a")} })
		}
		put()
		w.start()
		w.want("first list", time.Minute, "dev.reschedule.due Website/ops/a")
		w.api.set(func() {
			w.api.kinds["Website"] = objects.Resource{Group: "example.com", Version: "v1", Kind: "Website", Plural: "websites"}
		})
		w.settle(10 * time.Minute)
		put()
		found := false
		for _, k := range w.settle(time.Minute) {
			found = found || k.key == "Website//a"
		}
		if !found {
			t.Error("the owner has no namespace any more, and its key is not woken")
		}
	})
}

// A kind that discovery names and lists do not know is asked for with a back-off.
func TestKind_NamedButNotServed(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.api.onPage = func(int) error { return fmt.Errorf("a list: %w", objects.ErrNoSuchKind) }
		w.start()
		w.settle(time.Hour)
		if w.api.resolves > 200 || w.api.resolves < 60 {
			t.Errorf("%d calls to find the kind in an hour", w.api.resolves)
		}
		if s := w.status(); s.Reason != schedule.WatchNoSuchKind {
			t.Errorf("status %+v", s)
		}
	})
}
