package loglimit

import (
	"testing"
	"time"
)

// A period has so many lines, and the first one after it counts what was left out.
func TestLimit_CountsWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_800_000_000, 0)
	l := Limit{Lines: 2, Per: time.Minute}
	for _, step := range []struct {
		after   time.Duration // since the start
		leftOut int
		ok      bool
	}{
		{0, 0, true},
		{0, 0, true},
		{0, 0, false},
		{time.Minute - 1, 0, false},
		{time.Minute, 2, true},
		{time.Minute, 0, true},
		{time.Minute, 0, false},
		{time.Hour, 1, true},
		{time.Hour + time.Minute - 1, 0, true},
		{time.Hour + time.Minute - 1, 0, false},
		{time.Hour + time.Minute, 1, true}, // the period began with its first line
	} {
		if leftOut, ok := l.Next(start.Add(step.after)); leftOut != step.leftOut || ok != step.ok {
			t.Errorf("%+v: %d were left out, %t", step, leftOut, ok)
		}
	}
}
