package group

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Member is this adapter as one of a group. All of them have the state; one owns the group,
// answers calls and delivers, the others forward to it.
//
// It ties its parts together, and has no lock: each part has its own, if it has any, and says what for. Open makes them
// all, and nothing replaces one.
type Member struct {
	cfg     Config
	view    *view
	stage   *stage
	peers   *peers
	copies  *copies
	joining *joining
	health  *health
	router  *router
	callers callers
	*owner
	*catalog

	api     atomic.Pointer[http.Handler] // Serve sets it
	serving chan struct{}                // closed by Serve
	cancel  context.CancelFunc           // ends run; nil before Join has come to its end
	ended   chan struct{}                // closed by run
}

// stage is how far this member is on its way into the group and out of it, for all of its parts. Each of these changes
// at one place: attempt in joining, engine and leaving in Join and Leave, joined in run, owns in runTenure.
type stage struct {
	attempt atomic.Pointer[string] // to join, of a member without a log
	engine  atomic.Pointer[engine] // nil until the log is open
	joined  atomic.Bool            // it takes part
	owns    atomic.Bool            // a tenure runs, or what it began has not ended
	leaving atomic.Bool            // the process ends
}

// engine is the log, and what follows it. It is complete when it is put into the stage.
type engine struct {
	log     Log
	entries replica.Log
	group   *replica.Group
	clocks  *replica.Clocks
}

// Open opens the view of this member.
func Open(cfg Config) (*Member, error) {
	cfg.Deliver.FinishWaits = true
	m := &Member{cfg: cfg, stage: &stage{}, ended: make(chan struct{}), serving: make(chan struct{})}
	var err error
	if m.peers, err = newPeers(&m.cfg); err != nil {
		return nil, err
	}
	o := store.Options{Dir: cfg.DataDir, Log: cfg.Log, Fatal: cfg.Fatal, LogUse: m.logUse}
	if m.view, err = openView(o); err != nil {
		return nil, err
	}
	m.owner = &owner{member: cfg.Member, view: m.view, stage: m.stage, changed: make(chan struct{})}
	m.catalog = &catalog{log: cfg.Log, owner: m.owner, wanted: map[string]*schedule.Spec{}}
	m.copies = &copies{cfg: &m.cfg, view: m.view, peers: m.peers, stage: m.stage}
	m.joining = newJoining(&m.cfg, m.view, m.peers, m.copies, m.stage)
	m.health = &health{cfg: &m.cfg, view: m.view, peers: m.peers, stage: m.stage, owner: m.owner, resignations: newResignations()}
	m.router = newRouter(&m.cfg, m.owner, m.peers.client)
	return m, nil
}

// logUse is store.Options.LogUse.
func (m *Member) logUse() (now, most int64) {
	if e := m.stage.engine.Load(); e != nil {
		return e.log.DiskUse()
	}
	return 0, 0
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
	if !m.stage.engine.Load().group.CaughtUp() {
		return errors.New("group: the view of this member is in doubt: back up another member")
	}
	return m.view.Checkpoint(use)
}

// Join opens the log, and takes part in the group from [Member.Serve] on. Sources are set before.
func (m *Member) Join(ctx context.Context) error {
	calls := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*m.api.Load()).ServeHTTP(w, r) // there is no tenure before it is set
	})
	if err := m.peers.listen(m.routePeers(calls)); err != nil {
		return err
	}
	replaces, err := m.joining.admit(ctx)
	if err != nil {
		return err
	}
	log, err := m.cfg.Open(LogOptions{
		Dir: m.cfg.DataDir, Group: *m.joining.identity.Load(), Member: m.cfg.Member, Peers: m.cfg.peers, Listen: m.cfg.PeerListen, TLSDir: m.cfg.TLSDir,
		Connections: m.peers.logs, Replaces: replaces, Log: m.cfg.Log,
		Stopped: m.logStopped,
	})
	if err != nil {
		return err
	}
	e := &engine{log: log, entries: log.Entries(), clocks: replica.NewClocks(m.cfg.Member, len(m.cfg.others()))}
	e.group = replica.New(replica.Config{
		Member: m.cfg.Member, Members: m.cfg.names(), Address: forwardAddress(m.cfg.peers[m.cfg.Member]),
		Log: e.entries, View: m.view, Copy: m.copies.take, Damaged: func() bool { return m.view.current.Load().Damaged() },
		Silence: log.Silence(), Clock: log.Clock, Wall: log.Wall, Clocks: e.clocks,
		Unfit: m.health.unfitToClaim, Own: m.runTenure, Logger: m.cfg.Log,
	})
	m.stage.engine.Store(e)
	if err := m.observe(e); err != nil {
		return err
	}
	run, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go m.run(run, e)
	return nil
}

