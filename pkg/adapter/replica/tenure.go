package replica

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// ErrNotOwner is returned by a tenure that has ended: nothing was changed.
var ErrNotOwner = errors.New("replica: this member does not own the group any more")

// ErrUnknown is returned where a change may be in the log, now or later.
var ErrUnknown = errors.New("replica: whether the change was made is unknown")

// Tenure is one time in which this member owns the group. A nil Tenure has ended.
type Tenure struct {
	g     *Group
	epoch int64
	turn  chan struct{} // one append or renewal under way
	ended atomic.Bool
	over  chan struct{}
	fatal atomic.Pointer[error]
	held  time.Duration   // how far the clock was held back when the tenure began
	begun time.Duration   // on the Clock
	holds map[string]hold // of keep alone

	lease atomic.Int64 // on the Clock, in nanoseconds
	sent  atomic.Int64 // when the last successful append or renewal was sent
}

// Epoch grows with each tenure of any member.
func (t *Tenure) Epoch() int64 { return t.epoch }

// LeaseRemaining is how long no other member can own the group, by what this one has read.
func (t *Tenure) LeaseRemaining() time.Duration {
	if t == nil || t.ended.Load() {
		return 0
	}
	return max(0, time.Duration(t.lease.Load())-t.g.cfg.Clock())
}

// Valid reports that the lease lasts: what the view says now is the newest.
func (t *Tenure) Valid() bool { return t.LeaseRemaining() > 0 }

// HasMargin reports that enough of the lease is left to begin something that must not last beyond it: a busy machine may
// stall for a tenth of a second before the first byte is sent.
func (t *Tenure) HasMargin() bool {
	return t != nil && t.LeaseRemaining() > time.Duration(float64(t.g.cfg.Silence)*marginShare)
}

// AwaitMargin waits while the lease lasts without a margin, and reports whether the margin is back.
func (t *Tenure) AwaitMargin() bool {
	for t.Valid() && !t.HasMargin() {
		<-time.After(againAfter)
	}
	return t.HasMargin()
}

func (t *Tenure) extend(sent time.Duration) {
	t.sent.Store(int64(sent))
	lease := sent + time.Duration(float64(t.g.cfg.Silence)*leaseShare)
	for {
		old := t.lease.Load()
		if int64(lease) <= old || t.lease.CompareAndSwap(old, int64(lease)) {
			return
		}
	}
}

// end ends the tenure, for the first reason that is given.
func (t *Tenure) end(why error) {
	if t.ended.Swap(true) {
		return
	}
	t.g.cfg.Logger.Info("this member does not own the group any more", "epoch", t.epoch, "why", why)
	close(t.over)
}

// againAfter is the pause before an append is repeated. While the log changes its leader an attempt
// may fail at once.
const againAfter = time.Millisecond

// Append adds the batch to the log and applies it to the view. Its error is [ErrNotOwner], [ErrTooLarge], or
// [ErrUnknown].
func (t *Tenure) Append(batch []byte) error {
	if len(batch) > MaxBatch {
		return fmt.Errorf("%w: it has %d bytes, and %d are the most", ErrTooLarge, len(batch), MaxBatch)
	}
	t.slow(len(batch))
	t.turn <- struct{}{}
	defer func() { <-t.turn }()
	g := t.g
	for rest, kind := batch, byte(firstPart); kind&lastPart == 0; kind &^= firstPart {
		part := rest[:min(len(rest), g.cfg.EntryBytes-headBytes)]
		if rest = rest[len(part):]; len(rest) == 0 {
			kind |= lastPart
		}
		entry := Entry{g.Reached() + 1, nil}
		entry.Data = seal(entry.Seq, kind, part)
		err := t.appendEntry(entry)
		if kind&lastPart == 0 && errors.Is(err, ErrUnknown) {
			return ErrNotOwner // without its last part the batch does not count
		}
		if err != nil {
			return err
		}
		if err := g.reader.apply(entry); err != nil {
			t.fatal.Store(&err)
			t.end(err)
			return errors.Join(ErrUnknown, err)
		}
	}
	return nil
}

