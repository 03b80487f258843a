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

// wait returns the time until the next start, 0 for now. A first limit begins with a full
// second's worth, and one that takes the place of another with the same share of it: while the
// sources of a namespace get a new limit, one after the other, calls come with either.
func (r *rate) wait(perSecond int, now time.Time) time.Duration {
	if r.perSecond > 0 {
		limit := float64(r.perSecond)
		r.left, r.at = min(limit, r.left+now.Sub(r.at).Seconds()*limit), now
	}
	if perSecond <= 0 {
		r.perSecond = 0
		return 0
	}
	limit := float64(perSecond)
	switch r.perSecond {
	case perSecond:
	case 0:
		r.left, r.at = limit, now
	default:
		r.left *= limit / float64(r.perSecond)
	}
	r.perSecond = perSecond
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

// giveBack returns one that was taken for a stale row, or for an attempt that did not begin.
func (r *rate) giveBack() { r.left = min(r.left+1, float64(r.perSecond)) }
