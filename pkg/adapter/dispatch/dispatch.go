// Package dispatch makes deliveries: it takes from the queue what is due, when
// a source's limits and its neighbours allow it, and hands it to a [Sender].
//
// It guarantees that a source never has more than maxInFlight deliveries under
// way nor starts more than maxPerSecond a second, a namespace not more than its
// ceilings say, and that nobody can take the room of the others. Room is slots
// and memory, and is shared as package budget says, by namespace first and by
// source second: one namespace gets at most half of either, one source a
// quarter, less when others want some too, and who waits for room gets it in
// turn, a namespace at a time. Dead letters have slots of their own, so that a
// dead letter sink that hangs costs its source nothing.
//
// How it works: every source has a lane with at most one timer, set to the
// instant when its next key is due, and as many workers as it has deliveries
// under way; an idle source costs no goroutine. A worker takes, sends, and
// reports the outcome, until nothing is due. A worker that found something
// sees to it that the next one starts, so a burst ramps up by itself.
//
// It leaves to others: order within a source, retries, durability, and which
// dead letters there may be (queue), one attempt's meaning (the Sender), and
// what a reply costs that is larger than its delivery (sink).
package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/turns"
)

// Sender makes one attempt. It is called concurrently, returns soon after ctx
// ends, and then says Aborted when the cause is ErrStopping.
type Sender interface {
	Send(ctx context.Context, a schedule.Attempt) schedule.Outcome
}

// ErrStopping is why an attempt's context ends when we cut it off ourselves.
var ErrStopping = errors.New("the adapter is stopping or the source was removed")

// errCalledOff is why an attempt's context ends whose occurrence was replaced
// or cancelled before it began.
var errCalledOff = errors.New("the occurrence was replaced or cancelled before the delivery began")

// DefaultMaxInFlight and DefaultMaxBytes bound the deliveries of all sources
// together. Small events reach both at about the same time.
const (
	DefaultMaxInFlight = 4096
	DefaultMaxBytes    = 192 << 20
)

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
	// Lost is told of every event that was dropped or goes to the dead letter
	// sink, in the words of a log line; it must not block. Default: nobody is.
	Lost  func(Loss)
	Meter metric.Meter // default none
}

// Dispatcher runs the lanes of all sources.
type Dispatcher struct {
	cfg     Config
	metrics *metrics
	base    context.Context
	abort   context.CancelCauseFunc
	workers sync.WaitGroup

	slots, memory *budget.Budget
	// ending lets a few deliveries end at a time: hundreds that time out in one
	// moment would make a delivery that is due wait for all of them.
	ending *turns.Turns

	mu         sync.Mutex
	lanes      map[*queue.Source]*lane
	namespaces map[string]*namespace
	waiting    []*namespace // with lanes that wait for room, in turn
	inFlight   int
	stopped    bool
}

// lane is one source's deliveries. Its fields change under the Dispatcher's
// lock, but for the counters.
type lane struct {
	source    *queue.Source
	namespace *namespace // that of its settings when it was made
	ctx       context.Context
	cancel    context.CancelCauseFunc
	inFlight  int  // without dead letters
	waits     bool // stands in namespace.waiting
	timer     *time.Timer
	timerAt   time.Time
	rate      rate
	closed    bool
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
	d := &Dispatcher{cfg: cfg, lanes: map[*queue.Source]*lane{}, namespaces: map[string]*namespace{}}
	d.ending = turns.New()
	d.slots, d.memory = budget.New(int64(cfg.MaxInFlight), nil), budget.New(cfg.MaxBytes, nil)
	d.base, d.abort = context.WithCancelCause(context.Background())
	var err error
	if d.metrics, err = newMetrics(cfg.Meter, d); err != nil {
		return nil, fmt.Errorf("dispatch: metrics: %w", err)
	}
	return d, nil
}

// Wake looks at a source that may have something due. It is the queue's Wake.
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
	d.pump(l)
	if now := s.Settings().Ceilings; now != l.namespace.ceilings {
		l.namespace.ceilings = now
		d.turn()
	}
}

func (d *Dispatcher) newLane(s *queue.Source) *lane {
	name := s.Settings().Namespace
	ns := d.namespaces[name]
	if ns == nil {
		ns = &namespace{}
		ns.timer = newTimer(func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.turn()
		})
		d.namespaces[name] = ns
	}
	ns.lanes++
	l := &lane{source: s, namespace: ns}
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

