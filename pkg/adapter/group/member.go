package group

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/listener"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/hostname"
)

// Member is this adapter as one of a group. All of them have the state; one owns the group,
// answers calls and delivers, the others forward to it.
type Member struct {
	cfg          Config
	view         *view
	log          Log
	group        *replica.Group
	clocks       *replica.Clocks
	others       others
	resignations *rate.Limiter
	client       *http.Client
	owner
	router      *router
	leaving     atomic.Bool // the process ends
	callers     callers
	owns        atomic.Bool // a tenure runs, or what it began has not ended
	joined      atomic.Bool
	began       uint64                      // the last entry that the view had at the start
	identity    atomic.Pointer[string]      // the id of the group, once it is known
	proposes    atomic.Pointer[string]      // the id that a member without a log proposes
	attempt     atomic.Pointer[string]      // to join, of a member without a log
	asking      atomic.Bool                 // that attempt waits for the others' answers
	ownVote     atomic.Bool                 // its log had promised a vote for itself alone, at the start
	entries     atomic.Pointer[replica.Log] // of the log, once it is open
	api         atomic.Pointer[http.Handler]
	cancel      context.CancelFunc
	ended       chan struct{}
	peers       *listener.Endpoint // for other members; nil before Join
	files       *peerTLS           // nil without TLS
	connections struct{ log, forward *listener.Connections }
	serves      sync.WaitGroup // of peers
	serving     chan struct{}  // closed by Serve

	emptyPeers   sync.Map     // names of members whose disk was empty when they last asked or answered
	majorityLost atomic.Bool  // another member without a log has said so
	replacing    sync.Mutex   // another member
	copied, sent atomic.Int64 // copies of views

	setting sync.Mutex // while a source is put in force, so that the newest stays
	mu      sync.Mutex
	wanted  map[string]*schedule.Spec // by uid
}

// Open opens the view of this member.
func Open(cfg Config) (*Member, error) {
	cfg.Deliver.FinishWaits = true
	m := &Member{
		cfg: cfg, resignations: newResignations(), wanted: map[string]*schedule.Spec{},
		ended: make(chan struct{}), serving: make(chan struct{}),
	}
	m.owner = owner{m: m, changed: make(chan struct{})}
	m.router = newRouter(&m.cfg, &m.owner)
	o := store.Options{Dir: cfg.DataDir, Log: cfg.Log, Fatal: cfg.Fatal, LogUse: m.logUse}
	var err error
	if m.view, err = openView(o); err != nil {
		return nil, err
	}
	return m, nil
}

// logUse is store.Options.LogUse.
func (m *Member) logUse() (now, most int64) {
	if m.entries.Load() == nil {
		return 0, 0
	}
	return m.log.DiskUse()
}

// Corrupt and Usage are of the view.
func (m *Member) Corrupt() int64 { return m.view.get().Corrupt() }

// Usage is of the view.
func (m *Member) Usage() (free, reserve, used int64, known bool) { return m.view.Usage() }

// Checkpoint is of the view. It has every change that was acknowledged before, so only a
// member that has caught up makes one.
func (m *Member) Checkpoint(use func(dir string) error) error {
	if err := m.upToDate(); err != nil {
		return err
	}
	if !m.group.CaughtUp() {
		return errors.New("group: the view of this member is in doubt: back up another member")
	}
	return m.view.Checkpoint(use)
}

// Join opens the log, and takes part in the group from [Member.Serve] on. Sources are set before.
func (m *Member) Join(ctx context.Context) error {
	var err error
	if m.files, err = newPeerTLS(m.cfg.TLSDir, m.cfg.Log); err != nil {
		return err
	}
	m.client = forwarder(m.files)
	m.router.client = m.client
	m.connections.log, m.connections.forward = peerPort("members-log", &m.cfg), peerPort("members", &m.cfg)
	if err := m.listen(m.files.server()); err != nil {
		return err
	}
	replaces, err := m.admit(ctx)
	if err != nil {
		return err
	}
	m.log, err = m.cfg.Open(LogOptions{
		Dir: m.cfg.DataDir, Group: *m.identity.Load(), Member: m.cfg.Member, Peers: m.cfg.peers, Listen: m.cfg.PeerListen, TLSDir: m.cfg.TLSDir,
		Connections: m.connections.log, Replaces: replaces, Log: m.cfg.Log,
		Stopped: m.logStopped,
	})
	if err != nil {
		return err
	}
	entries := m.log.Entries()
	m.entries.Store(&entries)
	m.clocks = replica.NewClocks(m.cfg.Member, len(m.cfg.others()))
	m.group = replica.New(replica.Config{
		Member: m.cfg.Member, Members: slices.Sorted(maps.Keys(m.cfg.peers)), Address: forwardAddress(m.cfg.peers[m.cfg.Member]),
		Log: entries, View: m.view, Copy: m.copyView, Damaged: func() bool { return m.view.current.Load().Damaged() },
		Silence: m.log.Silence(), Clock: m.log.Clock, Wall: m.log.Wall, Clocks: m.clocks,
		Unfit: m.unfitToClaim, Own: m.runTenure, Logger: m.cfg.Log,
	})
	if err := m.observe(); err != nil {
		return err
	}
	run, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go m.run(run)
	return nil
}

