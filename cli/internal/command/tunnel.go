package command

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// dialer connects to a port of the adapter.
type dialer func(ctx context.Context, port int) (net.Conn, error)

// tunnel is a port-forward to a pod of the adapter, inside this process: no port of this
// machine is opened.
type tunnel struct {
	config    *rest.Config
	namespace string
	pods      []string      // to try, in this order
	direct    dialer        // of tests, in place of the port-forward
	done      chan struct{} // closed by close

	mu   sync.Mutex
	conn httpstream.Connection
	next int // the number of the next stream
}

// pods are the names to try: one adapter, or a group of three.
var pods = []string{"reschedule-adapter-0", "reschedule-adapter-1", "reschedule-adapter-2"}

// dial opens a stream to a port of the pod.
func (t *tunnel) dial(ctx context.Context, port int) (net.Conn, error) {
	if t.direct != nil {
		return t.direct(ctx, port)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn != nil {
		select {
		case <-t.conn.CloseChan():
			t.conn = nil
		default:
		}
	}
	if t.conn == nil {
		if err := t.connect(ctx); err != nil {
			return nil, err
		}
	}
	t.next++
	c, err := t.stream(port)
	if err != nil {
		_ = t.conn.Close() // the next dial connects again
		t.conn = nil
	}
	return c, err
}

// connect upgrades a connection to the first pod that accepts it. The others of a group are
// there when one is not.
func (t *tunnel) connect(ctx context.Context) error {
	var first error
	for _, pod := range t.pods {
		conn, err := t.upgrade(ctx, pod)
		if err == nil {
			t.conn = conn
			return nil
		}
		if first == nil {
			first = err
		}
		if forbidden(err) || ctx.Err() != nil {
			break
		}
	}
	if forbidden(first) {
		return denied("you may not forward a port to the adapter (pods/portforward in %s): an administrator grants it with config/cli: %w", t.namespace, first)
	}
	return unavailable("no connection to a pod of the adapter in %s: %w", t.namespace, first)
}

func forbidden(err error) bool { return strings.Contains(err.Error(), "orbidden") }

// upgrade tries WebSockets first, and then SPDY, which older API servers and some proxies
// require.
func (t *tunnel) upgrade(ctx context.Context, pod string) (httpstream.Connection, error) {
	at, err := podURL(t.config, t.namespace, pod, "portforward")
	if err != nil {
		return nil, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(t.config)
	if err != nil {
		return nil, err
	}
	old := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, at)
	sockets, err := portforward.NewSPDYOverWebsocketDialerForStreaming(at, t.config)
	if err != nil {
		return nil, err
	}
	both := portforward.NewFallbackDialerForStreaming(sockets, old, knowsNoSockets)
	type result struct {
		conn httpstream.Connection
		err  error
	}
	done := make(chan result, 1)
	go func() { // the dialer knows no context
		conn, _, err := both.Dial(portforward.PortForwardProtocolV1Name)
		done <- result{conn, err}
	}()
	select {
	case r := <-done:
		return r.conn, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-t.done: // a transport goes on dialling for calls that have ended
		return nil, net.ErrClosed
	}
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
func (t *tunnel) stream(port int) (net.Conn, error) {
	header := http.Header{}
	header.Set(corev1.StreamType, corev1.StreamTypeError)
	header.Set(corev1.PortHeader, strconv.Itoa(port))
	header.Set(corev1.PortForwardRequestIDHeader, strconv.Itoa(t.next))
	faults, err := t.conn.CreateStream(header)
	if err != nil {
		return nil, err
	}
	_ = faults.Close() // nothing is written to it
	header.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := t.conn.CreateStream(header)
	if err != nil {
		t.conn.RemoveStreams(faults)
		return nil, err
	}
	conn := t.conn
	c := &streamConn{data: data, remove: func() {
		_ = faults.Reset()
		conn.RemoveStreams(faults, data)
	}}
	var in *io.PipeWriter
	c.in, in = io.Pipe()
	said := make(chan string, 1)
	go func() {
		message, _ := io.ReadAll(io.LimitReader(faults, 4096))
		said <- clean(string(message))
	}()
	go func() { // the kubelet ends both streams; the data may end first
		_, err := io.Copy(in, data)
		if message := <-said; message != "" {
			err = fmt.Errorf("port-forward: %s", message)
		}
		_ = in.CloseWithError(err)
	}()
	return c, nil
}

// close ends the port-forward.
func (t *tunnel) close() {
	close(t.done)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn != nil {
		_ = t.conn.Close()
		t.conn = nil
	}
}

// streamConn is a stream as a connection. It has no deadlines: the calls have contexts. It
// is read through a pipe, which an error of the kubelet ends.
type streamConn struct {
	data   httpstream.Stream
	in     *io.PipeReader
	remove func()
}

func (c *streamConn) Read(b []byte) (int, error)  { return c.in.Read(b) }
func (c *streamConn) Write(b []byte) (int, error) { return c.data.Write(b) }

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
