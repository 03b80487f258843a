package listener

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
)

// at is a listener whose connections come from the addresses that a test says.
type at struct {
	net.Listener
	from atomic.Pointer[net.TCPAddr] // of the next connections; nil: as it is
}

type from struct {
	net.Conn
	addr net.Addr
}

func (f *from) RemoteAddr() net.Addr { return f.addr }

func (l *at) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if addr := l.from.Load(); addr != nil && err == nil {
		return &from{c, addr}, nil
	}
	return c, err
}

// world is a server with a limit of connections.
type world struct {
	*Connections
	listener *at
	release  chan struct{} // lets requests to /wait go on
	running  chan struct{} // tells of each
}

func newWorld(t *testing.T, limit int, heads int64) *world {
	t.Helper()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		Connections: New(Config{Name: "test", Limit: limit, Heads: budget.New(heads), Log: slog.New(slog.DiscardHandler)}),
		listener:    &at{Listener: raw}, release: make(chan struct{}), running: make(chan struct{}, 100),
	}
	server := &http.Server{
		ReadHeaderTimeout: time.Minute, MaxHeaderBytes: 64 << 10, ConnContext: w.Context,
		Handler: Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wait" {
				w.running <- struct{}{}
				select {
				case <-w.release:
				case <-r.Context().Done():
				}
			}
		})),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(w.Listen(w.listener)) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return w
}

// dial opens a connection of the peer with that number.
func (w *world) dial(t *testing.T, number int) net.Conn {
	t.Helper()
	w.listener.from.Store(&net.TCPAddr{IP: net.IPv4(10, 0, byte(number>>8), byte(number)), Port: 1})
	before := w.accepted()
	c, err := net.Dial("tcp", w.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	for w.accepted() == before { // the next one may have another address
		<-time.After(time.Millisecond)
	}
	return c
}

// accepted counts what was accepted or refused so far.
func (w *world) accepted() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.clock + uint64(w.refused.Load())
}

// answered makes a request on the connection.
func answered(c net.Conn, path string) error {
	if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && !strings.Contains(line, " 200 ") {
		err = fmt.Errorf("answer %q", line)
	}
	return err
}

// ended waits until the connection was closed from the other side.
func ended(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || strings.Contains(fmt.Sprint(err), "timeout") {
		t.Errorf("the connection is not closed: %d bytes, %v", n, err)
	}
}

// At the limit the connection that has been idle for longest is closed for a new one, whichever was opened first.
func TestLongestIdle_GivesWayAtTheLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, 1<<20)
	first, second, third := w.dial(t, 1), w.dial(t, 1), w.dial(t, 1)
	if err := answered(first, "/"); err != nil {
		t.Fatal(err)
	}
	fourth := w.dial(t, 1)
	ended(t, second)
	for i, c := range []net.Conn{first, third, fourth} {
		if err := answered(c, "/"); err != nil {
			t.Errorf("connection %d that stays: %v", i, err)
		}
	}
	if n := w.gaveWay.Load(); n != 1 {
		t.Errorf("%d gave way", n)
	}
}

// A peer that floods loses its own connections. The only connection of another peer stays, however long it was idle.
func TestPeerWithTheMost_LosesItsOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 16, 1<<20)
	quiet := w.dial(t, 1)
	if err := answered(quiet, "/"); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		half := w.dial(t, 2)
		if _, err := io.WriteString(half, "GET / HTTP/1.1\r\nHo"); err != nil {
			t.Fatal(err)
		}
	}
	if err := answered(w.dial(t, 3), "/"); err != nil {
		t.Errorf("a probe: %v", err)
	}
	if err := answered(quiet, "/"); err != nil {
		t.Errorf("the quiet one: %v", err)
	}
}

// A new peer is answered even while a flood from many addresses fills the limit.
func TestManyPeers_DoNotStarveAProbe(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 16, 1<<20)
	for i := range 100 {
		w.dial(t, 1000+i)
	}
	if err := answered(w.dial(t, 1), "/"); err != nil {
		t.Errorf("a probe: %v", err)
	}
}

// wait starts a request on a new connection of a peer that is busy until the
// world's release; the error is nil when it was answered.
func (w *world) wait(t *testing.T, number int) <-chan error {
	t.Helper()
	c, answer := w.dial(t, number), make(chan error, 1)
	go func() { answer <- answered(c, "/wait") }()
	<-w.running
	return answer
}

// A request under way is cut off neither for its own peer nor for a peer that would then have more connections.
func TestRequestUnderWay_StaysForItsOwnPeer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, 1<<20)
	answers := []<-chan error{w.wait(t, 1), w.wait(t, 1), w.wait(t, 2)}
	ended(t, w.dial(t, 1))
	ended(t, w.dial(t, 2))
	if n := w.refused.Load(); n != 2 {
		t.Errorf("%d were refused", n)
	}
	close(w.release)
	for _, answer := range answers {
		if err := <-answer; err != nil {
			t.Errorf("a request under way: %v", err)
		}
	}
}

