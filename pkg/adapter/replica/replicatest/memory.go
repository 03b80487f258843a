// Package replicatest has what tests of a replicated log share: a log in memory that loses,
// delays and repeats calls, and the conformance suite of the seam.
package replicatest

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
)

// Faults are what a [Memory] does to the calls of its members.
type Faults struct {
	Lost float64 // share of the changes whose call or answer is lost
	Late float64 // share of the lost changes that come true later
	// Doubled is the share of the changes that come true a second time, later. etcd doubles
	// none on its way; another log may.
	Doubled float64
	Delay   time.Duration // at most, of each message
	Lenient bool          // claims compare the epoch only
}

// Memory is a log that its members share. It never loses what it took.
type Memory struct {
	mu      sync.Mutex
	random  *rand.Rand
	faults  Faults
	rev     int64
	state   replica.State
	entries map[uint64]stored
	last    uint64
	trimmed uint64
	history []change
	marks   map[string]uint64
	marking int            // counts calls of Mark
	marked  map[string]int // by member, the call whose mark is the newest
	reports map[string]replica.Report
	changed chan struct{}
	all     map[uint64]string
	epochs  map[uint64]int64
}

type stored struct {
	rev   int64
	epoch int64
	data  []byte
}

type change struct {
	rev    int64
	update replica.State
	state  replica.State // after it
}

// NewMemory returns an empty log.
func NewMemory(random *rand.Rand, faults Faults) *Memory {
	return &Memory{random: random, faults: faults, entries: map[uint64]stored{}, marks: map[string]uint64{}, marked: map[string]int{}, reports: map[string]replica.Report{},
		changed: make(chan struct{}), all: map[uint64]string{}, epochs: map[uint64]int64{}}
}

// SetFaults replaces the faults.
func (m *Memory) SetFaults(f Faults) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = f
}

// Entries returns every entry that was ever added, trimmed ones too.
func (m *Memory) Entries() map[uint64]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.all)
}

// Damage changes a byte of an entry.
func (m *Memory) Damage(seq uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[seq]
	e.data = slices.Clone(e.data)
	e.data[len(e.data)-1]++
	m.entries[seq] = e
}

// Last is the number of the newest entry.
func (m *Memory) Last() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// Kept is how many entries the log holds.
func (m *Memory) Kept() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.entries)
}

// Member returns the log as one member reaches it.
func (m *Memory) Member() *Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &Member{m: m, random: rand.New(rand.NewPCG(m.random.Uint64(), 1))}
}

// Member is a replica.Log whose connection can be cut.
type Member struct {
	m      *Memory
	random *rand.Rand // of its own: what other members do changes little of this one's history
	seen   int64      // the revision that this member has; it lags
	cut    bool
	deaf   bool
}

var _ replica.Log = (*Member)(nil)

// Cut cuts the member off, or connects it again. A deaf member sends, and receives nothing.
func (l *Member) Cut(cut, deaf bool) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	l.cut, l.deaf = cut, deaf
}

// Restart returns the log as the member's next process reaches it, over the same network. It
// may lack the newest changes that this process has seen. This one is cut off for good.
func (l *Member) Restart() *Member {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	next := *l
	next.seen = max(0, l.seen-l.random.Int64N(20))
	next.random = rand.New(rand.NewPCG(l.random.Uint64(), 1))
	l.cut = true
	return &next
}

var errLost = errors.New("replicatest: no answer")

