package group

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/listener"
	"github.com/reschedule-dev/reschedule/pkg/hostname"
)

// peers are the other members: the calls that this one makes at them, and the port where they call it.
//
// Nothing of it changes once the port listens, which is before the first call in either direction.
type peers struct {
	cfg     *Config
	files   *peerTLS // nil: without TLS
	client  *http.Client
	logs    *listener.Connections // of the port of the log
	callers *listener.Connections // of port
	port    *listener.Endpoint    // nil before listen
	serving sync.WaitGroup        // port
}

func newPeers(cfg *Config) (*peers, error) {
	files, err := newPeerTLS(cfg.TLSDir, cfg.Log)
	if err != nil {
		return nil, err
	}
	return &peers{cfg: cfg, files: files, client: forwarder(files), logs: peerPort("members-log", cfg), callers: peerPort("members", cfg)}, nil
}

// The connections of each port for other members.
const (
	peerConnections = 2048
	peerHeadBytes   = 16 << 20
)

// peerPort are the connections of a port for other members.
func peerPort(name string, cfg *Config) *listener.Connections {
	return listener.New(listener.Config{Name: name, Limit: peerConnections, KeepBusy: true, Heads: budget.New(peerHeadBytes), Log: cfg.Log})
}

// listen answers at the port for other members.
func (p *peers) listen(h http.Handler) error {
	server := api.Server(h)
	server.TLSConfig = p.files.server()
	var err error
	if p.port, err = p.callers.Open(p.cfg.ForwardListen, server); err != nil {
		return fmt.Errorf("group: listen: %w", err)
	}
	for _, address := range []string{p.cfg.ForwardListen, cmp.Or(p.cfg.PeerListen, p.cfg.peers[p.cfg.Member])} {
		if hiddenLoopback(address, net.ResolveTCPAddr) {
			p.cfg.Log.Warn("this machine takes its own name for a loopback address, where other machines do not reach this member: give --peer-listen and --forward-listen, or correct the machine's hosts file", "listens", address)
			break
		}
	}
	p.serving.Go(p.port.Serve)
	return nil
}

// hiddenLoopback reports that a name which does not look like it is a loopback address, as the
// name of a machine is in the hosts file of Debian.
func hiddenLoopback(address string, resolve func(network, address string) (*net.TCPAddr, error)) bool {
	if hostname.IsLoopback(hostname.Of(address)) {
		return false
	}
	resolved, err := resolve("tcp", address)
	return err == nil && resolved.IP.IsLoopback()
}

// observe shows the connections of both ports, and the end of the certificate.
func (p *peers) observe(meter metric.Meter) error {
	err := listener.Observe(meter, p.logs, p.callers)
	if p.files != nil {
		err = errors.Join(err, p.files.certificate().Observe(meter))
	}
	return err
}

// forwarder is the client that forwards calls.
func forwarder(files *peerTLS) *http.Client {
	transport := &http.Transport{
		DialContext:         dialer().DialContext,
		MaxIdleConnsPerHost: maxForwarded, IdleConnTimeout: time.Minute,
		ExpectContinueTimeout: continueTime,
		DisableCompression:    true,
	}
	if files != nil {
		transport.DialTLSContext = files.dial
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// request is a call that this member makes for itself at another one.
func (p *peers) request(ctx context.Context, method, url string) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	r.Header.Set(asker, p.cfg.Member)
	return r, nil
}

// memberCall is a call of another member.
type memberCall struct {
	method, member, path string
	query                url.Values
	timeout              time.Duration
}

// call makes a call, and reads the answer into out, unless that is nil.
func (p *peers) call(ctx context.Context, c memberCall, out *admission) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	request, err := p.request(ctx, c.method, p.cfg.url(c.member, c.path)+"?"+c.query.Encode())
	if err != nil {
		return err
	}
	answer, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body := http.MaxBytesReader(nil, answer.Body, 64<<10)
	if answer.StatusCode >= 300 {
		var problem struct{ Detail string }
		_ = json.NewDecoder(body).Decode(&problem)
		return fmt.Errorf("group: member %s answered %d: %s", c.member, answer.StatusCode, problem.Detail)
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(body).Decode(out)
}
