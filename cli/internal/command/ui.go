package command

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/reschedule-dev/reschedule/pkg/page"
	"github.com/reschedule-dev/reschedule/pkg/why"
)

const (
	// objectsAge is how old the objects may be that the page shows, and metricsAge the
	// metrics, which may be megabytes.
	objectsAge = 5 * time.Second
	metricsAge = 10 * time.Second
)

// ui is the command of that name.
func (e *env) ui() *cobra.Command {
	var all bool
	var port uint16
	c := e.command("ui [NAME...]", "Serve the web page on this machine", `
# The sources of the namespace
$ ui
# All sources, always at the same port
$ ui -A --port 8086`,
		nil, func(cmd *cobra.Command, args []string) error {
			s, err := e.session()
			if err != nil {
				return err
			}
			defer s.close()
			if all && len(args) > 0 {
				return usage("--all-namespaces does not go with names")
			}
			if _, _, at, err := s.address(); err == nil && at != "" && !all && len(args) == 0 {
				args = []string{at}
			}
			if s.config == nil && (all || len(args) == 0) {
				return usage("with --server name the sources: an adapter without a cluster has no list of them; its own page is adapter --ui")
			}
			return e.servePage(cmd.Context(), port, &remote{session: s, names: args, all: all})
		})
	c.Long = `Serve the web page on a loopback address of this machine until interrupted: sources,
keys and why they do not run, dead letters, live events.

The printed address opens the page once, in one browser. No browser is opened: other users
of the machine see the arguments of programs, and the address has a secret. Calls go
through the port-forward of this process, with your rights; tokens never reach the browser.`
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "the sources of all namespaces")
	c.Flags().Uint16Var(&port, "port", 0, "port of this machine (default: a free one)")
	c.ValidArgsFunction = e.completeSources
	return c
}

// servePage serves the page until the context ends.
func (e *env) servePage(ctx context.Context, port uint16, r *remote) error {
	if _, err := r.sources(ctx); err != nil { // a source that is not there is an error now
		return err
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("--port: %w", err)
	}
	secret := rand.Text()
	server := &http.Server{
		Handler:           page.Loopback(page.Guard{Secret: secret}, page.Handler(page.Backend{Base: "http://" + adapterName, Transport: r, Sources: r.sources, Members: r.members, Metrics: r.metrics, Now: e.now})),
		ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if _, err := fmt.Fprintf(e.out, "The page is on http://%s/?secret=%s\n", l.Addr(), secret); err != nil {
		return errors.Join(err, l.Close())
	}
	fmt.Fprintln(e.err, "The address opens the page once. Ctrl-C ends it.")
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// remote makes the calls of the page: through the port-forward, with a token for the source.
type remote struct {
	*session
	names []string
	all   bool

	mu      sync.Mutex
	found   map[string]*object // by namespace/name
	foundAt time.Time
	clients map[string]http.RoundTripper // by certificates

	asking  sync.Mutex
	askedAt time.Time
	known   measures
}

// measured asks the members of a group, and reads the metrics. Both may be some seconds old.
// One view asks, and the others wait for it.
func (r *remote) measured(ctx context.Context) measures {
	r.asking.Lock()
	defer r.asking.Unlock()
	if r.now().Sub(r.askedAt) > metricsAge {
		ctx, cancel := context.WithTimeout(ctx, 2*memberPatience)
		defer cancel()
		var group why.Group
		if r.config != nil {
			group = r.session.members(ctx, r.adapterSet(ctx))
		}
		asked, end := context.WithTimeout(ctx, memberPatience)
		defer end()
		known := r.measure(asked, group)
		if errors.Is(ctx.Err(), context.Canceled) { // the view was left, and the adapter had no time to answer
			return r.known
		}
		r.known, r.askedAt = known, r.now()
	}
	return r.known
}

// members are the members for the page.
func (r *remote) members(ctx context.Context) why.Group { return r.measured(ctx).group }

// metrics are the metrics for the page.
func (r *remote) metrics(ctx context.Context, _, _ string) *why.Metrics {
	return r.measured(ctx).metrics()
}

// look returns the objects, which may be some seconds old.
func (r *remote) look(ctx context.Context) (map[string]*object, error) {
	if r.found != nil && r.now().Sub(r.foundAt) < objectsAge {
		return r.found, nil
	}
	var objects []*object
	for _, name := range r.names {
		o, err := r.get(ctx, name)
		if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	if len(r.names) == 0 {
		var err error
		if objects, err = r.objects(ctx, r.all); err != nil {
			return nil, err
		}
	}
	r.found, r.foundAt = map[string]*object{}, r.now()
	for _, o := range objects {
		r.found[o.Namespace+"/"+o.Name] = o
	}
	return r.found, nil
}

// sources are the sources of the page.
func (r *remote) sources(ctx context.Context) ([]page.Source, error) {
	if r.config == nil {
		var known []page.Source
		for _, name := range r.names {
			src, err := r.standalone(name)
			if err != nil {
				return nil, err
			}
			shown := page.Source{Namespace: src.namespace, Name: src.name}
			if s := r.metrics(ctx, src.namespace, src.name).Source(src.namespace, src.name); s != nil {
				shown.Source = *s
			}
			known = append(known, shown)
		}
		return known, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	objects, err := r.look(ctx)
	if err != nil {
		return nil, err
	}
	found := make([]page.Source, 0, len(objects))
	for _, o := range objects {
		found = append(found, page.Source{Namespace: o.Namespace, Name: o.Name, Source: *o.facts()})
	}
	return found, nil
}

// RoundTrip makes a call of the page.
func (r *remote) RoundTrip(call *http.Request) (*http.Response, error) {
	to, transport, err := r.route(call)
	if err != nil {
		return nil, err
	}
	call = call.Clone(call.Context())
	call.URL.Scheme, call.URL.Host, call.Host = to.Scheme, to.Host, ""
	if r.tokenFile != "" {
		b, err := os.ReadFile(r.tokenFile) // it may be replaced while the page is open
		if err != nil {
			return nil, err
		}
		call.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(b)))
	}
	resp, err := transport.RoundTrip(call)
	if err != nil && (codeOf(err) == exitDenied || errors.Is(err, errNoToken)) {
		return nil, &page.Refused{Refusal: *refusal(err), Err: err}
	}
	return resp, err
}

// route finds where a call goes, and how.
func (r *remote) route(call *http.Request) (*url.URL, http.RoundTripper, error) {
	if r.config == nil {
		to, err := url.Parse(r.server)
		return to, http.DefaultTransport, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	objects, err := r.look(call.Context())
	if err != nil {
		return nil, nil, err
	}
	parts := strings.SplitN(call.URL.Path, "/", 4)
	o := objects[parts[1]+"/"+parts[2]]
	if o == nil {
		return nil, nil, errors.New("the source is gone")
	}
	var others []*object
	for _, other := range objects {
		others = append(others, other)
	}
	address, certificates := "http://"+adapterName+"."+r.systemNamespace, ""
	if a := o.Status.Address; a != nil && a.URL != "" {
		address, certificates = a.URL, a.CACerts
	}
	to, err := url.Parse(address)
	if err != nil {
		return nil, nil, fmt.Errorf("status.address of the source: %w", err)
	}
	if r.clients[certificates] == nil {
		client, err := r.http(r.tunnel, certificates)
		if err != nil {
			return nil, nil, err
		}
		if r.clients == nil {
			r.clients = map[string]http.RoundTripper{}
		}
		r.clients[certificates] = client.Transport
	}
	return to, &authorized{r.session, o, others, r.clients[certificates]}, nil
}
