package replica_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/replicatest"
)

const (
	silence = 600 * time.Millisecond
	keep    = 4000                    // bytes: a member that is away for a while needs a copy
	copying = 1500 * time.Millisecond // what a copy takes: more is written meanwhile than keep
	largest = 60                      // bytes of an entry: some batches have many parts
	unsaved = 40                      // entries that a view takes while its disk is full
)

// member is one machine of the simulation.
type member struct {
	name   string
	rate   float64       // of its clock
	offset time.Duration // of its wall clock
	disk   *disk
	// Guarded by world.mu, and of its process:
	log    *replicatest.Member
	view   *view
	tenure *replica.Tenure
	group  *replica.Group // nil: it has no power
	left   bool           // it has handed over for its end
	clocks *replica.Clocks
	cancel context.CancelFunc
}

type world struct {
	log      *replicatest.Memory
	members  []*member
	names    []string
	sabotage func(*replica.Config)

	mu       sync.Mutex
	begun    time.Time
	replaced bool // a machine, with its disk
	quiet    bool // callers have ended
	acked    map[string]bool
	order    map[uint64]string
	problems []string
	promises []promise
	had      had
	alarms   alarmed
}

// alarms collects what members say of damage, which the simulation never does: a copy would heal it silently.
type alarms struct {
	slog.Handler
	w *world
}

type alarmed struct {
	mu   sync.Mutex // no member holds it when it logs
	says []string
}

func (a *alarms) Enabled(context.Context, slog.Level) bool { return true }

func (a *alarms) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "is damaged") || strings.Contains(r.Message, "differ") {
		r.Attrs(func(at slog.Attr) bool { r.Message += "; " + at.String(); return true })
		a.w.alarms.mu.Lock()
		defer a.w.alarms.mu.Unlock()
		a.w.alarms.says = append(a.w.alarms.says, r.Message)
	}
	return nil
}

// had is what happened in a history.
type had struct{ acked, tenures, copies, handOvers, filled int }

func (h *had) add(o had) {
	h.acked, h.tenures = h.acked+o.acked, h.tenures+o.tenures
	h.copies, h.handOvers, h.filled = h.copies+o.copies, h.handOvers+o.handOvers, h.filled+o.filled
}

