package cluster

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

func TestTheSourcesAtTheStartAreTakenAsApplied(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *rig) {
		c := r.connect()
		wanted, others := c.Sources()
		var names []string
		for _, s := range wanted {
			names = append(names, s.Path())
		}
		expect(t, "wanted", []string{"ops/a", "ops/b"}, names)
		expect(t, "others", []string{"c-1"}, others)
		r.plane.start(wanted, others)
		r.follow()
		expect(t, "calls", nil, r.plane.told())
	}, object("b"), object("a"), object("c", tooLong))
}

func TestASourceIsSetWhenItAppearsAndWhenItChanges(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *rig) {
		r.run()
		r.put(object("a"))
		expect(t, "calls", []string{"set a-1"}, r.plane.told())
		r.put(object("a", func(o *v1alpha1.RescheduleSource) { o.Spec.Delay = new("5m") }))
		expect(t, "calls", []string{"set a-1"}, r.plane.told())
		expect(t, "delay", 5*time.Minute, r.plane.source("a-1").Delay)
		r.put(object("a", func(o *v1alpha1.RescheduleSource) { o.Status.SinkURI = apis.HTTP("other.ops") }))
		expect(t, "sink", "http://other.ops", r.plane.source("a-1").Sink.URL)
		r.plane.told()
		r.put(object("a", func(o *v1alpha1.RescheduleSource) {
			o.Status.SinkURI, o.Status.Pending = apis.HTTP("other.ops"), new(int64(7))
		}))
		expect(t, "calls for what changes nothing", nil, r.plane.told())
	})
}

func TestTheCountsInTheStatusAreNoReasonToSetASource(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *rig) {
		r.run()
		r.put(object("a", func(o *v1alpha1.RescheduleSource) {
			o.Status.Pending, o.Status.NextDueAt = new(int64(7)), &metav1.Time{Time: time.Now()}
			o.Labels, o.ResourceVersion = map[string]string{"a": "b"}, "9"
			o.Status.ObservedGeneration = 3
		}, generation(2)))
		expect(t, "calls", nil, r.plane.told())
	}, object("a"))
}

func TestASourceWhoseSinkWasNeverResolvedTakesSchedulesAndDeliversOnceItIs(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *rig) {
		r.run()
		r.put(object("a", unresolved))
		src := r.plane.source("a-1")
		if src == nil || !src.Suspend || src.Sink != (schedule.Target{}) {
			t.Fatalf("the source is %+v, want it suspended and without a sink", src)
		}
		r.put(object("a"))
		if src = r.plane.source("a-1"); src.Suspend || src.Sink.URL != "http://sink.ops" {
			t.Errorf("the source is %+v, want it to deliver", src)
		}
	})
}

func TestASourceThatTurnsNotReadyKeepsItsSink(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *rig) {
		r.run()
		r.put(object("a", notReadySource))
		r.put(object("a", notReadySource, unresolved))
		expect(t, "calls", nil, r.plane.told())
		r.put(object("a", notReadySource, unresolved, func(o *v1alpha1.RescheduleSource) { o.Spec.Delay = new("1s") }))
		src := r.plane.source("a-1")
		if src.Suspend || src.Sink.URL != "http://sink.ops" || src.Delay != time.Second {
			t.Errorf("the source is %+v, want the new delay and the sink as it was", src)
		}
	}, object("a"))
}

func TestAnObjectThatCannotBeUnderstoodKeepsWhatWasAppliedAndIsToldOnceAGeneration(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *rig) {
		r.run()
		told := func() int { return r.log.count("cannot be used") }
		r.put(object("a", tooLong, generation(2)))
		r.put(object("a", tooLong, generation(2), func(o *v1alpha1.RescheduleSource) { o.ResourceVersion = "x" }))
		expect(t, "calls", nil, r.plane.told())
		expect(t, "lines", 1, told())
		expect(t, "events", []string{"a Warning InvalidSpec 1"}, r.events())
		r.put(object("a", tooLong, generation(3)))
		expect(t, "lines", 2, told())
		expect(t, "events", []string{"a Warning InvalidSpec 2"}, r.events())
		r.put(object("a", generation(4), func(o *v1alpha1.RescheduleSource) { o.Spec.Delay = new("1s") }))
		expect(t, "calls", []string{"set a-1"}, r.plane.told())
	}, object("a"))
}

func TestAnObjectThatCannotBeUsedAtTheStartIsNotPurgedButWhenItIsDeletedItIs(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *rig) {
		r.run()
		pass(time.Hour)
		expect(t, "calls", nil, r.plane.told())
		expect(t, "lines", 1, r.log.count("cannot be used"))
		r.remove(object("a"))
		expect(t, "calls", []string{"remove a-1"}, r.plane.told())
	}, object("a", tooLong))
}

