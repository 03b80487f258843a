package watch

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// A burst of changes is reported in batches, and none is lost.
func TestBurst_IsBatched(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.start()
		w.settle(time.Minute)
		batches := w.s.batch
		const n = 2000
		for i := range n {
			w.api.put("Website", fmt.Sprintf("ops/%d", i), true)
		}
		if got := len(w.settle(10 * time.Second)); got != n {
			t.Errorf("%d of %d were scheduled", got, n)
		}
		if batches = w.s.batch - batches; batches > n/50 {
			t.Errorf("%d batches for %d changes", batches, n)
		}
	})
}

// A source over its quota waits, alone, and loses nothing.
func TestQuota_BlocksAndLosesNothing(t *testing.T) {
	run(t, func() *schedule.Spec {
		src := own()
		src.MaxPending = 5
		return src
	}, func(t *testing.T, w *env) {
		for i := range 12 {
			w.api.put("Website", fmt.Sprintf("ops/%02d", i), true)
		}
		w.start()
		got := w.settle(time.Minute)
		if len(got) != 5 {
			t.Errorf("%q were scheduled, the quota is 5", keys(got))
		}
		if len(w.warned) == 0 || !strings.Contains(w.warned[0], "limits.maxPending") {
			t.Errorf("warnings %q", w.warned)
		}
		w.change(func(src *schedule.Spec) { src.MaxPending = 100 })
		if got := w.settle(10 * time.Minute); len(got) != 7 {
			t.Errorf("then %q, want 7 more", keys(got))
		}
		w.change(func(src *schedule.Spec) { src.MaxPending = 12 })
		w.api.put("Website", "ops/00", true)
		w.api.put("Website", "ops/new", true)
		w.api.put("Website", "ops/01", true)
		w.want("what is before the refused one", time.Minute, "update Website/ops/00")
		w.change(func(src *schedule.Spec) { src.MaxPending = 13 })
		w.want("the rest, once", 10*time.Minute, "add Website/ops/new", "update Website/ops/01")
	})
}

// An object whose metadata is too large is left out, the others go on.
func TestLarge_OthersGoOn(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.start()
		w.settle(time.Minute)
		s := w.m.find(w.src.UID)
		st := s.resources[0].stream("ops", nil)
		for _, gone := range []bool{false, true} {
			o := &objects.Object{Namespace: "ops", Name: "huge", UID: "u", Version: "1", TooLarge: true}
			if err := st.compare(context.Background(), &st.batch, comparison{object: o, gone: gone, known: true, version: "1"}); err != nil || len(st.batch.changes) > 0 {
				t.Errorf("%v, %v", st.batch.changes, err)
			}
		}
		if len(w.warned) != 1 {
			t.Errorf("warnings %q", w.warned)
		}
	})
}

// The watches of a suspended source close after a while, and one list at most is made
// when it goes on.
func TestSuspended_ClosesItsWatches(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.api.put("Website", "ops/a", true)
		w.start()
		w.settle(time.Minute)
		w.change(func(src *schedule.Spec) { src.Suspend = true })
		w.api.put("Website", "ops/a", true)
		w.want("suspended for a moment", time.Minute, "update Website/ops/a")
		w.settle(5 * time.Minute)
		if w.api.open != 0 {
			t.Errorf("%d watches are open", w.api.open)
		}
		lists, watches := w.api.lists, w.api.watches
		w.api.put("Website", "ops/a", true)
		w.api.remove("Website", "ops/gone")
		w.api.compact()
		w.want("suspended", 24*time.Hour)
		if w.api.lists != lists || w.api.watches != watches {
			t.Error("the API server was called")
		}
		w.change(func(src *schedule.Spec) { src.Suspend = false })
		w.want("resumed", time.Minute, "update Website/ops/a")
		if w.api.lists != lists+1 {
			t.Errorf("%d lists", w.api.lists-lists)
		}
	})
}

// A resync of more objects than the quota of the source wakes each of them once, as
// keys end.
func TestResync_QuotaRepeatsNothing(t *testing.T) {
	run(t, func() *schedule.Spec {
		src := own()
		src.Watch.ResyncOnRevision = true
		src.Watch.Revision, src.MaxPending = "r1", 10
		return src
	}, func(t *testing.T, w *env) {
		const n = 45
		for i := range n {
			w.api.put("Website", fmt.Sprintf("ops/%02d", i), true)
		}
		deliver := func() map[string]int {
			runs := map[string]int{}
			for range 20 {
				for _, k := range w.settle(10 * time.Minute) {
					runs[k.key]++
				}
				if _, err := w.s.source.CancelAll(t.Context(), ""); err != nil {
					t.Fatal(err)
				}
			}
			return runs
		}
		w.start()
		deliver()
		w.change(func(src *schedule.Spec) { src.Watch.Revision = "r2" })
		runs := deliver()
		for key, times := range runs {
			if times != 1 {
				t.Errorf("%s was scheduled %d times", key, times)
			}
		}
		if len(runs) != n {
			t.Errorf("%d of %d objects were scheduled", len(runs), n)
		}
	})
}

