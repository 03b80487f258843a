package queue

import (
	"cmp"
	"errors"
	"slices"
	"sync"
)

// gathering makes one admission of concurrent calls that each schedule one key of a source: they share a decision
// loop, a change of the store and an fsync. The first call leads: it admits all calls that have gathered, itself
// among them, and waits until they are durable. Calls that come meanwhile gather, and one of them leads next.
// So a call without company does not wait, and one in company waits for no more than the fsync under way, which a
// call of its own would wait for too.
type gathering struct {
	mu      sync.Mutex
	waiting []*gathered
	led     bool
}

// gathered is a call that waits.
type gathered struct {
	item   [1]Item
	claim  ClaimMemory
	out    [1]Scheduled
	writes firstWrites // of the key
	err    error
	ends   chan bool // false: it was admitted, or err says why not; true: it leads
}

// maxGathered bounds the calls of one admission.
const maxGathered = 128

// errAlone is the error of a call that needs an admission of its own. Nothing was decided.
var errAlone = errors.New("queue: the call cannot be admitted with others")

// schedule is [Source.Schedule]. Its error may be errAlone: of a large item, and while a change waits for space on the
// disk, because the call that leads may be of that change.
func (g *gathering) schedule(s *Source, c *gathered) (Scheduled, error) {
	if c.item[0].brings() > smallEntry || s.q.store.Waiting() {
		return Scheduled{}, errAlone
	}
	g.mu.Lock()
	g.waiting = append(g.waiting, c)
	leads := !g.led
	if g.led = true; !leads {
		c.ends = make(chan bool, 1)
	}
	g.mu.Unlock()
	if leads || <-c.ends {
		g.lead(s)
	}
	c.writes.wait()
	return c.out[0], c.err
}

// lead admits the calls that have gathered. The first of them is the caller's.
func (g *gathering) lead(s *Source) {
	g.mu.Lock()
	n := min(len(g.waiting), maxGathered)
	calls := slices.Clone(g.waiting[:n])
	g.waiting = g.waiting[:copy(g.waiting, g.waiting[n:])]
	g.mu.Unlock()
	err := error(errUnknown) // of a panic
	defer func() {
		g.mu.Lock()
		if g.led = len(g.waiting) > 0; g.led {
			g.waiting[0].ends <- true
		}
		g.mu.Unlock()
		for i, c := range calls {
			c.err = cmp.Or(err, c.err)
			if i > 0 {
				c.ends <- false
			}
		}
	}()
	a := admission{Source: s, gathered: true, claim: calls[0].claim}
	items, out := calls[0].item[:], calls[0].out[:]
	if n > 1 {
		a.claim = func(int64) error { return errAlone }
		items, out = make([]Item, n), make([]Scheduled, n)
		for i, c := range calls {
			items[i] = c.item[0]
		}
	}
	if err = a.admit(items, out); err != nil {
		if n > 1 && a.commit == nil { // it may be of one call, which must not be all calls' error
			err = errAlone
		}
		return
	}
	for i, c := range calls {
		c.out[0], c.writes = out[i], a.writes.of(items[i].Key)
		if out[i].Err != nil {
			c.err = out[i].Err
		}
	}
}
