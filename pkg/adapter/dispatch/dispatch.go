// Package dispatch makes deliveries: it takes due keys from the queue, within the
// limits of their sources and namespaces, and hands them to a [Sender].
//
// It guarantees that a source never has more than maxInFlight deliveries under
// way and never starts more than maxPerSecond a second; that a namespace stays
// within its ceilings; and that no source can use up the slots and the memory of
// deliveries. Package budget shares both, by namespace first and by source second:
// one namespace gets at most half of either, one source a quarter, and less when
// others need some too. Lanes that wait for a slot get one in turn, a namespace at
// a time. Dead letters have slots of their own, so a dead letter sink that hangs
// does not slow down its source.
//
// How it works: every source has a lane with at most one timer, set to the
// instant when its next key is due, and one worker for each delivery under way.
// An idle source has no goroutine. While its workload sleeps or starts its keys wait (package scale). A worker takes a key, sends, and reports the
// outcome, until nothing is due. A worker that found a key starts the next worker,
// so a burst ramps up by itself.
//
// It leaves to others: order within a source, retries, durability, and the number
// of dead letters under way (queue), the meaning of an answer (the Sender), and
// the memory of replies that are larger than their deliveries (sink).
package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/loglimit"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/scale"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Sender makes one attempt. It is called concurrently, returns soon after ctx
// ends, and then returns Aborted when the cause is ErrStopping.
type Sender interface {
	Send(ctx context.Context, a schedule.Attempt) schedule.Outcome
}

// ErrStopping is the cause of a context that the Dispatcher ended itself.
var ErrStopping = errors.New("the adapter is stopping or the source was removed")

// DefaultMaxInFlight and DefaultMaxBytes bound the deliveries of all sources
// together. Small events reach both at about the same time.
const (
	DefaultMaxInFlight = 4096
	DefaultMaxBytes    = 140 << 20
)

// endings is how many deliveries may end at a time. To end one takes some 15 µs, so that
// the next delivery waits a fraction of a millisecond; with fewer, the deliveries of a
// burst wait for each other, and the processors are idle meanwhile.
const endings = 16

// Config is what a Dispatcher needs.
type Config struct {
	Sender Sender
	Log    *slog.Logger // default: discards
	// Now is the wall clock, default time.Now.
	Now func() time.Time
	// MaxInFlight bounds the deliveries of all sources together, MaxBytes their
	// memory; default DefaultMaxInFlight and DefaultMaxBytes. MaxBytes must be
	// enough for the largest delivery, 2 MiB.
	MaxInFlight int
	MaxBytes    int64
	// Lost is called for every event that was dropped or goes to the dead letter
	// sink. It must not block. Default: no call.
	Lost func(Loss)
	// Failing is called when the deliveries of a source begin to fail. It must not
	// block. Default: no call.
	Failing func(*schedule.Spec, Health)
	// WarmUp calls the sink of a source, so that it is awake for a delivery. Default: no
	// call.
	WarmUp func(context.Context, *schedule.Spec)
	// Scale is how workloads are scaled: spec.scale. Default: none is.
	Scale scale.Config
	// FinishWaits: an outcome waits for other machines, not for a processor, so that all
	// that have come end together.
	FinishWaits bool
	Meter       metric.Meter // default none
}

// Dispatcher runs the lanes of all sources.
type Dispatcher struct {
	cfg     Config
	began   time.Time // with the monotonic clock
	metrics *metrics
	base    context.Context
	abort   context.CancelCauseFunc
	workers sync.WaitGroup
	// warmUpsCtx ends when the Dispatcher begins to stop: with it the calls that wake a
	// sink.
	warmUpsCtx    context.Context
	cancelWarmUps context.CancelFunc

	keeper *scale.Keeper // nil: no workload is scaled

	slots, memory *budget.Budget
	// ending lets [endings] deliveries end at a time. Without it a due delivery would
	// wait for hundreds that time out in one moment.
	ending *budget.Budget

	mu         sync.Mutex
	lanes      map[*queue.Source]*lane
	namespaces map[string]*namespace
	waiting    []*namespace // with lanes that wait for a permit, in turn
	round      uint64       // counts the events that may let a waiting lane start
	rest       *time.Timer  // lets the rest of the waiting lanes try
	inFlight   int
	stopped    bool
}

