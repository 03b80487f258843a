package dispatch

import (
	"math"
	"time"
)

// budget is what a lane may still start under maxPerSecond: it grows by that
// many a second, up to one second's worth. Its zero value has no limit.
type budget struct {
	perSecond int // 0 = no limit
	left      float64
	at        time.Time // when left was true
}

// take takes one out of the budget, or says how long until there is one. A
// limit that is new begins with a full second's worth.
func (b *budget) take(perSecond int, now time.Time) (wait time.Duration) {
	if perSecond != b.perSecond {
		*b = budget{perSecond, float64(perSecond), now}
	}
	if perSecond <= 0 {
		return 0
	}
	limit := float64(perSecond)
	b.left, b.at = min(limit, b.left+now.Sub(b.at).Seconds()*limit), now
	if b.left < 1 {
		// Rounded up, with a nanosecond for what floats lose: a wait too short
		// would be followed by another.
		return time.Duration(math.Ceil((1-b.left)/limit*1e9)) + 1
	}
	b.left--
	return 0
}

// giveBack returns what was taken for nothing.
func (b *budget) giveBack() { b.left = min(b.left+1, float64(b.perSecond)) }
