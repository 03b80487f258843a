package group

import (
	"sync"
	"time"
)

// fitHeader is on the answer to clockPath of a member that may take the shard over.
const fitHeader = "Reschedule-Fit"

// heirLife is how long a member counts as fit after it said so.
const heirLife = 3 * time.Second

// heirs are the other members that said that they are fit to own the shard.
type heirs struct {
	mu  sync.Mutex
	fit map[string]time.Time
}

func (h *heirs) saw(member string, fit bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fit == nil {
		h.fit = map[string]time.Time{}
	}
	delete(h.fit, member)
	if fit {
		h.fit[member] = time.Now()
	}
}

// any reports that a member besides the named one said lately that it is fit.
func (h *heirs) any(besides string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for member, at := range h.fit {
		if member != besides && time.Since(at) < heirLife {
			return true
		}
	}
	return false
}

// fit reports that this member may take the shard over from one that should not own it.
func (m *Member) fit() bool {
	return m.joined.Load() && !m.leaving.Load() && m.group.CaughtUp() && !m.clocks.Off() && m.view.get().Ample()
}

// unfitToClaim is replica.Config.Unfit. Where all disks are nearly full, a failover takes no
// longer than with space.
func (m *Member) unfitToClaim() bool {
	if m.clocks.Off() {
		return true
	}
	owner, _, _ := m.group.Owner()
	return m.view.get().Short() && m.heirs.any(owner.Member)
}

// resign hands the shard over to a member that is fit, if this one owns it and should not. It
// returns when the tenure has ended.
func (m *Member) resign() {
	t := m.current()
	if t == nil || !t.lease.Valid() || !m.heirs.any(m.cfg.Member) {
		return
	}
	var why string
	switch {
	case m.clocks.Fast():
		why = "its clock is ahead: what is due at a time would be delivered before it"
		// With a clock that is behind it goes on: a clock that jumps ahead makes delays shorter.
	case m.view.get().Short():
		why = "its disk is nearly full"
	default:
		return
	}
	if t.finishing.Swap(true) {
		return
	}
	m.cfg.Log.Warn("this member hands the shard over to another one", "why", why)
	t.finish()
	t.lease.Release(why)
}