// logStopped ends the process, since the log has ended by itself. After a disk that went back the next start joins anew.
func (m *Member) logStopped(err error) {
	if m.cfg.Stopping() {
		return
	}
	if errors.Is(err, replica.ErrSetBack) {
		err = errors.Join(err, m.setJoining())
	}
	m.cfg.Fatal(err)
}

// run takes part until ctx ends.
func (m *Member) run(ctx context.Context) {
	defer close(m.ended)
	var warning sync.WaitGroup
	defer warning.Wait()
	if m.files != nil {
		warning.Go(func() { m.files.certificate().Warn(ctx, m.cfg.Log) })
	}
	err := m.awaitLog(ctx)
	if err == nil {
		err = m.settle(ctx)
	}
	if err != nil {
		if ctx.Err() == nil {
			m.cfg.Fatal(err)
		}
		return
	}
	select {
	case <-m.serving: // a tenure needs the API
	case <-ctx.Done():
		return
	}
	m.joined.Store(true)
	ctx, cancel := context.WithCancel(ctx)
	var tidying sync.WaitGroup
	tidying.Go(func() { m.compareClocks(ctx) })
	tidying.Go(func() {
		m.log.Tidy(ctx, func() bool { _, own, _ := m.group.Owner(); return own })
	})
	if err := m.group.Run(ctx); err != nil {
		m.cfg.Fatal(err)
	}
	cancel()
	tidying.Wait()
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

// listen answers at the port for other members. Calls are refused there until Serve.
func (m *Member) listen(tlsConfig *tls.Config) error {
	server := api.Server(m.routePeers(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*m.api.Load()).ServeHTTP(w, r) // there is no tenure before it is set
	})))
	server.TLSConfig = tlsConfig
	var err error
	if m.peers, err = m.connections.forward.Open(m.cfg.ForwardListen, server); err != nil {
		return fmt.Errorf("group: listen: %w", err)
	}
	for _, address := range []string{m.cfg.ForwardListen, cmp.Or(m.cfg.PeerListen, m.cfg.peers[m.cfg.Member])} {
		if hiddenLoopback(address, net.ResolveTCPAddr) {
			m.cfg.Log.Warn("this machine takes its own name for a loopback address, where other machines do not reach this member: give --peer-listen and --forward-listen, or correct the machine's hosts file", "listens", address)
			break
		}
	}
	m.serves.Go(m.peers.Serve)
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

// Serve lets this member own the group: handler is the schedule API.
func (m *Member) Serve(handler http.Handler) {
	m.api.Store(&handler)
	close(m.serving)
}

// Ready reports that the adapter has caught up and knows an owner. An owner that has been
// silent for as long as calls wait does not count: this member is cut off, or there is no majority.
func (m *Member) Ready() bool {
	o, own, _ := m.group.Owner()
	return !m.view.Sealed() && m.group.CaughtUp() && o.Member != "" && (own && m.current() != nil || o.Member != m.cfg.Member) &&
		m.group.Behind() <= patience
}

// sources are the sources that are in force.
func (m *Member) sources() []*schedule.Spec {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.wanted))
}

// handover is how long the owner waits for calls under way before it hands the group over.
const handover = 2 * time.Second

// Route answers calls here or at the owner.
func (m *Member) Route(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer m.callers.call(r)()
		if m.leaving.Load() { // the caller's next call must go to another member
			w.Header().Set("Connection", "close")
		}
		if r.URL.Path == "/openapi.json" || r.URL.Path == "*" { // they are about no source
			api.ServeHTTP(w, r)
			return
		}
		m.router.answer(api, w, r)
	})
}

// Leave hands the group over before the process ends, and goes on forwarding calls until callers
// have gone elsewhere.
func (m *Member) Leave() {
	begun := time.Now()
	m.leaving.Store(true)
	select {
	case <-m.serving:
	default: // the start did not come to its end: there are no callers
		if m.peers != nil {
			m.peers.Close()
		}
		return
	}
	t := m.current()
	if t != nil {
		t.finish()
	}
	m.group.HandOver()
	if t != nil {
		m.followed()
	}
	m.forwardOn(begun)
}

