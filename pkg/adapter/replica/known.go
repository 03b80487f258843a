package replica

import (
	"sync"
	"time"
)

// known is what this member knows of who owns the group, and how far it is itself.
type known struct {
	cfg *Config

	// mu guards the rest. The goroutine of Run writes, and callers that ask for the owner read; it is held for a moment.
	mu          sync.Mutex
	state       State
	clock       clockReadings // of the group's clock
	headChanged time.Duration // when the head changed last
	caughtUp    bool
	current     time.Duration // when the view had all that this member had received
	changed     chan struct{} // closed when the owner changes
}

// see takes over what is newer of a state, of a member that has read the log up to tail.
func (k *known) see(s State, tail uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.Head > k.state.Head {
		k.state.Head, k.state.Last, k.state.Wall = s.Head, max(s.Last, k.state.Last), s.Wall
		k.headChanged = k.cfg.Clock()
		if !s.Wall.IsZero() {
			// A release too: it may be of an owner of which this member has received nothing.
			k.clock.record(reading{s.Wall, k.cfg.wall(), k.headChanged}, s.Epoch > k.state.Epoch)
		}
		if k.caughtUp && tail >= k.state.Last {
			k.current = k.headChanged
		}
	}
	if s.Epoch > k.state.Epoch {
		k.state.Epoch, k.state.Owner = s.Epoch, s.Owner
		k.headChanged = k.cfg.Clock()
		close(k.changed)
		k.changed = make(chan struct{})
	}
}

// begin is called when the member begins to follow the log.
func (k *known) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.current = k.cfg.Clock()
}

// end takes the clock of a tenure of this member that has ended now.
func (k *known) end(clock time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.current = k.cfg.Clock()
	k.clock.record(reading{clock, k.cfg.wall(), k.current}, true)
}

// hear lets the owner's silence begin now.
func (k *known) hear() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.headChanged = k.cfg.Clock()
}

// silence is for how long nothing came from an owner, and whether the group was released.
func (k *known) silence() (silent time.Duration, released bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cfg.Clock() - k.headChanged, k.state.Epoch > 0 && k.state.Owner.Member == ""
}

func (k *known) get() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state
}

func (k *known) owner() (Owner, <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state.Owner, k.changed
}

func (k *known) setCaughtUp(is bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.caughtUp = is
}

func (k *known) isCaughtUp() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.caughtUp
}

func (k *known) behind() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return max(0, k.cfg.Clock()-k.current)
}

// holdback is how far this member must hold its clock back if it becomes the owner now: by
// what it has received of the group's clock. That may be old, when it was away, or was long on its
// way. So it is not more than the difference of the clocks explains.
func (k *known) holdback() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return max(0, min(k.clock.ahead(k.cfg.wall(), k.cfg.Clock()), k.cfg.Clocks.ahead(k.state.Owner)))
}