// Remove cuts off the deliveries of a source that was removed from the queue:
// after that, since what is cut off while its source is still there is due again.
func (d *Dispatcher) Remove(s *queue.Source) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.lanes[s]; l != nil {
		l.closed = true
		l.timer.Stop()
		l.cancel(ErrStopping)
		delete(d.lanes, s)
		if l.namespace.lanes--; l.namespace.lanes == 0 {
			l.namespace.timer.Stop()
			maps.DeleteFunc(d.namespaces, func(_ string, ns *namespace) bool { return ns == l.namespace })
		}
	}
}

// Stop starts no more deliveries and waits for those under way; when ctx ends
// first it cuts them off: they are made again after the next start. It is idempotent.
func (d *Dispatcher) Stop(ctx context.Context) {
	d.mu.Lock()
	d.stopped = true
	for _, l := range d.lanes {
		l.timer.Stop()
	}
	for _, ns := range d.namespaces {
		ns.timer.Stop()
	}
	left := d.inFlight
	d.mu.Unlock()
	cut := context.AfterFunc(ctx, func() { d.abort(ErrStopping) })
	defer cut()
	d.workers.Wait()
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

// admit takes the room for one more delivery of the lane, if one may start
// now. If not, the event that changes that leads back here: the lane's timer,
// the end of one of its deliveries, its turn for room, or the queue's Wake.
// The caller holds the lock.
func (d *Dispatcher) admit(l *lane) *permit {
	if d.stopped || l.closed || l.waits {
		return nil
	}
	settings := l.source.Settings()
	nextAt := l.source.NextAt()
	if settings.Suspend || nextAt.IsZero() {
		return nil
	}
	if wait := nextAt.Sub(d.cfg.Now().Round(0)); wait > 0 {
		l.arm(wait)
		return nil
	}
	if l.inFlight >= settings.MaxInFlight {
		return nil
	}
	now, ns := time.Now(), l.namespace
	if wait := l.rate.wait(settings.MaxPerSecond, now); wait > 0 {
		l.arm(wait)
		return nil
	}
	if wait := ns.rate.wait(settings.Ceilings.MaxPerSecond, now); wait > 0 {
		ns.timer.Reset(wait)
		d.await(l)
		return nil
	}
	var p *permit
	if most := settings.Ceilings.MaxInFlight; most == 0 || ns.inFlight < most {
		p = d.permit(settings)
	}
	if p == nil {
		d.await(l)
		return nil
	}
	l.rate.take()
	ns.rate.take()
	l.inFlight++
	ns.inFlight++
	d.inFlight++
	return p
}

// arm sets the lane's timer, unless it goes off before that anyway: then it
// comes by here again.
func (l *lane) arm(wait time.Duration) {
	at := time.Now().Add(wait)
	if !l.timerAt.IsZero() && !at.Before(l.timerAt) {
		return
	}
	l.timerAt = at
	l.timer.Reset(wait)
}

// deliver makes one delivery, for which there is room, and returns the room for
// another one if the worker is to make it.
func (d *Dispatcher) deliver(l *lane, p *permit) *permit {
	delivery, err := l.source.Take()
	if err != nil { // the process is about to end
		return nil
	}
	if delivery == nil { // what was due is stale
		d.mu.Lock()
		defer d.mu.Unlock()
		l.rate.giveBack()
		l.namespace.rate.giveBack()
		d.release(l, p)
		d.pump(l)
		return nil
	}
	p.memory.Shrink(p.memory.Held() - cost(delivery.Source, delivery.Entry.Size(delivery.Key)))
	d.mu.Lock()
	if delivery.Entry.DeadLetter != nil {
		l.inFlight-- // it has no slot of maxInFlight
		p.letter = true
	}
	d.pump(l) // what else is due may start beside it
	d.turn()  // it needs less memory than it might have
	d.mu.Unlock()

	started := time.Now()
	ctx, cancel := context.WithCancelCause(l.ctx)
	l.source.OnCallOff(delivery, func() { cancel(errCalledOff) })
	outcome := d.cfg.Sender.Send(ctx, delivery.Attempt)
	cancel(nil)
	// Without a turn it goes on just the same: nothing waits for it then.
	turn, _ := d.ending.Take(l.ctx, delivery.Source.Namespace, delivery.Source.Name)
	defer turn.Done()
	disposition, err := l.source.Finish(delivery, outcome)
	if err != nil {
		return nil
	}
	d.report(l, delivery, outcome, disposition, time.Since(started))

	d.mu.Lock()
	defer d.mu.Unlock()
	d.release(l, p)
	return d.admit(l)
}

// release gives the room of one delivery back, to those whose turn it is. The
// caller holds the lock.
func (d *Dispatcher) release(l *lane, p *permit) {
	p.slot.Release()
	p.memory.Release()
	if !p.letter {
		l.inFlight--
	}
	l.namespace.inFlight--
	d.inFlight--
	d.turn()
}