// lane is one source's deliveries. Its fields change under the Dispatcher's
// lock, but for the counters.
type lane struct {
	source    *queue.Source
	namespace *namespace // of the source's settings when the lane was woken last
	ctx       context.Context
	cancel    context.CancelCauseFunc
	inFlight  int    // without dead letters
	waits     bool   // stands in namespace.waiting
	tried     uint64 // the last round in which it tried to start
	timer     *time.Timer
	timerAt   time.Time
	rate      rate
	closed    bool
	workload  *scale.Member // nil: it has none
	ahead     time.Duration // the clock's, when the workload was asked last
	begun     int           // deliveries under way of keys that were taken
	warming   warming
	health    health
	failures  loglimit.Limit // the lines about failed attempts
	losses    loglimit.Limit // the lines about events that were given up
	throttle  throttle
	counters
}

// New returns a Dispatcher without lanes.
func New(cfg Config) (*Dispatcher, error) {
	if cfg.Sender == nil {
		return nil, errors.New("dispatch: Config.Sender is not set")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.MaxInFlight = cmp.Or(cfg.MaxInFlight, DefaultMaxInFlight)
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, DefaultMaxBytes)
	d := &Dispatcher{cfg: cfg, began: time.Now(), lanes: map[*queue.Source]*lane{}, namespaces: map[string]*namespace{}}
	d.ending = budget.NewTurns(endings, endings, budget.TurnWait)
	d.slots, d.memory = budget.New(int64(cfg.MaxInFlight)), budget.New(cfg.MaxBytes)
	d.base, d.abort = context.WithCancelCause(context.Background())
	d.warmUpsCtx, d.cancelWarmUps = context.WithCancel(d.base)
	d.rest = newTimer(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.tryWaiting()
	})
	var err error
	if d.metrics, err = newMetrics(cfg.Meter, d); err != nil {
		return nil, fmt.Errorf("dispatch: metrics: %w", err)
	}
	if cfg.Scale.API != nil {
		cfg.Scale.Started = d.metrics.started
		d.keeper = scale.New(cfg.Scale)
	}
	return d, nil
}

// Wake checks a source that may have something due. It is the queue's Wake.
func (d *Dispatcher) Wake(s *queue.Source) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lanes[s]
	if l == nil {
		if d.stopped || s.Removed() {
			return
		}
		l = d.newLane(s)
		d.lanes[s] = l
	}
	settings := s.Spec()
	if settings.Namespace != l.namespace.name { // it has moved
		d.leave(l)
		l.namespace = d.join(settings.Namespace)
	}
	if l.waits && (settings.Suspend || s.NextAt().IsZero()) {
		d.stopWaiting(l)
	}
	d.scale(l, settings)
	d.pump(l)
	if settings.Ceilings != l.namespace.ceilings {
		l.namespace.ceilings = settings.Ceilings
		d.retryWaitingLanes()
	}
}

// join returns the namespace for one more lane.
func (d *Dispatcher) join(name string) *namespace {
	ns := d.namespaces[name]
	if ns == nil {
		ns = &namespace{name: name}
		ns.timer = newTimer(func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.retryWaitingLanes()
		})
		d.namespaces[name] = ns
	}
	ns.lanes++
	return ns
}

// leave takes a lane out of its namespace. Deliveries under way still count there.
func (d *Dispatcher) leave(l *lane) {
	d.stopWaiting(l)
	ns := l.namespace
	if ns.lanes--; ns.lanes == 0 {
		ns.timer.Stop()
		delete(d.namespaces, ns.name)
	}
}

