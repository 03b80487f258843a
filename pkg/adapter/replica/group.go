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

// Group is one member of a group.
type Group struct {
	cfg       Config
	tenure    atomic.Pointer[Tenure]
	leave     atomic.Bool
	trimmed   atomic.Uint64 // by this member
	tenures   atomic.Int64  // of this member
	ended     chan struct{} // of the last Own; nil at first
	copyPause time.Duration // after the last copy, if that failed
	copies    atomic.Bool   // Report.Copies
	// tail is the number of the newest entry that was read, or appended by this member: the last one of the
	// view, or a part behind it, which parts has. During a tenure the owner's appends use both, else standBy alone.
	tail  atomic.Uint64
	parts assembly

	mu       sync.Mutex
	state    State
	clock    clockReadings // of the group's clock
	caughtUp bool
	current  time.Duration // when the view had all that this member had received
	changed  chan struct{}
	newest   newest
	before   uint64 // the last entry that was applied when newest began
	counted  bool   // newest has the entries before too

	hashes    []hash // by number
	differsAt uint64 // the first entry at which the owner was found to differ, 0: it does not
	doubted   bool   // the view differs from the owner's, and the others have not reported yet

	differing atomic.Int64
	discard   chan struct{} // the view differs from most others'

	marking sync.Mutex // while a mark is written
	emptied int        // how often the view was; with marking

	// Of keep alone.
	reported   Report
	reportedAt time.Duration

	// Of standBy alone.
	headChanged time.Duration // when the head changed last
	pending     claim
	claims      int
	started     int64
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
	return &Group{cfg: cfg, changed: make(chan struct{}), discard: make(chan struct{}, 1), started: time.Now().UnixNano()}
}

// Run follows the log and owns the group from time to time, until ctx ends. Its error is
// one that no repetition ends: the process must end.
func (g *Group) Run(ctx context.Context) error {
	var keeping sync.WaitGroup
	defer keeping.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g.mu.Lock()
	g.current = g.cfg.Clock()
	g.mu.Unlock()
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
			g.pause(ctx, 50*time.Millisecond)
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
	g.fallBehind()
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
		g.pause(ctx, g.copyPause)
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

func (g *Group) fallBehind() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.caughtUp = false
}

func (g *Group) pollTicker() *time.Ticker {
	return time.NewTicker(max(time.Millisecond, time.Duration(float64(g.cfg.Silence)*pollShare)))
}

func (g *Group) poll(ctx context.Context) {
	if s, err := g.cfg.Log.State(ctx); err == nil {
		g.see(s)
	}
}

// errView is the error of a view that cannot take an entry.
var errView = errors.New("replica: an entry cannot be applied")

func (g *Group) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (g *Group) apply(e Entry) error {
	at := g.tail.Load()
	if e.Seq <= at {
		return nil
	}
	if e.Seq != at+1 {
		return fmt.Errorf("%w: it is at %d, the log goes on at %d", ErrGap, at, e.Seq)
	}
	batch, whole, err := g.parts.add(&e)
	if err != nil {
		return err
	}
	if whole {
		if err := g.cfg.View.Apply(e.Seq, batch); err != nil {
			return fmt.Errorf("%w: %d: %w", errView, e.Seq, err)
		}
		g.note()
	}
	g.tail.Store(e.Seq)
	g.count(e.Seq, len(e.Data))
	return nil
}

// read brings the view up to what this member has of the log, and returns where to follow it from.
func (g *Group) read(ctx context.Context) (int64, error) {
	for {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		p, err := g.cfg.Log.Read(ctx, g.tail.Load())
		cancel()
		if err != nil {
			return 0, err
		}
		for _, e := range p.Entries {
			if err := g.apply(e); err != nil {
				return 0, err
			}
		}
		if !p.More {
			return p.Revision, nil
		}
	}
}

// readTo brings the view up to the state, which this member has received.
func (g *Group) readTo(ctx context.Context, s *State) error {
	if err := s.check(); err != nil || s.Last <= g.tail.Load() {
		return err
	}
	if _, err := g.read(ctx); err != nil {
		return err
	}
	if at := g.tail.Load(); s.Last > at {
		return fmt.Errorf("%w: it is at %d, the log at %d", ErrGap, at, s.Last)
	}
	return nil
}

