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

	"go.opentelemetry.io/otel/metric"
	"golang.org/x/time/rate"

	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/listener"
	"github.com/reschedule-dev/reschedule/pkg/adapter/loglimit"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch"
	"github.com/reschedule-dev/reschedule/pkg/hostname"
)

// Member is this adapter as one of a group. All of them have the state; one owns the shard,
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
	slots        *budget.Budget // calls that are forwarded in this group
	otherGroups  map[int]*otherGroup
	leaving      atomic.Bool // the process ends
	callers      callers
	owns         atomic.Bool // a tenure runs, or what it began has not ended
	joined       atomic.Bool
	began        uint64                      // the last entry that the view had at the start
	identity     atomic.Pointer[string]      // the id of the group, once it is known
	proposes     atomic.Pointer[string]      // the id that a member without a log proposes
	attempt      atomic.Pointer[string]      // to join, of a member without a log
	asking       atomic.Bool                 // that attempt waits for the others' answers
	ownVote      atomic.Bool                 // its log had promised a vote for itself alone, at the start
	shard        atomic.Pointer[replica.Log] // once the log is open
	api          atomic.Pointer[http.Handler]
	cancel       context.CancelFunc
	ended        chan struct{}
	peers        *listener.Endpoint // for other members; nil before Join
	files        *peerTLS           // nil without TLS
	connections  struct{ log, forward *listener.Connections }
	serves       sync.WaitGroup // of peers
	serving      chan struct{}  // closed by Serve

	emptyPeers   sync.Map     // names of members whose disk was empty when they last asked or answered
	majorityLost atomic.Bool  // another member without a log has said so
	replacing    sync.Mutex   // another member
	copied, sent atomic.Int64 // copies of views
	forwarded    metric.Int64Counter
	outcomes     loglimit.Limit // the lines about calls whose outcome is unknown

	setting sync.Mutex // while a source is put in force, so that the newest stays
	mu      sync.Mutex
	wanted  map[string]*schedule.Spec // by uid, of all groups
	byPath  map[string]*schedule.Spec
	tenure  *tenure
	changed chan struct{}
}

// Open opens the view of this member.
func Open(cfg Config) (*Member, error) {
	cfg.Deliver.FinishWaits = true
	m := &Member{
		cfg: cfg, resignations: newResignations(), slots: newSlots(), otherGroups: map[int]*otherGroup{},
		wanted: map[string]*schedule.Spec{}, byPath: map[string]*schedule.Spec{},
		changed: make(chan struct{}), ended: make(chan struct{}), serving: make(chan struct{}),
		outcomes: loglimit.Limit{Lines: 1, Per: time.Second},
	}
	for shard := range cfg.groups() {
		if shard != cfg.shard {
			m.otherGroups[shard] = newOtherGroup(m, shard)
		}
	}
	o := store.Options{Dir: cfg.DataDir, Log: cfg.Log, Fatal: cfg.Fatal, LogUse: m.logUse}
	var err error
	if m.view, err = openView(o); err != nil {
		return nil, err
	}
	return m, nil
}

// Lookup finds a source, if this member owns the shard.
func (m *Member) Lookup(namespace, name string) (*queue.Source, bool) {
	t := m.current()
	if t == nil {
		return nil, false
	}
	return t.queue.Lookup(namespace, name)
}

// Serving are the parts that serve while this member owns the shard, else nil; deliveries and
// watches may be nil even then.
func (m *Member) Serving() (*queue.Queue, *dispatch.Dispatcher, *watch.Manager) {
	t := m.current()
	if t == nil || !t.lease.Valid() {
		return nil, nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.queue, t.dispatch, t.watches
}

// logUse is store.Options.LogUse.
func (m *Member) logUse() (now, most int64) {
	if m.shard.Load() == nil {
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
	shard := m.log.Shard()
	m.shard.Store(&shard)
	m.clocks = replica.NewClocks(m.cfg.Member, len(m.cfg.others()))
	m.group = replica.New(replica.Config{
		Member: m.cfg.Member, Members: slices.Sorted(maps.Keys(m.cfg.peers)), Address: forwardAddress(m.cfg.peers[m.cfg.Member]),
		Log: shard, View: m.view, Copy: m.copyView, Damaged: func() bool { return m.view.current.Load().Damaged() }, Level: store.Level(),
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

// Serve lets this member own the shard: handler is the schedule API.
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

func (m *Member) current() *tenure {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tenure
}

func (m *Member) serveTenure(t *tenure) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tenure = t
	close(m.changed)
	m.changed = make(chan struct{})
}

// allSources are the sources of all groups.
func (m *Member) allSources() []*schedule.Spec {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.wanted))
}

// served are the sources of this member's group.
func (m *Member) served() []*schedule.Spec {
	return slices.DeleteFunc(m.allSources(), func(s *schedule.Spec) bool { return !m.hasSource(s) })
}

// handover is how long the owner waits for calls under way before it hands the shard over.
const handover = 2 * time.Second

// Leave hands the shard over before the process ends, and goes on forwarding calls until callers
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

// followed returns a moment after another member owns the shard: until then the others
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

// lastCalls is how long the others may take to read who owns the shard.
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

// SetSource puts a source in force. The other groups' are known, so that calls find them.
func (m *Member) SetSource(s *schedule.Spec) error {
	m.mu.Lock()
	if before := m.wanted[s.UID]; before != nil && before.Group != schedule.NoGroup && before.Group != s.Group {
		m.mu.Unlock()
		return fmt.Errorf("group: source %s: it is in group %d, and cannot be moved to group %d: its schedules stay there; put the number back", s.Path(), before.Group, s.Group)
	}
	m.wanted[s.UID], m.byPath[s.Path()] = s, s
	t := m.tenure
	m.mu.Unlock()
	if t == nil || !m.hasSource(s) {
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
	s := m.wanted[uid]
	delete(m.wanted, uid)
	if s != nil && m.byPath[s.Path()] == s {
		delete(m.byPath, s.Path())
	}
	t := m.tenure
	m.mu.Unlock()
	m.setting.Unlock()
	if t == nil || s != nil && !m.hasSource(s) {
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
