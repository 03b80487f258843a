package cluster

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
	"knative.dev/pkg/apis"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

func generation(n int64) change { return func(o *v1alpha1.RescheduleSource) { o.Generation = n } }

func again(o *v1alpha1.RescheduleSource) { o.UID = types.UID(o.Name + "-2") }

// tooLong is beyond what the API server checks with its patterns.
func tooLong(o *v1alpha1.RescheduleSource) { o.Spec.Delay = new("P36526D") }

func expect[T any](t *testing.T, what string, want, got T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// Run does not set again what Sources returned before it.
func TestRun_TakesTheFirstSourcesAsApplied(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		c := r.connect()
		wanted, others := c.Sources()
		var names []string
		for _, s := range wanted {
			names = append(names, s.Path())
		}
		expect(t, "wanted", []string{"ops/a", "ops/b"}, names)
		expect(t, "others", []string{"c-1"}, others)
		r.registry.start(wanted, others)
		r.follow()
		expect(t, "calls", nil, r.registry.newCalls())
	}, object("b"), object("a"), object("c", tooLong))
}

// A source is set when its object appears and when it changes.
func TestFollow_SetsNewAndChangedSources(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.run()
		r.put(object("a"))
		expect(t, "calls", []string{"set a-1"}, r.registry.newCalls())
		r.put(object("a", func(o *v1alpha1.RescheduleSource) { o.Spec.Delay = new("5m") }))
		expect(t, "calls", []string{"set a-1"}, r.registry.newCalls())
		expect(t, "delay", 5*time.Minute, r.registry.source("a-1").Delay)
		r.put(object("a", func(o *v1alpha1.RescheduleSource) { o.Status.SinkURI = apis.HTTP("other.ops") }))
		expect(t, "sink", "http://other.ops", r.registry.source("a-1").Sink.URL)
		r.registry.newCalls()
		r.put(object("a", func(o *v1alpha1.RescheduleSource) {
			o.Status.SinkURI, o.Status.Pending = apis.HTTP("other.ops"), new(int64(7))
		}))
		expect(t, "calls for what changes nothing", nil, r.registry.newCalls())
	})
}

// The counts in the status are no reason to set a source.
func TestFollow_IgnoresCountsInTheStatus(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.run()
		r.put(object("a", func(o *v1alpha1.RescheduleSource) {
			o.Status.Pending, o.Status.NextDueAt = new(int64(7)), &metav1.Time{Time: time.Now()}
			o.Labels, o.ResourceVersion = map[string]string{"a": "b"}, "9"
			o.Status.ObservedGeneration = 3
		}, generation(2)))
		expect(t, "calls", nil, r.registry.newCalls())
	}, object("a"))
}

// A source whose sink was never resolved takes schedules, and delivers once it is.
func TestFollow_SuspendsUntilTheSinkIsResolved(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.run()
		r.put(object("a", unresolved))
		src := r.registry.source("a-1")
		if src == nil || !src.Suspend || src.Sink != (schedule.Target{}) {
			t.Fatalf("the source is %+v, want it suspended and without a sink", src)
		}
		r.put(object("a"))
		if src = r.registry.source("a-1"); src.Suspend || src.Sink.URL != "http://sink.ops" {
			t.Errorf("the source is %+v, want it to deliver", src)
		}
	})
}

// A source that turns not ready keeps its sink.
func TestFollow_KeepsTheSinkOfANotReadySource(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.run()
		r.put(object("a", notReadySource))
		r.put(object("a", notReadySource, unresolved))
		expect(t, "calls", nil, r.registry.newCalls())
		r.put(object("a", notReadySource, unresolved, func(o *v1alpha1.RescheduleSource) { o.Spec.Delay = new("1s") }))
		src := r.registry.source("a-1")
		if src.Suspend || src.Sink.URL != "http://sink.ops" || src.Delay != time.Second {
			t.Errorf("the source is %+v, want the new delay and the sink as it was", src)
		}
	}, object("a"))
}

// An object that cannot be used keeps what was applied, and is reported once per
// generation.
func TestFollow_ReportsAnUnusableObjectOnce(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.run()
		reported := func() int { return r.log.count("cannot be used") }
		r.put(object("a", tooLong, generation(2)))
		r.put(object("a", tooLong, generation(2), func(o *v1alpha1.RescheduleSource) { o.ResourceVersion = "x" }))
		expect(t, "calls", nil, r.registry.newCalls())
		expect(t, "lines", 1, reported())
		expect(t, "events", []string{"a Warning InvalidSpec 1"}, r.events())
		r.put(object("a", tooLong, generation(3)))
		expect(t, "lines", 2, reported())
		expect(t, "events", []string{"a Warning InvalidSpec 2"}, r.events())
		r.put(object("a", generation(4), func(o *v1alpha1.RescheduleSource) { o.Spec.Delay = new("1s") }))
		expect(t, "calls", []string{"set a-1"}, r.registry.newCalls())
	}, object("a"))
}

// The schedules of an object that cannot be used at the start are purged only when
// it is deleted.
func TestFollow_DoesNotPurgeUnusableObjects(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.run()
		pass(time.Hour)
		expect(t, "calls", nil, r.registry.newCalls())
		expect(t, "lines", 1, r.log.count("cannot be used"))
		r.remove(object("a"))
		expect(t, "calls", []string{"remove a-1"}, r.registry.newCalls())
	}, object("a", tooLong))
}

