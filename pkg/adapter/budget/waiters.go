package budget

import "slices"

// waiter is a claim that waits for n more.
type waiter struct {
	claim *Claim
	n     int64
	done  chan struct{} // closed when it was granted
}

// waiters are the waiting claims of one name, the oldest first, or the waiters of the
// names below it in the order of their turns.
type waiters struct {
	n      int // with all below
	claims []*waiter
	names  []string
	below  map[string]*waiters
}

func (w *waiters) push(c *waiter, path ...string) {
	w.n++
	if len(path) == 0 {
		w.claims = append(w.claims, c)
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
	next.push(c, path[1:]...)
}

// pop takes out the next one that is granted, of a name that may go; nil when there is none.
func (w *waiters) pop(may func(name string) bool, grant func(*waiter) bool) *waiter {
	if i := slices.IndexFunc(w.claims, grant); i >= 0 {
		c := w.claims[i]
		w.claims = slices.Delete(w.claims, i, i+1)
		w.n--
		return c
	}
	for i, name := range w.names {
		if !may(name) {
			continue
		}
		c := w.below[name].pop(func(string) bool { return true }, grant)
		if c == nil {
			continue
		}
		w.n--
		w.names = slices.Delete(w.names, i, i+1)
		if w.below[name].n == 0 {
			delete(w.below, name)
		} else {
			w.names = append(w.names, name)
		}
		return c
	}
	return nil
}

// remove takes out one that gave up; false when it was granted.
func (w *waiters) remove(c *waiter, path ...string) bool {
	if len(path) == 0 {
		i := slices.Index(w.claims, c)
		if i >= 0 {
			w.claims = slices.Delete(w.claims, i, i+1)
			w.n--
		}
		return i >= 0
	}
	next := w.below[path[0]]
	if next == nil || !next.remove(c, path[1:]...) {
		return false
	}
	if w.n--; next.n == 0 {
		delete(w.below, path[0])
		w.names = slices.DeleteFunc(w.names, func(n string) bool { return n == path[0] })
	}
	return true
}
