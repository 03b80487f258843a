package watch

import (
	"fmt"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// family watches websites, and the deployments and secrets that belong to them.
func family() *schedule.Spec {
	return sourceOf(
		schedule.WatchResource{Group: "example.com", Version: "v1", Kind: "Website", Changes: schedule.ChangesMetadata},
		schedule.WatchResource{Group: "apps", Version: "v1", Kind: "Deployment", OwnerGroup: "example.com", OwnerKind: "Website", Changes: schedule.ChangesAny},
		schedule.WatchResource{Version: "v1", Kind: "Node", Key: "'Website/ops/' + object.metadata.name", Changes: schedule.ChangesAny},
	)
}

// An ownerReference may have any uid: of an owner that was made again, or one that is made up. Where the source
// watches the owner itself, its own uid counts; else the uid fills in what is not known.
func TestOwner_UIDIsHearsay(t *testing.T) {
	for name, src := range map[string]func() *schedule.Spec{"owner watched": family, "owner not watched": owns} {
		t.Run(name, func(t *testing.T) {
			run(t, src, func(t *testing.T, w *world) {
				w.start()
				w.api.put("Website", "ops/a", true)
				real := ""
				for _, k := range w.settle(time.Minute) {
					real = k.uid
				}
				w.api.put("Deployment", "ops/d", true, func(o *object) { o.owners = []any{ownerOf("example.com/v1", "Website", "a")} })
				k := w.want("owned", time.Minute, "dev.reschedule.due Website/ops/a")[0]
				if name == "owner watched" && (k.uid != real || k.hearsay) || name != "owner watched" && (k.uid != "uid-of-a" || !k.hearsay) {
					t.Errorf("the owner has uid %q: %+v", real, k)
				}
				if k.final {
					t.Error("an owner that exists loses its timer")
				}
			})
		})
	}
}

// The objects of an owner that was deleted are deleted after it. Their events wake its key, and leave no timer:
// with maxInterval each deleted object would be woken for ever.
func TestOwner_DeletedLeavesNoTimer(t *testing.T) {
	run(t, family, func(t *testing.T, w *world) {
		owned := func(o *object) { o.owners = []any{ownerOf("example.com/v1", "Website", "a")} }
		for i := range 4 {
			w.api.put("Website", "ops/"+string("abcd"[i]), true)
		}
		w.api.put("Deployment", "ops/d", true, owned)
		w.start()
		for _, k := range w.settle(time.Minute) {
			if k.final {
				t.Errorf("at the first list: %+v", k)
			}
		}
		w.api.remove("Website", "ops/a")
		w.want("the owner", time.Minute, "delete Website/ops/a")
		w.api.remove("Deployment", "ops/d")
		w.api.put("Node", "a", true)
		for _, k := range w.want("after it", time.Minute, "dev.reschedule.due Website/ops/a", "dev.reschedule.due Website/ops/a") {
			if !k.final {
				t.Errorf("%+v keeps a timer", k)
			}
		}
		if n, err := w.m.Resync(t.Context(), w.src.UID, "", nil); err != nil || n != 4 {
			t.Errorf("a resync schedules %d: %v", n, err)
		}
		w.settle(time.Minute)
		w.api.put("Website", "ops/a", true)
		w.api.put("Deployment", "ops/d", true, owned)
		w.want("made again", time.Minute, "add Website/ops/a", "dev.reschedule.due Website/ops/a")
		w.api.put("Deployment", "ops/d", true, owned)
		if k := w.want("its object changes", time.Minute, "dev.reschedule.due Website/ops/a")[0]; k.final {
			t.Errorf("made again: %+v", k)
		}
	})
}

// While the list of the owners is not complete, nothing says that an owner is gone.
func TestOwner_NotListedYetIsNotGone(t *testing.T) {
	run(t, family, func(t *testing.T, w *world) {
		w.api.finding = func(kind string) {
			if kind == "Website" {
				<-time.After(time.Minute)
			}
		}
		w.api.put("Website", "ops/a", true)
		w.api.put("Node", "a", true)
		w.start()
		for i := range 3 {
			w.api.put("Node", "a", true)
			for _, k := range w.settle(10 * time.Second) {
				if k.final {
					t.Errorf("%d: %s", i, fmt.Sprint(k))
				}
			}
		}
	})
}
