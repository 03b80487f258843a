package sink

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// maxResponseHeader bounds the headers of an answer, with 1xx ones. They are part of
// the memory that dispatch counts for a delivery.
const maxResponseHeader = 16 << 10

// route has the values that depend on a target alone. The transport is not among
// them: each attempt looks it up, so that no route keeps an unused one.
type route struct {
	url           *url.URL
	dest          string   // for people and dead letters, without a password
	authorization []string // from the URL's user
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
		return r, nil
	})
}

func (s *Sender) transport(caCerts string) (*http.Transport, error) {
	return s.transports.get(caCerts, func() (*http.Transport, error) { return s.newTransport(caCerts) })
}

// proxy is the proxy of the environment, except for names of the cluster: a proxy
// cannot reach them, and would get events and tokens.
func proxy(req *http.Request) (*url.URL, error) {
	if inCluster(req.URL.Hostname()) {
		return nil, nil
	}
	return http.ProxyFromEnvironment(req)
}

func inCluster(host string) bool {
	host = strings.ToLower(host)
	return strings.HasSuffix(host, ".svc") || strings.HasSuffix(host, ".cluster.local")
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
	// Not HTTP/2: there a request has no first byte of its own at which it can be
	// stopped, and a sink may fill 4 MiB of memory for each request.
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		Protocols:              &protocols,
		Proxy:                  proxy,
		DialContext:            s.conns.dial,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		TLSHandshakeTimeout:    handshakeTimeout,
		MaxIdleConnsPerHost:    s.cfg.IdlePerHost, // for all sinks together: conns
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxResponseHeader,
		DisableCompression:     true, // an answer is small, and must not grow when it is read
	}, nil
}
