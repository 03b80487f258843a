package sink

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/proxy"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The headers of an answer, with 1xx ones, are bounded: they are part of the memory that dispatch
// counts for a delivery. A line takes some 60 bytes beside its text, however short it is.
const (
	maxResponseHeader = 16 << 10
	maxResponseLines  = 128
)

const (
	dialTimeout      = 30 * time.Second
	handshakeTimeout = 10 * time.Second
)

// The memory of a connection with TLS keeps the sink's certificates: three times their bytes, and
// 2 KB for each.
const (
	maxHandshake    = 16 << 10 // bytes of the sink; usual ones have 3 to 6 KiB
	maxCertificates = 10
)

var (
	errHandshakeTimeout = errors.New("TLS handshake timeout")
	errLongHandshake    = fmt.Errorf("the TLS handshake has more than %d bytes", maxHandshake)
	errManyCertificates = fmt.Errorf("there are more than %d certificates", maxCertificates)
)

// transport makes requests to all sinks with the same trusted certificates. All of a request
// runs in the goroutine of its caller: net/http's Transport has two more for each connection, so
// that each delivery would wait for a goroutine before its first byte is written.
type transport struct {
	pool    *idlePool
	connect func(ctx context.Context, src *schedule.Spec, address string) (net.Conn, error)
	tls     func() (*tls.Config, error)
	idle    map[string][]*conn // under pool.mu: by poolKey, idle longest first
	retired bool               // under pool.mu
}

// newTransport reads the certificates when they are first needed, and then once: a megabyte takes
// 80 ms, in which no delivery to another sink may wait for the lock of the transports.
func (s *Sender) newTransport(caCerts string) *transport {
	roots := s.roots.Load()
	return &transport{pool: s.pool, connect: s.connect, idle: map[string][]*conn{}, tls: sync.OnceValues(func() (*tls.Config, error) {
		trusted, err := trust(roots, caCerts)
		if err != nil {
			return nil, err
		}
		return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: trusted, VerifyConnection: fewCertificates}, nil
	})}
}

// trust returns the roots and the certificates. No roots stand for the system's.
func trust(roots *x509.CertPool, caCerts string) (*x509.CertPool, error) {
	if caCerts == "" {
		return roots, nil
	}
	if roots == nil {
		var err error
		if roots, err = x509.SystemCertPool(); err != nil {
			roots = x509.NewCertPool() // a distroless image without certificates
		}
	} else {
		roots = roots.Clone()
	}
	if !roots.AppendCertsFromPEM([]byte(caCerts)) {
		return nil, errors.New("sink: CACerts hold no PEM certificate")
	}
	return roots, nil
}

// roundTrip makes a request. It is repeated at once, on a new connection, when a connection that
// was used before ends without a byte of an answer: most often the sink closed it while it was idle.
// An event that ends its sink reaches two pods at most. The occurrence's id is the same, and
// Attempt.Begin is asked again. The caller closes the answer's body.
func (t *transport) roundTrip(ctx context.Context, r *route, m *message, begin func() (func(), bool)) (*http.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for _, l := range m.header {
		if !httpguts.ValidHeaderFieldName(l.name) {
			return nil, fmt.Errorf("invalid header field name %q", l.name)
		}
		if !httpguts.ValidHeaderFieldValue(l.value) {
			return nil, fmt.Errorf("invalid header field value for %q", l.name) // the value may be a secret
		}
	}
	if c := t.take(r.poolKey); c != nil {
		resp, err := c.exchange(ctx, r, m, begin)
		if !errors.Is(err, errNoAnswer) {
			return resp, err
		}
	}
	c, err := t.dial(ctx, m.source, r) // it fails at once when the context has ended
	if err != nil {
		return nil, err
	}
	return c.exchange(ctx, r, m, begin)
}

// unreachedError is why no connection was made.
type unreachedError struct{ error }

// Unwrap returns the cause.
func (e *unreachedError) Unwrap() error { return e.error }

