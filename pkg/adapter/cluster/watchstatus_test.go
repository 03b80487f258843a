package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgotesting "k8s.io/client-go/testing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// A change of the watch is in the status within two seconds, the number of objects
// within a round; a source that watches no more has neither.
func TestWatchStatus_IsReportedPromptly(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.registry.count("a-1", 0, time.Time{})
		r.run()
		pass(2 * statusInterval)
		report := func(s schedule.WatchStatus, within time.Duration, want ...string) {
			t.Helper()
			r.sources.ClearActions()
			r.registry.watches("a-1", s)
			r.cluster.WatchChanged(&schedule.Spec{Namespace: "ops", Name: "a"})
			pass(within)
			// The round of the object may come just then, or at the same instant. Its report has the counts too.
			patches := r.patches()
			for i := range patches {
				patches[i] = strings.Replace(patches[i], `"pending":0,"nextDueAt":null,"oldestDueAt":null,"inFlight":0,"retrying":0,"deliveries":{"message":"","reason":"","status":"Unknown"},`, "", 1)
			}
			expect(t, "patches", want, slices.Compact(patches))
		}
		report(schedule.WatchStatus{Objects: 3, Generation: 1, Status: schedule.WatchTrue}, 2*time.Second,
			`a {"status":{"watched":3,"watch":{"message":"","observedGeneration":1,"reason":"","status":"True","wasTrue":true}}}`)
		report(schedule.WatchStatus{Objects: 3, Generation: 1, Status: schedule.WatchFalse, Reason: schedule.WatchUnreachable, Message: "m"}, 2*time.Second,
			`a {"status":{"watch":{"message":"m","observedGeneration":1,"reason":"Unreachable","status":"False","wasTrue":true}}}`)
		// A start that does not know yet does not replace what is known.
		report(schedule.WatchStatus{Generation: 1, Status: schedule.WatchUnknown, Reason: schedule.WatchListing}, 2*statusInterval)
		report(schedule.WatchStatus{Generation: 2, Status: schedule.WatchUnknown, Reason: schedule.WatchListing, Complete: true}, 2*time.Second,
			`a {"status":{"watched":0,"watch":{"message":"","observedGeneration":2,"reason":"Listing","status":"Unknown","wasTrue":true}}}`)
		// What is watched since an edit was never True: it must not count as ready.
		report(schedule.WatchStatus{Generation: 3, Status: schedule.WatchFalse, Reason: schedule.WatchUnreachable}, 2*time.Second,
			`a {"status":{"watch":{"message":"","observedGeneration":3,"reason":"Unreachable","status":"False","wasTrue":false}}}`)
		r.sources.ClearActions()
		r.registry.watches("a-1", schedule.WatchStatus{Objects: 9, Generation: 3, Status: schedule.WatchTrue})
		pass(2 * statusInterval)
		expect(t, "patches", 1, len(r.patches()))
		r.sources.ClearActions()
		r.registry.watchesNot("a-1")
		pass(2 * statusInterval)
		expect(t, "patches", []string{`a {"status":{"pending":0,"nextDueAt":null,"oldestDueAt":null,"inFlight":0,"retrying":0,"deliveries":{"message":"","reason":"","status":"Unknown"},"watched":null,"watch":null}}`}, r.patches())
	}, object("a"))
}

// A change of a watch is reported within two seconds although the watches of a thousand sources
// of another namespace change: there are fifty reports a second, and it waited for all.
func TestWatchStatus_StormOfANeighbour(t *testing.T) {
	t.Parallel()
	all := []runtime.Object{object("calm")}
	for i := range 1000 {
		all = append(all, object(fmt.Sprint("busy-", i), func(o *v1alpha1.RescheduleSource) { o.Namespace = "busy" }))
	}
	inCluster(t, func(r *env) {
		r.run()
		for _, o := range all {
			o := o.(*v1alpha1.RescheduleSource)
			r.registry.count(string(o.UID), 0, time.Time{})
			r.registry.watches(string(o.UID), schedule.WatchStatus{Generation: 1, Status: schedule.WatchTrue})
		}
		for _, o := range all[1:] {
			r.cluster.WatchChanged(&schedule.Spec{Namespace: "busy", Name: o.(*v1alpha1.RescheduleSource).Name})
		}
		pass(time.Second)
		r.cluster.WatchChanged(&schedule.Spec{Namespace: "ops", Name: "calm"})
		pass(2 * time.Second)
		if !slices.ContainsFunc(r.patches(), func(p string) bool { return strings.HasPrefix(p, "calm ") }) {
			t.Errorf("it is not among %d that were reported", len(r.patches()))
		}
		pass(time.Minute)
		if n := len(r.patches()); n < len(all) {
			t.Errorf("%d of %d were reported", n, len(all))
		}
	}, all...)
}

// An adapter that does not serve the sources writes no status: it would remove what the
// owner wrote.
func TestStatus_IsTheOwnersAlone(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.registry.count("a-1", 1, time.Time{})
		r.registry.watches("a-1", schedule.WatchStatus{Generation: 1, Status: schedule.WatchTrue})
		r.run()
		pass(2 * statusInterval)
		r.sources.ClearActions()
		r.registry.handOver()
		r.cluster.WatchChanged(&schedule.Spec{Namespace: "ops", Name: "a"})
		pass(2 * statusInterval)
		expect(t, "patches", nil, r.patches())
	}, object("a"))
}

// A source is gone when the API server lacks it, whatever is in memory.
func TestGone_AsksTheAPIServer(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		c := r.connect()
		gone, err := c.Gone(r.ctx, []string{"a-1", "b-1", "c-1"})
		if err != nil {
			t.Fatal(err)
		}
		expect(t, "gone", []string{"c-1"}, gone)
		r.sources.PrependReactor("list", "reschedulesources", func(clientgotesting.Action) (bool, runtime.Object, error) {
			return true, nil, errFull
		})
		if gone, err := c.Gone(r.ctx, []string{"a-1"}); err == nil || gone != nil {
			t.Errorf("the API server did not answer, and gone is %v", gone)
		}
	}, object("a"), object("b"))
}
