package cluster

import (
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// settle waits until something is so.
func settle(t *testing.T, so func() bool, format string, args ...any) {
	t.Helper()
	// The slowest thing that is waited for is a status that was refreshed just
	// before: the next may come 60 s later.
	const patience = 2 * kube.Patience
	deadline := time.After(patience)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !so() {
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf(format+" after %s", append(args, patience)...)
		}
	}
}
