package budget

import (
	"context"
	"runtime"
	"time"
)

// LongBytes is the text of about a millisecond of decoding or encoding: more takes
// a turn.
const LongBytes = 64 << 10

// TurnWait is how long a computation waits for its turn at most.
const TurnWait = 5 * time.Second

// processors is how many this process may use, before the scheduler gets more threads than that.
var processors = runtime.GOMAXPROCS(0)

// HalfOfProcessors is half of the process's processors.
func HalfOfProcessors() int64 { return int64(max(1, processors/2)) }

// NewProcessors returns as many turns as half of the process's processors.
func NewProcessors() *Budget { return NewTurns(HalfOfProcessors(), HalfOfProcessors(), TurnWait) }

// NewTurns returns n turns, of which a namespace has a share at most. A caller waits for
// a turn at most so long; 0 is as long as its context.
func NewTurns(n, share int64, wait time.Duration) *Budget {
	b := New(n)
	b.share, b.wait = share, wait
	return b
}

// Take waits for a turn, which is a claim of 1.
func (b *Budget) Take(ctx context.Context, namespace, source string) (*Claim, error) {
	c := b.Claim(namespace, source)
	if err := c.Grow(ctx, 1); err != nil {
		return nil, err
	}
	return &c, nil
}

// Awaited reports that a claim waits.
func (b *Budget) Awaited() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting.n > 0
}

// Pass lets the callers who wait go first, and returns when the turn has come
// again. On an error the turn is over. A nil turn is none.
func (c *Claim) Pass(ctx context.Context) error {
	if c == nil || c.held == 0 {
		return nil
	}
	if !c.budget.Awaited() {
		runtime.Gosched() // short work that is ready goes first
		return nil
	}
	return c.Without(ctx, func() error { return nil })
}

// Without calls wait, which waits for something else, without what the claim holds, and
// returns when it holds as much again. On an error, also of wait, it holds nothing.
func (c *Claim) Without(ctx context.Context, wait func() error) error {
	held := int64(0)
	if c != nil {
		held = c.held
		c.Release()
	}
	if err := wait(); err != nil || held == 0 {
		return err
	}
	return c.Grow(ctx, held)
}
