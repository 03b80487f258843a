package sink

import (
	"container/list"
	"crypto/tls"
	"slices"
	"sync"
	"time"
)

const (
	idleTimeout = 30 * time.Second // shorter than the idle timeouts of most sinks and proxies
	// sweepInterval is how soon connections are closed that were idle for too long, or that
	// their sink has closed.
	sweepInterval = 5 * time.Second
)

// idlePool has the idle connections of all transports. Above the limit the longest idle ones are
// closed. A connection with TLS counts as four: it keeps its sink's certificates in memory.
type idlePool struct {
	limit int

	mu       sync.Mutex
	idle     list.List // of *conn, idle longest first
	weight   int       // of all of them
	sweeping bool
}

// take returns an idle connection of the routes with the key, or nil.
func (t *transport) take(poolKey string) *conn {
	for {
		c := t.last(poolKey)
		if c == nil || !c.stale() {
			return c
		}
		c.drop()
	}
}

// last takes the connection that became idle last: the others can end.
func (t *transport) last(poolKey string) *conn {
	t.pool.mu.Lock()
	defer t.pool.mu.Unlock()
	idle := t.idle[poolKey]
	if len(idle) == 0 {
		return nil
	}
	c := idle[len(idle)-1]
	c.leave()
	return c
}

// put keeps a connection for later requests.
func (t *transport) put(c *conn) {
	p, surplus := t.pool, []*conn{c}
	p.mu.Lock()
	if !t.retired {
		c.since, c.place = time.Now(), p.idle.PushBack(c)
		t.idle[c.poolKey] = append(t.idle[c.poolKey], c)
		p.weight += c.weight()
		surplus = nil
		for p.weight > p.limit && p.idle.Len() > 1 {
			longest := p.idle.Front().Value.(*conn)
			longest.leave()
			surplus = append(surplus, longest)
		}
		if !p.sweeping {
			p.sweeping = true
			time.AfterFunc(sweepInterval, p.sweep)
		}
	}
	p.mu.Unlock()
	for _, c := range surplus {
		c.drop()
	}
}

func (c *conn) secured() bool {
	_, ok := c.Conn.(*tls.Conn)
	return ok
}

func (c *conn) weight() int {
	if c.secured() {
		return 4
	}
	return 1
}

// leave removes a connection from the idle ones. The caller holds the lock.
func (c *conn) leave() {
	t := c.transport
	t.pool.idle.Remove(c.place)
	t.pool.weight -= c.weight()
	c.place = nil
	idle := t.idle[c.poolKey]
	i := slices.Index(idle, c)
	if idle = slices.Delete(idle, i, i+1); len(idle) == 0 {
		delete(t.idle, c.poolKey)
	} else {
		t.idle[c.poolKey] = idle
	}
}

// drop closes an idle connection. With TLS that takes up to 5 s, if its sink reads nothing, and
// deliveries to others must not wait for it.
func (c *conn) drop() {
	if c.secured() {
		go func() { _ = c.Close() }()
		return
	}
	_ = c.Close()
}

// stale reports whether an idle connection is of no use.
func (c *conn) stale() bool { return time.Since(c.since) >= idleTimeout || !c.silent() }

// sweep closes the idle connections that are stale. Without it, connections that their sinks have
// closed would pile up.
func (p *idlePool) sweep() {
	p.mu.Lock()
	var stale []*conn
	for place := p.idle.Front(); place != nil; {
		c := place.Value.(*conn)
		place = place.Next()
		if c.stale() {
			c.leave()
			stale = append(stale, c)
		}
	}
	if p.sweeping = p.idle.Len() > 0; p.sweeping {
		time.AfterFunc(sweepInterval, p.sweep)
	}
	p.mu.Unlock()
	for _, c := range stale {
		c.drop()
	}
}

// retire closes the idle connections of a transport that gets no more requests.
func (t *transport) retire() {
	t.pool.mu.Lock()
	t.retired = true
	var all []*conn
	for _, idle := range t.idle {
		all = append(all, idle...)
	}
	for _, c := range all {
		c.leave()
	}
	t.pool.mu.Unlock()
	for _, c := range all {
		c.drop()
	}
}