// change runs do on the log, or loses it. do runs with the log locked, perhaps after change
// has returned.
func (l *Member) change(ctx context.Context, do func() (int64, error)) (int64, error) {
	m := l.m
	m.mu.Lock()
	cut, deaf, f := l.cut, l.deaf, m.faults
	lost := cut || l.random.Float64() < f.Lost
	late := lost && !cut && l.random.Float64() < f.Late
	doubled := !cut && l.random.Float64() < f.Doubled
	before, after := l.delay(), l.delay()
	half := l.random.IntN(2) == 0
	m.mu.Unlock()
	if late || doubled {
		time.AfterFunc(10*before+10*after, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			_, _ = do()
		})
	}
	if lost && (late || cut || half) { // the call is lost
		<-ctx.Done()
		return 0, errLost
	}
	if !wait(ctx, before) {
		return 0, errLost
	}
	m.mu.Lock()
	result, err := do()
	rev := m.rev
	m.mu.Unlock()
	if lost || deaf { // the answer is lost
		<-ctx.Done()
		return 0, errLost
	}
	if !wait(ctx, after) {
		return 0, errLost
	}
	m.mu.Lock()
	l.seen = max(l.seen, rev)
	m.mu.Unlock()
	return result, err
}

// delay is called with the log locked.
func (l *Member) delay() time.Duration {
	most := int64(l.m.faults.Delay)
	if most <= 0 {
		return 0
	}
	return time.Duration(l.random.Int64N(most))
}

func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// put notes a change. The log is locked.
func (m *Memory) put(u replica.State) {
	var before replica.State
	if n := len(m.history); n > 0 {
		before = m.history[n-1].state
	}
	m.history = append(m.history, change{m.rev, u, merge(before, u)})
	close(m.changed)
	m.changed = make(chan struct{})
}

// upTo is how many changes there were up to the revision. The log is locked.
func (m *Memory) upTo(revision int64) int {
	return sort.Search(len(m.history), func(i int) bool { return m.history[i].rev > revision })
}

// Append implements replica.Log.
func (l *Member) Append(ctx context.Context, epoch int64, seq uint64, data []byte, wall time.Time) (bool, error) {
	if len(data) > replica.MaxEntry {
		return false, replica.ErrTooLarge
	}
	data = slices.Clone(data)
	m := l.m
	result, err := l.change(ctx, func() (int64, error) {
		if e, is := m.entries[seq]; is || seq <= m.last {
			if is && e.epoch == epoch || !is && m.epochs[seq] == epoch {
				return 0, nil
			}
			return 0, replica.ErrFenced
		}
		if m.state.Epoch != epoch {
			return 0, replica.ErrFenced
		}
		m.rev++
		m.entries[seq] = stored{m.rev, epoch, data}
		m.last, m.all[seq], m.epochs[seq] = max(m.last, seq), string(data), epoch
		m.state.Head, m.state.Last, m.state.Wall = m.rev, seq, wall
		m.put(replica.State{Head: m.rev, Last: seq, Wall: wall})
		return 1, nil
	})
	return result == 1 && err == nil, err
}

// Renew implements replica.Log.
func (l *Member) Renew(ctx context.Context, epoch int64, last uint64, wall time.Time) error {
	m := l.m
	_, err := l.change(ctx, func() (int64, error) {
		if m.state.Epoch != epoch {
			return 0, replica.ErrFenced
		}
		m.rev++
		m.state.Head, m.state.Wall = m.rev, wall
		m.put(replica.State{Head: m.rev, Last: last, Wall: wall})
		return 0, nil
	})
	return err
}

// Claim implements replica.Log.
func (l *Member) Claim(ctx context.Context, seen replica.State, next replica.Owner, wall time.Time) (int64, error) {
	m := l.m
	return l.change(ctx, func() (int64, error) {
		if m.state.Epoch != seen.Epoch || m.state.Head != seen.Head && !m.faults.Lenient {
			return 0, replica.ErrFenced
		}
		m.rev++
		m.state.Epoch, m.state.Head, m.state.Owner, m.state.Wall = m.rev, m.rev, next, wall
		m.put(replica.State{Epoch: m.rev, Owner: next, Head: m.rev, Wall: wall})
		return m.rev, nil
	})
}

