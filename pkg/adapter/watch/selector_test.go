package watch

import (
	"fmt"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// A selector that is changed, and changed back before the list has ended, reports no object as deleted that exists.
func TestSelector_ChangedAndBack(t *testing.T) {
	for name, src := range map[string]func() *schedule.Spec{"own": own, "everywhere": everywhere, "labelled": labelled} {
		t.Run(name, func(t *testing.T) {
			run(t, src, func(t *testing.T, w *env) {
				w.src.Watch.Resources[0].Selector = "team=a"
				w.api.put("Namespace", "ops", true, team("a"))
				for i := range 4 {
					w.api.put("Website", fmt.Sprintf("ops/a%d", i), true, team("a"))
					w.api.put("Website", fmt.Sprintf("ops/b%d", i), true, team("b"))
				}
				w.start()
				w.want("first list", time.Minute, "add Website/ops/a0", "add Website/ops/a1", "add Website/ops/a2", "add Website/ops/a3")
				w.api.set(func() {
					w.api.onPage = func(n int) error {
						if w.api.pages%2 == 0 {
							return errDown
						}
						return nil
					}
				})
				to := func(selector string) {
					w.change(func(src *schedule.Spec) { src.Watch.Resources[0].Selector = selector })
				}
				to("team=b")
				w.settle(2 * time.Second)
				to("team=a")
				w.settle(2 * time.Second)
				w.api.set(func() { w.api.onPage = nil })
				for _, k := range w.settle(time.Minute) {
					if k.verb == "delete" {
						t.Errorf("%s is reported as deleted", k.key)
					}
				}
				w.api.remove("Website", "ops/a0")
				w.want("a deletion", time.Second, "delete Website/ops/a0")
				if marks := fmt.Sprint(w.marks()); marks != "[ops/a1 ops/a2 ops/a3]" {
					t.Errorf("marks %s", marks)
				}
			})
		})
	}
}

// An object that moves from the selector of one entry to the selector of another one is not deleted, whichever watch
// comes first: its key would end. Once it is deleted its key ends.
func TestSelector_ObjectMovesToTheOtherEntry(t *testing.T) {
	run(t, twice, func(t *testing.T, w *env) {
		w.start()
		w.settle(time.Minute)
		bad := 0
		for i := range 40 {
			w.api.put("Website", "ops/x", true, team([]string{"a", "b"}[i%2]))
			w.settle(time.Second)
			v, ok, err := w.s.source.Get("Website/ops/x")
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			if v.Event.Ends() {
				bad++
			}
		}
		if bad > 0 {
			t.Errorf("%d of 40 times the key ends, though its object exists", bad)
		}
		w.api.remove("Website", "ops/x")
		w.settle(time.Second)
		if v, _, _ := w.s.source.Get("Website/ops/x"); v.Entry == nil || !v.Event.Ends() {
			t.Errorf("deleted: %+v", v)
		}
	})
}
