package watch

import (
	"fmt"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// A source that was suspended for long stays ready when its settings are edited: nothing is listed meanwhile, and a
// tool that waits for its health would wait for ever.
func TestStatus_SuspendedAndEdited(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.api.put("Website", "ops/a", true)
		w.start()
		w.settle(time.Minute)
		w.change(func(src *schedule.Spec) { src.Suspend = true })
		w.settle(10 * time.Minute)
		if w.api.open != 0 {
			t.Fatalf("%d watches are open", w.api.open)
		}
		w.change(func(src *schedule.Spec) { src.Watch.Generation = 2 })
		w.settle(time.Minute)
		if s := w.status(); s.Status != schedule.WatchTrue || s.Generation != 2 || s.Objects != 1 {
			t.Errorf("after an edit: %+v", s)
		}
		w.change(func(src *schedule.Spec) {
			src.Watch.Generation, src.Watch.Resources[0].Changes = 3, schedule.ChangesAny
		})
		w.settle(time.Minute)
		if s := w.status(); s.Status != schedule.WatchTrue || s.Generation != 3 {
			t.Errorf("after an edit of what is watched: %+v", s)
		}
		w.change(func(src *schedule.Spec) { src.Suspend = false })
		w.settle(time.Minute)
		w.api.put("Website", "ops/a", true)
		w.want("a change", time.Second, "update Website/ops/a")
	})
}

// An API server that starts refuses everything for a moment, until it has read RBAC: sources stay ready.
func TestStatus_RefusedForAMoment(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.start()
		w.settle(time.Minute)
		w.api.set(func() { w.api.forbids = denyAll })
		w.api.cut()
		for range 5 {
			w.settle(time.Second)
			if s := w.status(); s.Status != schedule.WatchTrue {
				t.Fatalf("status %+v", s)
			}
		}
		w.settle(time.Minute)
		if s := w.status(); s.Reason != schedule.WatchForbidden {
			t.Errorf("after a minute: %+v", s)
		}
	})
}

// A source that is older than its objects spreads a first list too, as after its volume was lost. What was made
// lately is at once.
func TestStart_OldSourceIsSpread(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		for i := range 20 {
			w.api.put("Website", fmt.Sprintf("ops/%d", i), true)
		}
		w.settle(time.Hour)
		w.api.put("Website", "ops/new", true)
		w.start()
		late := 0
		for _, k := range w.settle(time.Minute) {
			if k.delay > 0 {
				late++
			}
			if k.key == "Website/ops/new" && k.delay > 0 {
				t.Errorf("what is new comes after %s", k.delay)
			}
		}
		if late < 15 {
			t.Errorf("%d of 20 keys are spread", late)
		}
	})
}

// When the right to watch all namespaces goes, a namespace that was listed by itself goes on behind its list.
func TestNamespaces_PartsBeginAtTheirOwnLists(t *testing.T) {
	run(t, labelled, func(t *testing.T, w *env) {
		w.start()
		w.settle(time.Minute)
		r := w.m.find(w.src.UID).resources[0]
		w.stop()
		for name, version := range map[string]string{"early": "90", "late": "120"} {
			r.rows.set(row{resource: r.id, namespace: name, version: version, complete: true})
		}
		r.rows.set(row{resource: r.id, version: "100", partial: true, complete: true})
		r.s.marks = noRows{r.s.marks}
		if err := r.part(); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"early": "100", "late": "120", "": ""} {
			if got, _ := r.rows.get(name); got.version != want {
				t.Errorf("%q goes on at %q, want %q", name, got.version, want)
			}
		}
	})
}

// noRows stores no rows.
type noRows struct{ Marks }

func (noRows) SetState(store.WatchState) error { return nil }

// A first list that comes late, as for a right that was missing, spreads what was there before, and not what was made
// while it was wanted. Another account wants the same list.
func TestStart_LateListHasNewObjects(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.api.put("Website", "ops/old", true, func(o *object) { o.created = w.src.Watch.Since.Add(-time.Hour) })
		w.api.set(func() { w.api.forbids = denyAll })
		w.start()
		w.settle(time.Minute)
		w.api.put("Website", "ops/new", true)
		w.settle(9 * time.Minute)
		w.change(func(src *schedule.Spec) { src.Watch.Account = "another" })
		w.settle(time.Minute)
		w.api.set(func() { w.api.forbids = nil })
		for _, k := range w.want("late", 2*time.Minute, "add Website/ops/new", "add Website/ops/old") {
			if spread := k.delay > 0; spread != (k.key == "Website/ops/old") {
				t.Errorf("%s comes after %s", k.key, k.delay)
			}
		}
	})
}
