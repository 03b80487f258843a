package sink

import "sync"

// cache keeps values that are expensive to make, at most twice limit of them: when
// the young generation is full the old one is dropped, so values in use stay.
type cache[K comparable, V any] struct {
	limit   int
	evicted func(V) // called for every value that is dropped, if set

	mu         sync.RWMutex
	young, old map[K]V
}

func (c *cache[K, V]) get(key K, build func() (V, error)) (V, error) {
	c.mu.RLock()
	v, ok := c.young[key]
	c.mu.RUnlock()
	if ok {
		return v, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if v, ok = c.young[key]; ok {
		return v, nil
	}
	if v, ok = c.old[key]; ok {
		delete(c.old, key)
	} else {
		var err error
		if v, err = build(); err != nil {
			return v, err
		}
	}
	if len(c.young) >= c.limit {
		c.drop(c.old)
		c.old, c.young = c.young, nil
	}
	if c.young == nil {
		c.young = make(map[K]V)
	}
	c.young[key] = v
	return v, nil
}

func (c *cache[K, V]) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(c.old)
	c.drop(c.young)
	c.old, c.young = nil, nil
}

func (c *cache[K, V]) drop(generation map[K]V) {
	if c.evicted == nil {
		return
	}
	for _, v := range generation {
		c.evicted(v)
	}
}
