package watch

import (
	"fmt"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
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
			run(t, src, func(t *testing.T, w *env) {
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
	run(t, family, func(t *testing.T, w *env) {
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
	run(t, family, func(t *testing.T, w *env) {
		w.api.finding = func(kind string) {
			if kind == "Website" {
				pass(time.Minute)
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

// twice watches websites under two selectors, and what belongs to them.
func twice() *schedule.Spec {
	return sourceOf(
		schedule.WatchResource{Group: "example.com", Version: "v1", Kind: "Website", Selector: "team=a", Changes: schedule.ChangesSpec},
		schedule.WatchResource{Group: "example.com", Version: "v1", Kind: "Website", Selector: "team=b", Changes: schedule.ChangesMetadata},
		schedule.WatchResource{Group: "apps", Version: "v1", Kind: "Deployment", OwnerGroup: "example.com", OwnerKind: "Website", Changes: schedule.ChangesAny},
	)
}

// Of two entries of a kind both must be listed before an owner without a mark is gone.
func TestOwner_OneOfTwoListsIsNotComplete(t *testing.T) {
	run(t, twice, func(t *testing.T, w *env) {
		w.api.set(func() { w.api.forbids = func(_ string, q objects.Query) bool { return q.Selector == "team=a" } })
		w.api.put("Website", "ops/a", true, team("a"))
		w.start()
		w.settle(time.Minute)
		w.api.put("Deployment", "ops/d", true, func(o *object) { o.owners = []any{ownerOf("example.com/v1", "Website", "a")} })
		if k := w.want("owned", time.Minute, "dev.reschedule.due Website/ops/a")[0]; k.final {
			t.Errorf("%+v", k)
		}
	})
}

// A resync is no news. The key of an owner that is gone keeps the event that a caller gave it.
func TestResync_KeepsTheEventOfACaller(t *testing.T) {
	run(t, family, func(t *testing.T, w *env) {
		w.api.put("Deployment", "ops/d", true, func(o *object) { o.owners = []any{ownerOf("example.com/v1", "Website", "a")} })
		w.start()
		w.settle(time.Minute)
		if err := w.s.source.Cancel("Website/ops/a", schedule.Conditions{}); err != nil {
			t.Fatal(err)
		}
		later := time.Hour
		if _, err := w.s.source.Schedule("Website/ops/a", &schedule.Request{Delay: &later, Event: &schedule.Event{Type: "of.a.caller"}}, nil); err != nil {
			t.Fatal(err)
		}
		if n, err := w.m.Resync(t.Context(), w.src.UID, "", nil); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if v, _, err := w.s.source.Get("Website/ops/a"); err != nil || v.Event.Type != "of.a.caller" || v.DueAt.After(time.Now().Add(10*time.Minute)) {
			t.Errorf("the key has %+v, due %s: %v", v.Event, v.DueAt, err)
		}
	})
}

// Before the owners are listed, an ownerReference may say any uid, as of an owner that was made again. The owner's own
// event is not of another object then: it would end what a caller scheduled.
func TestOwner_HearsayEndsNoSchedule(t *testing.T) {
	run(t, family, func(t *testing.T, w *env) {
		w.api.set(func() { w.api.forbids = func(_ string, q objects.Query) bool { return q.Resource.Kind == "Website" } })
		w.api.put("Website", "ops/a", true)
		w.start()
		w.settle(time.Minute)
		day := 24 * time.Hour
		if _, err := w.s.source.Schedule("Website/ops/a", &schedule.Request{Delay: &day, MaxInterval: &day}, nil); err != nil {
			t.Fatal(err)
		}
		w.api.put("Deployment", "ops/d", true, func(o *object) { o.owners = []any{ownerOf("example.com/v1", "Website", "a")} })
		w.want("owned", time.Minute, "dev.reschedule.due Website/ops/a")
		w.api.set(func() { w.api.forbids = nil })
		real := w.want("the owner", 6*time.Minute, "add Website/ops/a")[0].uid
		if v, _, err := w.s.source.Get("Website/ops/a"); err != nil || v.MaxInterval == nil || v.UID != real {
			t.Errorf("the key has %+v: %v", v.Entry, err)
		}
	})
}
