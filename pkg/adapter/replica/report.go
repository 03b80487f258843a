package replica

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// hashesKept is how many entries back a member knows the hash of its view. The others report some seconds late.
	hashesKept = 1 << 14
	// holdTime is how long a member that takes a copy may be silent before the log is kept for it no longer, and holdMost
	// how long a copy may take.
	holdTime = 30 * time.Second
	holdMost = time.Hour
	// LogBytes is how much the log may take while a member takes a copy, or the views of two members are not written to
	// their disks. From then on changes are slowed down to slowBytes a second, and none is refused here: the copy ends
	// at last. The caller refuses growth.
	LogBytes  = 1 << 30
	slowBytes = 1 << 20
)

// errDiffers is the error of a view that has other entries than most members have.
var errDiffers = errors.New("replica: this member's view differs from the other members'")

// errUnreadable is the error of a view that is damaged.
var errUnreadable = errors.New("replica: this member's view is damaged")

// isWrong reports that the view must not be used, though it has every entry.
func isWrong(err error) bool { return errors.Is(err, errDiffers) || errors.Is(err, errUnreadable) }

// hash is a hash of the view at an entry.
type hash struct{ seq, hash uint64 }

// comparison compares this member's view with the others', by hashes.
type comparison struct {
	cfg       *Config
	differing atomic.Int64
	discard   chan struct{} // holds one: the view differs from most others'

	// mu guards the rest, for a moment: who applies a batch notes its hash, and the goroutine of keep compares.
	mu        sync.Mutex
	hashes    []hash // by number
	differsAt uint64 // the first entry at which the owner was found to differ, 0: it does not
	doubted   bool   // the view differs from the owner's, and the others have not reported yet
}

// reset begins anew with the view as it is now.
func (c *comparison) reset() {
	seq, h := c.cfg.View.Chain()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hashes, c.doubted, c.differsAt = make([]hash, hashesKept), false, 0
	c.hashes[seq%hashesKept] = hash{seq, h}
	select {
	case <-c.discard:
	default:
	}
}

// note keeps the hash of the view.
func (c *comparison) note() {
	seq, h := c.cfg.View.Chain()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hashes[seq%hashesKept] = hash{seq, h}
}

func (c *comparison) isDoubted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doubted
}

// report records what the others must know of this member, when that has changed, or must be repeated.
func (k *keeper) report(ctx context.Context) {
	seq, h := k.cfg.View.Chain()
	r := Report{Seq: seq, Hash: h, Copies: k.copies.Load(), Beat: k.reported.Beat}
	again := k.cfg.Clock()-k.reportedAt >= keepEvery
	if r.Copies == k.reported.Copies && k.reported.Beat != 0 && (!again || r == k.reported && !r.Copies) {
		return
	}
	r.Beat = time.Now().UnixNano()
	if err := bounded(ctx, func(ctx context.Context) error { return k.cfg.Log.Report(ctx, k.cfg.Member, r) }); err == nil {
		k.reported, k.reportedAt = r, k.cfg.Clock()
	}
}

// agreement is what a report says about the reporter's view.
type agreement int

const (
	unknown agreement = iota
	agrees
	differs
)

// compare returns whether the view with the report has what this member's has.
func (c *comparison) compare(r Report) agreement {
	switch own := c.hashes[r.Seq%hashesKept]; {
	case own.seq != r.Seq || r.Seq == 0:
		return unknown
	case own.hash == r.Hash:
		return agrees
	}
	return differs
}

// compareAll compares this member's view with the others'. Of a view that differs from the owner's and from most others'
// the member takes a copy. Until the others have reported, it is not ready, and claims nothing.
func (c *comparison) compareAll(owner string, reports map[string]Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fromOwner := owner != c.cfg.Member && c.compare(reports[owner]) == differs
	switch {
	case !fromOwner && owner != "":
		c.differsAt = 0
	case fromOwner && c.differsAt == 0:
		c.differsAt = reports[owner].Seq
	}
	same, other := 1, 0
	for _, m := range c.cfg.Members {
		if m == c.cfg.Member {
			continue
		}
		switch c.compare(reports[m]) {
		case agrees:
			if reports[m].Seq >= c.differsAt { // else they may differ behind it
				same++
			}
		case differs:
			other++
		}
	}
	most := len(c.cfg.Members) / 2
	if other != int(c.differing.Swap(int64(other))) {
		if other > 0 {
			c.cfg.Logger.Error("members' views differ: look at the disks, and see docs/high-availability.md, A lost disk", "differ", other, "agree", same-1, "owner", owner)
		} else {
			c.cfg.Logger.Info("this member's view agrees with the others' again")
		}
	}
	// The doubt lasts while there is no owner: it claims nothing then.
	c.doubted = same <= most && (c.doubted && other > 0 || fromOwner)
	if fromOwner && other > most {
		select {
		case c.discard <- struct{}{}:
		default:
		}
	}
}

// Differing is how many other members' views differ from this one's, as far as their reports say.
func (c *comparison) Differing() int { return int(c.differing.Load()) }

// hold is what the owner knows of a member that takes a copy.
type hold struct {
	beat        int64
	first, last time.Duration
}

// holdLog is the number behind which the log is kept for members that take a copy, by their reports and marks.
func (t *Tenure) holdLog(reports map[string]Report, marks map[string]uint64) uint64 {
	low, now := ^uint64(0), t.g.cfg.Clock()
	for _, m := range t.g.cfg.Members {
		r := reports[m]
		h, is := t.holds[m]
		switch {
		case !r.Copies:
			delete(t.holds, m)
			continue
		case !is:
			h = hold{r.Beat, now, now}
		case r.Beat != h.beat:
			h.beat, h.last = r.Beat, now
		}
		t.holds[m] = h
		if now-h.last < holdTime && now-h.first < holdMost {
			low = min(low, marks[m])
		}
	}
	return low
}

// HasSpace reports that the log takes less than LogBytes, so that changes are not slowed down. Without space nothing
// should grow.
func (t *Tenure) HasSpace() bool { return t.g.cfg.Log.Size() < t.g.cfg.LogBytes }

// slow waits so long that what is appended to a log without space takes slowBytes a second, while the tenure lasts.
func (t *Tenure) slow(size int) {
	if !t.HasSpace() {
		select {
		case <-t.over:
		case <-time.After(time.Duration(size) * time.Second / slowBytes):
		}
	}
}
