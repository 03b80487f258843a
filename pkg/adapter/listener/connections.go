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
	"github.com/reschedule-dev/reschedule/pkg/adapter/loglimit"
)

// Config is what connections need.
type Config struct {
	Name  string // of the address, in metrics and the log
	Limit int    // connections at one time; required
	// KeepBusy never cuts a request off: all who can make one are trusted, as behind TLS with
	// certificates of callers. Any idle connection gives way instead.
	KeepBusy bool
	// Heads bounds the bytes of requests that have not arrived completely. Each byte
	// counts twice, as text and as header; required.
	Heads *budget.Budget
	Log   *slog.Logger // default slog.Default()
}

const (
	// freeHead is how many bytes of a request are not counted: more than most
	// requests have.
	freeHead = 4 << 10
	// headCopies is how many copies of a head are in memory.
	headCopies = 2
	// silence is the time between two log lines that the limit is reached.
	silence = time.Minute
	// surelyIdle is longer than a handshake and the headers of a request take.
	surelyIdle = 10 * time.Second
	// A peer that has 1/partOfPlaces of the limit takes no connection from peers with
	// fewer.
	partOfPlaces = 4
)

// Connections are the connections of one address.
type Connections struct {
	cfg     Config
	leaving int // bounds out
	panics  loglimit.Limit

	mu     sync.Mutex
	gone   sync.Cond // out shrank
	open   int       // without the connections that gave way
	out    int       // gave way, and the server has not closed them yet
	peers  map[netip.Addr]*peer
	most   peersByCount
	clock  uint64 // grows with every change of a peer
	logged time.Time

	gaveWay, cut, refused atomic.Int64
}

// New returns no connections yet.
func New(cfg Config) *Connections {
	c := &Connections{cfg: cfg, leaving: max(cfg.Limit/8, 1), peers: map[netip.Addr]*peer{}, panics: loglimit.Limit{Lines: 1, Per: time.Second}}
	c.gone.L = &c.mu
	if c.cfg.Log == nil {
		c.cfg.Log = slog.Default()
	}
	return c
}

// conn is one connection.
type conn struct {
	net.Conn
	of     *Connections
	peer   *peer
	cancel context.CancelFunc // ends its requests; of the goroutine that accepts

	// Of Connections.mu:
	busy          int  // handlers that run
	away          bool // it gave way
	closed        bool
	in            *connList // the peer's list that it is in, nil: none
	since         time.Time // idle since then
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

// admit counts a new connection, for which another one may have to give way; nil
// when none can.
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
	if c.open >= c.cfg.Limit && !c.closeOne(c.peers[addr]) {
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
	n.since = time.Now()
	p.idle.append(n)
	return n
}

// closeOne ends a connection in favour of a new one of a peer, nil for a new peer.
// The caller holds the lock.
func (c *Connections) closeOne(newcomer *peer) bool {
	now := time.Now()
	if now.Sub(c.logged) > silence {
		c.logged = now
		c.cfg.Log.Warn("the limit of connections is reached: the longest idle ones are closed, then the oldest requests of the peer with the most",
			"address", c.cfg.Name, "connections", c.open, "peers", len(c.peers), "most", c.most[0].open, "peer", c.most[0].addr)
	}
	victim := c.victim(newcomer, now)
	if victim == nil {
		return false
	}
	victim.away = true
	c.out++
	why := &c.gaveWay
	if victim.busy > 0 {
		why = &c.cut
	}
	c.forget(victim)
	why.Add(1)
	_ = victim.Conn.Close() // its server notices, and closes it
	if victim.cancel != nil {
		victim.cancel() // a handler that waits for a share does not read
	}
	return true
}

// victim returns the connection that gives way. It is an idle connection of the peer
// with the most. If that peer has none, it is a connection of any peer that has been
// idle for so long that no request is on its way, unless the newcomer's peer has its
// part of the limit already. Otherwise it is the oldest request of the peer with the
// most, if that peer keeps at least as many as the newcomer's: so a peer with few
// loses nothing to a peer with many, and two equal peers do not take turns.
func (c *Connections) victim(newcomer *peer, now time.Time) *conn {
	most, has := c.most[0], 0
	if newcomer != nil {
		has = newcomer.open
	}
	if most.idle.first != nil {
		return most.idle.first
	}
	least := surelyIdle
	if c.cfg.KeepBusy {
		least = 0
	}
	if has < c.cfg.Limit/partOfPlaces {
		var longest *conn
		for _, p := range c.most {
			if n := p.idle.first; n != nil && now.Sub(n.since) >= least && (longest == nil || n.since.Before(longest.since)) {
				longest = n
			}
		}
		if longest != nil {
			return longest
		}
	}
	if most.open > has+1 && !c.cfg.KeepBusy {
		return most.busy.first
	}
	return nil
}

// forget stops counting a connection. The caller holds the lock.
func (c *Connections) forget(n *conn) {
	p := n.peer
	n.leave()
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

// errHead ends a connection whose request exceeds the budget of heads.
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
		ctx, n.cancel = context.WithCancel(ctx) // the server's own ends with the connection
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
	if n.busy++; n.busy == 1 && !n.away && !n.closed {
		n.leave()
		n.peer.busy.append(n)
	}
	n.of.mu.Unlock()
	n.count(false)
}

func (n *conn) end() {
	n.of.mu.Lock()
	n.busy--
	idle := n.busy == 0
	if idle && !n.away && !n.closed {
		n.leave()
		n.since = time.Now()
		n.peer.idle.append(n)
	}
	n.of.mu.Unlock()
	if idle {
		n.count(true)
	}
}

// count sets whether the bytes read from now on are of a head.
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