// Release implements replica.Log.
func (l *Member) Release(ctx context.Context, epoch int64, next replica.Owner, wall time.Time) error {
	m := l.m
	_, err := l.change(ctx, func() (int64, error) {
		if m.state.Epoch != epoch {
			return 0, replica.ErrFenced
		}
		m.rev++
		m.state.Epoch, m.state.Head, m.state.Owner, m.state.Wall = m.rev, m.rev, next, wall
		m.put(replica.State{Epoch: m.rev, Owner: next, Head: m.rev, Wall: wall})
		return 0, nil
	})
	return err
}

// Read implements replica.Log. A page has a few entries.
func (l *Member) Read(_ context.Context, after uint64) (replica.Page, error) {
	m := l.m
	m.mu.Lock()
	defer m.mu.Unlock()
	p := replica.Page{Revision: l.seen}
	for seq := max(after, m.trimmed) + 1; seq <= m.last; seq++ {
		e := m.entries[seq]
		if e.rev > l.seen {
			break
		}
		if len(p.Entries) == 3 {
			p.More = true
			break
		}
		p.Entries = append(p.Entries, replica.Entry{Seq: seq, Data: e.data})
	}
	return p, nil
}

// State implements replica.Log.
func (l *Member) State(context.Context) (replica.State, error) {
	m := l.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.upTo(l.seen); n > 0 {
		return m.history[n-1].state, nil
	}
	return replica.State{}, nil
}

func merge(s, u replica.State) replica.State {
	if u.Head > s.Head {
		s.Head, s.Last, s.Wall = u.Head, max(s.Last, u.Last), u.Wall
	}
	if u.Epoch > s.Epoch {
		s.Epoch, s.Owner = u.Epoch, u.Owner
	}
	return s
}

// Follow implements replica.Log.
func (l *Member) Follow(ctx context.Context, revision int64) <-chan replica.State {
	m, updates := l.m, make(chan replica.State)
	go func() {
		defer close(updates)
		for {
			m.mu.Lock()
			var next *change
			if !l.cut && !l.deaf {
				if i := m.upTo(revision); i < len(m.history) {
					next = &m.history[i]
				}
			}
			changed, delay := m.changed, l.delay()
			m.mu.Unlock()
			if next == nil {
				select {
				case <-ctx.Done():
					return
				case <-changed:
				case <-time.After(10 * time.Millisecond): // the member may be connected again
				}
				continue
			}
			if !wait(ctx, delay) {
				return
			}
			revision = next.rev
			m.mu.Lock()
			l.seen = max(l.seen, revision)
			m.mu.Unlock()
			select {
			case <-ctx.Done():
				return
			case updates <- next.update:
			}
		}
	}()
	return updates
}

// Mark implements replica.Log.
func (l *Member) Mark(ctx context.Context, member string, seq uint64) error {
	l.m.mu.Lock()
	l.m.marking++
	call := l.m.marking
	l.m.mu.Unlock()
	_, err := l.change(ctx, func() (int64, error) {
		if call >= l.m.marked[member] {
			l.m.marks[member], l.m.marked[member] = seq, call
		}
		return 0, nil
	})
	return err
}

// Marks implements replica.Log.
func (l *Member) Marks(context.Context) (map[string]uint64, error) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	return maps.Clone(l.m.marks), nil
}

// Report implements replica.Log.
func (l *Member) Report(ctx context.Context, member string, r replica.Report) error {
	_, err := l.change(ctx, func() (int64, error) {
		l.m.reports[member] = r
		return 0, nil
	})
	return err
}

// Reports implements replica.Log.
func (l *Member) Reports(context.Context) (map[string]replica.Report, error) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	return maps.Clone(l.m.reports), nil
}

// Size implements replica.Log.
func (l *Member) Size() (size int64) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	for _, e := range l.m.entries {
		size += int64(len(e.data))
	}
	return size
}

// Trim implements replica.Log.
func (l *Member) Trim(ctx context.Context, seq uint64) error {
	m := l.m
	_, err := l.change(ctx, func() (int64, error) {
		for s := range m.entries {
			if s <= seq {
				delete(m.entries, s)
			}
		}
		m.trimmed = max(m.trimmed, seq)
		return 0, nil
	})
	return err
}
