package watch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// The bytes follow the marks: objects that come, change their keys and go, resources that are
// watched no longer, and the end of all watching.
func TestBytes_FollowTheMarks(t *testing.T) {
	run(t, func() *schedule.Spec {
		return sourceOf(schedule.WatchResource{Group: "apps", Version: "v1", Kind: "Deployment", OwnerGroup: "example.com", OwnerKind: "Website", Changes: schedule.ChangesMetadata},
			schedule.WatchResource{Group: "example.com", Version: "v1", Kind: "Website", Changes: schedule.ChangesMetadata})
	}, func(t *testing.T, w *env) {
		w.start()
		owned := func(names ...string) func(*object) {
			return func(o *object) {
				o.owners = nil
				for _, name := range names {
					o.owners = append(o.owners, ownerOf("example.com/v1", "Website", name))
				}
			}
		}
		last := int64(0)
		step := func(what string, d time.Duration, compare func(now, before int64) bool) {
			t.Helper()
			w.settle(d)
			now := w.s.Bytes()
			if !compare(now, last) {
				t.Errorf("%s: %d bytes, before %d", what, now, last)
			}
			last = now
			w.sameBytes()
		}
		more := func(now, before int64) bool { return now > before }
		less := func(now, before int64) bool { return now < before }
		for i := range 10 {
			w.api.put("Website", fmt.Sprintf("ops/%d", i), true)
			w.api.put("Deployment", fmt.Sprintf("ops/%d", i), true, owned("a"))
		}
		step("objects", time.Minute, more)
		w.api.put("Deployment", "ops/1", true, owned("a", strings.Repeat("b", 200)))
		step("one more owner", time.Minute, more)
		w.api.put("Deployment", "ops/1", true, owned("a"))
		step("an owner less", time.Minute, less)
		w.api.put("Deployment", "ops/2", true, owned())
		step("no owner", time.Minute, less)
		w.api.remove("Website", "ops/3")
		step("a deletion", time.Minute, less)
		w.api.cut()
		w.api.remove("Website", "ops/4")
		w.api.compact()
		step("a deletion that a list finds", 10*time.Minute, less)
		w.change(func(src *schedule.Spec) { src.Watch.Resources = src.Watch.Resources[:1] })
		step("a resource less", time.Minute, less)
		w.stop()
		without := *w.src
		without.Watch = nil
		w.src = &without
		w.start()
		w.settle(time.Minute)
		if marked, marks := w.s.Bytes(), w.marks(); marked != 0 || len(marks) > 0 {
			t.Errorf("no watch: %d bytes, marks of %q", marked, marks)
		}
	})
}

// Watches of two namespaces, whose objects change their keys at the same time, share the row
// of their bytes: after a restart it has both.
func TestBytes_OfTwoWatchesAtOnce(t *testing.T) {
	run(t, func() *schedule.Spec {
		src := sourceOf(schedule.WatchResource{Group: "apps", Version: "v1", Kind: "Deployment", OwnerGroup: "example.com", OwnerKind: "Website", Changes: schedule.ChangesMetadata})
		src.Watch.OwnNamespace, src.Watch.Namespaces = false, "team=a"
		return src
	}, func(t *testing.T, w *env) {
		w.api.forbids = func(_ string, q objects.Query) bool { return q.Namespace == "" && q.Resource.Kind != "Namespace" }
		put := func(length int) {
			for _, name := range []string{"n1", "n2"} {
				w.api.put("Namespace", name, true, team("a"))
				w.api.put("Deployment", name+"/d", true, func(o *object) { o.owners = []any{ownerOf("example.com/v1", "Website", strings.Repeat("a", length))} })
			}
		}
		put(10)
		w.start()
		w.settle(time.Hour)
		w.mu.Lock()
		w.s.yield = true
		w.mu.Unlock()
		put(150)
		w.settle(time.Hour)
		w.sameBytes()
		w.stop()
		w.start()
		w.settle(time.Hour)
		w.sameBytes()
	})
}

