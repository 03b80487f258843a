package group

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
)

// fitHeader is on the answer to clockPath of a member that may take the shard over.
const fitHeader = "Reschedule-Fit"

// fitness is how fit a member is to take the shard over from an owner that should not own it.
type fitness string

const (
	unfit fitness = ""
	// able: the clock is right, and disk space is not low. ample: also enough space to take over
	// from a member whose disk is nearly full.
	able  fitness = "able"
	ample fitness = "ample"
)

const (
	// successorLife is how long a member counts as fit after it reported that.
	successorLife = 3 * time.Second
	// successorBehind is how long a fit member may have received nothing from the owner, which it does
	// each 0.15 s.
	successorBehind = 2 * time.Second
	// resignEvery is the least time between two attempts of a member to hand the shard over: if
	// the successor cannot claim it, calls wait for seconds each time.
	resignEvery = time.Minute
)

// successors are the other members that reported that they are fit to own the shard; the owner never does.
type successors struct {
	mu      sync.Mutex
	answers map[string]fitnessAnswer
}

type fitnessAnswer struct {
	fitness
	at time.Time
}

func (h *successors) record(member string, f fitness) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.answers == nil {
		h.answers = map[string]fitnessAnswer{}
	}
	h.answers[member] = fitnessAnswer{f, time.Now()}
}

// any reports whether a recent report of a member is that fit, or fitter.
func (h *successors) any(least fitness) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.answers {
		if time.Since(a.at) < successorLife && (a.fitness == ample || a.fitness == least) {
			return true
		}
	}
	return false
}

// fit is how fit this member is to take the shard over. It must be able to claim it now: it
// receives from the owner, and what its own last tenure began has ended.
func (m *Member) fit() fitness {
	switch view := m.view.get(); {
	case !m.joined.Load() || m.leaving.Load() || m.owns.Load() || !m.group.CaughtUp() || m.group.Behind() > successorBehind || m.clocks.ExceedsLimit() || view.LowOnSpace():
		return unfit
	case view.HasAmpleSpace():
		return ample
	}
	return able
}

// unfitToClaim is replica.Config.Unfit. Where all disks are nearly full, a failover takes no
// longer than with space.
func (m *Member) unfitToClaim() bool {
	return m.clocks.ExceedsLimit() || m.view.get().LowOnSpace() && m.successors.any(ample)
}

// whyResign is why a member should not own the shard while another member can, "": it may. short: its
// disk is nearly full.
func whyResign(clocks *replica.Clocks, short bool, successors *successors) string {
	switch {
	case clocks.IsAhead() && successors.any(able):
		return "its clock is ahead: what is due at a time would be delivered before it"
	case clocks.ExceedsLimit():
		// With a clock that is behind it goes on: one that jumps ahead makes delays shorter.
		return ""
	case short && successors.any(ample):
		return "its disk is nearly full"
	}
	return ""
}

func newResignations() *rate.Limiter { return rate.NewLimiter(rate.Every(resignEvery), 1) }

// resign hands the shard over to a member that is fit, if this one owns it and should not. It
// returns when the tenure has ended.
func (m *Member) resign() {
	t := m.current()
	if t == nil || !t.lease.Valid() {
		return
	}
	why := whyResign(m.clocks, m.view.get().LowOnSpace(), &m.successors)
	if why == "" || !m.resignations.Allow() || t.finishing.Swap(true) {
		return
	}
	m.cfg.Log.Warn("this member hands the shard over to another one", "why", why)
	t.finish()
	t.lease.Release(why)
}
