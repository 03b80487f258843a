package store

import "sync/atomic"

// gate lets calls in until it is closed, and says when the last one has left.
// Calls may be inside of one another.
type gate struct {
	inside atomic.Int64
	closed atomic.Bool
	idle   chan struct{} // holds one
}

// enter says whether the call may go on; then leave must follow.
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

// wait returns when nobody is inside of the closed gate.
func (g *gate) wait() {
	for g.inside.Load() > 0 {
		<-g.idle
	}
}
