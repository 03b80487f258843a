package command

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/reschedule-dev/reschedule/cli/internal/page"
	"github.com/reschedule-dev/reschedule/cli/internal/why"
)

const (
	// objectsAge is how old the objects may be that the page shows, and metricsAge the
	// metrics, which may be megabytes.
	objectsAge = 5 * time.Second
	metricsAge = 10 * time.Second
)

// ui is the command of that name.
func newUI(p *program) *cobra.Command {
	var all bool
	var port uint16
	c := p.command("ui [NAME...]", "Serve the web page on this machine", `
# The sources of the namespace
$ ui
# All sources, always at the same port
$ ui -A --port 8086
# An adapter without a cluster
$ ui -A --server http://127.0.0.1:8080 --metrics-server http://127.0.0.1:9090`,
		nil, func(cmd *cobra.Command, args []string) error {
			s, err := p.session()
			if err != nil {
				return err
			}
			defer s.close()
			if err := allOrNames(all, args); err != nil {
				return err
			}
			return p.servePage(cmd.Context(), port, &remote{session: s, names: args, all: all})
		})
	c.Long = `Serve the web page on a loopback address of this machine until interrupted: sources,
keys and why they do not run, dead letters, live events. The printed address opens the page
once, in one browser. No browser is opened: other users of the machine would see the address.`
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "the sources of all namespaces")
	c.Flags().Uint16Var(&port, "port", 0, "port of this machine (default: a free one)")
	c.ValidArgsFunction = p.completeSources
	return c
}

// servePage serves the page until the context ends.
func (e *env) servePage(ctx context.Context, port uint16, r *remote) error {
	if _, err := r.Sources(ctx); err != nil { // a source that is not there is an error now
		return err
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("--port: %w", err)
	}
	secret := rand.Text()
	server := &http.Server{
		Handler:           page.Loopback(secret, page.Handler(r, e.now)),
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

// remote is how the page reaches sources: as the commands do, but it remembers for some seconds
// what it has found.
type remote struct {
	*session
	names []string
	all   bool

	looking sync.Mutex
	found   []*object
	foundAt time.Time

	asking  sync.Mutex
	adapter *why.Adapter
	known   measures
	askedAt time.Time
}

// look asks for the adapter, the members of a group, and the metrics. One view asks, and the
// others wait for it.
func (r *remote) look(ctx context.Context) (*why.Adapter, measures) {
	r.asking.Lock()
	defer r.asking.Unlock()
	if r.now().Sub(r.askedAt) > metricsAge {
		ctx, cancel := context.WithTimeout(ctx, 2*memberPatience)
		defer cancel()
		var adapter *why.Adapter
		if r.config != nil {
			adapter = r.adapterFacts(ctx)
		}
		group := r.members(ctx, adapter)
		asked, end := context.WithTimeout(ctx, memberPatience)
		defer end()
		known := r.measure(asked, group)
		if errors.Is(ctx.Err(), context.Canceled) { // the view was left, and the adapter had no time to answer
			return r.adapter, r.known
		}
		r.adapter, r.known, r.askedAt = adapter, known, r.now()
	}
	return r.adapter, r.known
}

// Members are the members of a group.
func (r *remote) Members(ctx context.Context) why.Group {
	_, known := r.look(ctx)
	return known.group
}

// recent are the objects, which may be some seconds old.
func (r *remote) recent(ctx context.Context) ([]*object, error) {
	r.looking.Lock()
	defer r.looking.Unlock()
	if r.found == nil || r.now().Sub(r.foundAt) >= objectsAge {
		objects, err := r.chosen(ctx, r.names, r.all)
		if err != nil {
			return nil, err
		}
		r.found, r.foundAt = objects, r.now()
	}
	return r.found, nil
}

// Sources are the sources of the page.
func (r *remote) Sources(ctx context.Context) ([]page.Source, error) {
	objects, err := r.recent(ctx)
	if err != nil {
		return nil, err
	}
	found := make([]page.Source, 0, len(objects))
	for _, o := range objects {
		shown := page.Source{Namespace: o.Namespace, Name: o.Name}
		known := o.facts()
		if known == nil {
			_, measured := r.look(ctx)
			m, _ := measured.metrics() // without them it stays unknown
			known = m.Source(o.Namespace, o.Name)
		}
		if known != nil {
			shown.Source = *known
		}
		shown.Target = func(ctx context.Context) *why.Target {
			adapter, measured := r.look(ctx)
			t := r.target(ctx, o, objects, adapter)
			t.Source = known
			t.Metrics = func(context.Context) (*why.Metrics, error) { return measured.metrics() }
			return t
		}
		found = append(found, shown)
	}
	return found, nil
}
