package watch

import (
	"context"
	"slices"
	"sync"
)

// line lets one list at a time go to the API server, the namespaces of sources in turn.
type line struct {
	mu      sync.Mutex
	busy    bool
	waiting map[string][]chan struct{} // by namespace
	order   []string                   // namespaces that wait, the next one first
}

// enter waits for the turn. After nil the caller must leave.
func (l *line) enter(ctx context.Context, namespace string) error {
	l.mu.Lock()
	if !l.busy {
		l.busy = true
		l.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	if l.waiting == nil {
		l.waiting = map[string][]chan struct{}{}
	}
	if len(l.waiting[namespace]) == 0 {
		l.order = append(l.order, namespace)
	}
	l.waiting[namespace] = append(l.waiting[namespace], turn)
	l.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting[namespace], turn); i >= 0 {
		l.drop(namespace, i)
	} else {
		l.next() // the turn came just now
	}
	return context.Cause(ctx)
}

// leave ends the turn.
func (l *line) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next()
}

// awaited reports that another list waits for its turn.
func (l *line) awaited() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.order) > 0
}

// next gives the turn to the namespace that waits longest.
func (l *line) next() {
	if len(l.order) == 0 {
		l.busy = false
		return
	}
	namespace := l.order[0]
	turn := l.waiting[namespace][0]
	l.drop(namespace, 0)
	if len(l.waiting[namespace]) > 0 { // behind the others
		l.order = append(slices.DeleteFunc(l.order, func(n string) bool { return n == namespace }), namespace)
	}
	close(turn)
}

func (l *line) drop(namespace string, i int) {
	l.waiting[namespace] = slices.Delete(l.waiting[namespace], i, i+1)
	if len(l.waiting[namespace]) == 0 {
		delete(l.waiting, namespace)
		l.order = slices.DeleteFunc(l.order, func(n string) bool { return n == namespace })
	}
}
