package group

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch"
)

// tenure is what a member runs while it owns the group: a store over the view, the queue, and
// deliveries while the lease lasts.
type tenure struct {
	m     *Member
	lease *replica.Tenure
	ctx   context.Context
	store *store.DB
	queue *queue.Queue
	// watches is nil if sources cannot watch. unwatch ends them.
	watches *watch.Manager
	unwatch func()

	finishing atomic.Bool // it hands the group over

	lapsed  atomic.Bool   // since deliveries were last started
	recheck chan struct{} // holds one; the lease was found to have ended, or to be short

	// mu guards the two below, for a moment: deliver, cut and drain write them, and each call and each key that wakes
	// reads them.
	mu       sync.Mutex
	dispatch *dispatch.Dispatcher // nil while nothing is delivered
	closed   bool                 // no call begins any more
	calls    sync.WaitGroup
}

// runTenure is replica.Config.Own.
func (m *Member) runTenure(ctx context.Context, lease *replica.Tenure) {
	m.stage.owns.Store(true)
	defer m.stage.owns.Store(false)
	t := &tenure{m: m, lease: lease, ctx: ctx, recheck: make(chan struct{}, 1), unwatch: func() {}}
	err := t.open()
	if m.health.mustYield() {
		t.close()
		m.health.yield(lease)
		return
	}
	if err != nil {
		t.close()
		if errors.Is(err, store.ErrSealed) {
			m.cfg.Log.Warn("the group was sealed: nothing is changed or delivered any more", "error", err)
			return
		}
		if ctx.Err() == nil && !errors.Is(err, store.ErrNotOwner) && !errors.Is(err, store.ErrUnknown) {
			m.cfg.Fatal(err) // another member must own it
		}
		return
	}
	m.setTenure(t)
	for _, s := range m.catalog.sources() { // they may have changed meanwhile
		if err := ignoreTenureEnd(m.catalog.setIn(t, s.UID)); err != nil {
			m.cfg.Log.Error("a source cannot be served", "source", s.Path(), "error", err)
		}
	}
	t.deliver()
	var purging sync.WaitGroup
	purging.Go(t.purge)
	t.watch()
	m.setTenure(nil)
	t.unwatch()
	purging.Wait()
	t.close()
}

func (t *tenure) open() (err error) {
	if t.store, err = t.m.view.get().Own(tenureLog{t.lease, t.m.health}); err != nil {
		return err
	}
	if err := t.store.SetHistory(*t.m.joining.identity.Load()); err != nil {
		return err
	}
	t.queue, err = queue.Open(queue.Config{Store: t.store, Log: t.m.cfg.Log, Fatal: t.m.cfg.Fatal, Meter: t.m.cfg.Meter, Owns: t.owns, Wake: t.wake, Now: t.lease.Now})
	if err != nil {
		return err
	}
	if t.m.cfg.Watch.API != nil {
		if t.watches, err = watch.New(t.m.cfg.Watch); err != nil {
			return err
		}
		t.unwatch = sync.OnceFunc(t.watches.Close)
	}
	for _, s := range t.m.catalog.sources() { // they are watched once the tenure serves
		if _, err := t.queue.Set(s); err != nil {
			return err
		}
	}
	return nil
}

