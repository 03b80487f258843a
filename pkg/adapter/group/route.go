package group

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// destination is the group that has a source, for calls on their way to its owner.
type destination interface {
	// number is the group's.
	number() int
	// localTenure is the tenure of this member, nil: another member owns the shard. Changed is closed
	// when that changes.
	localTenure() (t *tenure, changed <-chan struct{})
	// owner is the address of another member that owns the shard, "": none is known. Moved is
	// closed when another one does.
	owner() (address string, moved <-chan struct{})
	// refused is called when the member at the address did not answer as the owner. hint is the
	// owner that it named, "" for none.
	refused(address, hint string)
	// askAnother is called when the member at the address has not answered for a while.
	askAnother(ctx context.Context, address string)
	// locate finds the owner before a call with a large body: a refusal costs a connection then.
	locate(ctx context.Context)
	// slots are held by calls that are forwarded, of one peer a quarter at most.
	slots() *budget.Budget
}

// own is the group of this member. The log says who owns the shard.
type own struct{ m *Member }

func (d own) number() int { return d.m.cfg.shard }

func (d own) localTenure() (*tenure, <-chan struct{}) {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	return d.m.tenure, d.m.changed
}

func (d own) owner() (string, <-chan struct{}) {
	owner, _, moved := d.m.group.Owner()
	if owner.Member == d.m.cfg.Member {
		return "", moved
	}
	return owner.Address, moved
}

func (own) refused(_, _ string)                    {}
func (own) askAnother(_ context.Context, _ string) {}
func (own) locate(context.Context)                 {}
func (d own) slots() *budget.Budget                { return d.m.slots }

// otherGroup is a group whose log this member does not read. It remembers which member
// answered as the owner, and learns of another one from the members' answers.
type otherGroup struct {
	m       *Member
	shard   int
	members []string // their addresses for forwarded calls
	held    *budget.Budget
	asking  sync.Mutex

	mu           sync.Mutex
	assumedOwner int // the member that is taken for the owner
	next         int // the member that is asked next
	moved        chan struct{}
}

func newOtherGroup(m *Member, shard int) *otherGroup {
	f := &otherGroup{m: m, shard: shard, held: newSlots(), moved: make(chan struct{})}
	for _, p := range m.cfg.of(shard) {
		f.members = append(f.members, forwardAddress(p.Address))
	}
	return f
}

func (f *otherGroup) number() int                             { return f.shard }
func (f *otherGroup) localTenure() (*tenure, <-chan struct{}) { return nil, nil }
func (f *otherGroup) slots() *budget.Budget                   { return f.held }

func (f *otherGroup) owner() (string, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.members[f.assumedOwner], f.moved
}

// refused takes the member that was named for the owner, else the next one. Of many calls that
// were refused at one time the first counts.
func (f *otherGroup) refused(address, hint string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.members[f.assumedOwner] != address {
		return
	}
	to := slices.Index(f.members, hint)
	if to < 0 {
		to = (f.assumedOwner + 1) % len(f.members)
	}
	f.take(to)
}

// take takes a member for the owner; mu is held.
func (f *otherGroup) take(member int) {
	if member == f.assumedOwner {
		return
	}
	f.assumedOwner = member
	close(f.moved)
	f.moved = make(chan struct{})
}

// askAnother asks another member who owns the shard: the one that was taken for the owner may stand
// still, and a call at it would wait without end.
func (f *otherGroup) askAnother(ctx context.Context, address string) {
	if !f.asking.TryLock() {
		return // another call asks
	}
	defer f.asking.Unlock()
	f.mu.Lock()
	f.next = (f.next + 1) % len(f.members)
	if f.members[f.next] == address {
		f.next = (f.next + 1) % len(f.members)
	}
	asked := f.members[f.next]
	f.mu.Unlock()
	_ = f.ask(ctx, asked, address) // the next one is asked
}

// locate asks until a member says who owns the shard.
func (f *otherGroup) locate(ctx context.Context) {
	for range f.members {
		address, _ := f.owner()
		if f.ask(ctx, address, address) == nil {
			return
		}
		f.refused(address, "")
	}
}

// ask asks a member who owns the shard, in the place of the member that was taken for it.
func (f *otherGroup) ask(ctx context.Context, member, address string) error {
	ctx, cancel := context.WithTimeout(ctx, ownerTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.m.cfg.scheme()+"://"+member+ownerPath, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := f.m.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 1<<10))
	f.mu.Lock()
	defer f.mu.Unlock()
	to := slices.Index(f.members, answer.Header.Get(ownerHeader))
	if to < 0 {
		return errors.New("group: the member knows no owner")
	}
	if f.members[f.assumedOwner] == address {
		f.take(to)
	}
	return nil
}

const (
	// ownerPath is where a member says who owns the shard of its group, below the port for
	// members, in ownerHeader, which a refusal of a forwarded call has too.
	ownerPath   = "/-/owner"
	ownerHeader = "Reschedule-Owner"
	// askAnotherAfter is how long a member may take for an answer before another one is asked
	// whether it owns the shard, and ownerTime how long that answer may take.
	askAnotherAfter = 500 * time.Millisecond
	ownerTime       = 500 * time.Millisecond
)

// nameOwner writes who owns the shard, as far as this member knows.
func (m *Member) nameOwner(w http.ResponseWriter) {
	if !m.joined.Load() {
		return
	}
	if owner, _, _ := m.group.Owner(); owner.Address != "" {
		w.Header().Set(ownerHeader, owner.Address)
	}
}

// shardOf is the group that has a source of this group. ok is false while none has it, or none of the groups
// that this member knows.
func (m *Member) shardOf(group int) (shard int, ok bool) {
	if n := m.cfg.groups(); group == schedule.Unplaced {
		return 0, n == 1
	} else if group >= n {
		return 0, false
	}
	return group, true
}

// hasSource reports that this member's group has the source.
func (m *Member) hasSource(s *schedule.Source) bool { return m.HasGroup(s.Group) }

// HasGroup reports that this is the member's group.
func (m *Member) HasGroup(group int) bool {
	shard, ok := m.shardOf(group)
	return ok && shard == m.cfg.shard
}

// destination is the group that answers a call, nil: none does yet. A source that this member
// does not know is looked for in its own group.
func (m *Member) destination(r *http.Request) destination {
	namespace, name := api.SourceOf(r.URL)
	m.mu.Lock()
	s := m.byPath[namespace+"/"+name]
	m.mu.Unlock()
	if s == nil {
		return own{m}
	}
	switch shard, ok := m.shardOf(s.Group); {
	case !ok:
		return nil
	case shard == m.cfg.shard:
		return own{m}
	default:
		return m.otherGroups[shard]
	}
}
