// Package dispatch makes deliveries: it takes from the queue what is due, when
// a source's limits and its neighbours allow it, and hands it to a [Sender].
//
// It guarantees that a source never has more than maxInFlight deliveries under
// way nor starts more than maxPerSecond a second, and that no source can take
// the room of the others: the room is shared by a dynamic threshold (a source
// may hold at most as much as is still free, and always one), and sources that
// wait for room get it in turn.
//
// How it works: every source has a lane with at most one timer, set to the
// instant when its next key is due, and as many workers as it has deliveries
// under way; an idle source costs no goroutine. A worker takes, sends, and
// reports the outcome, until nothing is due. A worker that found something
// sees to it that the next one starts, so a burst ramps up by itself.
//
// It leaves to others: order within a source, retries and durability (queue),
// one attempt's meaning (the Sender).
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

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Sender makes one attempt. It is called concurrently, returns soon after ctx
// ends, and then says Aborted when the cause is ErrStopping.
type Sender interface {
	Send(ctx context.Context, a schedule.Attempt) schedule.Outcome
}

// ErrStopping is why an attempt's context ends when we cut it off ourselves.
var ErrStopping = errors.New("the adapter is stopping or the source was removed")

// DefaultMaxInFlight bounds the deliveries of all sources together: with some
// 40 KiB for each connection about 160 MiB.
const DefaultMaxInFlight = 4096

// Config is what a Dispatcher needs.
type Config struct {
	Sender Sender
	Log    *slog.Logger // default: discards
	// Now is the wall clock, default time.Now.
	Now func() time.Time
	// MaxInFlight bounds the deliveries of all sources together, default
	// DefaultMaxInFlight. One source alone gets at most half of it.
	MaxInFlight int
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

	mu       sync.Mutex
	lanes    map[*queue.Source]*lane
	waiting  []*lane // for room, in turn
	inFlight int
	stopped  bool
}

// lane is one source's deliveries. Its fields change under the Dispatcher's lock.
type lane struct {
	source   *queue.Source
	ctx      context.Context
	cancel   context.CancelCauseFunc
	inFlight int
	waits    bool // stands in Dispatcher.waiting
	timer    *time.Timer
	timerAt  time.Time
	budget   budget
	closed   bool
	labels   labels
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
	m, err := newMetrics(cfg.Meter)
	if err != nil {
		return nil, fmt.Errorf("dispatch: metrics: %w", err)
	}
	d := &Dispatcher{cfg: cfg, metrics: m, lanes: map[*queue.Source]*lane{}}
	d.base, d.abort = context.WithCancelCause(context.Background())
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
		l = &lane{source: s, labels: newLabels(s.Settings())}
		l.ctx, l.cancel = context.WithCancelCause(d.base)
		l.timer = time.AfterFunc(time.Hour, func() { d.tick(l) })
		l.timer.Stop()
		d.lanes[s] = l
	}
	d.pump(l)
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
	if d.admit(l) {
		d.workers.Go(func() {
			for d.deliver(l) {
			}
		})
	}
}

// admit takes the room for one more delivery of the lane, if one may start
// now. If not, the event that changes that leads back here: the lane's timer,
// the end of one of its deliveries, its turn for room, or the queue's Wake.
// The caller holds the lock.
func (d *Dispatcher) admit(l *lane) bool {
	if d.stopped || l.closed || l.waits {
		return false
	}
	settings := l.source.Settings()
	nextAt := l.source.NextAt()
	if settings.Suspend || nextAt.IsZero() {
		return false
	}
	if wait := nextAt.Sub(d.cfg.Now().Round(0)); wait > 0 {
		l.arm(wait)
		return false
	}
	if l.inFlight >= settings.MaxInFlight {
		return false
	}
	if l.inFlight >= max(1, d.cfg.MaxInFlight-d.inFlight) {
		l.waits = true
		d.waiting = append(d.waiting, l)
		return false
	}
	if wait := l.budget.take(settings.MaxPerSecond, time.Now()); wait > 0 {
		l.arm(wait)
		return false
	}
	l.inFlight++
	d.inFlight++
	return true
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

// deliver makes one delivery, for which there is room, and says whether there
// is room for the worker to make another.
func (d *Dispatcher) deliver(l *lane) bool {
	delivery, err := l.source.Take()
	if err != nil { // the process is about to end
		return false
	}
	d.mu.Lock()
	if delivery == nil { // what was due is stale
		l.budget.giveBack()
		d.release(l)
		d.pump(l)
		d.mu.Unlock()
		return false
	}
	d.pump(l) // what else is due may start beside it
	d.mu.Unlock()

	started := time.Now()
	outcome := d.cfg.Sender.Send(l.ctx, delivery.Attempt)
	disposition, err := l.source.Finish(delivery, outcome)
	if err != nil {
		return false
	}
	d.report(l, delivery, outcome, disposition, time.Since(started))

	d.mu.Lock()
	defer d.mu.Unlock()
	d.release(l)
	return d.admit(l)
}

// turns bounds how many waiting lanes a release looks at. Those at the front
// may have to go on waiting, because they hold much, when another need not.
const turns = 16

// release gives the room of one delivery back, to whoever's turn it is. The
// caller holds the lock.
func (d *Dispatcher) release(l *lane) {
	l.inFlight--
	d.inFlight--
	for range min(turns, len(d.waiting)) {
		next := d.waiting[0]
		d.waiting = d.waiting[1:]
		next.waits = false
		d.pump(next) // stands at the end again if there is no room for it yet
	}
}