// purge removes what the group has of sources that exist no more, until the tenure ends.
func (t *tenure) purge() {
	for wait := leastPurgeWait; ; wait = min(2*wait, mostPurgeWait) {
		err := t.purgeGone()
		if err == nil || t.ctx.Err() != nil {
			return
		}
		t.m.cfg.Log.Warn("cannot look for schedules of removed sources; retrying", "error", err)
		select {
		case <-t.ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// The wait after a purge that failed.
const leastPurgeWait, mostPurgeWait = time.Second, 30 * time.Second

func (t *tenure) purgeGone() error {
	// Every source that the group has now existed when its schedules were accepted. So a source
	// that does not exist afterwards was removed, whatever this member has received.
	unknown, err := t.store.Sources()
	if err != nil {
		return ignoreTenureEnd(err)
	}
	for _, s := range t.queue.Sources() {
		unknown = append(unknown, s.Spec().UID)
	}
	for _, s := range t.m.catalog.sources() {
		unknown = slices.DeleteFunc(unknown, func(uid string) bool { return uid == s.UID })
	}
	if len(unknown) == 0 {
		return nil
	}
	gone, err := t.m.cfg.Gone(t.ctx, unknown)
	if err != nil {
		return err
	}
	for _, uid := range unknown {
		if !slices.Contains(gone, uid) {
			t.m.cfg.Log.Warn("schedules are kept of a source that this member does not know: it is purged when the owner learns that it was removed", "uid", uid)
			continue
		}
		if err := ignoreTenureEnd(t.remove(uid)); err != nil {
			return err
		}
		t.m.cfg.Log.Info("source removed; its schedules are purged", "uid", uid)
	}
	return nil
}

// owns is queue.Config.Owns: a delivery may begin.
func (t *tenure) owns() bool {
	if t.lease.HasMargin() {
		return true
	}
	if !t.lease.Valid() {
		t.lapsed.Store(true)
	}
	select {
	case t.recheck <- struct{}{}:
	default:
	}
	return false
}

func (t *tenure) wake(s *queue.Source) {
	t.mu.Lock()
	d := t.dispatch
	t.mu.Unlock()
	if d != nil {
		d.Wake(s)
	}
}

// deliver starts deliveries.
func (t *tenure) deliver() {
	t.lapsed.Store(false)
	cfg := t.m.cfg.Deliver
	cfg.Now = t.lease.Now
	d, err := dispatch.New(cfg)
	if err != nil {
		t.m.cfg.Fatal(err)
		return
	}
	t.mu.Lock()
	refused := t.closed || t.finishing.Load()
	if !refused {
		t.dispatch = d
	}
	t.mu.Unlock()
	if refused {
		d.Forget()
		return
	}
	t.wakeAll()
}

func (t *tenure) wakeAll() {
	for _, s := range t.queue.Sources() {
		t.wake(s)
	}
}

// cut starts no more deliveries, and waits for the deliveries under way. When ctx ends first it
// cuts them off. Of several calls at a time the first ctx to end does so: a lease may lapse
// while a hand-over waits. It reports whether this member delivered.
func (t *tenure) cut(ctx context.Context) bool {
	t.mu.Lock()
	d := t.dispatch
	t.mu.Unlock()
	if d == nil {
		return false
	}
	d.Stop(ctx)
	d.Forget()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dispatch == d {
		t.dispatch = nil
	}
	return true
}

// quiesce ends watches and deliveries, while calls go on.
func (t *tenure) quiesce() {
	t.finishing.Store(true)
	go t.unwatch() // the next owner goes on where the marks are
	ctx, cancel := context.WithTimeout(context.Background(), t.m.cfg.Drain)
	defer cancel()
	t.cut(ctx)
}

// finish ends what the owner does, before the group is handed over: first deliveries end,
// while calls go on; then calls wait for the next owner.
func (t *tenure) finish() {
	t.quiesce()
	t.m.stage.engine.Load().log.StepDown()
	t.drain(handover)
}

// watch ends the deliveries with the lease, and starts them again should it come back,
// until the tenure ends. While the lease is short no delivery begins, and those under way go on.
func (t *tenure) watch() {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for {
		timer := time.NewTimer(max(t.lease.LeaseRemaining(), 5*time.Millisecond))
		short := false
		select {
		case <-t.ctx.Done():
			timer.Stop()
			t.cut(over)
			return
		case <-t.recheck:
			timer.Stop()
			short = true
		case <-timer.C:
		}
		if t.lease.AwaitMargin() && !t.lapsed.Load() {
			if short {
				t.wakeAll()
			}
			continue
		}
		if t.cut(over) { // what is cut off is delivered again
			t.m.cfg.Log.Warn("this member's lease of the group has ended, since no change was in the log in time: deliveries under way are cut off, and made again")
		}
		for !t.lease.Valid() {
			select {
			case <-t.ctx.Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
		if t.finishing.Load() {
			<-t.ctx.Done()
			return
		}
		t.deliver()
	}
}

// valid reports that what the store says is true.
func (t *tenure) valid() bool { return t.lease.Valid() && !t.m.health.mustYield() }

// enter lets a call begin. If it returns true the caller must call calls.Done.
func (t *tenure) enter() bool {
	if t == nil || !t.valid() {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.calls.Add(1)
	return true
}

// drain lets no call begin, and waits a while for the calls that are under way.
func (t *tenure) drain(d time.Duration) {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	if t.queue != nil {
		t.queue.EndEvents() // a stream ends when its reader closes it, else
	}
	done := make(chan struct{})
	go func() {
		t.calls.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(d):
	}
}

func (t *tenure) close() {
	t.unwatch()
	t.drain(0) // the store waits for the calls that are in it
	if t.queue != nil {
		t.queue.Close()
	}
	if t.store != nil {
		_ = t.store.Close() // it has nothing to write
	}
}

// set puts a source in force.
func (t *tenure) set(s *schedule.Spec) error {
	q, err := t.queue.Set(s)
	if err == nil && t.watches != nil {
		t.watches.Set(s, &q.Marks)
	}
	return err
}

func (t *tenure) remove(uid string) error {
	if t.watches != nil {
		t.watches.Remove(uid)
	}
	s, registered := t.queue.Find(uid)
	err := t.queue.Remove(uid)
	t.mu.Lock()
	d := t.dispatch
	t.mu.Unlock()
	if registered && d != nil {
		d.Remove(s)
	}
	return err
}
