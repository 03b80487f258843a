package adapter

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/hostname"
	"github.com/reschedule-dev/reschedule/pkg/page"
	"github.com/reschedule-dev/reschedule/pkg/why"
)

// checkPage refuses a page that other machines could reach: it has no TLS.
func (c *Config) checkPage() error {
	if c.Kubernetes != nil {
		return errors.New("adapter: --ui is for --standalone: for a cluster there is kn source reschedule ui")
	}
	if !hostname.IsLoopback(hostname.Of(c.AdminListen)) {
		return fmt.Errorf("adapter: will not serve the page on %s: with --ui give --admin-listen a loopback address such as %s", c.AdminListen, DefaultAdminListen)
	}
	return nil
}

// makePage makes the page, a client of the schedule API as any other. Where the guard
// requires tokens, a session on the page has one: the token that the user entered, or one
// of this process for the user who has the address that is printed at the start.
func (a *Adapter) makePage(guard access.Guard) access.Guard {
	var own page.Guard
	if guard != nil {
		a.pageSecret = rand.Text()
		own = page.Guard{Secret: a.pageSecret, Bearer: rand.Text(), Token: func(ctx context.Context, token string) bool {
			_, err := guard.Admit((&http.Request{Header: http.Header{"Authorization": {"Bearer " + token}}}).WithContext(ctx), access.Request{})
			return err == nil
		}}
		guard = pageGuard{page: access.NewTokens(own.Bearer), others: guard}
	}
	admin := &http.Client{Transport: transportTo(a.AdminAddr)}
	handler := http.StripPrefix("/page", page.Loopback(own, page.Handler(page.Backend{
		Base: "http://localhost", Transport: transportTo(a.Addr), Sources: a.pageSources,
		Metrics: func(ctx context.Context, _, _ string) *why.Metrics {
			m, _ := page.ReadMetrics(ctx, admin, "http://localhost") // on an error the view has the error of the schedule API
			return m
		},
	})))
	a.page.Store(&handler)
	return guard
}

// transportTo leads to one of the adapter's own listeners, whatever the host.
func transportTo(own func() string) *http.Transport {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil
	transport.MaxIdleConnsPerHost = 8
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, reachable(own()))
	}
	return transport
}

// reachable is an address of this machine that leads to a listener on all addresses.
func reachable(address string) string {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !at.Addr().IsUnspecified() {
		return address
	}
	return net.JoinHostPort("localhost", fmt.Sprint(at.Port()))
}

// pageGuard admits the page besides the callers of another guard.
type pageGuard struct {
	page   *access.Tokens
	others access.Guard
}

// Admit implements [access.Guard].
func (g pageGuard) Admit(r *http.Request, q access.Request) (access.Caller, error) {
	if _, err := g.page.Admit(r, q); err == nil {
		return access.Caller{User: "the page"}, nil
	}
	return g.others.Admit(r, q)
}

func (a *Adapter) pageSources(context.Context) ([]page.Source, error) {
	all := a.queue.Sources()
	found := make([]page.Source, 0, len(all))
	for _, q := range all {
		s := q.Spec()
		found = append(found, page.Source{Namespace: s.Namespace, Name: s.Name, Source: why.Source{
			Suspended: s.Suspend, SinkURI: s.Sink.URL, Timeout: s.Delivery.Timeout, MaxInFlight: int64(s.MaxInFlight), MaxPerSecond: int64(s.MaxPerSecond),
			MaxPending: s.MaxPending, When: s.IngestWhen,
		}})
	}
	return found, nil
}