// The marks of a damaged row are counted again, once. Nothing is scheduled or listed for that.
func TestBytes_DamagedRowIsCountedAnew(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		for i := range 10 {
			w.api.put("Website", fmt.Sprintf("ops/%d", i), true)
		}
		w.start()
		w.settle(time.Minute)
		marked := w.s.Bytes()
		w.m.Close()
		states, err := w.s.States()
		at := slices.IndexFunc(states, func(s store.WatchState) bool { _, ok := s.MarkCount(); return ok })
		if err != nil || at < 0 {
			t.Fatal(states, err)
		}
		count, _ := states[at].MarkCount()
		states[at].Scope = fmt.Sprintf("c|%016x|%d|-1", count.Watch, count.Marks)
		if err := w.s.SetState(states[at]); err != nil {
			t.Fatal(err)
		}
		for start, counted := range []int{1, 0} {
			w.stop()
			w.start()
			lists := w.api.lists
			w.want("a start", time.Hour)
			if w.s.counted != counted || w.api.lists != lists || w.s.Bytes() != marked || marked == 0 {
				t.Errorf("start %d: counted %d times, %d lists, %d bytes, before %d", start, w.s.counted, w.api.lists-lists, w.s.Bytes(), marked)
			}
			w.sameBytes()
		}
	})
}

// A count of a watch whose marks a crash has removed before it goes away, and its bytes with it.
func TestBytes_CountWithoutMarksGoes(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.start()
		w.settle(time.Minute)
		if err := w.s.SetState(counted(77, 10, 5000)); err != nil {
			t.Fatal(err)
		}
		w.stop()
		w.start()
		if marked := w.s.Bytes(); marked != 5000 {
			t.Errorf("%d bytes before the watch begins", marked)
		}
		w.settle(time.Minute)
		w.sameBytes()
	})
}

// A source whose objects are more than max-bytes lets it remember says so, and reports the
// rest once the administrator allows more.
func TestBytes_QuotaIsInTheStatus(t *testing.T) {
	run(t, func() *schedule.Spec {
		src := own()
		src.Ceilings.MaxBytes = 6000
		return src
	}, func(t *testing.T, w *env) {
		const n = 60
		put := func(from, to int) {
			for i := from; i < to; i++ {
				w.api.put("Website", fmt.Sprintf("ops/%02d", i), true)
			}
		}
		says := func(status string) {
			t.Helper()
			s := w.status()
			if s.Status != status || (s.Reason == schedule.WatchQuotaExceeded) != (status == schedule.WatchFalse) ||
				status == schedule.WatchFalse && !strings.Contains(s.Message, "max-bytes in config-reschedule") {
				t.Errorf("status %+v, want %s", s, status)
			}
			w.sameBytes()
		}
		put(0, n)
		w.start()
		if got := len(w.settle(time.Minute)); got == 0 || got >= n {
			t.Errorf("%d were scheduled", got)
		}
		says(schedule.WatchFalse)
		if !slices.ContainsFunc(w.warned, func(s string) bool { return strings.Contains(s, "max-bytes in config-reschedule") }) {
			t.Errorf("warnings %q", w.warned)
		}
		w.change(func(src *schedule.Spec) { src.Ceilings.MaxBytes = 1 << 20 })
		w.settle(10 * time.Minute)
		says(schedule.WatchTrue)
		if objects := w.status().Objects; objects != n {
			t.Errorf("%d objects, want %d", objects, n)
		}
		w.change(func(src *schedule.Spec) { src.Ceilings.MaxBytes = 1000 })
		put(n, n+1)
		w.settle(5 * time.Second)
		says(schedule.WatchTrue) // it may pass
		w.settle(time.Minute)
		says(schedule.WatchFalse)
		w.change(func(src *schedule.Spec) { src.Ceilings.MaxBytes = 0 })
		w.settle(2 * time.Minute)
		says(schedule.WatchTrue)
	})
}

