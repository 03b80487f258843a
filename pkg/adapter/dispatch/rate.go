package dispatch

import (
	"math"
	"time"
)

// rate is a token bucket: it grows by the limit a second, up to one second's worth.
// Its zero value has no limit.
type rate struct {
	perSecond int // 0 = no limit
	left      float64
	at        time.Time // when left was true
}

// wait returns the time until the next start, 0 for now. A new limit begins with a
// full second's worth.
func (r *rate) wait(perSecond int, now time.Time) time.Duration {
	if perSecond != r.perSecond {
		*r = rate{perSecond, float64(perSecond), now}
	}
	if perSecond <= 0 {
		return 0
	}
	limit := float64(perSecond)
	r.left, r.at = min(limit, r.left+now.Sub(r.at).Seconds()*limit), now
	if r.left < 1 {
		// Rounded up, with a nanosecond for what floats lose: a wait too short
		// would be followed by another.
		return time.Duration(math.Ceil((1-r.left)/limit*1e9)) + 1
	}
	return 0
}

// take takes one, after wait returned 0.
func (r *rate) take() {
	if r.perSecond > 0 {
		r.left--
	}
}

// giveBack returns one that was taken for a stale row.
func (r *rate) giveBack() { r.left = min(r.left+1, float64(r.perSecond)) }