// A peer whose requests take all places loses its oldest one to a peer that has none. It cannot take a place back from
// the peer that has fewer.
func TestBusyConnections_GiveWayToAFewer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 8, 1<<20)
	oldest := w.dial(t, 1) // its server does not read meanwhile
	if _, err := io.WriteString(oldest, "POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	<-w.running
	for range 6 {
		w.wait(t, 1)
	}
	waits := w.wait(t, 2)
	idle := w.dial(t, 2)
	ended(t, oldest)
	for range 10 {
		ended(t, w.dial(t, 1))
	}
	if err := answered(idle, "/"); err != nil {
		t.Errorf("the other's idle connection: %v", err)
	}
	close(w.release)
	if err := <-waits; err != nil {
		t.Errorf("the other's request: %v", err)
	}
	if cut, idle, refused := w.cut.Load(), w.gaveWay.Load(), w.refused.Load(); cut != 1 || idle != 0 || refused != 10 {
		t.Errorf("%d requests and %d idle ones gave way, %d were refused", cut, idle, refused)
	}
}

// With KeepBusy a flood of connections cuts off no request, and callers who make requests can still connect.
func TestKeepBusy_ManyPeersCutNothingOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 16, 1<<20)
	w.cfg.KeepBusy = true
	answers := []<-chan error{w.wait(t, 1), w.wait(t, 1), w.wait(t, 2), w.wait(t, 2)}
	for i := range 100 {
		w.dial(t, 1000+i)
	}
	answers = append(answers, w.wait(t, 2))
	for range 100 {
		w.dial(t, 3)
	}
	answers = append(answers, w.wait(t, 1))
	close(w.release)
	for i, answer := range answers {
		if err := <-answer; err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if n := w.cut.Load(); n != 0 {
		t.Errorf("%d requests were cut off", n)
	}
}

// A connection that has been idle for surelyIdle is closed before any request is cut off, but not for a peer that has
// its part of the places.
func TestSurelyIdle_GivesWayBeforeARequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 8, 1<<20)
	answers := []<-chan error{w.wait(t, 1), w.wait(t, 1), w.wait(t, 1), w.wait(t, 1)}
	first, second := w.dial(t, 2), w.dial(t, 3)
	mine := []<-chan error{w.wait(t, 4), w.wait(t, 4)}
	w.mu.Lock()
	for _, p := range w.most {
		if n := p.idle.first; n != nil {
			n.since = n.since.Add(-surelyIdle)
		}
	}
	w.mu.Unlock()
	ended(t, w.dial(t, 1)) // has half of the places
	more := w.wait(t, 5)
	ended(t, first)
	if err := answered(second, "/"); err != nil {
		t.Errorf("the second: %v", err)
	}
	// It is not surely idle any more, so it stays.
	another := w.wait(t, 6)
	if err := <-answers[0]; err == nil {
		t.Error("the oldest request of the peer with the most stays")
	}
	if err := answered(second, "/"); err != nil {
		t.Errorf("the second, again: %v", err)
	}
	close(w.release)
	for _, answer := range append(append(mine, more, another), answers[1:]...) {
		if err := <-answer; err != nil {
			t.Errorf("a request under way: %v", err)
		}
	}
}

// Incomplete requests share a budget of bytes, and return their bytes when they end. A request that exceeds the share
// of its peer is closed.
func TestHalfRequests_AreBoundedInBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 16, 256<<10)
	var open []net.Conn
	for range 4 {
		c := w.dial(t, 1)
		open = append(open, c)
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 40<<10)); err != nil {
			t.Fatal(err)
		}
	}
	ended(t, open[3])
	if held := w.cfg.Heads.Used(); held > 256<<10 {
		t.Errorf("%d bytes are held", held)
	}
	small := w.dial(t, 1)
	if err := answered(small, "/"); err != nil {
		t.Errorf("a small request of the same peer: %v", err)
	}
	for _, c := range open {
		c.Close()
	}
	for deadline := time.After(30 * time.Second); w.cfg.Heads.Used() > 0; {
		select {
		case <-deadline:
			t.Fatalf("%d bytes are held of closed connections", w.cfg.Heads.Used())
		case <-time.After(time.Millisecond):
		}
	}
}

// A closed connection leaves nothing in the counts or among the peers, so that the limit does not fill up.
func TestClosedConnections_AreForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 16, 1<<20)
	for i := range 100 {
		c := w.dial(t, i%7)
		if err := answered(c, "/"); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	for deadline := time.After(30 * time.Second); ; {
		w.mu.Lock()
		open, out, peers := w.open, w.out, len(w.peers)+len(w.most)
		w.mu.Unlock()
		if open+out+peers == 0 {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%d open, %d on their way out, %d peers", open, out, peers)
		case <-time.After(time.Millisecond):
		}
	}
}