// see takes over what is newer of a state.
func (g *Group) see(s State) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.Head > g.state.Head {
		g.state.Head, g.state.Last, g.state.Wall = s.Head, max(s.Last, g.state.Last), s.Wall
		g.headChanged = g.cfg.Clock()
		if !s.Wall.IsZero() {
			// A release too: it may be of an owner of which this member has received nothing.
			g.clock.record(reading{s.Wall, g.wall(), g.headChanged}, s.Epoch > g.state.Epoch)
		}
		if g.caughtUp && g.tail.Load() >= g.state.Last {
			g.current = g.headChanged
		}
	}
	if s.Epoch > g.state.Epoch {
		g.state.Epoch, g.state.Owner = s.Epoch, s.Owner
		g.headChanged = g.cfg.Clock()
		close(g.changed)
		g.changed = make(chan struct{})
	}
}

// Owner returns who owns the group, by what this member knows, and a channel that is closed
// when that changes. own: it is this member, and its lease lasts.
func (g *Group) Owner() (o Owner, own bool, changed <-chan struct{}) {
	t := g.tenure.Load()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state.Owner, t.Valid(), g.changed
}

// CaughtUp reports that the view had every entry of the log once since the start.
func (g *Group) CaughtUp() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.caughtUp && !g.doubted
}

// Reached is the number of the newest entry of the log that this member has read.
func (g *Group) Reached() uint64 { return g.tail.Load() }

// Trimmed is the number of the last entry that this member removed from the log, 0: none.
func (g *Group) Trimmed() uint64 { return g.trimmed.Load() }

// Tenures is how often this member became the owner.
func (g *Group) Tenures() int64 { return g.tenures.Load() }

// Behind is for how long this member may have missed what is in the log.
func (g *Group) Behind() time.Duration {
	if g.tenure.Load().Valid() {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return max(0, g.cfg.Clock()-g.current)
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
	from, err := g.read(ctx)
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
	g.see(s)
	g.headChanged = g.cfg.Clock()
	if err := g.readTo(ctx, &s); err != nil {
		return 0, claim{}, err
	}
	g.mu.Lock()
	g.caughtUp = true
	g.mu.Unlock()
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
			if err := g.readTo(ctx, &s); err != nil {
				return 0, claim{}, err
			}
			g.see(s)
			if g.pending.id != "" && g.state.Owner.Claim == g.pending.id {
				return g.won(ctx, g.state.Epoch) // its answer was lost
			}
			continue
		case <-tick.C:
			if g.ownedByOther() && g.cfg.Damaged() {
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

func (g *Group) ownedByOther() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state.Owner.Member != "" && g.state.Owner.Member != g.cfg.Member
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
	g.mu.Lock()
	doubted := g.doubted
	g.mu.Unlock()
	if doubted {
		return false
	}
	silent := g.cfg.Clock() - g.headChanged
	released := g.state.Epoch > 0 && g.state.Owner.Member == ""
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
	sent, hold := g.cfg.Clock(), g.claimHoldback()
	next := Owner{Member: g.cfg.Member, Address: g.cfg.Address, Claim: fmt.Sprintf("%s/%x/%d", g.cfg.Member, g.started, g.claims), Clock: g.cfg.Member, Held: hold, Format: Format}
	g.pending = claim{next.Claim, sent, hold}
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Silence)
	defer cancel()
	epoch, err := g.cfg.Log.Claim(ctx, g.state, next, g.wall().Add(-hold))
	if err == nil {
		g.see(State{Epoch: epoch, Owner: next, Head: epoch})
	}
	return epoch, err
}

// won reads the log to its end: what earlier owners appended is in what this member has,
// and they append nothing any more.
func (g *Group) won(ctx context.Context, epoch int64) (int64, claim, error) {
	won := g.pending
	g.pending = claim{}
	_, err := g.read(ctx)
	return epoch, won, err
}
