package watch

import (
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// many maps an object to the keys that an annotation names.
func many() *schedule.Spec {
	src := sourceOf(schedule.WatchResource{
		Group: "example.com", Version: "v1", Kind: "Website", Changes: schedule.ChangesAny,
		Key: "object.metadata.labels['n'] == 'many' ? ['1','2','3','4','5','6','7','8','9'] : ['of-' + object.metadata.name]",
	})
	src.MaxPending = 8
	return src
}

func labelledN(n string) func(*object) {
	return func(o *object) { o.labels = map[string]any{"n": n, "team": "a"} }
}

// An object that maps to more keys than the quota has room for waits alone: the others of its kind go on, the status
// names it, and it comes once there is room. A crash loses it as little.
func TestQuota_ObjectThatDoesNotFitWaitsAlone(t *testing.T) {
	for name, src := range map[string]func() *schedule.Spec{
		"own": many, "labelled": func() *schedule.Spec {
			src := many()
			src.Watch.OwnNamespace, src.Watch.Namespaces = false, "team=a"
			return src
		},
	} {
		for _, watched := range []bool{false, true} {
			for _, crash := range []bool{false, true} {
				t.Run(strings.Join([]string{name, map[bool]string{false: "listed", true: "watched"}[watched], map[bool]string{false: "", true: "crash"}[crash]}, ", "), func(t *testing.T) {
					run(t, src, func(t *testing.T, w *env) {
						w.api.put("Namespace", "ops", true, team("a"))
						if watched {
							w.start()
							w.deliver()
							w.settle(time.Minute)
						}
						for _, name := range []string{"a", "b", "c"} {
							n := "one"
							if name == "b" {
								n = "many"
							}
							w.api.put("Website", "ops/"+name, true, labelledN(n))
						}
						if !watched {
							w.start()
							w.deliver()
						}
						w.want("the others", time.Minute, "dev.reschedule.due of-a", "dev.reschedule.due of-c")
						w.api.put("Website", "ops/c", true)
						w.want("a change of another", time.Second, "dev.reschedule.due of-c")
						if s := w.status(); s.Reason != schedule.WatchQuotaExceeded || !contains(s.Message, "ops/b, which maps to 9 keys") {
							t.Errorf("status %+v", s)
						}
						lists := w.api.listed()
						w.want("it does not fit for hours", 6*time.Hour)
						if n := w.api.listed() - lists; n < 60 || n > 200 {
							t.Errorf("%d lists in 6 hours", n)
						}
						if crash {
							w.lose(0, nil)
							w.start()
							w.deliver()
							w.want("after a crash", time.Minute)
						}
						w.change(func(src *schedule.Spec) { src.MaxPending = 100 })
						if wakes := w.settle(6 * time.Minute); len(wakes) != 9 {
							t.Errorf("with room: %q", keys(wakes))
						}
						if s := w.status(); s.Status != schedule.WatchTrue || s.Objects != 3 {
							t.Errorf("status %+v", s)
						}
						lists = w.api.lists
						w.want("quiet", time.Hour)
						if w.api.lists != lists {
							t.Error("it still lists")
						}
					})
				})
			}
		}
	}
}

// An object that did not fit during the list after a restore comes later, though it looks unchanged, and once.
func TestQuota_SkippedAfterARestoreComes(t *testing.T) {
	run(t, many, func(t *testing.T, w *env) {
		w.src.MaxPending = 100
		w.src.Watch.Resources[0].Changes = schedule.ChangesSpec
		w.api.put("Website", "ops/a", true, labelledN("one"))
		w.api.put("Website", "ops/b", true, labelledN("many"))
		w.start()
		w.deliver()
		w.settle(time.Minute)
		back := w.api.version
		for range 20 {
			w.api.put("Node", "n", true)
		}
		w.settle(2 * time.Minute)
		w.change(func(src *schedule.Spec) { src.MaxPending = 8 })
		w.api.restore(back)
		w.want("put back", time.Minute, "dev.reschedule.due of-a")
		w.want("waits", time.Hour)
		w.change(func(src *schedule.Spec) { src.MaxPending = 100 })
		if wakes := w.settle(10 * time.Minute); len(wakes) != 9 {
			t.Errorf("%q", keys(wakes))
		}
		w.want("quiet", time.Hour)
	})
}