func TestADeletedSourceIsRemoved(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *rig) {
		r.run()
		r.remove(object("a"))
		expect(t, "calls", []string{"remove a-1"}, r.plane.told())
		expect(t, "sources", []string{"b-1"}, r.plane.uids())
		expect(t, "known", 1, len(r.cluster.follower.names()))
	}, object("a"), object("b"))
}

func TestASourceThatIsBeingDeletedCountsUntilItIsGone(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *rig) {
		r.run()
		going := object("a", func(o *v1alpha1.RescheduleSource) {
			o.DeletionTimestamp, o.Finalizers = &metav1.Time{Time: time.Now()}, []string{"example.com/wait"}
		})
		r.put(going)
		expect(t, "calls", nil, r.plane.told())
		r.remove(going)
		expect(t, "calls", []string{"remove a-1"}, r.plane.told())
	}, object("a"))
}

func TestASourceRecreatedUnderItsNameAndSeenAsOneUpdateStartsEmpty(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *rig) {
		r.run()
		r.put(object("a", again, unresolved))
		expect(t, "calls", []string{"remove a-1", "set a-2"}, r.plane.told())
		if src := r.plane.source("a-2"); !src.Suspend {
			t.Errorf("the new source has taken over the sink of the old one: %+v", src)
		}
	}, object("a"))
}

func TestADeletionThatTheWatchMissedIsSeenFromTheNextList(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *rig) {
		var watches []*watch.RaceFreeFakeWatcher
		r.sources.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
			watches = append(watches, watch.NewRaceFreeFake())
			return true, watches[len(watches)-1], nil
		})
		r.run()
		r.remove(object("a"))
		r.put(object("b", again))
		expect(t, "calls while nobody watches", nil, r.plane.told())
		watches[0].Stop()
		pass(time.Minute)
		calls := r.plane.told()
		slices.Sort(calls)
		expect(t, "calls", []string{"remove a-1", "remove b-1", "set b-2"}, calls)
	}, object("a"), object("b"))
}

func TestASourceDeletedBeforeRunIsRemovedByIt(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *rig) {
		r.plane.start(r.connect().Sources())
		r.remove(object("a"))
		r.follow()
		expect(t, "calls", []string{"remove a-1"}, r.plane.told())
	}, object("a"))
}

func TestAFailingPlaneIsAskedAgainWithABackOff(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *rig) {
		r.run()
		r.plane.fill(true)
		r.remove(object("a"))
		r.put(object("b", func(o *v1alpha1.RescheduleSource) { o.Spec.Delay = new("1s") }))
		r.put(object("c", again))
		pass(time.Hour)
		calls := r.plane.told()
		if n := len(calls); n < 3*110 || n > 3*135 {
			t.Errorf("%d calls in an hour, want one every 30 s of each source", n)
		}
		if slices.Contains(calls, "set c-2") {
			t.Error("the new source is set while the old one is still there")
		}
		r.plane.fill(false)
		pass(31 * time.Second)
		calls = r.plane.told()
		slices.Sort(calls)
		expect(t, "calls", []string{"remove a-1", "remove c-1", "set b-1", "set c-2"}, calls)
		pass(time.Hour)
		expect(t, "calls", nil, r.plane.told())
		expect(t, "sources", []string{"b-1", "c-2"}, r.plane.uids())
	}, object("a"), object("b"), object("c"))
}

func TestAFlagThatGivesSourcesAnIdentityReachesThem(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *rig) {
		r.run()
		r.put(configMap(configFeatures, map[string]string{"authentication-oidc": "enabled"}))
		expect(t, "calls", []string{"set a-1"}, r.plane.told())
		if !r.plane.source("a-1").Suspend {
			t.Error("a source without an identity delivers to a sink with an audience")
		}
		r.put(object("a", withAudience, withIdentity))
		if src := r.plane.source("a-1"); src.Suspend || src.ServiceAccount != accountOfA {
			t.Errorf("the source is %+v, want it to deliver as its own account", src)
		}
	}, object("a", withAudience), object("b"))
}

func TestRunEndsWithItsContextAndLeavesThePlaneAlone(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *rig) {
		r.run()
		r.end()
		r.running.Wait()
		synctest.Wait()
		expect(t, "calls", nil, r.plane.told())
		expect(t, "sources", []string{"a-1"}, r.plane.uids())
	}, object("a"))
}
