package scale

import (
	"slices"
	"sync"
)

// slots bound the starts under way: by namespace, and of all. Namespaces take turns.
type slots struct {
	mu     sync.Mutex
	used   map[string]int
	total  int
	queues map[string][]*slot // that wait, by namespace
	turns  []string           // the namespaces of queues
}

// slot is a start that waits or is under way. granted is called in a goroutine of its own when it
// may begin. Limits are of the moment in which it asked; 0 = none.
type slot struct {
	namespace     string
	most, mostAll int
	granted       func()
	held          bool // under slots.mu
}

func newSlots() *slots { return &slots{used: map[string]int{}, queues: map[string][]*slot{}} }

// ask lets a start wait for its turn.
func (s *slots) ask(want *slot) {
	s.mu.Lock()
	if len(s.queues[want.namespace]) == 0 {
		s.turns = append(s.turns, want.namespace)
	}
	s.queues[want.namespace] = append(s.queues[want.namespace], want)
	s.grant()
	s.mu.Unlock()
}

// holds reports whether the start may begin.
func (s *slots) holds(w *slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return w.held
}

// release ends a start, or its wait. It may be called again.
func (s *slots) release(done *slot) {
	s.mu.Lock()
	switch queue := s.queues[done.namespace]; {
	case done.held:
		done.held = false
		s.total--
		if s.used[done.namespace]--; s.used[done.namespace] == 0 {
			delete(s.used, done.namespace)
		}
	case slices.Contains(queue, done):
		s.setQueue(done.namespace, slices.DeleteFunc(queue, func(w *slot) bool { return w == done }))
	}
	s.grant()
	s.mu.Unlock()
}

func (s *slots) setQueue(namespace string, queue []*slot) {
	if len(queue) > 0 {
		s.queues[namespace] = queue
		return
	}
	delete(s.queues, namespace)
	s.turns = slices.DeleteFunc(s.turns, func(n string) bool { return n == namespace })
}

// grant lets the next starts begin. The caller holds the lock.
func (s *slots) grant() {
	for vain := 0; vain < len(s.turns); {
		namespace := s.turns[0]
		s.turns = append(s.turns[1:], namespace)
		queue := s.queues[namespace]
		if w := queue[0]; w.most > 0 && s.used[namespace] >= w.most || w.mostAll > 0 && s.total >= w.mostAll {
			vain++
			continue
		}
		vain = 0
		s.setQueue(namespace, queue[1:])
		queue[0].held = true
		s.used[namespace]++
		s.total++
		go queue[0].granted()
	}
}
