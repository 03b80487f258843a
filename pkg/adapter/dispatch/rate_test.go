package dispatch

import (
	"testing"
	"time"
)

// A rate grows to one second's worth.
func TestRate_GrowsToOneSecondsWorth(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	var b rate
	for _, step := range []struct {
		perSecond int
		after     time.Duration // since the start
		back      bool          // give one back first
		wait      time.Duration // rounded to microseconds
	}{
		{0, 0, false, 0},
		{2, 0, false, 0},
		{2, 0, false, 0},
		{2, 0, false, 500 * time.Millisecond},
		{2, 250 * time.Millisecond, false, 250 * time.Millisecond},
		{2, 250 * time.Millisecond, true, 0},
		{2, time.Hour, false, 0},
		{2, time.Hour, false, 0},
		{2, time.Hour, false, 500 * time.Millisecond},
		{1, time.Hour, false, time.Second}, // another limit goes on with the share that is left
		{4, time.Hour, false, 250 * time.Millisecond},
		{4, time.Hour + time.Second, false, 0},
		{1, time.Hour + time.Second, false, 250 * time.Millisecond},
		{4, time.Hour + time.Second, false, 0},
		{0, time.Hour + time.Second, false, 0},
		{1, time.Hour + time.Second, false, 0}, // a first one begins with a second's worth
	} {
		if step.back {
			b.giveBack()
		}
		got := b.wait(step.perSecond, start.Add(step.after))
		if got.Round(time.Microsecond) != step.wait {
			t.Errorf("%+v: wait %s", step, got)
		}
		if got == 0 {
			b.take()
		}
	}
}
