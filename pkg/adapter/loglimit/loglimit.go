// Package loglimit bounds how many lines of one kind the log has, where others decide how
// often there is something to log: a sink, a sender, an API server that does not answer.
//
// It guarantees at most Limit.Lines in each period, and that no line is missing without being
// counted. The first ones of a period are logged at once, so that the log says soon what goes
// wrong. It leaves the lines themselves to its callers.
package loglimit

import (
	"sync"
	"time"
)

// Limit bounds lines. It is safe for concurrent use.
type Limit struct {
	Lines int // in each period
	Per   time.Duration

	mu      sync.Mutex
	began   time.Time // the period, with its first line
	logged  int       // in it
	leftOut int       // since the last line
}

// Next reports whether a line may be logged now, and how many were left out since the last one.
func (l *Limit) Next(now time.Time) (leftOut int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.began) >= l.Per {
		l.began, l.logged = now, 0
	}
	if l.logged >= l.Lines {
		l.leftOut++
		return 0, false
	}
	l.logged++
	leftOut, l.leftOut = l.leftOut, 0
	return leftOut, true
}
