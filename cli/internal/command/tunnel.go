package command

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/reschedule-dev/reschedule/pkg/printable"
)

// dialer connects to a port of the adapter.
type dialer func(ctx context.Context, port int) (net.Conn, error)

// tunnel is a port-forward to a pod of the adapter, inside this process: no port of this
// machine is opened.
type tunnel struct {
	config    *rest.Config
	namespace func(context.Context) string
	pods      []string        // to try, in this order
	direct    dialer          // of tests, in place of the port-forward
	open      context.Context // until close; a transport dials on for calls that have ended
	close     context.CancelFunc

	turn  chan struct{} // one slot: who has it may use what is below
	conn  *link
	next  int    // the number of the next stream
	avoid string // the pod that is tried last, because it did not forward; "" is none
}

// link is a connection to a pod.
type link struct {
	httpstream.Connection
	pod  string
	lost atomic.Pointer[error] // why, nil while it is not
}

// lose has the next dial connect again, first to another pod. A port-forward ends neither
// with its pod nor with the process in it: the kubelet goes on to refuse each stream.
func (l *link) lose(cause error) {
	l.lost.CompareAndSwap(nil, &cause)
	hangUp(l.Connection)
}

// cause is why the connection was lost, else err. All calls on it end then, in a read or in
// a write, and report the cause in the place of an end.
func (l *link) cause(err error) error {
	if lost := l.lost.Load(); lost != nil {
		return *lost
	}
	return err
}

// newTunnel makes a tunnel to the first of the pods that accepts one.
func newTunnel(config *rest.Config, namespace func(context.Context) string, pods ...string) *tunnel {
	t := &tunnel{config: config, namespace: namespace, pods: pods, turn: make(chan struct{}, 1)}
	t.open, t.close = context.WithCancel(context.Background())
	return t
}

// pods are the names to try: one adapter, or a group of three.
var pods = []string{podName(0), podName(1), podName(2)}

// podName is the name of a pod of the adapter's StatefulSet.
func podName(number int) string { return adapterName + "-" + strconv.Itoa(number) }

// dialTime is how long one dial may take.
const dialTime = 30 * time.Second

