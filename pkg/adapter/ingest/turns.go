package ingest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// turns lets so many go on at a time. Those that wait are taken by namespace
// first, then by source, each in its turn: who sends more waits longer.
type turns struct {
	mu      sync.Mutex
	free    int
	waiting line
}

var errNoTurn = errors.New("no turn")

// take waits for a turn, which ends with done.
func (t *turns) take(ctx context.Context, most time.Duration, namespace, source string) (done func(), err error) {
	t.mu.Lock()
	if t.free > 0 { // then nobody waits
		t.free--
		t.mu.Unlock()
		return t.done, nil
	}
	turn := make(chan struct{})
	t.waiting.push(turn, namespace, source)
	t.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-turn:
		return t.done, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = errNoTurn
	}
	t.mu.Lock()
	gone := t.waiting.remove(turn, namespace, source)
	t.mu.Unlock()
	if !gone { // its turn came at this moment
		t.done()
	}
	return nil, err
}

// done gives the turn to the next.
func (t *turns) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if next := t.waiting.pop(); next != nil {
		close(next)
		return
	}
	t.free++
}

// line is those of one name that wait, or the lines of the names below it in
// the order of their turns.
type line struct {
	waiters []chan struct{}
	names   []string
	below   map[string]*line
}

func (l *line) push(turn chan struct{}, path ...string) {
	if len(path) == 0 {
		l.waiters = append(l.waiters, turn)
		return
	}
	next := l.below[path[0]]
	if next == nil {
		if next = (&line{}); l.below == nil {
			l.below = map[string]*line{}
		}
		l.below[path[0]] = next
		l.names = append(l.names, path[0])
	}
	next.push(turn, path[1:]...)
}

// pop takes the next one out; nil when nobody waits.
func (l *line) pop() (turn chan struct{}) {
	if len(l.names) == 0 {
		if len(l.waiters) > 0 {
			turn, l.waiters = l.waiters[0], l.waiters[1:]
		}
		return turn
	}
	name := l.names[0]
	l.names = l.names[1:]
	next := l.below[name]
	turn = next.pop()
	if next.empty() {
		delete(l.below, name)
	} else {
		l.names = append(l.names, name)
	}
	return turn
}

func (l *line) empty() bool { return len(l.waiters) == 0 && len(l.names) == 0 }

// remove takes out one that gave up; false when its turn has come.
func (l *line) remove(turn chan struct{}, path ...string) bool {
	if len(path) == 0 {
		before := len(l.waiters)
		l.waiters = slices.DeleteFunc(l.waiters, func(w chan struct{}) bool { return w == turn })
		return len(l.waiters) < before
	}
	next := l.below[path[0]]
	if next == nil || !next.remove(turn, path[1:]...) {
		return false
	}
	if next.empty() {
		delete(l.below, path[0])
		l.names = slices.DeleteFunc(l.names, func(n string) bool { return n == path[0] })
	}
	return true
}
