package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// The times of a group, as shares of T.
const (
	leaseShare  = 0.8 // how long an owner may go on after it sent its last successful append
	renewShare  = 0.25
	marginShare = 0.2  // of the lease that must be left when a delivery begins
	pollShare   = 0.02 // how often a standby reads its clock
	unfitShare  = 5    // the silence before a claim of a member that is unfit
)

// Config is what a Group needs.
type Config struct {
	Member  string   // the name of this member; required
	Members []string // the names of all members, for whose views the log is kept
	Address string   // where other members forward calls to
	Log     Log
	View    View
	// Silence is T: a standby claims the group when it has received nothing from the owner for so long.
	Silence time.Duration
	// Clock is a clock that never stands still or jumps, default the monotonic one of Go.
	Clock func() time.Duration
	// Wall is the wall clock, default time.Now.
	Wall func() time.Time
	// Clocks is what this member knows of the other members' wall clocks, default nothing: they count as right.
	Clocks *Clocks
	// Unfit reports that this member should not own the group while another one can: it claims
	// only after a long silence. Default: its wall clock is wrong, or not known to be right, by Clocks.
	Unfit func() bool
	// GiveUp is how long an append is repeated before its outcome counts as unknown, default 3 s.
	GiveUp time.Duration
	// Own is called when this member has become the owner, with a view that has every entry.
	// It must return soon after ctx ends. A tenure that has ended appends nothing, so the
	// member follows the log again meanwhile; but it claims only after Own returned.
	Own func(ctx context.Context, t *Tenure)
	// Copy replaces the view by a copy of another member's, when the log does not reach back
	// to it, or when it differs from the others' views or is damaged (wrong). It calls hold once there is space for the
	// copy: the log is kept from then on, until the view has caught up. It is called again until it succeeds. nil: Run
	// ends with ErrGap.
	Copy func(ctx context.Context, wrong bool, hold func()) error
	// Damaged reports that the view has met data that cannot be read. It is replaced by a copy once another member owns
	// the group. Default: never.
	Damaged func() bool
	// Keep is how many bytes of the log are kept for members that are away, default KeepBytes.
	Keep int64
	// LogBytes is how many bytes the log may take, default LogBytes.
	LogBytes int64
	// EntryBytes is how large an entry of the log is at most, default MaxEntry.
	EntryBytes int
	Logger     *slog.Logger // default: discards
}

// Group is one member of a group. Its own fields are of the goroutine of Run, but for the atomic ones; what several
// goroutines use is in its parts, each with a lock of its own. No part knows another one.
type Group struct {
	cfg    Config
	known  known
	reader reader
	keeper
	comparison

	tenure    atomic.Pointer[Tenure]
	tenures   atomic.Int64 // of this member
	leave     atomic.Bool
	ended     chan struct{} // of the last Own; nil at first
	copyPause time.Duration // after the last copy, if that failed
	pending   claim         // the last one
	claims    int
	started   int64 // tells the claims of one process from another's
}

// claim is an attempt that may still come true.
type claim struct {
	id   string
	sent time.Duration
	hold time.Duration
}

// New returns a Group that does nothing before Run.
func New(cfg Config) *Group {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Clock == nil {
		start := time.Now()
		cfg.Clock = func() time.Duration { return time.Since(start) }
	}
	if cfg.Wall == nil {
		cfg.Wall = time.Now
	}
	if cfg.Clocks == nil {
		cfg.Clocks = NewClocks(cfg.Member, 0)
	}
	if cfg.Unfit == nil {
		cfg.Unfit = func() bool { return !cfg.Clocks.Agrees() }
	}
	if cfg.Damaged == nil {
		cfg.Damaged = func() bool { return false }
	}
	if cfg.GiveUp == 0 {
		cfg.GiveUp = 3 * time.Second
	}
	if cfg.Keep == 0 {
		cfg.Keep = KeepBytes
	}
	if cfg.LogBytes == 0 {
		cfg.LogBytes = LogBytes
	}
	if cfg.EntryBytes == 0 {
		cfg.EntryBytes = MaxEntry
	}
	g := &Group{cfg: cfg, started: time.Now().UnixNano()}
	g.known = known{cfg: &g.cfg, changed: make(chan struct{})}
	g.keeper.cfg = &g.cfg
	g.comparison = comparison{cfg: &g.cfg, discard: make(chan struct{}, 1)}
	g.reader = reader{log: cfg.Log, view: cfg.View, did: func(e *Entry, whole bool) {
		if whole {
			g.note()
		}
		g.count(e.Seq, len(e.Data))
	}}
	return g
}