// A quota stays in the status until what was refused is stored: a watch that is opened again waits before
// it reads the refused change anew, and said then that all was well.
func TestBytes_QuotaStaysInTheStatus(t *testing.T) {
	run(t, func() *schedule.Spec {
		src := own()
		src.Ceilings.MaxBytes = 1000
		return src
	}, func(t *testing.T, w *env) {
		w.start()
		w.settle(time.Minute)
		for i := range 20 {
			w.api.put("Website", fmt.Sprintf("ops/%02d", i), true)
		}
		w.settle(time.Minute)
		for i := range 600 {
			if s := w.status(); s.Reason != schedule.WatchQuotaExceeded {
				t.Fatalf("after %d s: %+v", i, s)
			}
			w.settle(time.Second)
		}
		w.change(func(src *schedule.Spec) { src.Ceilings.MaxBytes = 0 })
		w.settle(10 * time.Minute)
		if s := w.status(); s.Status != schedule.WatchTrue || s.Objects != 20 {
			t.Errorf("without a quota: %+v", s)
		}
	})
}

// Deletions free bytes in a namespace that is full of marks, also when the list, or the watch,
// is stuck at an object that does not fit.
func TestBytes_DeletionsFreeSpace(t *testing.T) {
	for name, before := range map[string]int{"in the first list": 400, "in the watch": 100} {
		t.Run(name, func(t *testing.T) {
			run(t, func() *schedule.Spec {
				src := own()
				src.Ceilings.MaxBytes = 30_000
				return src
			}, func(t *testing.T, w *env) {
				put := func(from, to int) {
					for i := from; i < to; i++ {
						w.api.put("Website", fmt.Sprintf("ops/%03d", i), true)
					}
				}
				w.api.page = 100
				put(0, before)
				w.start()
				w.mu.Lock()
				w.s.delivers = true
				w.mu.Unlock()
				w.settle(20 * time.Minute)
				put(before, 400)
				w.settle(20 * time.Minute)
				fits := int(w.status().Objects)
				if fits < 200 || fits > 290 || w.status().Status != schedule.WatchFalse {
					t.Fatalf("status %+v", w.status())
				}
				for i := range 250 {
					w.api.remove("Website", fmt.Sprintf("ops/%03d", i))
				}
				got, wrong := keys(w.settle(20*time.Minute)), 0
				for i := range 400 {
					verb := "delete"
					if i >= 250 {
						verb = "add"
					}
					if slices.Contains(got, fmt.Sprintf("%s Website/ops/%03d", verb, i)) != (i < 250 || i >= fits) {
						wrong++
					}
				}
				if s := w.status(); wrong > 0 || s.Status != schedule.WatchTrue || s.Objects != 150 {
					t.Errorf("of %d marks, %d keys are wrong; status %+v", fits, wrong, s)
				}
				w.sameBytes()
			})
		})
	}
}

// Deletions free bytes again and again. After the list that found the first ones the watch stood still at
// the next object that did not fit, and hid the deletions behind it for as long as its version lived.
func TestBytes_DeletionsFreeSpaceAgain(t *testing.T) {
	run(t, func() *schedule.Spec {
		src := own()
		src.Ceilings.MaxBytes = 30_000
		return src
	}, func(t *testing.T, w *env) {
		w.start()
		w.mu.Lock()
		w.s.delivers = true
		w.mu.Unlock()
		const all, fits = 400, 150
		for round := range 2 {
			for i := range all {
				w.api.put("Website", fmt.Sprintf("ops/%d-%03d", round, i), true)
			}
			w.settle(20 * time.Minute)
			if s := w.status(); s.Reason != schedule.WatchQuotaExceeded {
				t.Fatalf("round %d, %d objects: %+v", round, all, s)
			}
			for i := range all - fits {
				w.api.remove("Website", fmt.Sprintf("ops/%d-%03d", round, i))
			}
			for i := 0; w.status().Status != schedule.WatchTrue; i++ {
				if w.settle(time.Second); i > 1200 {
					t.Fatalf("round %d, %d objects: %+v", round, fits, w.status())
				}
			}
			for i := range fits {
				w.api.remove("Website", fmt.Sprintf("ops/%d-%03d", round, all-fits+i))
			}
		}
		w.settle(20 * time.Minute)
		if s := w.status(); s.Status != schedule.WatchTrue || s.Objects != 0 {
			t.Errorf("without objects: %+v", s)
		}
		w.sameBytes()
	})
}

