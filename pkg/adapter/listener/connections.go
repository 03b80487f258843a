package listener

import (
	"container/heap"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
)

// Config is what connections need.
type Config struct {
	Name  string // of the address, in metrics and the log
	Limit int    // connections at one time; required
	// Heads bounds the bytes that have arrived of requests that are not complete,
	// twice what is read of each: as text and as headers; required.
	Heads *budget.Budget
	Log   *slog.Logger // default slog.Default()
}

const (
	// freeHead is what a connection may read of a request uncounted: more than
	// most requests have.
	freeHead = 4 << 10
	// headCopies is how often what is read of a head is in memory.
	headCopies = 2
	// silence is how often the log says that the limit is reached.
	silence = time.Minute
)

// Connections are those of one address.
type Connections struct {
	cfg     Config
	leaving int // at most so many on their way out

	mu     sync.Mutex
	gone   sync.Cond // one fewer is on its way out
	open   int       // those that gave way left out
	out    int       // gave way, and the server has not let go yet
	peers  map[netip.Addr]*peer
	most   peersByCount
	clock  uint64 // grows with every change of a peer
	logged time.Time

	gaveWay, refused atomic.Int64
}

// New returns no connections yet.
func New(cfg Config) *Connections {
	c := &Connections{cfg: cfg, leaving: max(cfg.Limit/8, 1), peers: map[netip.Addr]*peer{}}
	c.gone.L = &c.mu
	if c.cfg.Log == nil {
		c.cfg.Log = slog.Default()
	}
	return c
}

// conn is one connection.
type conn struct {
	net.Conn
	of   *Connections
	peer *peer

	// Of Connections.mu:
	busy          int  // handlers that run
	listed        bool // it is among the idle ones
	away          bool // it gave way
	closed        bool
	before, after *conn

	head struct {
		sync.Mutex
		counting bool // no handler runs
		read     int64
		claim    budget.Claim
	}
}

// Listen accepts l's connections within the limit.
func (c *Connections) Listen(l net.Listener) net.Listener { return &limited{l, c} }

type limited struct {
	net.Listener
	of *Connections
}

// Accept implements [net.Listener].
func (l *limited) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if accepted := l.of.admit(raw); accepted != nil {
			return accepted, nil
		}
		_ = raw.Close() // there is nothing to lose yet
	}
}

// admit makes room for a connection; nil when there is none.
func (c *Connections) admit(raw net.Conn) *conn {
	n := &conn{Conn: raw, of: c}
	addr := addressOf(raw)
	n.head.counting = true
	n.head.claim = c.cfg.Heads.Claim(addr.String(), addr.String())
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.out >= c.leaving {
		c.gone.Wait()
	}
	if c.open >= c.cfg.Limit && !c.makeRoom() {
		c.refused.Add(1)
		return nil
	}
	p := c.peers[addr]
	if p == nil {
		p = &peer{addr: addr}
		c.peers[addr] = p
		heap.Push(&c.most, p)
	}
	n.peer = p
	c.open++
	c.change(p, 1)
	p.append(n)
	return n
}

// makeRoom lets the longest idle connection of the peer with the most give way.
// The caller holds the lock.
func (c *Connections) makeRoom() bool {
	if now := time.Now(); now.Sub(c.logged) > silence {
		c.logged = now
		c.cfg.Log.Warn("as many connections as there may be: the longest idle ones give way",
			"address", c.cfg.Name, "connections", c.open, "peers", len(c.peers), "most", c.most[0].open, "peer", c.most[0].addr)
	}
	from := c.most[0]
	if from.first == nil { // all of its requests are being answered
		for _, p := range c.most {
			if p.first != nil && (from.first == nil || c.most.above(p, from)) {
				from = p
			}
		}
	}
	victim := from.first
	if victim == nil {
		return false
	}
	victim.away = true
	c.out++
	c.forget(victim)
	c.gaveWay.Add(1)
	_ = victim.Conn.Close() // its server finds out, and lets go
	return true
}

// forget takes a connection out of the count. The caller holds the lock.
func (c *Connections) forget(n *conn) {
	p := n.peer
	p.remove(n)
	c.open--
	c.change(p, -1)
	if p.open == 0 {
		heap.Remove(&c.most, p.at)
		delete(c.peers, p.addr)
	}
}

// change notes that a peer has one connection more or fewer.
func (c *Connections) change(p *peer, by int) {
	p.open += by
	c.clock++
	p.changed = c.clock
	heap.Fix(&c.most, p.at)
}

// Close implements [net.Conn].
func (n *conn) Close() error {
	c := n.of
	c.mu.Lock()
	if !n.closed {
		n.closed = true
		if n.away {
			c.out--
			c.gone.Signal()
		} else {
			c.forget(n)
		}
	}
	c.mu.Unlock()
	err := n.Conn.Close()
	n.head.Lock()
	n.head.counting = false
	n.head.claim.Release()
	n.head.Unlock()
	return err
}

// CloseWrite lets a server that closes wait until its answer has been read.
func (n *conn) CloseWrite() error {
	if half, ok := n.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Read implements [net.Conn].
func (n *conn) Read(b []byte) (int, error) {
	read, err := n.Conn.Read(b)
	n.head.Lock()
	defer n.head.Unlock()
	if !n.head.counting {
		return read, err
	}
	n.head.read += int64(read)
	more := headCopies*(n.head.read-freeHead) - n.head.claim.Held()
	if !n.head.claim.TryGrow(more) {
		n.of.refused.Add(1)
		return 0, errHead
	}
	return read, err
}

// errHead ends a connection whose request does not fit.
var errHead = &net.OpError{Op: "read", Net: "tcp", Err: errTooMuch{}}

type errTooMuch struct{}

func (errTooMuch) Error() string { return "too many bytes of requests that are not complete" }

type connKey struct{}

// Context is for the server's ConnContext.
func (c *Connections) Context(ctx context.Context, raw net.Conn) context.Context {
	if secured, ok := raw.(*tls.Conn); ok {
		raw = secured.NetConn()
	}
	if n, ok := raw.(*conn); ok {
		return context.WithValue(ctx, connKey{}, n)
	}
	return ctx
}

// Handler is h, whose connections are not idle while it runs.
func Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, ok := r.Context().Value(connKey{}).(*conn); ok {
			n.begin()
			defer n.end()
		}
		h.ServeHTTP(w, r)
	})
}

func (n *conn) begin() {
	n.of.mu.Lock()
	n.busy++
	n.peer.remove(n)
	n.of.mu.Unlock()
	n.count(false)
}

func (n *conn) end() {
	n.of.mu.Lock()
	n.busy--
	idle := n.busy == 0
	if idle && !n.away && !n.closed {
		n.peer.append(n)
	}
	n.of.mu.Unlock()
	if idle {
		n.count(true)
	}
}

// count says whether what is read from now on is of a head.
func (n *conn) count(yes bool) {
	n.head.Lock()
	n.head.counting, n.head.read = yes, 0
	n.head.claim.Release()
	n.head.Unlock()
}

func addressOf(raw net.Conn) netip.Addr {
	if tcp, ok := raw.RemoteAddr().(*net.TCPAddr); ok {
		addr, _ := netip.AddrFromSlice(tcp.IP)
		return addr.Unmap()
	}
	return netip.Addr{}
}
