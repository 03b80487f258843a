package replica

import "time"

// The clock of the group is the wall clock of its owner, held back so that it is never ahead
// of the clock by which earlier owners made their promises.
const (
	// mostApart is what the wall clocks of two members may differ by.
	mostApart = time.Second
	// creep: the clock runs faster by one part in so many until it is not held back any more.
	// A kernel that corrects its clock does so at the same rate.
	creep = 2000
	// readingSpan is how long a reading of the owner's clock counts at least: a later one may
	// have been longer on its way. The owner's clock may be set back.
	readingSpan = 2 * time.Second
)

// reading is what the group's clock showed at least, at a moment on the clocks of this member.
type reading struct {
	group time.Time
	wall  time.Time
	at    time.Duration
}

// now is what the group's clock shows at least. Neither a wall clock that is set forward nor a
// Clock that runs too fast makes it too late.
func (r reading) now(wall time.Time, at time.Duration) time.Time {
	return r.group.Add(min(wall.Sub(r.wall), at-r.at))
}

// clockReadings is what a member knows of the group's clock: the readings that were least late, of
// this span and of the previous span.
type clockReadings struct {
	best, before reading
	began        time.Duration
}

// record takes a reading. anew: the owner may be another one, whose clock was held back too.
func (h *clockReadings) record(r reading, anew bool) {
	switch {
	case anew || h.best.group.IsZero():
		*h = clockReadings{best: r, before: r, began: r.at}
	case r.at-h.began >= readingSpan:
		h.before, h.best, h.began = h.best, r, r.at
	case r.group.After(h.best.now(r.wall, r.at)):
		h.best = r
	}
}

// ahead is how far the wall clock is ahead of what is known of the group's clock.
func (h *clockReadings) ahead(wall time.Time, at time.Duration) time.Duration {
	if h.best.group.IsZero() {
		return 0 // there was no owner
	}
	return min(wall.Sub(h.best.now(wall, at)), wall.Sub(h.before.now(wall, at)))
}

// wall is the wall clock without Go's monotonic one, which is not the same after a pause.
func (c *Config) wall() time.Time { return c.Wall().Round(0) }

// ClockHoldback is how far this member holds the group's clock back, as its owner.
func (g *Group) ClockHoldback() time.Duration {
	t := g.tenure.Load()
	if !t.Valid() {
		return 0
	}
	return t.ClockHoldback()
}

// ClockHoldback is how far this tenure holds the clock back.
func (t *Tenure) ClockHoldback() time.Duration {
	if t.held == 0 {
		return 0
	}
	return max(0, t.held-(t.g.cfg.Clock()-t.begun)/creep)
}

// Now is the clock of the group: what was promised for an instant of an earlier owner's clock
// is not due before on this one.
func (t *Tenure) Now() time.Time { return t.g.cfg.wall().Add(-t.ClockHoldback()) }
