package adapter

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/listener"
)

// What connections take at most, beside the requests under way, which package
// api counts:
//
//	plain connections     2,048 of about 20 KiB                             40 MiB
//	TLS connections         512 of about 45 KiB and a window of 64 KiB      55 MiB
//	admin connections       256 of about 20 KiB                              5 MiB
//	incomplete requests   beyond 4 KiB each, of all connections together    16 MiB
const (
	plainConnections = 2048
	tlsConnections   = 512
	adminConnections = 256
	headBytes        = 16 << 20
	adminHeadBytes   = 1 << 20
)

// connections are the connections of each address, with a limit of their own.
type connections struct{ plain, secured, admin *listener.Connections }

func newConnections(log *slog.Logger) *connections {
	heads := budget.New(headBytes)
	return &connections{
		plain:   listener.New(listener.Config{Name: "api", Limit: plainConnections, Heads: heads, Log: log}),
		secured: listener.New(listener.Config{Name: "api-tls", Limit: tlsConnections, Heads: heads, Log: log}),
		admin:   listener.New(listener.Config{Name: "admin", Limit: adminConnections, Heads: budget.New(adminHeadBytes), Log: log}),
	}
}

// listen listens; what connects waits until answer is called.
func (a *Adapter) listen(address string, server *http.Server, connections *listener.Connections) (*listener.Endpoint, error) {
	e, err := connections.Open(address, server)
	if err != nil {
		return nil, fmt.Errorf("adapter: listen: %w", err)
	}
	return e, nil
}

// answer serves an endpoint in the background, until its server is shut down.
func (a *Adapter) answer(e *listener.Endpoint) { a.serving.Go(e.Serve) }

// certificateAge is how long a certificate is used before its file is looked
// at again.
const certificateAge = 10 * time.Second

// certificate reads a directory that is laid out like a mounted Secret of type
// kubernetes.io/tls. The files may come, and change, at any time.
type certificate struct {
	dir string

	mu      sync.Mutex
	current *tls.Certificate
	looked  time.Time
	changed time.Time // of the file that current was read from
}

// server serves with the certificate; without one every handshake fails, and the next one looks again.
func (c *certificate) server() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return c.get()
	}}
}

// end is when the certificate ends, zero without one.
func (c *certificate) end() time.Time {
	pair, err := c.get()
	if err != nil {
		return time.Time{}
	}
	return pair.Leaf.NotAfter
}

func (c *certificate) get() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil && time.Since(c.looked) < certificateAge {
		return c.current, nil
	}
	err := c.read()
	if c.current != nil { // a file that is being replaced is read the next time
		return c.current, nil
	}
	return nil, err
}

func (c *certificate) read() error {
	c.looked = time.Now()
	file := filepath.Join(c.dir, "tls.crt")
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("adapter: there is no certificate: %w", err)
	}
	if c.current != nil && info.ModTime().Equal(c.changed) {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(file, filepath.Join(c.dir, "tls.key"))
	if err != nil {
		return fmt.Errorf("adapter: the certificate cannot be used: %w", err)
	}
	c.current, c.changed = &pair, info.ModTime()
	return nil
}
