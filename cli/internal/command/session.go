package command

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
	"github.com/reschedule-dev/reschedule/sdk"
)

// The ports of the adapter's pods.
const (
	httpPort    = 8080
	httpsPort   = 8443
	metricsPort = 9090
)

// maxAudiences bounds a token that is for many sources: it travels in a header.
const maxAudiences = 100

// session is a connection to a cluster, or to an adapter without one.
type session struct {
	*connection
	now       func() time.Time
	namespace string

	config  *rest.Config // nil without a cluster
	api     dynamic.Interface
	adapter *whereabouts
	tunnel  *tunnel

	issuing sync.Mutex
	tokens  map[string]grant // by audience

	opening    sync.Mutex
	transports map[string]*http.Transport // by certificates

	asked sync.Once
	known measures // after measured
}

// source is one source, and how to call it.
type source struct {
	*object
	*sdk.Client
}

func (s *source) String() string { return s.Namespace + "/" + s.Name }

// session connects. It makes no call yet.
func (p *program) session() (*session, error) {
	if p.requestTimeout <= 0 {
		return nil, usage("--request-timeout: %s is not a positive duration such as 30s", p.requestTimeout)
	}
	s := &session{connection: &p.connection, now: p.now, tokens: map[string]grant{}, transports: map[string]*http.Transport{}}
	loader := p.kube.ToRawKubeConfigLoader()
	if p.server != "" {
		s.namespace = *p.kube.Namespace
		if s.namespace == "" {
			s.namespace = "default"
		}
		return s, nil
	}
	if p.tokenFile != "" || p.metricsServer != "" {
		return nil, usage("--token-file and --metrics-server are for --server: in a cluster the token is requested from the API server")
	}
	// client-go would take an API server on localhost.
	raw, err := loader.RawConfig()
	if err == nil && len(raw.Clusters) == 0 && os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		err = errors.New("there is no kubeconfig")
	}
	if err == nil {
		s.config, err = loader.ClientConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("no cluster (for an adapter without one, use --server): %w", err)
	}
	if s.namespace, _, err = loader.Namespace(); err != nil {
		return nil, err
	}
	// No limit of calls a second: few are made at one time, and one that has to wait fails
	// with words about the limiter when it would miss its time.
	s.config.Timeout, s.config.QPS = p.requestTimeout, -1
	s.config.UserAgent = "kn-source-reschedule/" + p.version
	if s.api, err = dynamic.NewForConfig(s.config); err != nil {
		return nil, err
	}
	s.adapter = &whereabouts{flag: s.systemNamespace, api: s.api}
	s.tunnel = s.forward(pods...)
	return s, nil
}

// forward is a port-forward to the first of the pods that accepts one.
func (s *session) forward(pods ...string) *tunnel {
	endless := rest.CopyConfig(s.config)
	endless.Timeout = 0 // a port-forward lasts
	t := newTunnel(endless, s.adapter.namespace, pods...)
	t.direct = s.dial
	return t
}

func (s *session) close() {
	if s.tunnel != nil {
		s.tunnel.close()
	}
}

// editFile is how sources are changed without a cluster.
const editFile = "edit the file of sources (--sources of the adapter) and send it SIGHUP"

// cluster requires a cluster. Its error says what to do without one.
func (s *session) cluster(what, without string) error {
	if s.config == nil {
		return usage("%s needs a cluster: without one, %s", what, without)
	}
	return nil
}

// get reads a source object. Without a cluster its name is all that is known.
func (s *session) get(ctx context.Context, name string) (*object, error) {
	if s.config == nil {
		return s.named(name)
	}
	raw, err := s.api.Resource(sourceResource).Namespace(s.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	o, err := read(raw)
	if err == nil {
		s.adapter.learn(o)
	}
	return o, err
}

// objects lists the source objects of a namespace, or of all. Without a cluster these are the
// sources that the metrics of the adapter are about.
func (s *session) objects(ctx context.Context, all bool) ([]*object, error) {
	if s.config == nil {
		return s.listed(ctx, all)
	}
	namespace := s.namespace
	if all {
		namespace = metav1.NamespaceAll
	}
	var found []*object
	for token := ""; ; {
		page, err := s.api.Resource(sourceResource).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 500, Continue: token})
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			o, err := read(&page.Items[i])
			if err != nil {
				return nil, err
			}
			s.adapter.learn(o)
			found = append(found, o)
		}
		if token = page.GetContinue(); token == "" {
			return found, nil
		}
	}
}

