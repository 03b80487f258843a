package sink

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// route has the values that depend on the URL of a target alone. The transport is not among
// them: each attempt looks it up, so that no route keeps an unused one.
type route struct {
	url           *url.URL
	dest          string   // for people and dead letters, without a password
	authorization []string // from the URL's user

	proxy              *url.URL // nil for none
	proxyAuthorization []string
	address            string // of the sink, host:port
	way                string // the same for all routes that can share connections
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
		return r, r.connect(s.proxy)
	})
}

// basic is the header of basic authentication, nil without a user.
func basic(user *url.Userinfo) []string {
	if user == nil {
		return nil
	}
	password, _ := user.Password()
	return []string{"Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password))}
}

func (s *Sender) transport(caCerts string) (*transport, error) {
	t, _ := s.transports.get(caCerts, func() (*transport, error) { return s.newTransport(caCerts), nil })
	_, err := t.tls()
	return t, err
}

// proxyOf is the proxy of the environment, except for names of the cluster: a proxy
// cannot reach them, and would get events and tokens.
func proxyOf(req *http.Request) (*url.URL, error) {
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
