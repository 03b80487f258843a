package cluster

import (
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
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
			r.cluster.WatchChanged(&schedule.Source{Namespace: "ops", Name: "a"})
			pass(within)
			expect(t, "patches", want, r.patches())
		}
		report(schedule.WatchStatus{Objects: 3, Generation: 1, Status: schedule.WatchTrue}, 2*time.Second,
			`a {"status":{"watched":3,"watch":{"message":"","observedGeneration":1,"reason":"","status":"True","wasTrue":true}}}`)
		report(schedule.WatchStatus{Objects: 3, Generation: 1, Status: schedule.WatchFalse, Reason: schedule.WatchUnreachable, Message: "m"}, 2*time.Second,
			`a {"status":{"watch":{"message":"m","observedGeneration":1,"reason":"Unreachable","status":"False","wasTrue":true}}}`)
		// A start that does not know yet does not replace what is known.
		report(schedule.WatchStatus{Generation: 1, Status: schedule.WatchUnknown, Reason: schedule.WatchListing}, 2*statusInterval)
		report(schedule.WatchStatus{Generation: 2, Status: schedule.WatchUnknown, Reason: schedule.WatchListing}, 2*time.Second,
			`a {"status":{"watched":0,"watch":{"message":"","observedGeneration":2,"reason":"Listing","status":"Unknown","wasTrue":true}}}`)
		r.sources.ClearActions()
		r.registry.watches("a-1", schedule.WatchStatus{Objects: 9, Generation: 2, Status: schedule.WatchTrue})
		pass(2 * statusInterval)
		expect(t, "patches", 1, len(r.patches()))
		r.sources.ClearActions()
		r.registry.watchesNot("a-1")
		pass(2 * statusInterval)
		expect(t, "patches", []string{`a {"status":{"pending":0,"nextDueAt":null,"oldestDueAt":null,"inFlight":0,"retrying":0,"deliveries":{"message":"","reason":"","status":"Unknown"},"watched":null,"watch":null}}`}, r.patches())
	}, object("a"))
}