// appendEntry adds an entry to the log.
func (t *Tenure) appendEntry(e Entry) error {
	if t.ended.Load() {
		return ErrNotOwner
	}
	cfg := &t.g.cfg
	unknown := false // the outcome of an earlier attempt
	for begun := cfg.Clock(); ; {
		sent := cfg.Clock()
		ctx, cancel := context.WithTimeout(context.Background(), cfg.Silence)
		added, err := cfg.Log.Append(ctx, t.epoch, e.Seq, e.Data, t.Now())
		cancel()
		switch {
		case err == nil:
			if added {
				t.extend(sent)
			}
			return nil
		case errors.Is(err, ErrTooLarge): // the lease is as good as before
			return err
		case errors.Is(err, ErrFenced) && unknown: // the entry may have been added, and trimmed since
			t.end(err)
			return fmt.Errorf("%w: %w", ErrUnknown, err)
		case errors.Is(err, ErrFenced):
			t.end(err)
			return ErrNotOwner
		case cfg.Clock()-begun >= cfg.GiveUp:
			t.end(err)
			return fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		unknown = true
		<-time.After(againAfter)
	}
}

// renew keeps the lease when nothing was appended for a while.
func (t *Tenure) renew() {
	t.turn <- struct{}{}
	defer func() { <-t.turn }()
	cfg := &t.g.cfg
	if t.ended.Load() || cfg.Clock()-time.Duration(t.sent.Load()) < t.renewAfter() {
		return
	}
	sent := cfg.Clock()
	ctx, cancel := context.WithTimeout(context.Background(), cfg.Silence)
	defer cancel()
	switch err := cfg.Log.Renew(ctx, t.epoch, t.g.Reached(), t.Now()); {
	case err == nil:
		t.extend(sent)
	case errors.Is(err, ErrFenced):
		t.end(err)
	}
}

func (t *Tenure) renewAfter() time.Duration {
	return time.Duration(float64(t.g.cfg.Silence) * renewShare)
}

// own serves as the owner until the tenure ends.
func (g *Group) own(ctx context.Context, epoch int64, won claim) error {
	t := &Tenure{g: g, epoch: epoch, turn: make(chan struct{}, 1), over: make(chan struct{}), held: won.hold, begun: won.sent, holds: map[string]hold{}}
	t.extend(won.sent)
	g.tenure.Store(t)
	g.tenures.Add(1)
	if g.leave.Load() { // the claim was on its way during HandOver
		t.Release("this member leaves")
		return nil
	}
	g.cfg.Logger.Info("this member owns the group", "epoch", epoch, "applied", g.cfg.View.Applied(), "clockHeldBack", won.hold)
	owning, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	g.ended = ended
	go func() {
		defer close(ended)
		g.cfg.Own(owning, t)
	}()
	tick := time.NewTicker(max(time.Millisecond, t.renewAfter()/3))
	defer tick.Stop()
	for {
		select {
		case <-t.over:
		case <-ctx.Done():
			t.end(ctx.Err())
		case <-tick.C:
			if g.cfg.Clock()-time.Duration(t.sent.Load()) >= t.renewAfter() {
				t.renew()
			}
			continue
		}
		break
	}
	cancel()
	g.known.end(t.Now())
	if err := t.fatal.Load(); err != nil {
		return *err
	}
	return nil
}

// HandOver gives up the group, if this member owns it, so that another one claims it at
// once. This member does not claim it again. The caller has ended what it did as the owner.
func (g *Group) HandOver() {
	g.leave.Store(true)
	if t := g.tenure.Load(); t != nil {
		t.Release("this member leaves")
	}
}

// Release gives up the group, so that another member claims it at once. This member may claim
// it again later. The caller has ended what it did as the owner.
func (t *Tenure) Release(why string) {
	t.turn <- struct{}{}
	defer func() { <-t.turn }()
	if t.ended.Load() {
		return
	}
	cfg := &t.g.cfg
	// The lease ends before the release is sent: a member that claims then need not wait for it.
	t.end(errors.New(why))
	ctx, cancel := context.WithTimeout(context.Background(), cfg.Silence)
	defer cancel()
	if err := cfg.Log.Release(ctx, t.epoch, Owner{Clock: cfg.Member, Held: t.ClockHoldback(), Format: Format}, t.Now()); err != nil {
		cfg.Logger.Warn("the group could not be released: another member claims it after the owner's silence", "error", err)
	}
}