// A change that is refused while other namespaces are selected is read again. Its watch, which ended for
// them, went on behind it.
func TestBytes_RefusedWhileNamespacesChange(t *testing.T) {
	run(t, func() *schedule.Spec {
		src := own()
		src.Watch.OwnNamespace, src.Watch.Namespaces = false, "team=a"
		return src
	}, func(t *testing.T, w *env) {
		w.api.put("Namespace", "n1", true, team("a"))
		w.start()
		w.settle(time.Minute)
		w.change(func(src *schedule.Spec) { src.Ceilings.MaxBytes = 10 })
		w.mu.Lock()
		w.s.before = func() {
			w.mu.Lock()
			w.s.before = nil
			w.mu.Unlock()
			w.api.put("Namespace", "n2", true, team("a"))
			pass(time.Second)
		}
		w.mu.Unlock()
		w.api.put("Website", "n1/a", true)
		w.want("over the ceiling", time.Minute)
		w.change(func(src *schedule.Spec) { src.Ceilings.MaxBytes = 0 })
		w.want("no ceiling", 10*time.Minute, "add Website/n1/a")
	})
}

// A tenant whose marks are large is refused, and its neighbour is not.
func TestBytes_NeighbourIsNotRefused(t *testing.T) {
	run(t, func() *schedule.Spec {
		src := sourceOf(schedule.WatchResource{Group: "apps", Version: "v1", Kind: "Deployment", OwnerGroup: "example.com", OwnerKind: "Website", Changes: schedule.ChangesMetadata})
		src.Ceilings.MaxBytes = 200_000
		return src
	}, func(t *testing.T, w *env) {
		var owners []any
		for i := range 60 {
			owners = append(owners, ownerOf("example.com/v1", "Website", strings.Repeat("a", 200)+fmt.Sprint(i)))
		}
		for i := range 40 {
			w.api.put("Deployment", fmt.Sprintf("ops/%02d", i), true, func(o *object) { o.owners = owners })
			w.api.put("Website", fmt.Sprintf("good/%02d", i), true)
		}
		w.start()
		neighbour := own()
		neighbour.UID, neighbour.Namespace, neighbour.Ceilings.MaxBytes = "6b1f6d6e-4f0c-4c5e-9a53-000000000002", "good", 200_000
		q, err := w.q.Set(neighbour)
		if err != nil {
			t.Fatal(err)
		}
		w.m.Set(neighbour, &q.Marks)
		w.settle(10 * time.Minute)
		if s, marked := w.status(), w.s.Bytes(); s.Reason != schedule.WatchQuotaExceeded || marked == 0 || marked > 200_000 {
			t.Errorf("status %+v, %d bytes", s, marked)
		}
		if s, ok := w.m.Status(neighbour.UID); !ok || s.Status != schedule.WatchTrue || s.Objects != 40 {
			t.Errorf("the neighbour: %+v", s)
		}
	})
}

// The owner of a source learns that an object has more owners than its change wakes.
func TestOwners_TooManyAreTold(t *testing.T) {
	run(t, func() *schedule.Spec {
		return sourceOf(schedule.WatchResource{Group: "apps", Version: "v1", Kind: "Deployment", OwnerGroup: "example.com", OwnerKind: "Website", Changes: schedule.ChangesMetadata})
	}, func(t *testing.T, w *env) {
		var owners []any
		own := func(o *object) { o.owners = owners }
		for i := range maxOwners {
			owners = append(owners, ownerOf("example.com/v1", "Website", fmt.Sprint(i)), ownerOf("example.com/v1", "Other", fmt.Sprint(i)))
		}
		w.api.put("Deployment", "ops/most", true, own)
		w.start()
		if got := len(w.settle(10 * time.Minute)); got != maxOwners || len(w.warned) > 0 {
			t.Errorf("%d owners were scheduled, and told: %q", got, w.warned)
		}
		owners = append(owners, ownerOf("example.com/v1", "Website", "more"))
		w.api.put("Deployment", "ops/toomany", true, own)
		if got := len(w.settle(10 * time.Minute)); got != maxOwners || len(w.warned) != 1 || !strings.Contains(w.warned[0], "more than 64 owners") {
			t.Errorf("%d owners were scheduled, and told: %q", got, w.warned)
		}
	})
}