// A new revision of the sink schedules every object once; the first one does not, nor
// does a restart.
func TestResync_OnRevision(t *testing.T) {
	run(t, func() *schedule.Spec {
		src := own()
		src.Watch.ResyncOnRevision = true
		src.Watch.Resources = append(src.Watch.Resources, schedule.WatchResource{
			Group: "apps", Version: "v1", Kind: "Deployment", OwnerGroup: "example.com", OwnerKind: "Website", Changes: schedule.ChangesAny,
		})
		return src
	}, func(t *testing.T, w *env) {
		for _, path := range []string{"ops/a", "ops/b"} {
			w.api.put("Website", path, true)
		}
		owned := func(name string) func(*object) {
			return func(o *object) { o.owners = []any{ownerOf("example.com/v1", "Website", name)} }
		}
		w.api.put("Deployment", "ops/of-a", true, owned("a"))
		w.api.put("Deployment", "ops/of-c", true, owned("c"))
		w.start()
		w.settle(time.Minute)
		revision := func(name string) {
			w.change(func(src *schedule.Spec) { src.Watch.Revision = name })
		}
		revision("r1")
		w.want("the first revision", time.Minute)
		revision("r2")
		for _, k := range w.want("a new revision", time.Minute, "Website/ops/a", "Website/ops/b", "dev.reschedule.due Website/ops/c") {
			if k.reason != "resync" || k.delay > 10*time.Minute {
				t.Errorf("wake %+v", k)
			}
		}
		w.stop()
		w.start()
		w.want("restart", time.Minute)
		over := time.Duration(0)
		n, err := w.m.Resync(t.Context(), w.src.UID, "Website/ops/a", &over)
		if err != nil || n != 1 {
			t.Errorf("resync of a prefix: %d, %v", n, err)
		}
		if k := w.want("a prefix", 0, "Website/ops/a"); k[0].delay != 0 {
			t.Errorf("wake %+v", k)
		}
		if _, err := w.m.Resync(t.Context(), "none", "", nil); err == nil {
			t.Error("a source that does not watch was resynced")
		}
	})
}

// A source that would take too many watches has this in its status, and keeps its watches.
func TestStreams_AreBounded(t *testing.T) {
	run(t, labelled, func(t *testing.T, w *env) {
		w.api.forbids = func(_ string, q objects.Query) bool { return q.Namespace == "" && q.Resource.Kind != "Namespace" }
		for i := range 8 {
			name := fmt.Sprintf("n%d", i)
			w.api.put("Namespace", name, true, team("a"))
		}
		w.streams = 16
		w.start()
		w.settle(2 * time.Minute)
		if n := w.api.open - 1; n < 2 || n > 4 {
			t.Errorf("%d watches are open, there may be 16 of all sources", n)
		}
		if s := w.status(); s.Status == schedule.WatchTrue || !strings.Contains(s.Message, "ClusterRole") {
			t.Errorf("status %+v", s)
		}
	})
}

// A kind that does not exist, and a right that is missing, take no watch of the others: a few sources without a
// single right took all.
func TestStreams_WaitingOnesGiveWay(t *testing.T) {
	run(t, func() *schedule.Spec {
		all := []schedule.WatchResource{{Version: "v1", Kind: "Node", Changes: schedule.ChangesAny}}
		for i := range 20 {
			all = append(all, schedule.WatchResource{Version: "v1", Kind: fmt.Sprint("Missing", i), Changes: schedule.ChangesAny})
		}
		return sourceOf(append(all, schedule.WatchResource{Group: "example.com", Version: "v1", Kind: "Website", Changes: schedule.ChangesAny})...)
	}, func(t *testing.T, w *env) {
		w.api.forbids = func(_ string, q objects.Query) bool { return q.Resource.Kind == "Node" }
		w.api.put("Website", "ops/a", true)
		w.streams = 4
		w.start()
		w.want("what may be watched", 2*time.Minute, "add Website/ops/a")
		w.api.put("Website", "ops/a", true)
		w.want("a change", time.Second, "update Website/ops/a")
		if n := w.m.streams.Used(); n != 1 {
			t.Errorf("%d watches are taken, and one is open", n)
		}
	})
}
