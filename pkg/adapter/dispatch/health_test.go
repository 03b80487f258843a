package dispatch

import (
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Deliveries that fail after the wall clock was set back are reported a minute later.
func TestHealth_FailsAfterAClockThatWentBack(t *testing.T) {
	t.Parallel()
	h := &health{}
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	h.observe(&schedule.Outcome{Kind: schedule.Succeeded}, now)
	now = now.Add(-24 * time.Hour)
	for i := range 3 {
		if h.observe(&schedule.Outcome{Kind: schedule.Failed}, now) {
			t.Errorf("it fails after %d attempts in %s", i+1, time.Duration(i)*10*time.Second)
		}
		now = now.Add(10 * time.Second)
	}
	if got, turned := h.look(now.Add(failingAfter)); got.State != Failing || !turned {
		t.Errorf("%+v, %v a minute later", got, turned)
	}
}
