package watch

import (
	"fmt"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The first start schedules each object once, spread over time, and younger objects
// at once. A restart schedules nothing.
func TestStart_EachObjectOnce(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		var want []string
		for i := range 10 {
			path := fmt.Sprintf("ops/old%d", i)
			w.api.put("Website", path, true, func(o *object) { o.created = w.src.Watch.Since.Add(-time.Hour) })
			want = append(want, "add Website/"+path)
		}
		w.api.put("Website", "ops/young", true)
		w.api.put("Website", "other/elsewhere", true)
		wakes := func() []wake {
			w.start()
			return w.want("first start", time.Minute, append(want, "add Website/ops/young")...)
		}()
		late := 0
		for _, k := range wakes {
			switch {
			case k.key == "Website/ops/young" && k.delay != 0, k.delay < 0, k.delay > 10*time.Minute:
				t.Errorf("%s has a delay of %s", k.key, k.delay)
			case k.delay > time.Minute:
				late++
			}
			if k.uid == "" {
				t.Errorf("%s has no uid", k.key)
			}
		}
		if late < 5 {
			t.Errorf("%d of 10 keys are later than a minute: they are not spread", late)
		}
		if s := w.status(); s.Status != schedule.WatchTrue || s.Objects != 11 {
			t.Errorf("status %+v", s)
		}
		w.stop()
		w.start()
		if marked := w.s.Bytes(); marked == 0 { // the watch has read nothing yet
			t.Error("after a restart the namespace has no bytes of marks")
		}
		lists := w.api.lists
		w.want("restart", time.Hour)
		w.sameBytes()
		if s := w.status(); s.Objects != 11 || w.api.lists != lists {
			t.Errorf("after a restart: %+v, %d lists", s, w.api.lists-lists)
		}
		if w.s.counted > 0 { // it would read all marks, and fill the cache with them
			t.Errorf("the restart counted the marks %d times", w.s.counted)
		}
	})
}

// Changes, status changes and deletions while everything works.
func TestWatch_ChangesWakeOnce(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.start()
		w.want("nothing", time.Minute)
		w.api.put("Website", "ops/a", true)
		k := w.want("made", time.Second, "add Website/ops/a")
		if k[0].delay != 0 || k[0].version != "101" {
			t.Errorf("wake %+v", k[0])
		}
		w.api.put("Website", "ops/a", false)
		w.want("its status changed", time.Second)
		w.api.put("Website", "ops/a", true)
		w.want("changed", time.Second, "update Website/ops/a")
		w.api.remove("Website", "ops/a")
		w.want("deleted", time.Second, "delete Website/ops/a")
		w.api.put("Website", "ops/a", true)
		again := w.want("made again", time.Second, "add Website/ops/a")
		if again[0].uid == k[0].uid {
			t.Error("an object that was made again has the uid of the old one")
		}
		w.want("quiet", time.Hour)
	})
}

// A version that expires between two pages starts the list anew.
func TestList_ExpiresBetweenPages(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		for i := range 9 {
			w.api.put("Website", fmt.Sprintf("ops/%d", i), true)
		}
		w.api.onPage = func(n int) error {
			if n == 2 {
				w.api.remove("Website", "ops/0")
				w.api.compact()
			}
			return nil
		}
		w.start()
		wakes := w.settle(time.Minute)
		got := map[string]int{}
		for _, k := range wakes {
			got[k.verb+" "+k.key]++
		}
		if len(wakes) != 10 || got["delete Website/ops/0"] != 1 || got["add Website/ops/8"] != 1 {
			t.Errorf("scheduled %v", got)
		}
		w.want("quiet", time.Hour)
	})
}

// A crash between two pages repeats nothing of the first, and loses no deletion.
func TestList_CrashBetweenPages(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		for i := range 9 {
			w.api.put("Website", fmt.Sprintf("ops/%d", i), true)
		}
		w.api.onPage = func(n int) error {
			if n > 2 {
				return errDown
			}
			return nil
		}
		w.start()
		first := len(w.settle(10 * time.Second))
		if first != 6 {
			t.Fatalf("%d objects of two pages were scheduled", first)
		}
		w.lose(0, nil)
		w.api.remove("Website", "ops/1")
		w.api.onPage = nil
		w.start()
		w.want("after the crash", time.Minute, "delete Website/ops/1", "add Website/ops/6", "add Website/ops/7", "add Website/ops/8")
	})
}

// A list out of order proves no deletion.
func TestList_OutOfOrder(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.api.shuffled = true
		for i := range 5 {
			w.api.put("Website", fmt.Sprintf("ops/%d", i), true)
		}
		w.start()
		if n := len(w.settle(time.Minute)); n != 5 {
			t.Errorf("%d objects were scheduled", n)
		}
		w.stop()
		w.api.put("Website", "ops/4", true)
		w.api.compact()
		w.start()
		w.want("restart", time.Minute, "update Website/ops/4")
		if len(w.warned) == 0 {
			t.Error("the owner was not warned")
		}
	})
}