// chosen are the objects with the names, or all.
func (s *session) chosen(ctx context.Context, names []string, all bool) ([]*object, error) {
	if len(names) == 0 {
		return s.objects(ctx, all)
	}
	var objects []*object
	for _, name := range names {
		o, err := s.get(ctx, name)
		if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// open finds a source and connects to it.
func (s *session) open(ctx context.Context, name string) (*source, error) {
	o, err := s.get(ctx, name)
	if err != nil {
		return nil, err
	}
	return s.connect(ctx, o, nil)
}

// address is --server without a path, and the source in the path if there is one.
func (s *session) address() (base *url.URL, at *object, err error) {
	u, err := url.Parse(s.server)
	if err != nil {
		return nil, nil, usage("--server: %w", err)
	}
	base = &url.URL{Scheme: u.Scheme, User: u.User, Host: u.Host}
	switch parts := strings.Split(strings.Trim(u.Path, "/"), "/"); {
	case len(parts) == 1 && parts[0] == "":
		return base, nil, nil
	case len(parts) == 2:
		return base, nameOnly(parts[0], parts[1]), nil
	}
	return nil, nil, usage("--server: %s is neither http://HOST:PORT nor http://HOST:PORT/NAMESPACE/NAME", s.server)
}

// named is a source of an adapter without a cluster.
func (s *session) named(name string) (*object, error) {
	_, at, err := s.address()
	switch {
	case err != nil:
		return nil, err
	case at == nil:
		return nameOnly(s.namespace, name), nil
	case at.Name != name:
		return nil, usage("--server is the address of source %s, but the command names %s", at.Name, name)
	}
	return at, nil
}

// listed are the sources of an adapter without a cluster, as far as they are known.
func (s *session) listed(ctx context.Context, all bool) (found []*object, err error) {
	_, at, err := s.address()
	switch {
	case err != nil:
		return nil, err
	case at != nil && !all:
		return []*object{at}, nil
	case s.metricsServer == "":
		return nil, usage("name the sources, or give --metrics-server: the schedule API of an adapter without a cluster has no list of them")
	}
	m, err := readMetrics(ctx, &http.Client{Timeout: s.requestTimeout}, s.metricsServer)
	if err != nil {
		return nil, unavailable("--metrics-server: %w", err)
	}
	for namespace, name := range m.Sources() {
		if all || namespace == s.namespace {
			found = append(found, nameOnly(namespace, name))
		}
	}
	slices.SortFunc(found, func(a, b *object) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return found, nil
}

// standalone is the client of a source without a cluster.
func (s *session) standalone(o *object) (*sdk.Client, error) {
	base, _, err := s.address()
	if err != nil {
		return nil, err
	}
	options := []sdk.Option{sdk.WithRetryBudget(retryBudget), sdk.WithHTTPClient(&http.Client{Timeout: s.requestTimeout})}
	if s.tokenFile != "" {
		b, err := os.ReadFile(s.tokenFile)
		if err != nil {
			return nil, usage("--token-file: %w", err)
		}
		if len(strings.Fields(string(b))) != 1 {
			return nil, usage("--token-file: %s does not hold one token", s.tokenFile)
		}
		options = append(options, sdk.WithTokenFile(s.tokenFile))
	}
	c, err := sdk.New(base.JoinPath(o.Namespace, o.Name).String(), options...)
	if err != nil {
		return nil, usage("--server: %w", err)
	}
	return c, nil
}

// retryBudget is how long a call is repeated: a user waits for it.
const retryBudget = 2 * time.Second

// connect makes the client of a source. The others are sources that will be called too:
// their token is the same one.
func (s *session) connect(ctx context.Context, o *object, others []*object) (*source, error) {
	if s.config == nil {
		c, err := s.standalone(o)
		return &source{o, c}, err
	}
	if _, err := s.tokenFor(ctx, o, others, ""); err != nil {
		return nil, err
	}
	address, certificates := fmt.Sprintf("http://%s.%s/%s/%s", adapterName, s.adapter.namespace(ctx), o.Namespace, o.Name), ""
	if a := o.Status.Address; a != nil && a.URL != "" {
		address, certificates = a.URL, a.CACerts
	}
	through, err := s.transport(certificates)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &authorized{s, o, others, through}, Timeout: s.requestTimeout}
	c, err := sdk.New(address, sdk.WithRetryBudget(retryBudget), sdk.WithHTTPClient(client))
	return &source{o, c}, err
}

// transport is the one through the tunnel of the session, for servers with these certificates.
func (s *session) transport(certificates string) (http.RoundTripper, error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.transports[certificates] == nil {
		t, err := newTransport(s.tunnel, certificates)
		if err != nil {
			return nil, err
		}
		s.transports[certificates] = t
	}
	return s.transports[certificates], nil
}

// newTransport is a transport whose connections go through a tunnel, whatever the host: TLS
// compares the certificate with the host of the address.
func newTransport(through *tunnel, certificates string) (*http.Transport, error) {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			port := httpPort
			switch {
			case strings.HasSuffix(address, ":443"):
				port = httpsPort
			case strings.HasSuffix(address, ":9090"):
				port = metricsPort
			}
			return through.dial(ctx, port)
		},
		MaxIdleConnsPerHost: 4,
	}
	if certificates != "" {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(certificates)) {
			return nil, errors.New("status.address.CACerts of the source is not in PEM format")
		}
		t.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return t, nil
}

