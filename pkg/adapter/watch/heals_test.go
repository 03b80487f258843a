package watch

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// Whatever of the API server is broken for a minute heals by itself when the cause is gone, without a restart: each
// change meanwhile wakes its key, and the watch is True again. A row breaks one thing and repairs it.
func TestHeals_APIServerBrokenForAMinute(t *testing.T) {
	refuse := func(verbs ...string) func(w *env) {
		return func(w *env) {
			w.api.set(func() {
				w.api.forbids = func(verb string, _ objects.Query) bool { return slices.Contains(verbs, verb) }
			})
			w.api.cut()
		}
	}
	allow := func(w *env) { w.api.set(func() { w.api.forbids = nil }) }
	for name, row := range map[string]struct {
		breaks, repairs func(w *env)
		says            string // by the status after a minute
	}{
		"away":          {func(w *env) { w.api.set(func() { w.api.down = true }); w.api.cut() }, func(w *env) { w.api.set(func() { w.api.down = false }) }, "Unreachable"},
		"refuses list":  {refuse("list"), allow, ""},
		"refuses watch": {refuse("watch"), allow, "Forbidden"},
		"refuses all":   {refuse("list", "watch"), allow, "Forbidden kubectl auth can-i list websites.example.com -n ops --as=system:serviceaccount:ops:watcher"},
		"every page is too slow": {func(w *env) {
			w.api.compact()
			w.api.cut()
			w.api.set(func() { w.api.onPage = func(int) error { return errors.New("a timeout") } })
		}, func(w *env) { w.api.set(func() { w.api.onPage = nil }) }, ""},
		"the history is compacted": {func(w *env) { w.api.cut(); w.api.compact() }, func(*env) {}, ""},
		"the CRD is deleted and installed again": {
			func(w *env) { w.api.set(func() { delete(w.api.kinds, "Website") }); w.api.cut() },
			func(w *env) { w.api.set(func() { w.api.kinds["Website"] = website }) }, "NoSuchKind",
		},
		"etcd is put back": {
			func(w *env) {
				for range 20 {
					w.api.put("Node", "n", true)
				}
				w.settle(2 * time.Minute)
				w.api.restore(w.api.version - 20)
			},
			func(*env) {}, "",
		},
		"the quota is used up": {
			func(w *env) { w.change(func(src *schedule.Spec) { src.MaxPending = 2 }) },
			func(w *env) { w.change(func(src *schedule.Spec) { src.MaxPending = 1000 }) }, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, own, func(t *testing.T, w *env) {
				w.api.put("Website", "ops/a", true)
				w.api.put("Website", "ops/b", true)
				w.start()
				w.settle(time.Minute)
				row.breaks(w)
				w.api.put("Website", "ops/a", true)
				w.api.remove("Website", "ops/b")
				w.api.put("Website", "ops/c", true)
				woken := map[string]bool{}
				pass := func(d time.Duration) {
					for _, k := range w.settle(d) {
						woken[k.key] = true
					}
				}
				pass(4 * time.Second)
				if s := w.status(); name == "away" && s.Status != schedule.WatchTrue {
					t.Errorf("at once: %+v", s)
				}
				pass(time.Minute)
				if s, says := w.status(), strings.Fields(row.says); len(says) > 0 && (s.Status != schedule.WatchFalse || string(s.Reason) != says[0] || !contains(s.Message, strings.Join(says[1:], " "))) {
					t.Errorf("status %+v", s)
				}
				row.repairs(w)
				pass(6 * time.Minute)
				w.api.put("Website", "ops/d", true)
				pass(time.Minute)
				for _, key := range []string{"Website/ops/a", "Website/ops/b", "Website/ops/c", "Website/ops/d"} {
					if !woken[key] {
						t.Errorf("%s is not woken", key)
					}
				}
				if s := w.status(); s.Status != schedule.WatchTrue || s.Objects != 3 {
					t.Errorf("status %+v", s)
				}
			})
		})
	}
}
