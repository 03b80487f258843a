package budget

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrFull is the error of a claim that does not get its share: it waited for as long
// as the budget allows, or cannot wait, because too many claims do, or because it needs
// more than the total.
var ErrFull = errors.New("budget: too many claims wait")

// maxWaiting bounds the claims for bytes that wait, because each is tried whenever bytes are
// given back.
const maxWaiting = 1024

// Budget is a number of bytes, or of turns. It is safe for concurrent use.
type Budget struct {
	total int64
	share int64         // of one namespace; 0: thresholds that move
	wait  time.Duration // the longest; 0: as long as the context

	mu         sync.Mutex
	used       int64
	namespaces map[string]*namespace
	waiting    waiters
	missed     bool  // a TryGrow was refused since bytes were given back
	poorest    int64 // the least that a namespace held whose TryGrow was refused since then
	// One empty namespace and source are kept for reuse: most budgets have one
	// source that claims again and again.
	spareNamespace *namespace
	spareSource    *source
}

type namespace struct {
	held    int64
	sources map[string]*source
}

// source is a source that has claims. One without claims takes no memory.
type source struct {
	namespace   *namespace
	held        int64
	first, last *Claim // by age
}

// Claim is the bytes, or turns, that one request or delivery of a source holds. It is for one
// goroutine at a time, and must not be copied once it holds bytes.
type Claim struct {
	budget          *Budget
	namespace, name string

	held           int64
	source         *source // nil while nothing is held
	older, younger *Claim
}

// New returns a budget of bytes.
func New(total int64) *Budget {
	return &Budget{total: total, namespaces: map[string]*namespace{}}
}

// Total is the size of the budget.
func (b *Budget) Total() int64 { return b.total }

// Used is the sum of all claims now.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Claim returns a claim of the source that holds nothing yet.
func (b *Budget) Claim(namespace, source string) Claim {
	return Claim{budget: b, namespace: namespace, name: source}
}

// Held is the number of bytes that the claim holds.
func (c *Claim) Held() int64 { return c.held }

// TryGrow adds n to the claim if the source may have them now.
func (c *Claim) TryGrow(n int64) bool {
	if n <= 0 {
		return true
	}
	b := c.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.grant(c, n) {
		return true
	}
	held := int64(0)
	if ns := b.namespaces[c.namespace]; ns != nil {
		held = ns.held
	}
	if !b.missed || held < b.poorest {
		b.poorest = held
	}
	b.missed = true
	return false
}

// Renew reports whether a claim goes on. A claim ends when another namespace was refused, and that
// namespace, with these bytes, would hold no more than this one without them. Claims that are held for long must
// renew from time to time: else the first callers would keep their bytes for ever.
func (c *Claim) Renew() bool {
	if c.held == 0 {
		return false
	}
	b := c.budget
	b.mu.Lock()
	gives := b.missed && b.poorest+c.held <= c.source.namespace.held-c.held
	b.mu.Unlock()
	if gives {
		c.Release()
	}
	return !gives
}

// Grow adds n to the claim, and waits for them until ctx ends. On an error the claim
// is unchanged.
func (c *Claim) Grow(ctx context.Context, n int64) error {
	if n <= 0 {
		return nil
	}
	b := c.budget
	b.mu.Lock()
	if b.grant(c, n) {
		b.mu.Unlock()
		return nil
	}
	if n > b.total || b.share == 0 && b.waiting.n >= maxWaiting {
		b.mu.Unlock()
		return ErrFull
	}
	w := &waiter{c, n, make(chan struct{})}
	b.waiting.push(w, c.namespace, c.name)
	b.mu.Unlock()
	var late <-chan time.Time
	if b.wait > 0 {
		timer := time.NewTimer(b.wait)
		defer timer.Stop()
		late = timer.C
	}
	var err error
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-late:
		err = ErrFull
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.waiting.remove(w, c.namespace, c.name) { // granted in the same moment
		return nil
	}
	return err
}

// Shrink gives n back.
func (c *Claim) Shrink(n int64) {
	if n = min(n, c.held); n <= 0 {
		return
	}
	b := c.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.giveBack(c, n)
	b.missed = false
}

// Release gives everything back. The claim may grow again. A nil claim holds nothing.
func (c *Claim) Release() {
	if c != nil {
		c.Shrink(c.held)
	}
}

// Allows reports that the namespace may take n now. If not, no TryGrow of it by as much
// succeeds.
func (b *Budget) Allows(namespace string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left(b.namespaces[namespace], n) >= 0
}

// left is how much the namespace could still take after it took n, less than 0 if it may
// not take n. The caller holds the lock.
func (b *Budget) left(ns *namespace, n int64) int64 {
	free := b.total - b.used - n // after
	switch {
	case ns == nil || free < 0:
		return free
	case b.share > 0:
		return b.share - ns.held - n
	}
	return free - ns.held - n
}

// grant takes n for the claim if its source may have them. The caller holds
// the lock.
func (b *Budget) grant(c *Claim, n int64) bool {
	ns := b.namespaces[c.namespace]
	left := b.left(ns, n)
	if left < 0 {
		return false
	}
	var src *source
	if ns != nil {
		src = ns.sources[c.name]
		if src != nil && b.share == 0 && 2*(src.held+n) > left && (c.held == 0 || src.first != c) {
			return false
		}
	}
	if ns == nil {
		if ns, b.spareNamespace = b.spareNamespace, nil; ns == nil {
			ns = &namespace{sources: map[string]*source{}}
		}
		b.namespaces[c.namespace] = ns
	}
	if src == nil {
		if src, b.spareSource = b.spareSource, nil; src == nil {
			src = &source{}
		}
		src.namespace = ns
		ns.sources[c.name] = src
	}
	if c.held == 0 {
		c.source, c.older = src, src.last
		if src.last != nil {
			src.last.younger = c
		} else {
			src.first = c
		}
		src.last = c
	}
	b.used += n
	ns.held += n
	src.held += n
	c.held += n
	return true
}

// giveBack returns n of the claim and grants the waiting claims that fit then. The
// caller holds the lock.
func (b *Budget) giveBack(c *Claim, n int64) {
	src := c.source
	b.used -= n
	src.namespace.held -= n
	src.held -= n
	if c.held -= n; c.held == 0 {
		src.forget(c)
		ns := src.namespace
		if src.first == nil {
			delete(ns.sources, c.name)
			b.spareSource = src
		}
		if len(ns.sources) == 0 {
			delete(b.namespaces, c.namespace)
			b.spareNamespace = ns
		}
	}
	may := func(namespace string) bool { return b.left(b.namespaces[namespace], 1) >= 0 }
	for b.waiting.n > 0 && b.used < b.total {
		w := b.waiting.pop(may, func(w *waiter) bool { return b.grant(w.claim, w.n) })
		if w == nil {
			return
		}
		close(w.done)
	}
}

// forget removes a claim from the source's list.
func (s *source) forget(c *Claim) {
	if c.older != nil {
		c.older.younger = c.younger
	} else {
		s.first = c.younger
	}
	if c.younger != nil {
		c.younger.older = c.older
	} else {
		s.last = c.older
	}
	c.source, c.older, c.younger = nil, nil, nil
}
