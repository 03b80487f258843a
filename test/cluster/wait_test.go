package cluster

import (
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// settle waits until something is so.
func settle(t *testing.T, so func() bool, format string, args ...any) {
	t.Helper()
	deadline := time.After(kube.Patience)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !so() {
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf(format+" after %s", append(args, kube.Patience)...)
		}
	}
}