// callers knows when a caller last called this member, or waited for its answer.
type callers struct {
	mu       sync.Mutex
	underWay int       // calls without an answer
	last     time.Time // when one began or ended
}

// call notes that a call begins, and returns the function that notes its answer. A stream of events
// lasts for as long as its caller wants: only its begin counts.
func (c *callers) call(r *http.Request) (answered func()) {
	c.change(1)
	if strings.HasSuffix(r.URL.Path, "/events") {
		c.change(-1)
		return func() {}
	}
	return func() { c.change(-1) }
}

func (c *callers) change(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.underWay += n
	c.last = time.Now()
}

// latest is when a call was last under way: now, while one is.
func (c *callers) latest() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.underWay > 0 {
		return time.Now()
	}
	return c.last
}

// How long a member that ends goes on forwarding calls: at least, after the last call, and at most.
// Nodes and load balancers send new connections here until they have received that it ends: on a
// busy machine kube-proxy took up to 1.9 s. Where calls are few, that none comes proves nothing, nor
// where all callers wait for an answer.
const (
	forwardLeast = 5 * time.Second
	forwardQuiet = 2 * time.Second
	ForwardMost  = 10 * time.Second
)

// forwardOn waits until callers have moved to other members, for ForwardMost at most.
func (m *Member) forwardOn(begun time.Time) {
	for {
		until := begun.Add(forwardLeast)
		if quiet := m.callers.latest().Add(forwardQuiet); quiet.After(until) {
			until = quiet
		}
		if most := begun.Add(ForwardMost); until.After(most) {
			until = most
		}
		left := time.Until(until)
		if left <= 0 {
			break
		}
		<-time.After(left)
	}
	lastCall := max(m.callers.latest().Sub(begun), 0)
	m.cfg.Log.Info("calls were forwarded until callers had moved; this member ends now", "for", time.Since(begun), "lastCall", lastCall)
}

// followed returns a moment after another member owns the group: until then the others
// send calls here, which must be refused and not be cut off.
func (m *Member) followed() {
	late := time.NewTimer(time.Second)
	defer late.Stop()
	for {
		owner, _, moved := m.group.Owner()
		if owner.Member != "" && owner.Member != m.cfg.Member {
			<-time.After(lastCalls)
			return
		}
		select {
		case <-moved:
		case <-late.C:
			return
		}
	}
}

// lastCalls is how long the others may take to read who owns the group.
const lastCalls = time.Second

// Shutdown ends the port for other members, after Leave. What hangs is cut off with ctx.
func (m *Member) Shutdown(ctx context.Context) {
	if m.peers == nil {
		return
	}
	m.peers.Shutdown(ctx)
	m.serves.Wait()
}

// Close ends this member, and releases the directory.
func (m *Member) Close() error {
	if m.cancel != nil {
		m.cancel()
		<-m.ended
	}
	err := m.view.get().Close()
	if m.log != nil {
		m.log.Close()
	}
	return err
}

// SetSource puts a source in force.
func (m *Member) SetSource(s *schedule.Spec) error {
	m.mu.Lock()
	m.wanted[s.UID] = s
	m.mu.Unlock()
	t := m.current() // a tenure that begins meanwhile takes the source from wanted
	if t == nil {
		return nil
	}
	return ignoreTenureEnd(m.setInTenure(t, s.UID))
}

// setInTenure gives the tenure the source's newest settings.
func (m *Member) setInTenure(t *tenure, uid string) error {
	m.setting.Lock()
	defer m.setting.Unlock()
	m.mu.Lock()
	s := m.wanted[uid]
	m.mu.Unlock()
	if s == nil {
		return nil // it was removed
	}
	return t.set(s)
}

// RemoveSource removes a source. Only the owner purges; the others drop the source.
func (m *Member) RemoveSource(uid string) error {
	m.setting.Lock()
	m.mu.Lock()
	delete(m.wanted, uid)
	m.mu.Unlock()
	m.setting.Unlock()
	t := m.current()
	if t == nil {
		m.cfg.Log.Info("source removed; its schedules are purged by the owner", "uid", uid)
		return nil
	}
	return ignoreTenureEnd(t.remove(uid))
}

// ignoreTenureEnd leaves out an error that the end of a tenure explains: the next one sets all sources.
func ignoreTenureEnd(err error) error {
	var refused *schedule.Error
	if errors.Is(err, store.ErrNotOwner) || errors.Is(err, store.ErrUnknown) || errors.Is(err, store.ErrClosed) || errors.As(err, &refused) {
		return nil
	}
	return err
}
