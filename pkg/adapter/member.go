package adapter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sink"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// maxReplicatedBody bounds a request's body: a call is one entry of the log, and the log keeps
// a number of entries in memory.
const maxReplicatedBody = 4 << 20

// disk is what metrics say about the disk.
type disk interface {
	Corrupt() int64
	Usage() (free, reserve, used int64, known bool)
}

// member is this adapter as one of a group. All of them have the state; one owns the shard,
// answers calls and delivers, the others forward to it.
type member struct {
	a       *Adapter
	view    *store.View
	log     ReplicatedLog
	group   *replica.Group
	sender  *sink.Sender
	client  *http.Client
	slots   chan struct{} // calls that are forwarded
	leaving atomic.Bool
	empty   atomic.Bool // it has not joined, and its disk is empty
	joined  atomic.Bool
	shard   replica.Log // once it has joined
	api     atomic.Pointer[http.Handler]
	cancel  context.CancelFunc
	ended   chan struct{}
	peers   *endpoint     // for other members
	serving chan struct{} // closed by serve

	mu      sync.Mutex
	wanted  map[string]*schedule.Source
	tenure  *tenure
	changed chan struct{}
}

// lookup is how calls find a source, and how large they may be, 0 = the default.
func (a *Adapter) lookup() (func(namespace, name string) (*queue.Source, bool), int64) {
	if a.member == nil {
		return a.queue.Lookup, 0
	}
	return func(namespace, name string) (*queue.Source, bool) {
		t := a.member.current()
		if t == nil {
			return nil, false
		}
		return t.queue.Lookup(namespace, name)
	}, maxReplicatedBody
}

func (a *Adapter) registry() sources.Registry {
	if a.member == nil {
		return registry{a}
	}
	return a.member
}

// server serves the schedule API on a public address.
func (a *Adapter) server(handler http.Handler) *http.Server {
	s := api.Server(handler)
	if a.member != nil {
		s.Handler = a.member.route(handler)
	}
	return s
}

// join opens the view and the log, and takes part in the group.
func (a *Adapter) join(ctx context.Context) error {
	r := a.cfg.Replication
	m := &member{a: a, wanted: map[string]*schedule.Source{}, changed: make(chan struct{}), slots: make(chan struct{}, maxForwarded), ended: make(chan struct{}), serving: make(chan struct{})}
	view, err := store.OpenView(store.Options{Dir: a.cfg.DataDir, Log: a.cfg.Log, Fatal: a.fatal})
	if err != nil {
		return err
	}
	m.view, a.disk, a.member = view, view, m
	a.started = context.AfterFunc(ctx, func() { a.stopping.Store(true) })
	tlsConfig, err := r.peerTLS()
	if err != nil {
		return err
	}
	m.client = forwarder(tlsConfig)
	m.sender = sink.New(sink.Config{Log: a.cfg.Log, Tracer: a.telemetry.tracer, Token: a.origin.Token})
	a.origin.Trust(m.sender.Trust)
	if err := a.observe(); err != nil {
		return err
	}
	wanted, _ := a.origin.Sources()
	for _, s := range wanted {
		a.events.Set(s)
		m.wanted[s.UID] = s
	}
	if err := m.listen(); err != nil {
		return err
	}
	if err := m.admit(ctx); err != nil {
		return err
	}
	m.log, err = r.Open(LogOptions{Dir: a.cfg.DataDir, Member: r.Member, Listen: r.PeerListen, TLSDir: r.TLSDir, Peers: r.Peers, Log: a.cfg.Log,
		Stopped: func(err error) {
			if !a.stopping.Load() {
				a.cfg.Fatal(err)
			}
		}})
	if err != nil {
		return err
	}
	m.shard = m.log.Shard()
	m.group = replica.New(replica.Config{
		Member: r.Member, Members: slices.Sorted(maps.Keys(r.Peers)), Address: forwardAddress(r.Peers[r.Member]), Log: m.shard, View: view,
		Silence: silence, Clock: m.log.Clock, Own: m.own, Logger: a.cfg.Log,
	})
	if err := m.observe(); err != nil {
		return err
	}
	run, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() {
		defer close(m.ended)
		select {
		case <-m.log.Ready():
			select {
			case <-m.serving: // a tenure needs the API
			case <-run.Done():
				return
			}
			m.joined.Store(true)
			m.empty.Store(false)
		case <-run.Done():
			return
		}
		var tidying sync.WaitGroup
		tidying.Go(func() {
			m.log.Tidy(run, func() bool { _, own, _ := m.group.Owner(); return own })
		})
		if err := m.group.Run(run); err != nil {
			a.fatal(err)
		}
		cancel()
		tidying.Wait()
	}()
	return a.serve()
}

