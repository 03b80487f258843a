package group

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

const (
	// fitHeader is on the answer to clockPath of a member that may take the group over.
	fitHeader = "Reschedule-Fit"
	// diskHeader is on each of these answers: the free bytes of the disk, the reserve, and what is scarce.
	diskHeader = "Reschedule-Disk"
)

// fitness is how fit a member is to take the group over from an owner that should not own it.
type fitness string

const (
	unfit fitness = ""
	// able: the clock is right, and disk space is not low. ample: also enough space to take over
	// from a member whose disk is nearly full.
	able  fitness = "able"
	ample fitness = "ample"
)

const (
	// answerLife is how long an answer of a member counts: that it is fit, and that its disk has space.
	answerLife = 3 * time.Second
	// successorBehind is how long a fit member may have received nothing from the owner, which it does
	// each 0.15 s.
	successorBehind = 2 * time.Second
	// resignEvery is the least time between two attempts of a member to hand the group over: if
	// the successor cannot claim it, calls wait for seconds each time.
	resignEvery = time.Minute
)

// others is what the two other members answered last.
type others struct {
	mu      sync.Mutex
	answers map[string]answer
}

// answer is what a member says about itself: how fit it is to own the group, which an owner never is, and its disk.
type answer struct {
	fitness
	disk *store.Disk // nil: it does not say
	at   time.Time
}

func (o *others) record(member string, a answer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.answers == nil {
		o.answers = map[string]answer{}
	}
	a.at = time.Now()
	o.answers[member] = a
}

func (a answer) isRecent() bool { return time.Since(a.at) < answerLife }

// anyFit reports whether a recent answer of a member is that fit, or fitter.
func (o *others) anyFit(least fitness) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, a := range o.answers {
		if a.isRecent() && (a.fitness == ample || a.fitness == least) {
			return true
		}
	}
	return false
}

// mostDisks reports whether a majority of disks is so, if this member's disk is: then one of the two others is enough. A
// member that is away counts as so, unless the last answer of a member was that its disk is not.
func (o *others) mostDisks(is func(store.Disk) bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	not := false
	for _, a := range o.answers {
		switch {
		case a.disk == nil:
		case !is(*a.disk):
			not = true
		case a.isRecent():
			return true
		}
	}
	return !not
}

// diskText is the value of diskHeader.
func diskText(d store.Disk) string { return fmt.Sprint(d.Free, d.Reserve, d.Scarce) }

// answerOf reads what a member says about itself.
func answerOf(h http.Header) answer {
	a, d := answer{fitness: fitness(h.Get(fitHeader))}, store.Disk{}
	if n, _ := fmt.Sscan(h.Get(diskHeader), &d.Free, &d.Reserve, &d.Scarce); n == 3 {
		a.disk = &d
	}
	return a
}

// health decides whether this member should own the group: by its clock, its disk and its view, beside what the others
// say of theirs. others has its own lock; nothing else here changes.
type health struct {
	cfg          *Config
	view         *view
	peers        *peers
	stage        *stage
	owner        *owner
	others       others
	resignations *rate.Limiter
}

// fit is how fit this member is to take the group over. It must be able to claim it now: it
// receives from the owner, and what its own last tenure began has ended.
func (h *health) fit() fitness {
	e := h.stage.engine.Load()
	switch view := h.view.get(); {
	case view.Damaged() || !h.stage.joined.Load() || h.stage.leaving.Load() || h.stage.owns.Load() || !e.group.CaughtUp() || e.group.Behind() > successorBehind || !e.clocks.Agrees() || view.LowOnSpace():
		return unfit
	case view.HasAmpleSpace():
		return ample
	}
	return able
}

// unfitToClaim is replica.Config.Unfit. Where all disks are nearly full, a failover takes no
// longer than with space.
func (h *health) unfitToClaim() bool {
	view := h.view.get()
	return !h.stage.engine.Load().clocks.Agrees() || view.Damaged() || view.LowOnSpace() && h.others.anyFit(ample)
}

// mustYield reports that this member's view is damaged, and another member can own the group: what this one answers may
// lack what was acknowledged. It waits for nothing, also while a copy takes the place of the view.
func (h *health) mustYield() bool { return h.view.current.Load().Damaged() && h.others.anyFit(able) }

// yield hands the group over at once.
func (h *health) yield(lease *replica.Tenure) {
	const why = "its view is damaged: look at its disk"
	h.cfg.Log.Warn("this member hands the group over to another one", "why", why)
	lease.Release(why)
}

// whyResign is why a member should not own the group while another member can, "": it may. short: its
// disk is nearly full.
func whyResign(clocks *replica.Clocks, short bool, others *others) string {
	switch {
	case clocks.IsAhead() && others.anyFit(able):
		return "its clock is ahead: what is due at a time would be delivered before it"
	case clocks.ExceedsLimit():
		// With a clock that is behind it goes on: one that jumps ahead makes delays shorter.
		return ""
	case short && others.anyFit(ample):
		return "its disk is nearly full"
	}
	return ""
}

func newResignations() *rate.Limiter { return rate.NewLimiter(rate.Every(resignEvery), 1) }

// resign hands the group over to a member that is fit, if this one owns it and should not. It
// returns when the tenure has ended.
func (h *health) resign() {
	t := h.owner.current()
	if t == nil || !t.lease.Valid() {
		return
	}
	if h.mustYield() { // at once: what is delivered now comes twice
		h.yield(t.lease)
		return
	}
	why := whyResign(h.stage.engine.Load().clocks, h.view.get().LowOnSpace(), &h.others)
	if why == "" || !h.resignations.Allow() || t.finishing.Swap(true) {
		return
	}
	h.cfg.Log.Warn("this member hands the group over to another one", "why", why)
	t.finish()
	t.lease.Release(why)
}
