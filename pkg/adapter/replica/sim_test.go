package replica_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/replicatest"
)

const (
	silence = 600 * time.Millisecond
	keep    = 4000 // bytes: a member that is away for a while needs a copy
)

// view is the state of a member: what is applied, and what of it is on disk.
type view struct {
	mu      sync.Mutex
	applied []string
	saved   int
	check   func(seq uint64, data string)
}

func (v *view) Applied() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return uint64(len(v.applied))
}

func (v *view) Apply(seq uint64, data []byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if seq != uint64(len(v.applied))+1 {
		return fmt.Errorf("entry %d behind %d", seq, len(v.applied))
	}
	v.applied = append(v.applied, string(data))
	v.check(seq, string(data))
	return nil
}

func (v *view) Flush() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.saved = len(v.applied)
	return nil
}

// crash loses what was not on disk.
func (v *view) crash() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.applied = v.applied[:v.saved]
}

var errNoCopy = errors.New("no member has a newer view")

// copyFrom takes over what another view has on disk.
func (v *view) copyFrom(o *view) error {
	o.mu.Lock()
	from := o.applied[:o.saved:o.saved]
	o.mu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(from) <= len(v.applied) {
		return errNoCopy
	}
	v.applied, v.saved = slices.Clone(from), len(from)
	return nil
}

// member is one process of the simulation.
type member struct {
	name   string
	log    *replicatest.Member
	view   *view
	rate   float64       // of its clock
	offset time.Duration // of its wall clock
	cancel context.CancelFunc
	ended  chan struct{}
	// Guarded by world.mu.
	tenure *replica.Tenure
	group  *replica.Group
	clocks *replica.Clocks
}

type world struct {
	log      *replicatest.Memory
	members  []*member
	sabotage func(*replica.Config)

	mu       sync.Mutex
	copies   int
	quiet    bool // callers have ended
	acked    map[string]bool
	order    map[uint64]string
	problems []string
	tenures  int
	failed   int
	promises []promise
}

// promise is what a caller was told: nothing happens before the delay is over, by the
// clock of the owner.
type promise struct {
	made  time.Time
	delay time.Duration
	due   time.Time // on the shard's clock
}

// deliver delivers what is due while the tenure lasts, and looks for what is early.
func (w *world) deliver(t *replica.Tenure) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !t.Valid() {
		return
	}
	now := t.Now()
	w.promises = slices.DeleteFunc(w.promises, func(p promise) bool {
		if p.due.After(now) {
			return false
		}
		// The clock may run faster by 500 parts in a million, on a Clock that is a tenth too fast.
		if after := time.Since(p.made); after < p.delay-p.delay*11/20000-time.Microsecond {
			w.problem("what was due after %s came after %s", p.delay, after)
		}
		return true
	})
}

func (w *world) problem(format string, args ...any) {
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// start starts the member's process, in which callers append while it is the owner.
func (w *world) start(m *member) {
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel, m.ended = cancel, make(chan struct{})
	begun := time.Now()
	cfg := replica.Config{
		Member: m.name, Members: []string{"a", "b", "c"}, Log: m.log, View: m.view, Silence: silence,
		Clock:  func() time.Duration { return time.Duration(float64(time.Since(begun)) * m.rate) },
		Wall:   func() time.Time { return time.Now().Add(m.offset) },
		Clocks: replica.NewClocks(m.name, 2),
		Keep:   keep,
		Copy: func(context.Context) error {
			for _, o := range w.members {
				if o != m && m.view.copyFrom(o.view) == nil {
					w.mu.Lock()
					w.copies++
					w.mu.Unlock()
					return nil
				}
			}
			return errNoCopy
		},
		Own: func(ctx context.Context, t *replica.Tenure) {
			w.mu.Lock()
			m.tenure = t
			w.tenures++
			w.mu.Unlock()
			var callers sync.WaitGroup
			for caller := range 3 {
				callers.Go(func() {
					for n := 0; ctx.Err() == nil && !w.ended(); n++ {
						entry := fmt.Sprintf("%s/%d/%d/%d", m.name, t.Epoch(), caller, n)
						p := promise{made: time.Now(), delay: time.Duration(1+n%20) * 200 * time.Millisecond}
						p.due = t.Now().Add(p.delay)
						err := t.Append([]byte(entry))
						w.mu.Lock()
						switch {
						case err == nil:
							w.acked[entry] = true
							w.promises = append(w.promises, p)
						case errors.Is(err, replica.ErrUnknown):
							w.failed++
						}
						w.mu.Unlock()
						time.Sleep(time.Duration(7+caller*11) * time.Millisecond)
					}
				})
			}
			callers.Go(func() {
				for ctx.Err() == nil {
					w.deliver(t)
					time.Sleep(2 * time.Millisecond)
				}
			})
			callers.Wait()
		},
	}
	if w.sabotage != nil {
		w.sabotage(&cfg)
	}
	g := replica.New(cfg)
	w.mu.Lock()
	m.group, m.clocks = g, cfg.Clocks
	w.mu.Unlock()
	go func() {
		defer close(m.ended)
		if err := g.Run(ctx); err != nil {
			w.mu.Lock()
			w.problem("%s ended: %v", m.name, err)
			w.mu.Unlock()
		}
	}()
}

func (w *world) ended() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.quiet
}

// measure lets one member look at the clock of another one.
func (w *world) measure(r *rand.Rand) {
	i := r.IntN(3)
	m, o := w.members[i], w.members[(i+1+r.IntN(2))%3]
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.group == nil || o.group == nil {
		return
	}
	wrong := time.Duration(r.IntN(20)-10) * time.Millisecond
	m.clocks.Saw(o.name, replica.Offset{By: o.offset - m.offset + wrong, Error: 10 * time.Millisecond})
}