// promise is what a caller was told: nothing happens before the delay is over, by the
// clock of the owner.
type promise struct {
	made  time.Time
	delay time.Duration
	due   time.Time // on the group's clock
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

// start starts a process of the member. Callers append while it is the owner.
func (w *world) start(m *member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	begun, log, view, offset := time.Now(), m.log, m.view, m.offset
	cfg := replica.Config{
		Member: m.name, Members: w.names, Log: log, View: view, Silence: silence,
		Clock:  func() time.Duration { return time.Duration(float64(time.Since(begun)) * m.rate) },
		Wall:   func() time.Time { return time.Now().Add(offset) },
		Clocks: replica.NewClocks(m.name, len(w.names)-1),
		Keep:   keep, EntryBytes: largest,
		Copy: func(_ context.Context, _ bool, hold func()) error { return w.copyTo(m, view, hold) },
		Own:  func(ctx context.Context, t *replica.Tenure) { w.own(ctx, m, t) },
	}
	cfg.Logger = slog.New(&alarms{slog.DiscardHandler, w})
	if w.sabotage != nil {
		w.sabotage(&cfg)
	}
	g := replica.New(cfg)
	m.group, m.clocks, m.cancel, m.left = g, cfg.Clocks, cancel, false
	go func() {
		err := g.Run(ctx)
		w.mu.Lock()
		defer w.mu.Unlock()
		if errors.Is(err, errFull) {
			w.had.filled++
		} else if err != nil {
			w.problem("%s ended: %v", m.name, err)
		}
		w.end(m, g, 300*time.Millisecond)
	}()
}

// end ends a process, if it has not ended, as a power loss does, and starts another one after
// a while. What the old process still does has no effect. w.mu is held.
func (w *world) end(m *member, g *replica.Group, away time.Duration) {
	if m.group != g || g == nil || w.quiet {
		return
	}
	m.cancel()
	m.tenure, m.group = nil, nil
	onDisk := m.view.onDisk()
	m.log, m.view = m.log.Restart(), &view{applied: onDisk, saved: len(onDisk), disk: m.disk, check: m.view.check}
	time.AfterFunc(away, func() { w.start(m) })
}

// copyTo copies the view of another member, as replica.Config.Copy.
func (w *world) copyTo(m *member, to *view, hold func()) error {
	hold()
	for _, o := range w.members {
		if o == m {
			continue
		}
		w.mu.Lock()
		from := o.view
		w.mu.Unlock()
		if err := to.copyFrom(from, copying); !errors.Is(err, errNoCopy) {
			if err == nil {
				w.mu.Lock()
				w.had.copies++
				w.mu.Unlock()
			}
			return err
		}
	}
	return errNoCopy
}

// own appends and delivers until the tenure ends.
func (w *world) own(ctx context.Context, m *member, t *replica.Tenure) {
	w.mu.Lock()
	if ctx.Err() == nil { // else m has another process already
		m.tenure = t
		w.had.tenures++
	}
	w.mu.Unlock()
	var callers sync.WaitGroup
	for caller := range 3 {
		callers.Go(func() {
			for n := 0; ctx.Err() == nil && !w.ended(); n++ {
				entry := fmt.Sprintf("%s/%d/%d/%d", m.name, t.Epoch(), caller, n)
				if n%20 == 0 {
					entry += strings.Repeat("/large", 50)
				}
				p := promise{made: time.Now(), delay: time.Duration(1+n%20) * 200 * time.Millisecond}
				p.due = t.Now().Add(p.delay)
				err := t.Append([]byte(entry))
				w.mu.Lock()
				if err == nil {
					w.acked[entry] = true
					w.promises = append(w.promises, p)
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
}

func (w *world) ended() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.quiet
}

// measure lets one member look at the clock of another one.
func (w *world) measure(r *rand.Rand) {
	i, n := r.IntN(len(w.members)), len(w.members)
	w.measureOf(r, w.members[i], w.members[(i+1+r.IntN(n-1))%n])
}

func (w *world) measureOf(r *rand.Rand, m, o *member) {
	wrong := time.Duration(r.IntN(20)-10) * time.Millisecond
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.group != nil && o.group != nil {
		m.clocks.Record(o.name, replica.Offset{By: o.offset - m.offset + wrong, Error: 10 * time.Millisecond})
	}
}

// owners looks for two leases at a time, and returns whose last.
func (w *world) owners() (owners []*member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for _, m := range w.members {
		if m.tenure.Valid() {
			owners, names = append(owners, m), append(names, m.name)
			if m.left {
				w.problem("%s owns the group, and has handed it over", m.name)
			}
		}
	}
	if len(owners) > 1 {
		w.problem("at one time the lease is held by %v", names)
	}
	return owners
}

// pass lets fake time pass, and watches.
func (w *world) pass(d time.Duration) {
	for range d / (2 * time.Millisecond) {
		time.Sleep(2 * time.Millisecond)
		w.owners()
	}
}

// leave hands the group over for the end of the member's process, as an upgrade does.
func (w *world) leave(m *member, g *replica.Group, away time.Duration) {
	g.HandOver()
	w.mu.Lock()
	if m.group == g { // else it has lost its power meanwhile
		m.left = true
	}
	w.mu.Unlock()
	time.Sleep(100 * time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end(m, g, away)
}

// fault does something to the member that lasts for so long, or to others.
func (w *world) fault(r *rand.Rand, m *member, lasts time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch until := time.Now().Add(lasts); r.IntN(9) {
	case 0:
		m.log.Cut(true, false)
	case 1:
		m.log.Cut(false, true)
	case 2, 3: // some members lose power, or all
		all, lost := r.IntN(4) == 0, r.IntN(4) == 0
		for _, o := range w.members {
			away := time.Duration(r.IntN(1500)) * time.Millisecond
			if all || o == m || r.IntN(3) == 0 {
				w.end(o, o.group, away)
			}
		}
		if lost && !w.replaced && m.group == nil { // another machine takes the place of one
			w.replaced = true
			m.view.lose()
		}
	case 4: // the owner hands over, and stays. Perhaps it hears no answer
		deaf := r.IntN(2) == 0
		for _, o := range w.members {
			if o.tenure.Valid() {
				m = o
				m.log.Cut(false, deaf)
				go m.tenure.Release("it is tried")
				w.had.handOvers++
			}
		}
	case 5: // the member ends in order
		if m.group != nil {
			go w.leave(m, m.group, lasts)
		}
	case 6: // its disk hangs; its part of the log is on it: it sends, and takes nothing in
		m.disk.set(until, time.Time{})
		m.log.Cut(false, true)
	case 7: // disks are full
		for _, o := range w.members {
			if o == m || r.IntN(3) == 0 {
				o.disk.set(time.Time{}, until)
			}
		}
	}
	time.AfterFunc(lasts, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		m.log.Cut(false, false)
	})
}

// simulate runs a history of faults and returns what broke.
func simulate(t *testing.T, seed uint64, faults replicatest.Faults, sabotage func(*replica.Config)) (problems []string, what had) {
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := &world{log: replicatest.NewMemory(rand.New(rand.NewPCG(seed, 2)), faults), sabotage: sabotage, begun: time.Now(), acked: map[string]bool{}, order: map[uint64]string{}}
		w.names = []string{"a", "b", "c", "d", "e"}[:3+r.IntN(3)]
		for i, name := range w.names {
			m := &member{name: name, log: w.log.Member(), disk: &disk{}, rate: []float64{0.9, 1, 1.1}[(i+int(seed%3))%3], offset: time.Duration(r.IntN(900)) * time.Millisecond}
			m.view = &view{disk: m.disk, check: func(seq uint64, data string) {
				w.mu.Lock()
				defer w.mu.Unlock()
				if old, is := w.order[seq]; is && old != data {
					w.problem("entry %d is %q in one view and %q in another", seq, old, data)
				}
				w.order[seq] = data
			}}
			w.members = append(w.members, m)
		}
		w.firstStart(r)
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			for range r.IntN(3 * len(w.members)) {
				w.measure(r)
			}
			w.fault(r, w.members[r.IntN(len(w.members))], time.Duration(r.IntN(2500))*time.Millisecond)
			w.pass(time.Duration(r.IntN(2500)) * time.Millisecond)
		}
		w.settle()
		problems, what = w.problems, w.had
	})
	return problems, what
}

// firstStart starts all members of a group that begins with a back-up. A clock is wrong by minutes, and is corrected
// before the faults begin.
func (w *world) firstStart(r *rand.Rand) {
	for delay := range 60 {
		delay := time.Duration(delay) * time.Second
		w.promises = append(w.promises, promise{made: w.begun.Add(-time.Second), delay: delay, due: w.begun.Add(delay)}) // clocks differ by a second
	}
	wrong := w.members[r.IntN(len(w.members))]
	right := wrong.offset
	wrong.offset += time.Duration(r.IntN(20)-10) * time.Minute
	for _, i := range r.Perm(len(w.members)) {
		w.pass(time.Duration(r.IntN(300)) * time.Millisecond)
		w.start(w.members[i])
	}
	for range 5 {
		w.pass(time.Duration(r.IntN(400)) * time.Millisecond)
		for _, m := range w.members {
			for _, o := range w.members {
				if o != m && r.IntN(4) > 0 {
					w.measureOf(r, m, o)
				}
			}
		}
	}
	w.pass(time.Second)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end(wrong, wrong.group, time.Second) // what it has read by its clock before counts no more
	wrong.offset = right
	for _, m := range w.members {
		if m != wrong {
			m.clocks.Record(wrong.name, replica.Offset{By: right - m.offset, Error: 10 * time.Millisecond})
		}
	}
}

// settle ends the faults, and looks at what is left.
func (w *world) settle() {
	w.log.SetFaults(replicatest.Faults{})
	w.pass(10 * time.Second) // then no member knows that its clock is off
	for i, m := range w.members {
		for next := range len(w.members) / 2 { // of so many it knows that its clock is right
			w.measureOf(rand.New(rand.NewPCG(0, 0)), m, w.members[(i+1+next)%len(w.members)])
		}
	}
	before := w.owners()
	for _, m := range before {
		m.group.HandOver()
	}
	w.pass(silence / 2) // an heir does not wait for the silence
	after := w.owners()
	w.mu.Lock()
	if len(before) != 1 || len(after) != 1 || after[0] == before[0] {
		w.problem("without faults %d members own the group; after a hand-over %d do", len(before), len(after))
	}
	w.quiet = true
	w.mu.Unlock()
	w.pass(time.Second)
	w.mu.Lock()
	for _, m := range w.members {
		m.tenure = nil
		m.cancel()
	}
	w.mu.Unlock()
	time.Sleep(2 * copying) // what was delayed comes
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	batches, err := replica.Batches(w.log.Entries(), w.log.Last())
	if err != nil {
		w.problem("%v", err)
	}
	in := map[string]int{}
	for seq, data := range batches {
		in[data]++
		if w.order[seq] != data {
			w.problem("entry %d is %q in the log and %q in the views", seq, data, w.order[seq])
		}
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
	w.had.acked = len(w.acked)
	w.alarms.mu.Lock()
	defer w.alarms.mu.Unlock()
	w.problems = append(w.problems, w.alarms.says...)
}

var rough = replicatest.Faults{Lost: 0.02, Late: 0.5, Doubled: 0.02, Delay: 20 * time.Millisecond}

func seeds(t *testing.T, n uint64) (first, last uint64) {
	if s := os.Getenv("REPLICA_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("REPLICA_SEED: %v", err)
		}
		return seed, seed
	}
	if testing.Short() {
		n = min(n, 2)
	}
	first = rand.Uint64N(1 << 40)
	return first, first + n - 1
}

// Under lost, late, doubled and delayed calls, partitions, power losses, hand-overs, upgrades,
// and disks that hang, are full or are lost, nothing acknowledged is lost, there is one lease
// at a time, all views have one order, nothing is early, and in the end one member owns the
// group. A seed plays the same faults again; the order of goroutines may differ.
func TestGroup_KeepsItsPromises(t *testing.T) {
	t.Parallel()
	first, last := seeds(t, 45)
	var all had
	for seed := first; seed <= last; seed++ {
		problems, one := simulate(t, seed, rough, nil)
		all.add(one)
		for _, p := range problems {
			t.Errorf("REPLICA_SEED=%d: %s", seed, p)
		}
		if one.acked < 300 || one.tenures < 3 {
			t.Errorf("REPLICA_SEED=%d: %+v: nothing was tried", seed, one)
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%+v", all)
	if !testing.Short() && first != last && min(all.copies, all.handOvers, all.filled) == 0 {
		t.Error("something was not tried")
	}
}

// wait returns when the disk does not hang.
func (d *disk) wait() {
	d.mu.Lock()
	left := time.Until(d.hangs)
	d.mu.Unlock()
	time.Sleep(left)
}