// Run follows the log and owns the group from time to time, until ctx ends. Its error is
// one that no repetition ends: the process must end.
func (g *Group) Run(ctx context.Context) error {
	var keeping sync.WaitGroup
	defer keeping.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g.known.begin()
	g.recount()
	keeping.Go(func() { g.keep(ctx) })
	for ctx.Err() == nil {
		epoch, won, err := g.standBy(ctx)
		switch {
		case ctx.Err() != nil:
		case (errors.Is(err, ErrGap) || errors.Is(err, ErrDamaged) || isWrong(err)) && g.cfg.Copy != nil:
			g.copy(ctx, err)
		case errors.Is(err, ErrGap), errors.Is(err, ErrDamaged), isWrong(err), errors.Is(err, errView), errors.Is(err, ErrFormat):
			return err
		case err != nil:
			g.cfg.Logger.Warn("the log cannot be followed; trying again", "error", err)
			pause(ctx, 50*time.Millisecond)
		default:
			if err := g.own(ctx, epoch, won); err != nil {
				return err
			}
		}
	}
	if g.ended != nil {
		<-g.ended
	}
	return nil
}

// copy replaces the view, and says meanwhile who owns the group.
func (g *Group) copy(ctx context.Context, why error) {
	if errors.Is(why, errDiffers) {
		g.cfg.Logger.Error("this member's view differs from the others': it is replaced by a copy of another member's")
	} else if errors.Is(why, errUnreadable) {
		g.cfg.Logger.Error("this member's view is damaged: look at its disk; the view is replaced by a copy of another member's")
	} else if errors.Is(why, ErrDamaged) {
		g.cfg.Logger.Error("this member's part of the log is damaged: look at its disk; the view is replaced by a copy of another member's", "why", why)
	} else {
		g.cfg.Logger.Info("the view is too old for the log: it is replaced by a copy of another member's", "why", why)
	}
	g.known.setCaughtUp(false)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if g.ended != nil {
			<-g.ended // it may still read the view
		}
		err := g.cfg.Copy(ctx, isWrong(why), func() { g.copies.Store(true) })
		if err == nil || ctx.Err() != nil {
			g.copyPause = 0
			return
		}
		g.copies.Store(false)
		g.copyPause = min(max(2*g.copyPause, leastCopyPause), mostCopyPause)
		g.cfg.Logger.Warn("the view could not be copied; trying again", "error", err, "after", g.copyPause)
		pause(ctx, g.copyPause)
	}()
	g.watchClaims(ctx, done)
	g.recount()
}

// The pause after a copy that failed. A copy is a whole view of another member, which has other work.
const leastCopyPause, mostCopyPause = time.Second, time.Minute

// watchClaims records who owns the group until it is done.
func (g *Group) watchClaims(ctx context.Context, done <-chan struct{}) {
	tick := g.pollTicker()
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			g.poll(ctx)
		}
	}
}

func (g *Group) pollTicker() *time.Ticker {
	return time.NewTicker(max(time.Millisecond, time.Duration(float64(g.cfg.Silence)*pollShare)))
}

func (g *Group) poll(ctx context.Context) {
	if s, err := g.cfg.Log.State(ctx); err == nil {
		g.known.see(s, g.Reached())
	}
}

// Owner returns who owns the group, by what this member knows, and a channel that is closed
// when that changes. own: it is this member, and its lease lasts.
func (g *Group) Owner() (o Owner, own bool, changed <-chan struct{}) {
	t := g.tenure.Load()
	o, changed = g.known.owner()
	return o, t.Valid(), changed
}

// CaughtUp reports that the view had every entry of the log once since the start.
func (g *Group) CaughtUp() bool { return g.known.isCaughtUp() && !g.isDoubted() }

// Reached is the number of the newest entry of the log that this member has read.
func (g *Group) Reached() uint64 { return g.reader.tail.Load() }