// dial opens a stream to a port of the pod. It ends with the tunnel.
func (t *tunnel) dial(ctx context.Context, port int) (net.Conn, error) {
	if t.direct != nil {
		return t.direct(ctx, port)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	defer context.AfterFunc(t.open, cancel)()
	conn, number, err := t.connection(ctx)
	if err != nil {
		return nil, err
	}
	c, err := within(ctx, func() (net.Conn, error) { return stream(conn, number, port) }, func(c net.Conn) { _ = c.Close() })
	if err != nil {
		conn.lose(err)
	}
	return c, err
}

// connection is the connection to a pod, and the number of a stream.
func (t *tunnel) connection(ctx context.Context) (*link, int, error) {
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	if t.conn != nil && t.conn.lost.Load() != nil {
		t.conn, t.avoid = nil, t.conn.pod
	}
	if t.conn != nil {
		select {
		case <-t.conn.CloseChan():
			t.conn = nil
		default:
		}
	}
	if t.conn == nil {
		conn, err := t.connect(ctx)
		if err != nil {
			return nil, 0, err
		}
		context.AfterFunc(t.open, func() { hangUp(conn) })
		t.conn = conn
	}
	t.next++
	return t.conn, t.next, nil
}

// within is what do returns, or the error of the context if that ends before. Then late
// is called with what do makes in the end.
func within[T any](ctx context.Context, do func() (T, error), late func(T)) (T, error) {
	type result struct {
		made T
		err  error
	}
	done := make(chan result)
	go func() {
		made, err := do()
		select {
		case done <- result{made, err}:
		case <-ctx.Done():
			if err == nil {
				late(made)
			}
		}
	}()
	select {
	case r := <-done:
		return r.made, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// hangUp closes a connection. Close alone waits for the streams that the other side has
// not answered; an idle connection forgets them.
func hangUp(conn httpstream.Connection) {
	conn.SetIdleTimeout(time.Millisecond)
	_ = conn.Close()
}

// connect upgrades a connection to a pod, the first one if it accepts. The others of a group
// are there when it does not, or hangs as on a machine that is gone.
func (t *tunnel) connect(ctx context.Context) (*link, error) {
	pods := slices.Clone(t.pods)
	if i := slices.Index(pods, t.avoid); i >= 0 {
		pods = append(slices.Delete(pods, i, i+1), t.avoid)
	}
	conn, errs := race(ctx, pods, t.upgrade, func(l *link) { hangUp(l.Connection) })
	if errs == nil {
		return conn, nil
	}
	err := ctx.Err()
	if err == nil {
		err = errs[t.pods[0]] // a Role may name fewer pods than there are
	}
	if forbidden(err) {
		return nil, denied("you may not forward a port to the adapter (pods/portforward in %s): an administrator grants it with config/cli: %w", t.namespace(ctx), err)
	}
	return nil, unavailable("no connection to a pod of the adapter in %s: %w", t.namespace(ctx), err)
}

func forbidden(err error) bool { return strings.Contains(err.Error(), "orbidden") }

// upgrade tries WebSockets first, and then SPDY, which older API servers and some proxies
// require.
func (t *tunnel) upgrade(ctx context.Context, pod string) (*link, error) {
	config := rest.CopyConfig(t.config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &ending{ctx, next} })
	at, err := podURL(config, t.namespace(ctx), pod, "portforward")
	if err != nil {
		return nil, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	old := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, at)
	sockets, err := portforward.NewSPDYOverWebsocketDialerForStreaming(at, config)
	if err != nil {
		return nil, err
	}
	both := portforward.NewFallbackDialerForStreaming(sockets, old, knowsNoSockets)
	conn, err := within(ctx, func() (httpstream.Connection, error) {
		conn, _, err := both.Dial(portforward.PortForwardProtocolV1Name)
		return conn, err
	}, hangUp)
	return &link{Connection: conn, pod: pod}, err
}

// ending gives a context to the requests of the dialers, which know none. The dialers wait
// for an answer without it: a connection over WebSocket is closed when the context ends.
type ending struct {
	ctx  context.Context
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (e *ending) RoundTrip(call *http.Request) (*http.Response, error) {
	stop := func() bool { return true }
	ctx := httptrace.WithClientTrace(e.ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		stop = context.AfterFunc(e.ctx, func() { _ = got.Conn.Close() })
	}})
	defer func() { stop() }()
	return e.next.RoundTrip(call.WithContext(ctx))
}

// podURL is the address of a subresource of a pod.
func podURL(config *rest.Config, namespace, pod, subresource string) (*url.URL, error) {
	u, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	return u.JoinPath("api/v1/namespaces", namespace, "pods", pod, subresource), nil
}

// knowsNoSockets reports that WebSockets do not reach the API server.
func knowsNoSockets(err error) bool {
	return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
}

// stream opens the two streams of a connection: data, and errors of the kubelet.
func stream(conn *link, number, port int) (net.Conn, error) {
	header := http.Header{}
	header.Set(corev1.StreamType, corev1.StreamTypeError)
	header.Set(corev1.PortHeader, strconv.Itoa(port))
	header.Set(corev1.PortForwardRequestIDHeader, strconv.Itoa(number))
	faults, err := conn.CreateStream(header)
	if err != nil {
		return nil, err
	}
	_ = faults.Close() // nothing is written to it
	header.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := conn.CreateStream(header)
	if err != nil {
		conn.RemoveStreams(faults)
		return nil, err
	}
	c := &streamConn{link: conn, data: data, remove: func() {
		_ = faults.Reset()
		conn.RemoveStreams(faults, data)
	}}
	var in *io.PipeWriter
	c.in, in = io.Pipe()
	said := make(chan string, 1)
	go func() {
		message, _ := io.ReadAll(io.LimitReader(faults, 4096))
		said <- printable.Line(string(message))
	}()
	go func() { // the kubelet ends both streams; the data may end first
		_, err := io.Copy(in, data)
		if message := <-said; message != "" {
			conn.lose(fmt.Errorf("port-forward: %s", message))
		}
		_ = in.CloseWithError(conn.cause(err))
	}()
	return c, nil
}

// streamConn is a stream as a connection. It has no deadlines: the calls have contexts. It
// is read through a pipe, which an error of the kubelet ends.
type streamConn struct {
	link   *link
	data   httpstream.Stream
	in     *io.PipeReader
	remove func()
}

func (c *streamConn) Read(b []byte) (int, error) { return c.in.Read(b) }

func (c *streamConn) Write(b []byte) (int, error) {
	n, err := c.data.Write(b)
	if err != nil {
		err = c.link.cause(err)
	}
	return n, err
}

func (c *streamConn) Close() error {
	_ = c.in.Close() // it has no error
	err := c.data.Reset()
	c.remove()
	return err
}

func (c *streamConn) LocalAddr() net.Addr              { return &net.UnixAddr{Name: "port-forward", Net: "unix"} }
func (c *streamConn) RemoteAddr() net.Addr             { return c.LocalAddr() }
func (c *streamConn) SetDeadline(time.Time) error      { return nil }
func (c *streamConn) SetReadDeadline(time.Time) error  { return nil }
func (c *streamConn) SetWriteDeadline(time.Time) error { return nil }
