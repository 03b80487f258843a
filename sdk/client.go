package sdk

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// defaultBudget is longer than an adapter's pod takes to be replaced.
const defaultBudget = 10 * time.Second

// defaultToken is where the documentation mounts the token.
const defaultToken = "/var/run/reschedule/token"

// Client calls the schedule API of one source. It is safe for concurrent use.
type Client struct {
	address string // without a slash at its end
	http    *http.Client
	token   func() (string, error) // "" is none
	budget  time.Duration
}

// Option is a choice that [New] is given.
type Option func(*options) error

type options struct {
	client  *http.Client
	caCerts string
	token   func() (string, error)
	budget  time.Duration
}

// WithTokenFile sends the token of a file. The file is read for every try, because the
// kubelet renews the token of a projected volume.
func WithTokenFile(path string) Option {
	return func(o *options) error {
		o.token = func() (string, error) {
			b, err := os.ReadFile(path)
			if err != nil {
				return "", fmt.Errorf("reading the token (is the volume mounted?): %w", err)
			}
			return checkToken(strings.TrimSpace(string(b)), path)
		}
		return nil
	}
}

// WithToken always sends this token. It expires.
func WithToken(token string) Option {
	return func(o *options) error {
		_, err := checkToken(token, "the argument of WithToken")
		o.token = func() (string, error) { return token, nil }
		return err
	}
}

// checkToken requires a token that a header can carry. Its errors do not show it.
func checkToken(token, from string) (string, error) {
	if token == "" {
		return "", fmt.Errorf("the token is empty: %s", from)
	}
	for _, c := range []byte(token) {
		if c <= ' ' || c > '~' {
			return "", fmt.Errorf("the token has blanks or characters other than ASCII: %s", from)
		}
	}
	return token, nil
}

// WithCACerts trusts these certificates (PEM) in addition to the system's. It takes
// status.address.CACerts as it is, also when it is empty.
func WithCACerts(pem string) Option {
	return func(o *options) error {
		o.caCerts = pem
		return nil
	}
}

// WithHTTPClient makes the calls through c, with its transport and timeout, but
// without following redirects.
func WithHTTPClient(c *http.Client) Option {
	return func(o *options) error {
		o.client = c
		return nil
	}
}

// WithRetryBudget is how long a call is repeated, counted from its first try. The
// default is 10 s, and 0 is a single try. The context may end it sooner.
func WithRetryBudget(d time.Duration) Option {
	return func(o *options) error {
		o.budget = d
		return nil
	}
}

// New returns a client of the source at the address, http(s)://HOST/NAMESPACE/NAME,
// which is the source's status.address.url.
func New(address string, opts ...Option) (*Client, error) {
	o := options{token: func() (string, error) { return "", nil }, budget: defaultBudget}
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, fmt.Errorf("sdk: %w", err)
		}
	}
	address, err := checkAddress(address)
	if err != nil {
		return nil, fmt.Errorf("sdk: %w", err)
	}
	c := &Client{address: address, http: &http.Client{}, token: o.token, budget: o.budget}
	switch {
	case o.client != nil && o.caCerts != "":
		return nil, errors.New("sdk: with an http.Client of your own, give the CA certificates to its transport")
	case o.client != nil:
		*c.http = *o.client
	default:
		// The adapter reads the body of a request for a minute; an answer takes
		// milliseconds.
		c.http.Timeout = time.Minute
		if c.http.Transport, err = transport(o.caCerts); err != nil {
			return nil, fmt.Errorf("sdk: %w", err)
		}
	}
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c, nil
}

// FromEnv is [New] with the environment of a pod. The options come after it.
//
//	RESCHEDULE_URL         the source's address; required
//	RESCHEDULE_TOKEN_FILE  default /var/run/reschedule/token, if there is one
//	RESCHEDULE_CA_CERTS    certificates to trust in addition to the system's, PEM
func FromEnv(opts ...Option) (*Client, error) {
	address := os.Getenv("RESCHEDULE_URL")
	if address == "" {
		return nil, errors.New("sdk: RESCHEDULE_URL is not set: set it to the status.address.url of the RescheduleSource")
	}
	env := []Option{WithCACerts(os.Getenv("RESCHEDULE_CA_CERTS"))}
	file := os.Getenv("RESCHEDULE_TOKEN_FILE")
	if _, err := os.Stat(defaultToken); file != "" || err == nil {
		env = append(env, WithTokenFile(cmp.Or(file, defaultToken)))
	}
	return New(address, append(env, opts...)...)
}

// checkAddress refuses an address that is not a source's, where a 404 would look like
// a key that is not scheduled.
func checkAddress(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", fmt.Errorf("the address: %w", err)
	}
	path := strings.TrimSuffix(u.EscapedPath(), "/")
	switch {
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "", fmt.Errorf("the address %q does not begin with http(s)://HOST", address)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("the address of %s has a user, a query or a fragment", u.Host)
	case strings.Count(path, "/") < 2:
		return "", fmt.Errorf("the address %q does not end with /NAMESPACE/NAME of a RescheduleSource", address)
	}
	return u.Scheme + "://" + u.Host + path, nil
}

// transport is like http.DefaultTransport, but keeps more connections to the one host
// that it calls, and gives up a connection early enough for another try.
func transport(caCerts string) (*http.Transport, error) {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		IdleConnTimeout:     90 * time.Second, // the adapter's is longer, so that the client closes first
		MaxIdleConnsPerHost: 100,
		ForceAttemptHTTP2:   true,
		// For a node that went away under an open connection. The adapter takes up
		// to 12 s to ask the API server about a token.
		ResponseHeaderTimeout: 15 * time.Second,
	}
	if caCerts == "" {
		return t, nil
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool() // there is none on this system
	}
	if !roots.AppendCertsFromPEM([]byte(caCerts)) {
		return nil, errors.New("the CA certificates are not in PEM format")
	}
	t.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return t, nil
}
