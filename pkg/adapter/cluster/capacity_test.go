package cluster

import (
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/capacity"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// large makes an object take some 200 KB, twice.
func large(o *v1alpha1.RescheduleSource) {
	o.Spec.Watch = &v1alpha1.RescheduleSourceWatch{}
	for i := range 25 {
		o.Spec.Watch.Resources = append(o.Spec.Watch.Resources, v1alpha1.WatchResource{APIVersion: "v1", Kind: fmt.Sprint("Kind", i), Key: "'" + strings.Repeat("k", 4000) + "'"})
	}
}

// The second gigabyte of a group's member is for etcd: sources took half of it. It is not parallel: it sets the memory
// limit of the process.
func TestSources_MembersMemoryIsForTheLog(t *testing.T) {
	manifest, err := os.ReadFile("../../../config/replicated/Kustomization")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("- name: GOMEMLIMIT\n              value: %dMiB\n", shippedToMembers>>20); !strings.Contains(string(manifest), want) {
		t.Errorf("the manifest does not have %q", want)
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(shippedToMembers))
	if total := totalFor(true); total != SourceBytes {
		t.Errorf("all sources of a member may take %d bytes, want %d", total, SourceBytes)
	}
	if total := totalFor(false); total <= SourceBytes {
		t.Errorf("with more memory than a single adapter is shipped with, sources may take %d bytes", total)
	}
}

func inNamespace(namespace string) func(*v1alpha1.RescheduleSource) {
	return func(o *v1alpha1.RescheduleSource) { o.Namespace, o.UID = namespace, o.UID+"-in-"+o.UID }
}

// inSmall runs a test in a bubble where all sources have one MiB.
func inSmall(t *testing.T, test func(*env)) {
	t.Helper()
	inCluster(t, func(r *env) {
		r.sourceBytes = 1 << 20
		test(r)
	})
}

// A namespace with many large sources gets half of the memory; its neighbour's new source runs. When
// sources are deleted, others that were refused run within a minute, without a restart.
func TestSources_BeyondTheMemoryAreRefused(t *testing.T) {
	inSmall(t, func(r *env) {
		c := r.run()
		var hostile []*v1alpha1.RescheduleSource
		for i := range 20 {
			hostile = append(hostile, object(fmt.Sprint("s", i), large))
			r.put(hostile[i])
		}
		running := len(r.registry.uids())
		if running == 0 || running > 4 || c.capacity.Used() > 512<<10 {
			t.Fatalf("%d sources run, which take %d", running, c.capacity.Used())
		}
		neighbour := object("new", inNamespace("neighbours"))
		if r.put(neighbour); r.registry.source(string(neighbour.UID)) == nil {
			t.Error("the neighbour's source does not run")
		}
		pass(time.Second)
		if n := r.log.count("MiB of memory"); n != len(hostile)-running {
			t.Errorf("%d refusals are in the log, want one for each of %d", n, len(hostile)-running)
		}
		if got := len(r.events()); got != len(hostile)-running {
			t.Errorf("%d Events, want one on each of %d", got, len(hostile)-running)
		}
		for _, o := range hostile[:running] {
			r.remove(o)
		}
		pass(time.Minute)
		if got := len(r.registry.uids()); got != running+1 {
			t.Errorf("%d sources run after the others were deleted, want %d and the neighbour's", got-1, running)
		}
		for _, o := range hostile[running:] {
			r.remove(o)
		}
		r.remove(neighbour)
		if used := c.capacity.Used(); used != 0 {
			t.Errorf("%d bytes are counted of no source", used)
		}
	})
}

// After a restart the sources run that ran before, and not a refused one that the list names first. It
// runs at once when it fits.
func TestStart_SourcesThatRanComeFirst(t *testing.T) {
	inSmall(t, func(r *env) {
		refused := object("a", large, func(o *v1alpha1.RescheduleSource) { o.Status.Refused = "no memory" })
		fits := object("b", func(o *v1alpha1.RescheduleSource) { o.Status.Refused = "no memory" }, inNamespace("neighbours"))
		objects := []*v1alpha1.RescheduleSource{refused, fits}
		for i := range 4 { // more than half of the memory
			objects = append(objects, object(fmt.Sprint("ran", i), large, func(o *v1alpha1.RescheduleSource) { o.Status.Pending = new(int64(0)) }))
		}
		for _, o := range objects {
			r.put(o)
		}
		r.run()
		for _, o := range objects[1:] {
			if r.registry.source(string(o.UID)) == nil {
				t.Errorf("%s does not run", o.Name)
			}
		}
		if r.registry.source(string(refused.UID)) != nil {
			t.Error("the refused one runs")
		}
	})
}

// An update that is too large leaves the last valid spec in force, and takes effect once it fits.
func TestUpdate_BeyondTheMemoryWaits(t *testing.T) {
	inSmall(t, func(r *env) {
		c := r.run()
		other, o := object("other", large), object("x")
		r.put(other)
		r.put(object("another", large))
		r.put(o)
		before := r.registry.source(string(o.UID))
		grown := object("x", large)
		grown.Generation = 2
		r.put(grown)
		if now := r.registry.source(string(o.UID)); before == nil || now != before {
			t.Error("the last valid spec is not in force")
		}
		r.remove(other)
		pass(time.Minute)
		if now := r.registry.source(string(o.UID)); now == nil || now.Watch == nil {
			t.Error("the update has not taken effect")
		}
		held := c.capacity.Used()
		if held < 400<<10 {
			t.Errorf("%d bytes are counted of two large sources", held)
		}
		small := object("x")
		small.Generation = 3
		r.put(small)
		if now := c.capacity.Used(); now > held-150<<10 {
			t.Errorf("%d bytes are counted with a small source, %d with a large one", now, held)
		}
	})
}

// A source that has no memory says so in its status within two seconds, once, also when it was never in
// force, and no more once it runs. Without that its Ready said True.
func TestRefused_IsInTheStatus(t *testing.T) {
	inSmall(t, func(r *env) {
		c := r.run()
		others := []*v1alpha1.RescheduleSource{object("one", large), object("two", large)}
		for _, o := range others {
			r.put(o)
		}
		refused := object("x", large)
		r.put(refused)
		pass(2 * time.Second)
		if p := r.patches(); len(p) != 1 || !strings.HasPrefix(p[0], `x {"status":{"refused":"the RescheduleSources of namespace ops have`) || c.Refused() != 1 {
			t.Fatalf("%d are refused: %q", c.Refused(), p)
		}
		grown := object("one", large)
		grown.Spec.Sink.CACerts, grown.Generation = new(strings.Repeat("c", 300<<10)), 2
		r.registry.count("one-1", 0, time.Time{})
		r.put(grown)
		pass(2 * time.Minute)
		p := r.patches()
		if len(p) < 2 || !strings.HasPrefix(p[1], `one {"status":{"refused":"`) || strings.Count(strings.Join(p, ""), "refused") != 2 || c.Refused() != 2 {
			t.Fatalf("%d are refused: %q", c.Refused(), p)
		}
		r.sources.ClearActions()
		r.remove(others[1])
		pass(time.Minute)
		// In fake time a round may report the source at the very instant of the prompt report, before the
		// informer has the answer to either: the two are the same.
		if p := slices.Compact(r.patches()); len(p) != 1 || p[0] != `x {"status":{"refused":null}}` || c.Refused() != 1 {
			t.Errorf("%d are refused: %q", c.Refused(), p)
		}
	})
}

// The report of a start before is taken back; and an adapter that does not serve the source reports
// nothing, whatever has memory there: each member of a group counts for itself.
func TestRefused_IsTheOwnersAlone(t *testing.T) {
	old := object("old", func(o *v1alpha1.RescheduleSource) { o.Status.Refused = "of the last start" })
	inSmall(t, func(r *env) {
		r.registry.handOver()
		for _, o := range []*v1alpha1.RescheduleSource{old.DeepCopy(), object("one", large), object("two", large), object("x", large)} {
			r.put(o)
		}
		c := r.run()
		pass(2 * time.Minute)
		if p := r.patches(); len(p) != 0 || c.Refused() == 0 {
			t.Errorf("%d are refused, and another's status is written: %q", c.Refused(), p)
		}
		r.registry.takeOver()
		pass(2 * statusRound)
		if p := strings.Join(r.patches(), " "); !strings.Contains(p, `old {"status":{"refused":null}}`) || !strings.Contains(p, `{"status":{"refused":"the `) {
			t.Errorf("the new owner has written %q", p)
		}
	})
}

// A refused source that is deleted leaves nothing: its schedules are purged, though it was never in force
// here. One that becomes smaller runs at once.
func TestRefused_DeletedOrSmaller(t *testing.T) {
	inSmall(t, func(r *env) {
		c := r.run()
		r.put(object("one", large))
		r.put(object("two", large))
		deleted, smaller := object("x", large), object("y", large)
		r.put(deleted)
		r.put(smaller)
		r.registry.newCalls()
		r.remove(deleted)
		expect(t, "calls", []string{"remove x-1"}, r.registry.newCalls())
		small := object("y")
		small.Generation = 2
		r.put(small)
		expect(t, "calls", []string{"set y-1"}, r.registry.newCalls())
		expect(t, "refused", int64(0), c.Refused())
	})
}

// A source that fits in the end, and is not valid, is reported as what it is.
func TestRefused_InvalidIsReportedThen(t *testing.T) {
	inSmall(t, func(r *env) {
		r.run()
		others := []*v1alpha1.RescheduleSource{object("one", large), object("two", large)}
		for _, o := range others {
			r.put(o)
		}
		r.put(object("x", large, func(o *v1alpha1.RescheduleSource) { o.Spec.Delay = new("soon") }))
		if r.log.count("MiB of memory") != 1 || r.log.count("spec.delay") != 0 {
			t.Errorf("it is not refused: %s", r.log)
		}
		r.remove(others[0])
		pass(time.Minute)
		if r.log.count("spec.delay") != 1 {
			t.Errorf("the log does not say that it is not valid: %s", r.log)
		}
	})
}

// A source that was refused when the adapter started keeps its schedules.
func TestStart_RefusedSourcesKeepSchedules(t *testing.T) {
	inSmall(t, func(r *env) {
		for i := range 5 {
			r.put(object(fmt.Sprint("s", i), large))
		}
		c := r.connect()
		wanted, unusable := c.Sources()
		if len(wanted) == 0 || len(unusable) == 0 || len(wanted)+len(unusable) != 5 {
			t.Errorf("%d run, and %d keep their schedules", len(wanted), len(unusable))
		}
		objects, err := c.sources.RescheduleSources("ops").List(labels.Everything())
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if capacity.IsStandIn(o) && len(o.Spec.Watch.Resources) != 0 {
				t.Error("a stand-in has the spec")
			}
		}
	})
}
