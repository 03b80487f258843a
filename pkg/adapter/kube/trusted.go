package kube

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// rootsEvery is how often the file with the certificates of the API server's CA is read again, as client-go
// does. After a certificate that is not trusted it is read at the next call, but not more often than rootsGap:
// the CA may have been rotated.
const rootsEvery, rootsGap = 5 * time.Minute, time.Second

// trustedClients are the clients of lists and of all other calls. They trust the certificates that are in the
// file now. Calls that are under way keep their connections.
type trustedClients struct {
	config *rest.Config

	mu             sync.Mutex
	roots          *x509.CertPool // nil: the system's
	read           time.Time
	doubted        bool
	lists, watches *http.Client
}

// of is the client of lists, or of watches and single objects.
func (c *trustedClients) of(lists bool) *http.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if age := time.Since(c.read); age >= rootsEvery || c.doubted && age >= rootsGap {
		_ = c.renew() // a file that cannot be read is being written: the certificates stay
	}
	if lists {
		return c.lists
	}
	return c.watches
}

// failed notes the error of a call.
func (c *trustedClients) failed(err error) {
	if _, untrusted := errors.AsType[*tls.CertificateVerificationError](err); untrusted {
		c.mu.Lock()
		c.doubted = true
		c.mu.Unlock()
	}
}

// renew reads the certificates. The caller holds the lock, or is alone.
func (c *trustedClients) renew() error {
	c.read, c.doubted = time.Now(), false
	trusting, err := rest.TLSConfigFor(c.config)
	if err != nil {
		return fmt.Errorf("kube: the certificates of the API server: %w", err)
	}
	var roots *x509.CertPool
	if trusting != nil {
		roots = trusting.RootCAs
	}
	if c.lists != nil && (roots == c.roots || roots != nil && roots.Equal(c.roots)) {
		return nil
	}
	for _, old := range []*http.Client{c.lists, c.watches} {
		if old != nil {
			old.CloseIdleConnections()
		}
	}
	c.roots, c.lists, c.watches = roots, c.client(trusting, listUnread), c.client(trusting, watchUnread)
	return nil
}

// client has so many bytes of an answer in memory that were not read yet.
func (c *trustedClients) client(trusting *tls.Config, unread int) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig, transport.ForceAttemptHTTP2 = trusting.Clone(), true
	transport.ResponseHeaderTimeout = answerTimeout
	transport.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: unread, SendPingTimeout: pingAfter, PingTimeout: pingTimeout}
	if c.config.Proxy != nil { // proxy-url of a kubeconfig
		transport.Proxy = c.config.Proxy
	}
	if c.config.Dial != nil {
		transport.DialContext = c.config.Dial
	}
	return &http.Client{Transport: transport}
}
