package sink

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// errCalledOff is the error of an attempt of which nothing was written.
var errCalledOff = errors.New("the delivery was called off before it began")

// attemptConns is one attempt's way to its sink: over one connection, or over
// several when the transport repeats it.
type attemptConns struct {
	ctx       context.Context // ends with the attempt
	conns     *conns
	begin     func() (wrote func(), ok bool)
	calledOff atomic.Bool

	dialled []*conn // under conns.mu: dialled for this attempt
	over    bool    // under conns.mu
}

type attemptConnsKey struct{}

// newAttemptConns returns the passage of an attempt that ends with the context.
func (p *conns) newAttemptConns(ctx context.Context, begin func() (func(), bool)) *attemptConns {
	return &attemptConns{ctx: ctx, conns: p, begin: begin}
}

// withTrace returns the context that carries the passage through the transport to its
// connection. It is for the request to the sink alone: a request for a token has
// connections of its own.
func (way *attemptConns) withTrace(ctx context.Context) context.Context {
	p := way.conns
	var current *conn // GotConn is called for one connection before the next
	ctx = context.WithValue(ctx, attemptConnsKey{}, way)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			current = unwrap(info.Conn)
			p.take(current, way)
		},
		PutIdleConn: func(err error) {
			if err == nil {
				p.put(current, way)
			}
		},
	})
}

// conns dials the connections of all transports, and bounds the idle ones: above the
// limit the longest idle one is closed.
type conns struct {
	dialer func(ctx context.Context, network, address string) (net.Conn, error)
	limit  int

	mu   sync.Mutex
	idle list.List // of *conn, idle longest first
}

// conn is a connection that calls Attempt.Begin before the first byte of each
// request.
type conn struct {
	net.Conn
	pool *conns
	next atomic.Pointer[attemptConns] // of the request whose first byte comes next

	user   *attemptConns // under conns.mu: the last passage that got it
	place  *list.Element // under conns.mu: among the idle ones
	closed bool          // under conns.mu
}

// unwrap finds our connection below TLS; every connection is dialled here.
func unwrap(c net.Conn) *conn {
	for {
		switch v := c.(type) {
		case *conn:
			return v
		case interface{ NetConn() net.Conn }:
			c = v.NetConn()
		default:
			return nil
		}
	}
}

// dial is a transport's DialContext. It ends with the attempt: the transport would go
// on dialling for later requests, and such dials are not bounded.
func (p *conns) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	way, _ := ctx.Value(attemptConnsKey{}).(*attemptConns)
	if way != nil {
		defer context.AfterFunc(way.ctx, cancel)()
	}
	dialled, err := p.dialer(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: dialled, pool: p}
	if way == nil {
		return c, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if way.over {
		p.rest(c)
	} else {
		way.dialled = append(way.dialled, c)
	}
	return c, nil
}

// take records that the passage writes to the connection next.
func (p *conns) take(c *conn, way *attemptConns) {
	c.next.Store(way)
	p.mu.Lock()
	defer p.mu.Unlock()
	c.user = way
	p.leave(c)
}

// put records that the passage has released the connection. Another passage may have
// got it in the meantime.
func (p *conns) put(c *conn, way *attemptConns) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.user == way {
		p.rest(c)
	}
}

// rest adds a connection to the idle ones. The caller holds the lock.
func (p *conns) rest(c *conn) {
	c.user = nil
	if c.closed || c.place != nil {
		return
	}
	c.place = p.idle.PushBack(c)
	if p.idle.Len() > p.limit {
		oldest := p.idle.Front().Value.(*conn)
		p.leave(oldest)
		go func() { _ = oldest.Close() }() // takes the lock; over TLS nothing else is written
	}
}

// leave removes a connection from the idle ones. The caller holds the lock.
func (p *conns) leave(c *conn) {
	if c.place != nil {
		p.idle.Remove(c.place)
		c.place = nil
	}
}

// end ends the attempt: connections that were dialled for it and not used become
// idle.
func (way *attemptConns) end() {
	p := way.conns
	p.mu.Lock()
	defer p.mu.Unlock()
	way.over = true
	for _, c := range way.dialled {
		if c.user == nil {
			p.rest(c)
		}
	}
	way.dialled = nil
}

// Write calls Attempt.Begin before the first byte of a request.
func (c *conn) Write(b []byte) (int, error) {
	way := c.next.Swap(nil)
	if way == nil || way.begin == nil {
		return c.Conn.Write(b)
	}
	wrote, ok := way.begin()
	if !ok {
		way.calledOff.Store(true)
		_ = c.Close() // the transport gives it up anyway
		return 0, errCalledOff
	}
	defer wrote()
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.pool.mu.Lock()
	c.closed = true
	c.pool.leave(c)
	c.pool.mu.Unlock()
	return c.Conn.Close()
}

const (
	dialTimeout      = 30 * time.Second
	handshakeTimeout = 10 * time.Second
	idleTimeout      = 30 * time.Second // shorter than the idle timeouts of most sinks and proxies
)
