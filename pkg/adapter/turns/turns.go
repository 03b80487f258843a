// Package turns shares the processors among the tenants' long computations:
// decoding and encoding large bodies, and evaluating expressions.
//
// It guarantees that at most half of the processors compute such work at one time,
// so that short requests and deliveries find a free processor; and that callers who
// wait are served by namespace first, then by source, each in its turn: a caller who
// sends more waits longer.
//
// How it works: a computation takes a turn, and passes it on after each step of
// about a millisecond. A turn is not held while its holder waits for the network or for
// memory; a long write keeps its turn until it is stored.
//
// Work of other kinds, such as the lists of watches, has turns of its own. It
// leaves short computations alone, and memory to package budget.
package turns

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
)

// LongBytes is the text of about a millisecond of decoding or encoding: more takes
// a turn.
const LongBytes = 64 << 10

// Wait is how long a computation waits for its turn at most.
const Wait = 5 * time.Second

// ErrNone is the error of a caller whose turn did not come in time.
var ErrNone = errors.New("turns: too many computations wait")

// Turns is a number of turns. It is safe for concurrent use.
type Turns struct {
	wait  time.Duration
	share int // of one namespace

	mu      sync.Mutex
	free    int
	held    map[string]int // by namespace
	waiting waiters
}

// processors is how many this process may use: before RaiseGOMAXPROCS.
var processors = runtime.GOMAXPROCS(0)

// threads are so many for each processor.
const threads = 4

// RaiseGOMAXPROCS gives Go's scheduler more threads than there are processors, unless the
// environment sets GOMAXPROCS, and the threads short slices. The kernel takes a processor from
// a long computation within about a millisecond when a short one is ready; Go's scheduler,
// which knows of no kernel threads that wait, lets the long one run for 10 ms.
func RaiseGOMAXPROCS() {
	shortenTimeSlices()
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(threads * processors)
	}
}

// HalfOfProcessors is half of the process's processors.
func HalfOfProcessors() int { return max(1, processors/2) }

// New returns as many turns as half of the process's processors.
func New() *Turns { return NewN(HalfOfProcessors(), Wait) }

// NewN returns n turns, for which a caller waits at most so long; 0 is as long as its
// context.
func NewN(n int, wait time.Duration) *Turns { return NewShared(n, n, wait) }

// NewShared is NewN, where a namespace has a share of the turns at most: its turns may last.
func NewShared(n, share int, wait time.Duration) *Turns {
	return &Turns{free: n, share: share, wait: wait, held: map[string]int{}}
}

// Awaited reports that a caller waits for a turn.
func (t *Turns) Awaited() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.waiting.empty()
}

// Turn is the right to compute. It is for one goroutine at a time. Its zero value
// is not a turn, and Pass and Done do nothing.
type Turn struct {
	all               *Turns
	namespace, source string
}

// Take waits for a turn.
func (t *Turns) Take(ctx context.Context, namespace, source string) (Turn, error) {
	if err := t.take(ctx, namespace, source); err != nil {
		return Turn{}, err
	}
	return Turn{t, namespace, source}, nil
}

// Pass lets the callers who wait go first, and returns when the turn has come
// again. On an error the turn is over.
func (t *Turn) Pass(ctx context.Context) error {
	if t.all == nil {
		return nil
	}
	if !t.all.Awaited() {
		runtime.Gosched() // short work that is ready goes first
		return nil
	}
	return t.Without(ctx, func() error { return nil })
}

// Without calls wait, which waits for something else, without the turn, and returns when
// the turn has come again. On an error, also of wait, the turn is over.
func (t *Turn) Without(ctx context.Context, wait func() error) error {
	all := t.all
	t.Done()
	if err := wait(); err != nil || all == nil {
		return err
	}
	if err := all.take(ctx, t.namespace, t.source); err != nil {
		return err
	}
	t.all = all
	return nil
}

// Done ends the turn. It may be called again.
func (t *Turn) Done() {
	if t.all != nil {
		t.all.done(t.namespace)
		t.all = nil
	}
}

func (t *Turns) take(ctx context.Context, namespace, source string) (err error) {
	t.mu.Lock()
	if t.free > 0 && t.held[namespace] < t.share { // then callers who wait have their share
		t.free--
		t.held[namespace]++
		t.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	t.waiting.push(turn, namespace, source)
	t.mu.Unlock()
	var late <-chan time.Time
	if t.wait > 0 {
		timer := time.NewTimer(t.wait)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-late:
		err = ErrNone
	}
	t.mu.Lock()
	gone := t.waiting.remove(turn, namespace, source)
	t.mu.Unlock()
	if !gone { // its turn came at this moment
		t.done(namespace)
	}
	return err
}

// done gives the turn of a namespace to the next caller.
func (t *Turns) done(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held[namespace]--; t.held[namespace] == 0 {
		delete(t.held, namespace)
	}
	next, to := t.waiting.pop(func(name string) bool { return t.held[name] < t.share })
	if next == nil {
		t.free++
		return
	}
	t.held[to]++
	close(next)
}

// waiters are the callers of one name that wait, or the waiters of the names below it in
// the order of their turns.
type waiters struct {
	callers []chan struct{}
	names   []string
	below   map[string]*waiters
}

func (w *waiters) push(turn chan struct{}, path ...string) {
	if len(path) == 0 {
		w.callers = append(w.callers, turn)
		return
	}
	next := w.below[path[0]]
	if next == nil {
		if next = (&waiters{}); w.below == nil {
			w.below = map[string]*waiters{}
		}
		w.below[path[0]] = next
		w.names = append(w.names, path[0])
	}
	next.push(turn, path[1:]...)
}

// pop takes the next one out whose name may go, and returns the name; nil when none waits.
func (w *waiters) pop(may func(name string) bool) (turn chan struct{}, name string) {
	if len(w.callers) > 0 {
		turn, w.callers = w.callers[0], w.callers[1:]
		return turn, ""
	}
	i := slices.IndexFunc(w.names, may)
	if i < 0 {
		return nil, ""
	}
	name = w.names[i]
	w.names = slices.Delete(w.names, i, i+1)
	next := w.below[name]
	turn, _ = next.pop(func(string) bool { return true })
	if next.empty() {
		delete(w.below, name)
	} else {
		w.names = append(w.names, name)
	}
	return turn, name
}

func (w *waiters) empty() bool { return len(w.callers) == 0 && len(w.names) == 0 }

// remove takes out one that gave up; false when its turn has come.
func (w *waiters) remove(turn chan struct{}, path ...string) bool {
	if len(path) == 0 {
		before := len(w.callers)
		w.callers = slices.DeleteFunc(w.callers, func(c chan struct{}) bool { return c == turn })
		return len(w.callers) < before
	}
	next := w.below[path[0]]
	if next == nil || !next.remove(turn, path[1:]...) {
		return false
	}
	if next.empty() {
		delete(w.below, path[0])
		w.names = slices.DeleteFunc(w.names, func(n string) bool { return n == path[0] })
	}
	return true
}