// crash ends the member's process and loses what was not on disk.
func (w *world) crash(m *member) {
	m.cancel()
	<-m.ended
	w.mu.Lock()
	m.tenure, m.group = nil, nil
	w.mu.Unlock()
	m.view.crash()
}

// watch looks for two leases at a time.
func (w *world) watch() {
	w.mu.Lock()
	defer w.mu.Unlock()
	var owners []string
	for _, m := range w.members {
		if m.tenure.Valid() {
			owners = append(owners, m.name)
		}
	}
	if len(owners) > 1 {
		w.problem("at one time the lease is held by %v", owners)
	}
}

// simulate runs a history of faults and returns what broke.
func simulate(t *testing.T, seed uint64, faults replicatest.Faults, sabotage func(*replica.Config)) (problems []string, acked, tenures, copies int) {
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := &world{log: replicatest.NewMemory(rand.New(rand.NewPCG(seed, 2)), faults), sabotage: sabotage, acked: map[string]bool{}, order: map[uint64]string{}}
		for i, name := range []string{"a", "b", "c"} {
			m := &member{name: name, log: w.log.Member(), rate: []float64{0.9, 1, 1.1}[(i+int(seed))%3], offset: time.Duration(r.IntN(900)) * time.Millisecond}
			m.view = &view{check: func(seq uint64, data string) {
				w.mu.Lock()
				defer w.mu.Unlock()
				if old, is := w.order[seq]; is && old != data {
					w.problem("entry %d is %q in one view and %q in another", seq, old, data)
				}
				w.order[seq] = data
			}}
			w.members = append(w.members, m)
			w.start(m)
		}
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			m := w.members[r.IntN(len(w.members))]
			for range r.IntN(8) {
				w.measure(r)
			}
			switch r.IntN(4) {
			case 0:
				m.log.Cut(true, false)
			case 1:
				m.log.Cut(false, true)
			case 2:
				w.crash(m)
				w.pass(time.Duration(r.IntN(1500)) * time.Millisecond)
				w.start(m)
			}
			w.pass(time.Duration(r.IntN(2500)) * time.Millisecond)
			m.log.Cut(false, false)
			w.pass(time.Duration(r.IntN(1000)) * time.Millisecond)
		}
		// Without faults everything settles: all views are equal.
		w.log.SetFaults(replicatest.Faults{})
		w.pass(10 * time.Second)
		w.mu.Lock()
		w.quiet = true
		w.mu.Unlock()
		w.pass(time.Second)
		for _, m := range w.members {
			w.mu.Lock()
			m.tenure = nil
			w.mu.Unlock()
			m.cancel()
			<-m.ended
		}
		time.Sleep(time.Second) // what was delayed comes
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		in := map[string]int{}
		for _, data := range w.log.Entries() {
			in[data]++
		}
		for _, m := range w.members {
			if at := m.view.Applied(); at != w.log.Last() {
				w.problem("the view of %s is at %d, the log at %d", m.name, at, w.log.Last())
			}
		}
		for entry := range w.acked {
			if in[entry] != 1 {
				w.problem("the acknowledged entry %s is in the log %d times", entry, in[entry])
			}
		}
		problems, acked, tenures, copies = w.problems, len(w.acked), w.tenures, w.copies
	})
	return problems, acked, tenures, copies
}

// pass lets fake time pass, and watches.
func (w *world) pass(d time.Duration) {
	for range d / (2 * time.Millisecond) {
		time.Sleep(2 * time.Millisecond)
		w.watch()
	}
}

var rough = replicatest.Faults{Lost: 0.02, Late: 0.5, Delay: 20 * time.Millisecond}

func seeds(t *testing.T, n uint64) (first, last uint64) {
	if s := os.Getenv("REPLICA_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("REPLICA_SEED: %v", err)
		}
		return seed, seed
	}
	if testing.Short() {
		n = min(n, 5)
	}
	first = rand.Uint64N(1 << 40)
	return first, first + n - 1
}

// Under lost, late and delayed calls, partitions and power losses nothing acknowledged is
// lost, there is one lease at a time, and all views have one order.
func TestGroup_KeepsItsPromises(t *testing.T) {
	t.Parallel()
	first, last := seeds(t, 60)
	copies := 0
	for seed := first; seed <= last; seed++ {
		problems, acked, tenures, n := simulate(t, seed, rough, nil)
		copies += n
		for _, p := range problems {
			t.Errorf("REPLICA_SEED=%d: %s", seed, p)
		}
		if acked < 300 || tenures < 3 {
			t.Errorf("REPLICA_SEED=%d: only %d entries in %d tenures: nothing was tried", seed, acked, tenures)
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d views were replaced by a copy", copies)
	if copies == 0 && first != last {
		t.Error("no member needed a copy of a view")
	}
}

// Each rule that is broken on purpose is found.
func TestGroup_SabotageIsFound(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		faults replicatest.Faults
		broken func(*replica.Config)
	}{
		"a lease without a margin":      {rough, func(c *replica.Config) { c.Break(1.1, false, false) }},
		"a claim that ignores the head": {replicatest.Faults{Lost: 0.02, Late: 0.5, Delay: 20 * time.Millisecond, Lenient: true}, nil},
		"a clock that is not held back": {rough, func(c *replica.Config) { c.Break(0, false, true) }},
		"a trim before a flush":         {rough, func(c *replica.Config) { c.Break(0, true, false) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= 100; seed++ {
				if problems, _, _, _ := simulate(t, seed, test.faults, test.broken); len(problems) > 0 {
					return
				}
			}
			t.Error("100 histories did not show it")
		})
	}
}
