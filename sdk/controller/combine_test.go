package controller

import (
	"testing"
	"time"
)

// Without a resync a controller that is done takes no timer of another.
func TestCombine_NoResyncKeepsTimers(t *testing.T) {
	asks, done := outcome{after: 5 * time.Minute}, outcome{}
	got := combine([]decision{{target{key: "k"}, asks}, {target{key: "k"}, done}}, 0, func(target) bool { return true })
	if got.after != asks.after || len(got.again) != 1 {
		t.Errorf("the key comes back after %s with %d targets", got.after, len(got.again))
	}
}
