package sink

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/hostname"
)

// route has the values that depend on the URL of a target alone. The transport is not among
// them: each attempt looks it up, so that no route keeps an unused one.
type route struct {
	url           *url.URL
	dest          string // for people and dead letters, without a password
	authorization string // from the URL's user, "": none

	proxy              *url.URL // nil for none
	proxyAuthorization string
	forwarded          bool   // by a proxy for http, which answers 407 itself
	address            string // of the sink, host:port
	poolKey            string // the same for all routes that can share connections
	start              string // of a request after its method, up to the Host header
}

func (s *Sender) route(t schedule.Target) (*route, error) {
	return s.routes.get(t.URL, func() (*route, error) {
		u, err := url.Parse(t.URL)
		switch {
		case err != nil:
			return nil, fmt.Errorf("sink: %.128q is not a URL", redact(t.URL))
		case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
			return nil, fmt.Errorf("sink: %.128q is not an absolute http or https URL", u.Redacted())
		}
		r := &route{dest: u.Redacted()}
		r.authorization, u.User = basic(u.User), nil
		u.Fragment, u.RawFragment = "", ""
		r.url = u
		return r, r.prepare(s.proxy)
	})
}

// addressOf is what is dialled for a URL.
func addressOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	return net.JoinHostPort(hostname.ASCII(u.Hostname()), port)
}

// prepare sets the values that the proxy of the URL decides.
func (r *route) prepare(proxyOf func(*http.Request) (*url.URL, error)) (err error) {
	r.address = addressOf(r.url)
	req := &http.Request{Method: http.MethodGet, URL: r.url, Host: r.url.Host, Header: http.Header{"User-Agent": nil}}
	if r.proxy, err = proxyOf(req); err != nil {
		return err
	}
	write := req.Write
	r.poolKey = r.url.Scheme + " " + r.address
	if p := r.proxy; p != nil {
		r.proxyAuthorization = basic(p.User)
		r.poolKey = p.String() + " " + r.poolKey
		if r.url.Scheme == "http" && !strings.HasPrefix(p.Scheme, "socks5") {
			write, r.poolKey, r.forwarded = req.WriteProxy, p.String(), true
			if r.proxyAuthorization != "" {
				req.Header["Proxy-Authorization"] = []string{r.proxyAuthorization}
			}
		}
	}
	// The request line and the Host header as net/http writes them.
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	r.start = strings.TrimSuffix(strings.TrimPrefix(b.String(), req.Method), "\r\n")
	return nil
}

// basic is the header of basic authentication, "" without a user.
func basic(user *url.Userinfo) string {
	if user == nil {
		return ""
	}
	password, _ := user.Password()
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password))
}

func (s *Sender) transport(caCerts string) (*transport, error) {
	t, _ := s.transports.get(caCerts, func() (*transport, error) { return s.newTransport(caCerts), nil })
	_, err := t.tls()
	return t, err
}

// proxyOf is the proxy of the environment, except for names of the cluster: a proxy
// cannot reach them, and would get events and tokens.
func proxyOf(environment func(*http.Request) (*url.URL, error)) func(*http.Request) (*url.URL, error) {
	return func(req *http.Request) (*url.URL, error) {
		if hostname.IsOfCluster(req.URL.Hostname()) {
			return nil, nil
		}
		plain := *req.URL // NO_PROXY is compared with it
		plain.Host = strings.TrimSuffix(net.JoinHostPort(hostname.Plain(req.URL.Hostname()), req.URL.Port()), ":")
		return environment(&http.Request{URL: &plain})
	}
}

// redact keeps a password out of logs and dead letters.
func redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "(unreadable URL)"
	}
	return u.Redacted()
}
