package sink

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// maxResponseHeader bounds the headers of an answer, 1xx ones included.
const maxResponseHeader = 64 << 10

// route is what follows from a target.
type route struct {
	url           *url.URL
	dest          string   // for people and dead letters, without a password
	authorization []string // from the URL's user
	transport     *http.Transport
}

func (s *Sender) route(t schedule.Target) (*route, error) {
	return s.routes.get(t, func() (*route, error) {
		u, err := url.Parse(t.URL)
		switch {
		case err != nil:
			return nil, fmt.Errorf("sink: %.128q is not a URL", redact(t.URL))
		case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
			return nil, fmt.Errorf("sink: %.128q is not an absolute http or https URL", u.Redacted())
		}
		r := &route{dest: u.Redacted()}
		if user := u.User; user != nil {
			password, _ := user.Password()
			basic := base64.StdEncoding.EncodeToString([]byte(user.Username() + ":" + password))
			r.authorization, u.User = []string{"Basic " + basic}, nil
		}
		u.Fragment, u.RawFragment = "", ""
		r.url = u
		r.transport, err = s.transports.get(t.CACerts, func() (*http.Transport, error) { return s.newTransport(t.CACerts) })
		return r, err
	})
}

// redact keeps a password out of logs and dead letters.
func redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "(unreadable URL)"
	}
	return u.Redacted()
}

func (s *Sender) newTransport(caCerts string) (*http.Transport, error) {
	roots := s.roots.Load()
	if caCerts != "" {
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
	}
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		TLSHandshakeTimeout:    10 * time.Second,
		ForceAttemptHTTP2:      true, // a TLSClientConfig of one's own turns it off
		MaxIdleConns:           4 * s.cfg.IdlePerHost,
		MaxIdleConnsPerHost:    s.cfg.IdlePerHost,
		IdleConnTimeout:        30 * time.Second, // below what sinks and proxies close after
		MaxResponseHeaderBytes: maxResponseHeader,
		DisableCompression:     true, // an answer is small, and must not grow on the way in
	}, nil
}
