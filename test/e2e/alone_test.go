//go:build e2e

package e2e

import (
	"sync"
	"testing"
	"time"
)

// others are the tests that run beside each other; starting are the tests that wait for a place.
var others, starting sync.WaitGroup

// beside lets a test run beside others, and before the tests that need the cluster alone. A test
// whose rest these cannot disturb calls over.
func beside(t *testing.T) (over func()) {
	others.Add(1)
	over = sync.OnceFunc(others.Done)
	t.Cleanup(over)
	starting.Add(1)
	t.Parallel()
	starting.Done()
	return over
}

// TestAlone_InTurn has the tests that disturb all others: they take the adapter away, or change
// Knative's settings. Pods that start take most of their time, so they prepare beside the other
// tests, once none of these waits for a place: they hold theirs until all others have ended.
// Then they have the cluster one after the other, in this order: what must not be watched
// anew comes before tests that replace the adapter's volume, and the node is lost when few pods
// are on it.
func TestAlone_InTurn(t *testing.T) {
	t.Parallel()
	starting.Wait()
	var preparing sync.WaitGroup
	before := make(chan struct{}) // closed when the test before has ended
	close(before)
	for _, test := range []struct {
		name string
		// run calls turn once it is prepared, which returns when the test has the cluster.
		run func(t *testing.T, turn func())
	}{
		{"Watch_WithoutAnAdapter", watchWithoutAnAdapter},
		{"Broker_ChangesDuringARestart", changesDuringARestart},
		{"Why_AdapterAtZero", whyAdapterAtZero},
		{"Why_StorageFull", whyStorageFull},
		{"Scale_OverKills", scaleOverKills},
		{"Published_SleepsAsWritten", publishedSleeps},
		{"Upgrade_AndBackKeepsSchedules", upgradeAndBack},
		{"Restore_InTheCluster", restoreInTheCluster},
		{"Group_LosesNothing", groupLosesNothing},
		{"Secure_TokensAndTLS", tokensAndTLS},
		{"Knative_Auth", knativeAuth},
		{"Disruption_LosesNothing", disruptionLosesNothing},
	} {
		t.Run(test.name, func(t *testing.T) {
			after, ended := before, make(chan struct{})
			before = ended
			preparing.Add(1)
			prepared := sync.OnceFunc(preparing.Done)
			var began time.Time // its turn
			// The first cleanup is the last that runs. A test that fails early ends its turn in order, too.
			t.Cleanup(func() {
				prepared()
				<-after
				close(ended)
				if !began.IsZero() {
					t.Logf("%s had the cluster for %s", test.name, time.Since(began).Round(time.Second))
				}
			})
			t.Parallel()
			test.run(t, func() {
				prepared()
				preparing.Wait()
				others.Wait()
				<-after
				began = time.Now()
			})
		})
	}
}
