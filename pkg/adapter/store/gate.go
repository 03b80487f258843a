package store

import "sync/atomic"

// gate admits calls until it is closed, and waits for the last one to leave. Calls
// may be nested.
type gate struct {
	inside atomic.Int64
	closed atomic.Bool
	idle   chan struct{} // holds one
}

// enter reports whether the call may go on. If so the caller must call leave.
func (g *gate) enter() bool {
	g.inside.Add(1)
	if g.closed.Load() {
		g.leave()
		return false
	}
	return true
}

func (g *gate) leave() {
	if g.inside.Add(-1) == 0 && g.closed.Load() {
		select {
		case g.idle <- struct{}{}:
		default:
		}
	}
}

// wait returns when no call is inside of the closed gate.
func (g *gate) wait() {
	for g.inside.Load() > 0 {
		<-g.idle
	}
}