func (d *Dispatcher) newLane(s *queue.Source) *lane {
	l := &lane{
		source: s, namespace: d.join(s.Spec().Namespace),
		failures: loglimit.Limit{Lines: failureLines, Per: time.Second},
		losses:   loglimit.Limit{Lines: lossLines, Per: time.Second},
	}
	l.ctx, l.cancel = context.WithCancelCause(d.base)
	l.timer = newTimer(func() { d.tick(l) })
	return l
}

// newTimer returns a timer that is not set.
func newTimer(f func()) *time.Timer {
	t := time.AfterFunc(time.Hour, f)
	t.Stop()
	return t
}

// Remove cuts off the deliveries of a source. Call it after the source was removed
// from the queue: in a source that is still there a delivery that is cut off is due
// again.
func (d *Dispatcher) Remove(s *queue.Source) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.lanes[s]; l != nil {
		l.closed = true
		l.timer.Stop()
		l.cancel(ErrStopping)
		if l.workload != nil {
			l.workload.Leave()
		}
		delete(d.lanes, s)
		d.leave(l)
	}
}

// Stop starts no more deliveries and waits for the deliveries under way. When ctx
// ends first it cuts them off: they are made again after the next start. It is
// idempotent.
func (d *Dispatcher) Stop(ctx context.Context) {
	d.mu.Lock()
	d.stopped = true
	d.rest.Stop()
	for _, l := range d.lanes {
		l.timer.Stop()
	}
	for _, ns := range d.namespaces {
		ns.timer.Stop()
	}
	left := d.inFlight
	d.mu.Unlock()
	d.cancelWarmUps()
	cut := context.AfterFunc(ctx, func() { d.abort(ErrStopping) })
	defer cut()
	d.workers.Wait()
	if d.keeper != nil {
		d.keeper.Stop()
	}
	if left > 0 {
		d.cfg.Log.Info("deliveries ended", "underWay", left, "cutOff", ctx.Err() != nil)
	}
	d.abort(ErrStopping)
}

func (d *Dispatcher) tick(l *lane) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l.timerAt = time.Time{}
	d.pump(l)
}

// pump starts a worker for the lane if a delivery may start. The caller holds
// the lock.
func (d *Dispatcher) pump(l *lane) {
	if p := d.admit(l); p != nil {
		d.workers.Go(func() {
			for p != nil {
				p = d.deliver(l, p)
			}
		})
	}
}

// admit takes a permit for one more delivery of the lane, if one may start now.
// Otherwise it is called again by the event that changes this: the lane's timer,
// the end of one of its deliveries, its turn for a permit, or the queue's Wake.
// The caller holds the lock.
func (d *Dispatcher) admit(l *lane) *permit {
	if d.stopped || l.closed || l.waits && l.workload == nil {
		return nil
	}
	settings := l.source.Spec()
	nextAt := l.source.NextAt()
	if settings.Suspend || nextAt.IsZero() {
		l.throttle.end()
		d.next(l, false)
		return nil
	}
	if wait := nextAt.Sub(d.cfg.Now().Round(0)); wait > 0 {
		l.throttle.end()
		d.next(l, true)
		if settings.WarmUp > 0 && d.cfg.WarmUp != nil && !settings.Scale.Scales() && !settings.Scale.Sinkless {
			if at, _ := l.source.NextKeyAt(); !at.IsZero() {
				wait = min(wait, d.warmUp(l, settings, at, at.Sub(d.cfg.Now().Round(0))))
			}
		}
		l.arm(wait)
		return nil
	}
	now, ns := time.Now(), l.namespace
	letters := l.workload != nil && l.source.LetterIsDue() // they go to another sink, and need no workload
	if l.workload != nil && !letters && !d.awake(l) {
		l.throttle.begin(byWorkload, now)
		return nil
	}
	if l.waits { // its workload has started meanwhile, which needs no permit
		return nil
	}
	if l.inFlight >= settings.MaxInFlight {
		l.throttle.begin(byMaxInFlight, now)
		return nil
	}
	if wait := l.rate.wait(settings.MaxPerSecond, now); wait > 0 {
		l.throttle.begin(byMaxPerSecond, now)
		l.arm(wait)
		return nil
	}
	if wait := ns.rate.wait(settings.Ceilings.MaxPerSecond, now); wait > 0 {
		ns.timer.Reset(wait)
		l.throttle.begin(byNamespaceRate, now)
		d.await(l)
		return nil
	}
	if most := settings.Ceilings.MaxInFlight; most > 0 && ns.inFlight >= most {
		l.throttle.begin(byNamespace, now)
		d.await(l)
		return nil
	}
	p := d.permit(settings)
	if p == nil {
		l.throttle.begin(byAdapter, now)
		d.await(l)
		return nil
	}
	l.throttle.end()
	p.namespace, p.letters = ns, letters
	l.rate.take()
	ns.rate.take()
	l.inFlight++
	ns.inFlight++
	d.inFlight++
	return p
}