// A deleted source is removed.
func TestFollow_RemovesADeletedSource(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.run()
		r.remove(object("a"))
		expect(t, "calls", []string{"remove a-1"}, r.registry.newCalls())
		expect(t, "sources", []string{"b-1"}, r.registry.uids())
		expect(t, "known", 1, len(r.cluster.follower.names()))
	}, object("a"), object("b"))
}

// A source that is being deleted counts until it is gone.
func TestFollow_KeepsASourceThatIsBeingDeleted(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.run()
		going := object("a", func(o *v1alpha1.RescheduleSource) {
			o.DeletionTimestamp, o.Finalizers = &metav1.Time{Time: time.Now()}, []string{"example.com/wait"}
		})
		r.put(going)
		expect(t, "calls", nil, r.registry.newCalls())
		r.remove(going)
		expect(t, "calls", []string{"remove a-1"}, r.registry.newCalls())
	}, object("a"))
}

// A source that was recreated under its name starts empty, also when both are one
// update.
func TestFollow_EmptiesARecreatedSource(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.run()
		r.put(object("a", again, unresolved))
		expect(t, "calls", []string{"remove a-1", "set a-2"}, r.registry.newCalls())
		if src := r.registry.source("a-2"); !src.Suspend {
			t.Errorf("the new source has taken over the sink of the old one: %+v", src)
		}
	}, object("a"))
}

// A deletion that the watch missed is seen in the next list.
func TestFollow_SeesAMissedDeletion(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		var watches []*watch.RaceFreeFakeWatcher
		r.sources.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
			watches = append(watches, watch.NewRaceFreeFake())
			return true, watches[len(watches)-1], nil
		})
		r.run()
		r.remove(object("a"))
		r.put(object("b", again))
		expect(t, "calls after the end", nil, r.registry.newCalls())
		watches[0].Stop()
		pass(time.Minute)
		calls := r.registry.newCalls()
		slices.Sort(calls)
		expect(t, "calls", []string{"remove a-1", "remove b-1", "set b-2"}, calls)
	}, object("a"), object("b"))
}

// A source that was deleted between Sources and Run is removed.
func TestRun_RemovesASourceDeletedBeforeIt(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.registry.start(r.connect().Sources())
		r.remove(object("a"))
		r.follow()
		expect(t, "calls", []string{"remove a-1"}, r.registry.newCalls())
	}, object("a"))
}

// A failed change is tried again with a back-off.
func TestFollow_RetriesWithABackOff(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.run()
		r.registry.fill(true)
		r.remove(object("a"))
		r.put(object("b", func(o *v1alpha1.RescheduleSource) { o.Spec.Delay = new("1s") }))
		r.put(object("c", again))
		pass(time.Hour)
		calls := r.registry.newCalls()
		if n := len(calls); n < 3*110 || n > 3*135 {
			t.Errorf("%d calls in an hour, want one every 30 s of each source", n)
		}
		if slices.Contains(calls, "set c-2") {
			t.Error("the new source is set while the old one is still there")
		}
		r.registry.fill(false)
		pass(31 * time.Second)
		calls = r.registry.newCalls()
		slices.Sort(calls)
		expect(t, "calls", []string{"remove a-1", "remove c-1", "set b-1", "set c-2"}, calls)
		pass(time.Hour)
		expect(t, "calls", nil, r.registry.newCalls())
		expect(t, "sources", []string{"b-1", "c-2"}, r.registry.uids())
	}, object("a"), object("b"), object("c"))
}

// A new source is served at once although another namespace has removed a thousand, each of which
// takes an fsync. It waited for all of them.
func TestFollow_StormOfANeighbour(t *testing.T) {
	t.Parallel()
	var busy []runtime.Object
	for i := range 1000 {
		busy = append(busy, object(fmt.Sprint("busy-", i), func(o *v1alpha1.RescheduleSource) { o.Namespace = "busy" }))
	}
	inCluster(t, func(r *env) {
		r.run()
		r.registry.takes = 10 * time.Millisecond
		for _, o := range busy {
			r.remove(o)
		}
		r.put(object("calm"))
		pass(2 * r.registry.takes)
		if r.registry.source("calm-1") == nil {
			t.Error("the new source is not served yet")
		}
		pass(time.Minute)
		expect(t, "sources", []string{"calm-1"}, r.registry.uids())
	}, busy...)
}

// A flag that gives sources an identity reaches them.
func TestFollow_AppliesAChangedFlag(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.run()
		r.put(configMap(configFeatures, map[string]string{"authentication-oidc": "enabled"}))
		expect(t, "calls", []string{"set a-1"}, r.registry.newCalls())
		if !r.registry.source("a-1").Suspend {
			t.Error("a source without an identity delivers to a sink with an audience")
		}
		r.put(object("a", withAudience, withIdentity))
		if src := r.registry.source("a-1"); src.Suspend || src.ServiceAccount != accountOfA {
			t.Errorf("the source is %+v, want it to deliver as its own account", src)
		}
	}, object("a", withAudience), object("b"))
}

// Run ends with its context and changes nothing then.
func TestRun_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.run()
		r.end()
		r.running.Wait()
		synctest.Wait()
		expect(t, "calls", nil, r.registry.newCalls())
		expect(t, "sources", []string{"a-1"}, r.registry.uids())
	}, object("a"))
}
