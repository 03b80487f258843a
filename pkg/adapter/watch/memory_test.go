package watch

import (
	"fmt"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// A source that selects from more namespaces than its own namespace has memory for waits, takes nothing meanwhile, and
// says why. The memory was neither counted nor bounded. It watches once there are fewer.
func TestNamespaces_TooManyForTheMemory(t *testing.T) {
	run(t, labelled, func(t *testing.T, w *env) {
		for i := range 400 {
			w.api.put("Namespace", fmt.Sprintf("n%03d", i), true, team("b"))
		}
		w.api.put("Namespace", "ops", true, team("a"))
		w.api.put("Website", "ops/a", true)
		w.api.put("Website", "good/a", true)
		w.memory = 40 << 10
		w.start()
		w.want("too many", 10*time.Minute)
		if s, used := w.status(), w.m.remembered.Used(); s.Reason != schedule.WatchQuotaExceeded || !contains(s.Message, "select fewer namespaces") || used > 0 {
			t.Errorf("status %+v, %d bytes are taken", s, used)
		}
		w.neighbour("good")
		w.want("a neighbour", time.Minute, "add Website/good/a")
		for i := range 300 {
			w.api.remove("Namespace", fmt.Sprintf("n%03d", i))
		}
		w.want("fewer", 2*time.Minute, "add Website/ops/a")
		if s := w.status(); s.Status != schedule.WatchTrue {
			t.Errorf("status %+v", s)
		}
	})
}

// Namespaces that come while a source watches find no memory. What it watches goes on, and its status says why.
func TestNamespaces_MoreThanTheMemoryLater(t *testing.T) {
	run(t, labelled, func(t *testing.T, w *env) {
		w.api.put("Namespace", "ops", true, team("a"))
		w.memory = 20 << 10
		w.start()
		w.settle(time.Minute)
		for i := range 200 {
			w.api.put("Namespace", fmt.Sprintf("n%03d", i), true, team("b"))
		}
		w.api.put("Website", "ops/a", true)
		w.want("a change", 10*time.Minute, "add Website/ops/a")
		if s := w.status(); s.Reason != schedule.WatchQuotaExceeded || !contains(s.Message, "Namespace of v1") {
			t.Errorf("status %+v", s)
		}
	})
}

// What a source remembers of each namespace and kind is counted in the share of its namespace, also after a restart,
// when others may have the memory. It reports what changed once it has memory again.
func TestRows_OverTheMemory(t *testing.T) {
	run(t, func() *schedule.Spec {
		src := labelled()
		for i := range 10 {
			src.Watch.Resources = append(src.Watch.Resources, schedule.WatchResource{Version: "v1", Kind: "Website", Selector: fmt.Sprint("x=", i), Changes: schedule.ChangesMetadata, Group: "example.com"})
		}
		return src
	}, func(t *testing.T, w *env) {
		for i := range 30 {
			w.api.put("Namespace", fmt.Sprintf("n%03d", i), true, team("a"))
		}
		w.api.put("Website", "n000/a", true)
		w.start()
		w.want("enough", time.Minute, "add Website/n000/a")
		if used := w.m.remembered.Used(); used < 50_000 {
			t.Errorf("%d bytes are counted", used)
		}
		w.stop()
		w.api.put("Website", "n000/a", true)
		w.memory = 64 << 10
		w.start()
		w.want("too little", 10*time.Minute)
		if s, used := w.status(), w.m.remembered.Used(); s.Reason != schedule.WatchQuotaExceeded || !contains(s.Message, "watch fewer kinds") || used > 0 {
			t.Errorf("status %+v, %d bytes are taken", s, used)
		}
		w.stop()
		w.memory = 0
		w.start()
		w.want("enough again", 5*time.Minute, "update Website/n000/a")
	})
}

// Each watch of one namespace waits in memory. They were begun for all selected namespaces, however many.
func TestNamespaces_FewWatchesWait(t *testing.T) {
	run(t, labelled, func(t *testing.T, w *env) {
		w.api.forbids = func(_ string, q objects.Query) bool { return q.Namespace == "" && q.Resource.Kind != "Namespace" }
		for i := range 40 {
			w.api.put("Namespace", fmt.Sprintf("n%03d", i), true, team("a"))
		}
		w.memory = 256 << 10
		w.start()
		w.settle(5 * time.Minute)
		if n := w.api.open - 1; n < 5 || n > 16 {
			t.Errorf("%d watches are open", n)
		}
		if s := w.status(); s.Reason != schedule.WatchQuotaExceeded || !contains(s.Message, "ClusterRole") {
			t.Errorf("status %+v", s)
		}
		for i := range 38 {
			w.api.put("Namespace", fmt.Sprintf("n%03d", i), true, team("b"))
		}
		w.settle(5 * time.Minute)
		if s := w.status(); s.Status != schedule.WatchTrue {
			t.Errorf("with fewer namespaces: %+v", s)
		}
	})
}

// Where all watches are taken, the namespace that has most gives one to a namespace that has none. Watches that work
// kept their places for ever, and a newcomer's source never watched.
func TestStreams_LargestGivesWay(t *testing.T) {
	run(t, func() *schedule.Spec {
		return sourceOf(
			schedule.WatchResource{Group: "example.com", Version: "v1", Kind: "Website", Changes: schedule.ChangesAny},
			schedule.WatchResource{Version: "v1", Kind: "Node", Changes: schedule.ChangesAny})
	}, func(t *testing.T, w *env) {
		w.streams = 8
		w.start()
		w.settle(time.Minute)
		for i := range 6 {
			other := w.m.streams.Claim(fmt.Sprint("other-", i), "x")
			other.TryGrow(1)
		}
		if used := w.m.streams.Used(); used != 8 {
			t.Fatalf("%d watches are taken", used)
		}
		w.api.put("Website", "good/a", true)
		w.neighbour("good")
		w.want("a newcomer", 12*time.Minute, "add Website/good/a")
		if s := w.status(); s.Reason != schedule.WatchQuotaExceeded || !contains(s.Message, "waits for a free one") {
			t.Errorf("the source that gave way: %+v", s)
		}
		if n := w.api.open; n != 2 {
			t.Errorf("%d watches are open", n)
		}
	})
}

// With more memory there are more watches. There were 512, however much memory the adapter had.
func TestStreams_GrowWithTheMemory(t *testing.T) {
	t.Parallel()
	for memory, want := range map[int64]int64{0: maxStreams, 96 << 20: maxStreams + 1024} {
		m, err := New(Config{Memory: memory})
		if err != nil {
			t.Fatal(err)
		}
		if got := m.streams.Total(); got != want {
			t.Errorf("with %d bytes more there are %d watches, want %d", memory, got, want)
		}
		m.Close()
	}
}