// arm sets the lane's timer, unless the timer goes off earlier: then arm is called
// again.
func (l *lane) arm(wait time.Duration) {
	at := time.Now().Add(wait)
	if !l.timerAt.IsZero() && !at.Before(l.timerAt) {
		return
	}
	l.timerAt = at
	l.timer.Reset(wait)
}

// deliver makes the delivery of a permit. It returns a permit for another one if
// the worker must go on.
func (d *Dispatcher) deliver(l *lane, p *permit) *permit {
	take := l.source.Take
	if p.letters {
		take = l.source.TakeLetter
	}
	delivery, err := take()
	if err != nil { // the process is about to end
		return nil
	}
	if delivery == nil { // the due row was stale
		d.mu.Lock()
		defer d.mu.Unlock()
		l.rate.giveBack()
		p.namespace.rate.giveBack()
		d.release(l, p)
		d.pump(l)
		return nil
	}
	p.memory.Shrink(p.memory.Held() - cost(delivery.Source, delivery.Entry.Size(delivery.Key)))
	d.mu.Lock()
	if delivery.Entry.DeadLetter != nil {
		l.inFlight-- // it has no slot of maxInFlight
		p.letter = true
	} else {
		l.warming.active = time.Now()
		l.begin()
	}
	d.pump(l)             // other due keys may start beside it
	d.retryWaitingLanes() // it may need less memory than the permit had
	d.mu.Unlock()

	started := time.Now()
	outcome := d.send(l, delivery)
	if outcome.Unreached && d.awaits(l, p) {
		outcome = schedule.Outcome{Kind: schedule.Aborted}
	}
	// Without a turn it goes on just the same: nothing waits for it then.
	var turn *budget.Claim
	if !d.cfg.FinishWaits {
		turn, _ = d.ending.Take(l.ctx, delivery.Source.Namespace, delivery.Source.Name)
	}
	defer turn.Release()
	disposition, err := l.source.Finish(delivery, outcome)
	if err != nil {
		return nil
	}
	d.report(l, delivery, outcome, disposition, time.Since(started))

	d.mu.Lock()
	defer d.mu.Unlock()
	if outcome.Kind == schedule.Aborted && disposition == schedule.Superseding { // it did not begin, so it is none of maxPerSecond
		l.rate.giveBack()
		p.namespace.rate.giveBack()
	}
	if !p.letter {
		l.warming.active = time.Now()
		l.end(outcome.Status != 0)
	}
	d.release(l, p)
	return d.admit(l)
}

// release gives a permit back, and lets waiting lanes try. The caller holds the lock.
func (d *Dispatcher) release(l *lane, p *permit) {
	p.slot.Release()
	p.memory.Release()
	if !p.letter {
		l.inFlight--
	}
	p.namespace.inFlight--
	d.inFlight--
	d.retryWaitingLanes()
}