// authorized adds a token to the calls of a source, and renews it in time: a command can
// last longer than a token.
type authorized struct {
	*session
	object *object
	others []*object
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (a *authorized) RoundTrip(call *http.Request) (*http.Response, error) {
	for refused := ""; ; {
		token, err := a.tokenFor(call.Context(), a.object, a.others, refused)
		if err != nil {
			return nil, err
		}
		try := call.Clone(call.Context())
		if refused != "" && call.GetBody != nil {
			if try.Body, err = call.GetBody(); err != nil {
				return nil, err
			}
		}
		try.Header.Set("Authorization", "Bearer "+token)
		resp, err := a.next.RoundTrip(try)
		if err != nil || resp.StatusCode != http.StatusUnauthorized || refused != "" || call.Body != nil && call.GetBody == nil {
			return resp, err
		}
		resp.Body.Close()
		refused = token
	}
}

// The API server issues tokens for ten minutes at least. They are renewed before.
const (
	tokenTime = 10 * time.Minute
	tokenAge  = 8 * time.Minute
)

// grant is a token, and when it was requested.
type grant struct {
	token string
	at    time.Time
}

// tokenFor returns a token for the source, other than the refused token, by one request for
// all sources of the namespace.
func (s *session) tokenFor(ctx context.Context, o *object, others []*object, refused string) (string, error) {
	s.issuing.Lock()
	defer s.issuing.Unlock()
	now := s.now()
	good := func(audience string) bool {
		g := s.tokens[audience]
		return g.token != "" && g.token != refused && now.Sub(g.at) < tokenAge
	}
	if good(o.audience()) {
		return s.tokens[o.audience()].token, nil
	}
	audiences := []string{o.audience()}
	for _, other := range others {
		if a := other.audience(); other.Namespace == o.Namespace && !good(a) && len(audiences) < maxAudiences && !slices.Contains(audiences, a) {
			audiences = append(audiences, a)
		}
	}
	token, err := s.requestToken(ctx, o.Namespace, audiences, tokenTime)
	if err != nil {
		return "", err
	}
	for _, a := range audiences {
		s.tokens[a] = grant{token, now}
	}
	return token, nil
}

// account is the service account whose tokens call the schedule API of sources of a
// namespace.
func (c *connection) account(namespace string) (in, name string) {
	if of, name, ok := strings.Cut(c.serviceAccount, "/"); ok {
		return of, name
	}
	return namespace, c.serviceAccount
}

// tokenCure says how users who may not request tokens in a namespace get them.
func (s *session) tokenCure(ctx context.Context, namespace string) string {
	if namespace == s.adapter.namespace(ctx) {
		return "an administrator binds the Role reschedule-viewer-token of config/cli"
	}
	return "the ClusterRole edit of Kubernetes has that right, and users who may only read give --as-service-account " + s.adapter.namespace(ctx) + "/reschedule-viewer"
}

// requestToken is a TokenRequest.
func (s *session) requestToken(ctx context.Context, namespace string, audiences []string, lifetime time.Duration) (string, error) {
	namespace, account := s.account(namespace)
	list := make([]any, len(audiences))
	for i, a := range audiences {
		list[i] = a
	}
	request := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": map[string]any{"name": account},
		"spec": map[string]any{"audiences": list, "expirationSeconds": int64(lifetime / time.Second)},
	}}
	answer, err := s.api.Resource(accounts).Namespace(namespace).Create(ctx, request, metav1.CreateOptions{}, "token")
	if err != nil {
		if codeOf(err) == exitDenied && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return "", denied("you may not request a token of service account %s/%s: %s: %w", namespace, account, s.tokenCure(ctx, namespace), err)
		}
		return "", fmt.Errorf("%w of service account %s/%s: %w", why.ErrNoToken, namespace, account, err)
	}
	token, _, _ := unstructured.NestedString(answer.Object, "status", "token")
	if token == "" {
		return "", fmt.Errorf("%w of service account %s/%s: the API server answered without one", why.ErrNoToken, namespace, account)
	}
	return token, nil
}