// dial connects to the route's sink, through its proxy if there is one.
func (t *transport) dial(ctx context.Context, src *schedule.Spec, r *route) (_ *conn, err error) {
	p, address := r.proxy, r.address
	if p != nil {
		address = addressOf(p)
	}
	raw, err := t.connect(ctx, src, address)
	if err != nil {
		if p != nil {
			err = fmt.Errorf("proxy: %w", err)
		}
		return nil, &unreachedError{err}
	}
	defer func() {
		if err != nil {
			_ = raw.Close()
		}
	}()
	c := &conn{Conn: raw, raw: raw, transport: t, poolKey: r.poolKey}
	if s, ok := raw.(syscall.Conn); ok {
		if c.socket, err = s.SyscallConn(); err != nil {
			return nil, err
		}
	}
	if p != nil {
		if err = c.pass(ctx, p, r); err != nil {
			return nil, fmt.Errorf("proxy %s: %w", p.Host, err)
		}
	}
	if r.url.Scheme == "https" {
		if err = c.secure(ctx, r.address); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// pass makes the connection to a proxy one to the sink. A proxy for http gets requests as they are.
func (c *conn) pass(ctx context.Context, p *url.URL, r *route) error {
	if p.Scheme == "https" {
		if err := c.secure(ctx, addressOf(p)); err != nil {
			return err
		}
	}
	switch {
	case p.Scheme == "socks5", p.Scheme == "socks5h":
		var auth *proxy.Auth
		if p.User != nil {
			auth = &proxy.Auth{User: p.User.Username()}
			auth.Password, _ = p.User.Password()
		}
		dialer, err := proxy.SOCKS5("tcp", addressOf(p), auth, dialled{c.Conn})
		if err != nil {
			return err
		}
		_, err = dialer.(proxy.ContextDialer).DialContext(ctx, "tcp", r.address)
		return err
	case r.url.Scheme == "https":
		return c.tunnel(ctx, r)
	}
	return nil
}

// dialled is the dialer of a connection that is there.
type dialled struct{ net.Conn }

// Dial implements proxy.Dialer.
func (d dialled) Dial(string, string) (net.Conn, error) { return d.Conn, nil }

// tunnel asks a proxy for a connection to the sink.
func (c *conn) tunnel(ctx context.Context, r *route) error {
	defer context.AfterFunc(ctx, c.abort)()
	req := &http.Request{
		Method: http.MethodConnect, URL: &url.URL{Opaque: r.address}, Host: r.address,
		Header: http.Header{"User-Agent": {userAgent}},
	}
	if r.proxyAuthorization != "" {
		req.Header["Proxy-Authorization"] = []string{r.proxyAuthorization}
	}
	if err := req.Write(c.Conn); err != nil {
		return err
	}
	c.left, c.head = maxResponseHeader, lines{}
	resp, err := http.ReadResponse(bufio.NewReader(c), req) //nolint:bodyclose // what follows is the connection; a sink with TLS does not speak first
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("CONNECT %s was answered with %s", r.address, resp.Status)
	}
	return err
}

// secure begins TLS with the host of an address.
func (c *conn) secure(ctx context.Context, address string) error {
	config, err := c.transport.tls()
	if err != nil {
		return err
	}
	config = config.Clone()
	if config.ServerName, _, err = net.SplitHostPort(address); err != nil {
		return err
	}
	handshake := &bounded{c.Conn, maxHandshake}
	secured := tls.Client(handshake, config)
	ctx, cancel := context.WithTimeoutCause(ctx, handshakeTimeout, errHandshakeTimeout)
	defer cancel()
	if err = secured.HandshakeContext(ctx); err != nil && errors.Is(context.Cause(ctx), errHandshakeTimeout) {
		err = errHandshakeTimeout
	}
	handshake.left = math.MaxInt64
	c.Conn = secured
	return err
}

// fewCertificates refuses a chain whose certificates would take too much memory.
func fewCertificates(s tls.ConnectionState) error {
	if len(s.PeerCertificates) > maxCertificates {
		return errManyCertificates
	}
	return nil
}

// bounded is a connection that reads so many bytes.
type bounded struct {
	net.Conn
	left int64
}

// Read implements io.Reader.
func (c *bounded) Read(b []byte) (int, error) {
	if c.left <= 0 {
		return 0, errLongHandshake
	}
	n, err := c.Conn.Read(b[:min(int64(len(b)), c.left)])
	c.left -= int64(n)
	return n, err
}