// logStopped ends the process, since the log has ended by itself. After a disk that went back the next start joins anew.
func (m *Member) logStopped(err error) {
	if m.cfg.Stopping() {
		return
	}
	if errors.Is(err, replica.ErrSetBack) {
		err = errors.Join(err, m.joining.dir.setJoining())
	}
	m.cfg.Fatal(err)
}

// run takes part until ctx ends.
func (m *Member) run(ctx context.Context, e *engine) {
	defer close(m.ended)
	var warning sync.WaitGroup
	defer warning.Wait()
	if files := m.peers.files; files != nil {
		warning.Go(func() { files.certificate().Warn(ctx, m.cfg.Log) })
	}
	err := m.joining.awaitLog(ctx)
	if err == nil {
		err = m.joining.settle(ctx)
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
	m.stage.joined.Store(true)
	ctx, cancel := context.WithCancel(ctx)
	var tidying sync.WaitGroup
	tidying.Go(func() { m.health.compareClocks(ctx) })
	tidying.Go(func() {
		e.log.Tidy(ctx, func() bool { _, own, _ := e.group.Owner(); return own })
	})
	if err := e.group.Run(ctx); err != nil {
		m.cfg.Fatal(err)
	}
	cancel()
	tidying.Wait()
}

// Serve lets this member own the group: handler is the schedule API.
func (m *Member) Serve(handler http.Handler) {
	m.api.Store(&handler)
	close(m.serving)
}

// Ready reports that the adapter has caught up and knows an owner. An owner that has been
// silent for as long as calls wait does not count: this member is cut off, or there is no majority.
func (m *Member) Ready() bool {
	g := m.stage.engine.Load().group
	o, own, _ := g.Owner()
	return !m.view.Sealed() && g.CaughtUp() && o.Member != "" && (own && m.current() != nil || o.Member != m.cfg.Member) &&
		g.Behind() <= patience
}

// handover is how long the owner waits for calls under way before it hands the group over.
const handover = 2 * time.Second

// Route answers calls here or at the owner.
func (m *Member) Route(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer m.callers.call(r)()
		if m.stage.leaving.Load() { // the caller's next call must go to another member
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
	m.stage.leaving.Store(true)
	select {
	case <-m.serving:
	default: // the start did not come to its end: there are no callers
		if m.peers.port != nil {
			m.peers.port.Close()
		}
		return
	}
	t := m.current()
	if t != nil {
		t.finish()
	}
	m.stage.engine.Load().group.HandOver()
	if t != nil {
		m.followed()
	}
	m.callers.awaitQuiet(begun, m.cfg.Log)
}

// followed returns a moment after another member owns the group: until then the others
// send calls here, which must be refused and not be cut off.
func (m *Member) followed() {
	late := time.NewTimer(time.Second)
	defer late.Stop()
	for {
		owner, _, moved := m.stage.engine.Load().group.Owner()
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
	if m.peers.port != nil {
		m.peers.port.Shutdown(ctx)
		m.peers.serving.Wait()
	}
}

// Close ends this member, and releases the directory.
func (m *Member) Close() error {
	if m.cancel != nil {
		m.cancel()
		<-m.ended
	}
	err := m.view.get().Close()
	if e := m.stage.engine.Load(); e != nil {
		e.log.Close()
	}
	return err
}

// routePeers answers at the port for other members. A forwarded call reaches the API alone, whatever its path is: the
// API authenticates its caller, and what members ask each other for needs no more than the port.
func (m *Member) routePeers(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, forwarded := r.Header[caller]
		switch {
		case forwarded:
			m.router.answerForwarded(api, w, r)
		case r.Header.Get(asker) != "":
			m.answerMember(w, r)
		default: // as of a browser on this machine, which can set none of the two by itself
			http.NotFound(w, r)
		}
	})
}

// answerMember answers what another member asks for itself.
func (m *Member) answerMember(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == admissionPath && r.Method == http.MethodPost:
		m.joining.replace(w, r)
	case r.URL.Path == admissionPath:
		m.joining.answerAdmission(w, r)
	case r.URL.Path == viewPath:
		m.copies.sendView(w, r)
	case r.URL.Path == clockPath:
		m.health.answerClock(w)
	case r.URL.Path == sealPath && r.Method == http.MethodPost:
		m.answerSeal(w, r)
	default:
		http.NotFound(w, r)
	}
}

// upToDate returns once the view has all that was acknowledged before the call.
func (m *Member) upToDate() error {
	e := m.stage.engine.Load()
	if e == nil {
		return errors.New("group: this member has not opened its log yet")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	// A change goes through a majority. When it returns, this member has all earlier ones.
	if _, err := e.group.Mark(ctx); err != nil {
		return fmt.Errorf("group: no majority answers, or the view is not on disk: %w", err)
	}
	s, err := e.entries.State(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for e.group.Reached() < s.Last {
		select {
		case <-ctx.Done():
			return fmt.Errorf("group: this member is at entry %d of %d: try again, or another member", e.group.Reached(), s.Last)
		case <-tick.C:
		}
	}
	return nil
}