// Tenures is how often this member became the owner.
func (g *Group) Tenures() int64 { return g.tenures.Load() }

// Behind is for how long this member may have missed what is in the log.
func (g *Group) Behind() time.Duration {
	if g.tenure.Load().Valid() {
		return 0
	}
	return g.known.behind()
}

// recount begins anew with the view as it is now.
func (g *Group) recount() {
	g.reader.reset()
	g.keeper.reset()
	g.comparison.reset()
}

// standBy follows the log until a claim succeeds, and returns its epoch and the claim.
func (g *Group) standBy(ctx context.Context) (epoch int64, won claim, err error) {
	s, err := g.cfg.Log.State(ctx)
	if err == nil {
		err = s.check() // before an entry is read
	}
	if err != nil {
		return 0, claim{}, err
	}
	from, err := g.reader.read(ctx)
	if err != nil {
		return 0, claim{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	updates := g.cfg.Log.Follow(ctx, from)
	// The state is read after the log is followed, so that nothing falls between.
	if s, err = g.cfg.Log.State(ctx); err != nil {
		return 0, claim{}, err
	}
	g.known.see(s, g.Reached())
	g.known.hear()
	if err := g.reader.readTo(ctx, &s); err != nil {
		return 0, claim{}, err
	}
	g.known.setCaughtUp(true)
	g.copies.Store(false)
	tick := g.pollTicker()
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return 0, claim{}, ctx.Err()
		case <-g.discard:
			return 0, claim{}, errDiffers
		case s, ok := <-updates:
			if !ok {
				return 0, claim{}, errors.New("replica: the log ended to send changes")
			}
			if err := g.reader.readTo(ctx, &s); err != nil {
				return 0, claim{}, err
			}
			g.known.see(s, g.Reached())
			if now := g.known.get(); g.pending.id != "" && now.Owner.Claim == g.pending.id {
				return g.won(ctx, now.Epoch) // its answer was lost
			}
			continue
		case <-tick.C:
			if o := g.known.get().Owner.Member; o != "" && o != g.cfg.Member && g.cfg.Damaged() {
				return 0, claim{}, errUnreadable
			}
		}
		if !g.mayClaim() {
			continue
		}
		epoch, err := g.claim(ctx)
		if err == nil {
			return g.won(ctx, epoch)
		}
		if errors.Is(err, ErrFenced) {
			g.poll(ctx)
			continue
		}
		g.cfg.Logger.Info("a claim has no answer", "error", err)
	}
}

// mayClaim reports that the owner was silent for long enough, or has released the group.
func (g *Group) mayClaim() bool {
	if g.leave.Load() {
		return false
	}
	if g.ended != nil {
		select {
		case <-g.ended:
		default:
			return false // what the last tenure began has not ended
		}
	}
	if g.isDoubted() {
		return false
	}
	silent, released := g.known.silence()
	if !released && silent < g.cfg.Silence {
		return false
	}
	switch {
	case !g.cfg.Unfit():
		return true
	case g.cfg.Clocks.isAheadOfAny(): // of two clocks the one behind makes nothing early
		return silent >= 2*unfitShare*g.cfg.Silence
	}
	return silent >= unfitShare*g.cfg.Silence
}

func (g *Group) claim(ctx context.Context) (int64, error) {
	g.claims++
	sent, hold := g.cfg.Clock(), g.known.holdback()
	next := Owner{Member: g.cfg.Member, Address: g.cfg.Address, Claim: fmt.Sprintf("%s/%x/%d", g.cfg.Member, g.started, g.claims), Clock: g.cfg.Member, Held: hold, Format: Format}
	g.pending = claim{next.Claim, sent, hold}
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Silence)
	defer cancel()
	epoch, err := g.cfg.Log.Claim(ctx, g.known.get(), next, g.cfg.wall().Add(-hold))
	if err == nil {
		g.known.see(State{Epoch: epoch, Owner: next, Head: epoch}, g.Reached())
	}
	return epoch, err
}

// won reads the log to its end: what earlier owners appended is in what this member has,
// and they append nothing any more.
func (g *Group) won(ctx context.Context, epoch int64) (int64, claim, error) {
	won := g.pending
	g.pending = claim{}
	_, err := g.reader.read(ctx)
	return epoch, won, err
}
