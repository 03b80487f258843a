package sink

import "sync"

// cache keeps values that are expensive to make, at most twice limit of them: when
// the young generation is full the old one is dropped, so values in use stay.
type cache[K comparable, V any] struct {
	limit   int
	weight  func(K) int // counts in limit, if set; else each counts 1
	evicted func(V)     // called for every value that is dropped, if set

	mu         sync.RWMutex
	young, old map[K]V
	weighs     int // young
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
	weight := 1
	if c.weight != nil {
		weight = c.weight(key)
	}
	if c.weighs+weight > c.limit {
		c.drop(c.old)
		c.old, c.young, c.weighs = c.young, nil, 0
	}
	c.weighs += weight
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
	c.old, c.young, c.weighs = nil, nil, 0
}

func (c *cache[K, V]) drop(generation map[K]V) {
	if c.evicted == nil {
		return
	}
	for _, v := range generation {
		c.evicted(v)
	}
}