// observe shows who owns the shard, and how far the view is.
func (m *member) observe() error {
	meter := m.a.telemetry.meter
	owner, err := meter.Int64ObservableGauge("reschedule_shard_owner", metric.WithDescription("1 while this adapter owns the shard, else 0."))
	if err != nil {
		return fmt.Errorf("adapter: metrics: %w", err)
	}
	applied, err := meter.Int64ObservableGauge("reschedule_shard_applied", metric.WithDescription("The number of the last entry of the replicated log that this adapter has applied."))
	if err != nil {
		return fmt.Errorf("adapter: metrics: %w", err)
	}
	_, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		own := int64(0)
		if _, is, _ := m.group.Owner(); is {
			own = 1
		}
		o.ObserveInt64(owner, own)
		o.ObserveInt64(applied, int64(m.view.Applied()))
		return nil
	}, owner, applied)
	if err != nil {
		return fmt.Errorf("adapter: metrics: %w", err)
	}
	return nil
}

// listen answers at the port for other members. Calls are refused there until serve.
func (m *member) listen() error {
	server := api.Server(m.routeForwarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*m.api.Load()).ServeHTTP(w, r) // there is no tenure before it is set
	})))
	var err error
	if server.TLSConfig, err = m.a.cfg.Replication.peerTLS(); err != nil {
		return err
	}
	if m.peers, err = m.a.listen(m.a.cfg.Replication.ForwardListen, server, newConnections(m.a.cfg.Log).plain); err != nil {
		return err
	}
	m.a.answer(m.peers)
	return nil
}

// serve answers at the public addresses.
func (m *member) serve(handler http.Handler) error {
	m.api.Store(&handler)
	close(m.serving)
	m.a.ready.Store(true)
	for _, e := range m.a.calls {
		m.a.answer(e)
	}
	m.a.calls = append(m.a.calls, m.peers) // Addr is of the first
	return nil
}

// ready reports that the adapter has caught up and knows an owner.
func (m *member) ready() bool {
	o, own, _ := m.group.Owner()
	return m.group.CaughtUp() && o.Member != "" && (own && m.current() != nil || o.Member != m.a.cfg.Replication.Member)
}

func (m *member) current() *tenure {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tenure
}

func (m *member) serveTenure(t *tenure) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tenure = t
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *member) sources() []*schedule.Source {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.wanted))
}

// handover is how long the owner waits for calls under way before it hands the shard over.
const handover = 2 * time.Second

// leave hands the shard over: first deliveries end, while calls go on; then calls wait for
// the next owner.
func (m *member) leave() {
	m.leaving.Store(true)
	select {
	case <-m.serving:
	default: // the start did not come to its end
		if m.peers != nil {
			_ = m.peers.server.Close()
		}
	}
	if m.group == nil {
		return
	}
	t := m.current()
	if t != nil {
		ctx, cancel := context.WithTimeout(context.Background(), drainDeliveries)
		t.cut(ctx)
		cancel()
		m.log.StepDown()
		t.drain(handover)
	}
	m.group.HandOver()
	if t != nil {
		m.followed()
	}
}

// followed returns a moment after another member owns the shard: until then the others
// send calls here, which must be refused and not be cut off.
func (m *member) followed() {
	late := time.NewTimer(time.Second)
	defer late.Stop()
	for {
		owner, _, moved := m.group.Owner()
		if owner.Member != "" && owner.Member != m.a.cfg.Replication.Member {
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

// lastCalls is how long the others may take to learn who owns the shard.
const lastCalls = 200 * time.Millisecond

func (m *member) close() error {
	if m.cancel != nil {
		m.cancel()
		<-m.ended
	}
	err := m.view.Close()
	if m.log != nil {
		m.log.Close()
	}
	return err
}

// SetSource implements sources.Registry.
func (m *member) SetSource(s *schedule.Source) error {
	m.a.events.Set(s)
	m.mu.Lock()
	m.wanted[s.UID] = s
	t := m.tenure
	m.mu.Unlock()
	if t == nil {
		return nil
	}
	return passing(t.set(s))
}

// RemoveSource implements sources.Registry. Only the owner purges; the others forget the source.
func (m *member) RemoveSource(uid string) error {
	m.mu.Lock()
	delete(m.wanted, uid)
	t := m.tenure
	m.mu.Unlock()
	m.a.events.Remove(uid)
	if t == nil {
		m.a.cfg.Log.Info("source removed; its schedules are purged when the owner reads the file", "uid", uid)
		return nil
	}
	return passing(t.remove(uid))
}

// passing leaves out an error that the end of a tenure explains: the next one sets all sources.
func passing(err error) error {
	var refused *schedule.Error
	if errors.Is(err, store.ErrNotOwner) || errors.Is(err, store.ErrUnknown) || errors.Is(err, store.ErrClosed) || errors.As(err, &refused) {
		return nil
	}
	return err
}

// Counts implements sources.Registry: no status of a standalone adapter is written.
func (m *member) Counts(string) (sources.Counts, bool) { return sources.Counts{}, false }

// WatchStatus implements sources.Registry.
func (m *member) WatchStatus(string) (schedule.WatchStatus, bool) {
	return schedule.WatchStatus{}, false
}
