package replica

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// OffLimit is how far a member's clock may be off the median of all.
	OffLimit = 250 * time.Millisecond
	// offsetLife is how long a measurement says what a clock shows.
	offsetLife = 10 * time.Second
)

// Offset is what a member has measured of another member's wall clock.
type Offset struct {
	By    time.Duration // the other's clock less this member's
	Error time.Duration // the most that By may be wrong
}

// Clocks are the other members' wall clocks, as far as they were measured since the start.
type Clocks struct {
	member string // this one
	others int
	mu     sync.Mutex
	last   map[string]measured
}

type measured struct {
	Offset
	at time.Time
}

// NewClocks returns the clocks of so many others than the member, of which nothing is known.
func NewClocks(member string, others int) *Clocks {
	return &Clocks{member: member, others: others, last: map[string]measured{}}
}

// Record records a measurement of a member's clock.
func (c *Clocks) Record(member string, o Offset) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last[member] = measured{o, time.Now()}
}

// Offsets are the measurements of the last seconds.
func (c *Clocks) Offsets() map[string]Offset {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := map[string]Offset{}
	for member, m := range c.last {
		if time.Since(m.at) < offsetLife {
			now[member] = m.Offset
		}
	}
	return now
}

// ExceedsLimit reports that this member's clock is off the median of all members' by more than
// OffLimit. That is known only while all others answer: of two clocks, either may be wrong.
func (c *Clocks) ExceedsLimit() bool {
	_, off := c.wrong()
	return off
}

// IsAhead reports that this member's clock exceeds the limit, and is ahead.
func (c *Clocks) IsAhead() bool {
	ahead, off := c.wrong()
	return off && ahead > 0
}

// Agrees reports that this member's clock does not exceed the limit, or that it and the clocks of those others that answer
// are a majority without a second between them: as long as one clock is wrong, they are right. Before the first answer none
// is.
func (c *Clocks) Agrees() bool {
	offsets := c.Offsets()
	if len(offsets) >= c.others {
		return !c.ExceedsLimit()
	}
	agree := 0
	for _, o := range offsets {
		if o.By.Abs()-o.Error < mostApart {
			agree++
		}
	}
	return 2*agree >= c.others
}

// isAheadOfAny reports that this member's clock is ahead of another one's by more than an owner holds it back.
func (c *Clocks) isAheadOfAny() bool {
	for _, o := range c.Offsets() {
		if -o.By-o.Error >= mostApart {
			return true
		}
	}
	return false
}

// wrong returns how far this member's clock is ahead of the median of all.
func (c *Clocks) wrong() (ahead time.Duration, off bool) {
	offsets := c.Offsets()
	if len(offsets) < c.others {
		return 0, false
	}
	all := []Offset{{}} // this member
	all = slices.AppendSeq(all, maps.Values(offsets))
	slices.SortFunc(all, func(a, b Offset) int { return cmp.Compare(a.By, b.By) })
	median := all[len(all)/2]
	return -median.By, median.By.Abs()-median.Error > OffLimit
}

// ahead is how far this member's clock is at most ahead of the group's clock, as the owner's
// claim or release shows it. The last measurement counts also of a member that is gone.
func (c *Clocks) ahead(last Owner) time.Duration {
	if last.Clock == c.member {
		return last.Held
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	apart := mostApart
	if m, known := c.last[last.Clock]; known {
		apart = min(m.Error-m.By, mostApart)
	}
	return last.Held + apart
}
