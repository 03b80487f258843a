package schedule

import (
	"math"
	"time"
)

// Defaults of a request's back-off.
const (
	DefaultBase   = time.Second
	DefaultFactor = 2.0
	DefaultCap    = MaxBackoff
)

// Backoff asks for the next attempt after a wait that grows with the key's
// attempt counter: min(Base·Factor^(attempt-1), Cap).
type Backoff struct {
	Base        time.Duration
	Factor      float64 // at least 1
	Cap         time.Duration
	MaxAttempts uint32 // 0 = no limit
}

func (b Backoff) wait(attempt uint32) time.Duration {
	return exponential(b.Base, b.Factor, b.Cap, attempt)
}

// exponential is min(base·factor^(n-1), limit), rounded up, without overflow
// for any n from 1.
func exponential(base time.Duration, factor float64, limit time.Duration, n uint32) time.Duration {
	if base <= 0 || limit <= 0 {
		return 0
	}
	if n <= 1 || factor == 1 {
		return min(base, limit) // exact, where a float of a long base is not
	}
	w := float64(base) * math.Pow(factor, float64(n-1))
	if w >= float64(limit) { // also +Inf
		return limit
	}
	return time.Duration(math.Ceil(w))
}
