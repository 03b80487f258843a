package group

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/reschedule-dev/reschedule/pkg/adapter/listener"
)

// peerTLS are the certificate of this member and the authority of all, as the files in
// --peer-tls-dir have them now: they may be renewed at any time.
type peerTLS struct {
	dir string
	log *slog.Logger

	mu      sync.Mutex
	config  *tls.Config // of both ends
	ends    time.Time   // the certificate, or its authority
	looked  time.Time
	first   []byte // the authority at the start, which the log's port goes on with
	changed bool
}

// filesAge is how long the files are not read again.
const filesAge = time.Second

// newPeerTLS returns nil where there is no directory.
func newPeerTLS(dir string, log *slog.Logger) (*peerTLS, error) {
	if dir == "" {
		return nil, nil
	}
	p := &peerTLS{dir: dir, log: log}
	if err := p.read(); err != nil {
		return nil, fmt.Errorf("adapter: --peer-tls-dir: %w", err)
	}
	return p, nil
}

// now is the configuration of the next handshake.
func (p *peerTLS) now() *tls.Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.looked) >= filesAge {
		if err := p.read(); err != nil { // files that are being replaced are read the next time
			p.log.Warn("the files in --peer-tls-dir cannot be used: the previous files stay in force", "error", err)
		}
	}
	return p.config
}

func (p *peerTLS) read() error {
	p.looked = time.Now()
	pair, err := tls.LoadX509KeyPair(filepath.Join(p.dir, "tls.crt"), filepath.Join(p.dir, "tls.key"))
	if err != nil {
		return err
	}
	authority, err := os.ReadFile(filepath.Join(p.dir, "ca.crt"))
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		return errors.New("ca.crt has no certificate")
	}
	p.ends = chainEnd(&pair, authority)
	if p.first == nil {
		p.first = authority
	}
	if changed := !bytes.Equal(p.first, authority); changed != p.changed {
		p.changed = changed
		if changed {
			p.log.Warn("ca.crt has changed, and the log's port reads it only at the start: restart the members one by one before one gets a certificate of the new authority")
		}
	}
	p.config = &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
	return nil
}

// end is when the certificate ends, or its authority, whichever is first.
func (p *peerTLS) end() time.Time {
	p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ends
}

// certificate is of both ports for other members.
func (p *peerTLS) certificate() listener.Certificate {
	return listener.Certificate{Name: "members", End: p.end}
}

// chainEnd is when the first certificate of the chain ends, up to the authority that has signed the chain. Of several
// such authorities the last one to end counts.
func chainEnd(pair *tls.Certificate, authorities []byte) time.Time {
	top, end := pair.Leaf, pair.Leaf.NotAfter
	for _, der := range pair.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			top, end = c, earlier(end, c.NotAfter)
		}
	}
	var signed time.Time
	for block, rest := pem.Decode(authorities); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && top.CheckSignatureFrom(c) == nil && c.NotAfter.After(signed) {
			signed = c.NotAfter
		}
	}
	if signed.IsZero() {
		return end
	}
	return earlier(end, signed)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// server is the configuration of the port for other members, nil without files.
func (p *peerTLS) server() *tls.Config {
	if p == nil {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return p.now(), nil }}
}

// dial connects to another member. Nothing was sent when it fails, also at the handshake.
func (p *peerTLS) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&tls.Dialer{NetDialer: dialer(), Config: p.now()}).DialContext(ctx, network, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	return c, nil
}

// dialer ends a connection to a machine that is cut off after patience, so that a call that
// waits for an answer ends too. A member that is cut off itself does not receive another owner's claim.
func dialer() *net.Dialer {
	return &net.Dialer{
		Timeout:         time.Second,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: int(patience / time.Second)},
		Control: func(_, _ string, c syscall.RawConn) error { // what was sent, and has no acknowledgement
			var refused error
			err := c.Control(func(fd uintptr) {
				refused = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(patience.Milliseconds()))
			})
			return errors.Join(err, refused)
		},
	}
}
