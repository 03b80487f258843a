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

// ownGroup is the group of this member. The log says who owns the shard.
type ownGroup struct{ m *Member }

func (g ownGroup) number() int { return g.m.cfg.shard }

func (g ownGroup) localTenure() (*tenure, <-chan struct{}) {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	return g.m.tenure, g.m.changed
}

func (g ownGroup) owner() (string, <-chan struct{}) {
	owner, _, moved := g.m.group.Owner()
	if owner.Member == g.m.cfg.Member {
		return "", moved
	}
	return owner.Address, moved
}

func (ownGroup) refused(_, _ string)                    {}
func (ownGroup) askAnother(_ context.Context, _ string) {}
func (ownGroup) locate(context.Context)                 {}
func (g ownGroup) slots() *budget.Budget                { return g.m.slots }

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
	g := &otherGroup{m: m, shard: shard, held: newSlots(), moved: make(chan struct{})}
	for _, p := range m.cfg.of(shard) {
		g.members = append(g.members, forwardAddress(p.Address))
	}
	return g
}

func (g *otherGroup) number() int                             { return g.shard }
func (g *otherGroup) localTenure() (*tenure, <-chan struct{}) { return nil, nil }
func (g *otherGroup) slots() *budget.Budget                   { return g.held }

func (g *otherGroup) owner() (string, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.members[g.assumedOwner], g.moved
}

// refused takes the member that was named for the owner, else the next one. Of many calls that
// were refused at one time the first counts.
func (g *otherGroup) refused(address, hint string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.members[g.assumedOwner] != address {
		return
	}
	to := slices.Index(g.members, hint)
	if to < 0 {
		to = (g.assumedOwner + 1) % len(g.members)
	}
	g.take(to)
}

// take takes a member for the owner; mu is held.
func (g *otherGroup) take(member int) {
	if member == g.assumedOwner {
		return
	}
	g.assumedOwner = member
	close(g.moved)
	g.moved = make(chan struct{})
}

// askAnother asks another member who owns the shard: the member that was taken for the owner may
// stand still, and a call at it would wait without end.
func (g *otherGroup) askAnother(ctx context.Context, address string) {
	if !g.asking.TryLock() {
		return // another call asks
	}
	defer g.asking.Unlock()
	g.mu.Lock()
	g.next = (g.next + 1) % len(g.members)
	if g.members[g.next] == address {
		g.next = (g.next + 1) % len(g.members)
	}
	asked := g.members[g.next]
	g.mu.Unlock()
	_ = g.ask(ctx, asked, address) // the next one is asked
}

// locate asks until a member says who owns the shard.
func (g *otherGroup) locate(ctx context.Context) {
	for range g.members {
		address, _ := g.owner()
		if g.ask(ctx, address, address) == nil {
			return
		}
		g.refused(address, "")
	}
}

// ask asks a member who owns the shard, in the place of the member that was taken for it.
func (g *otherGroup) ask(ctx context.Context, member, address string) error {
	ctx, cancel := context.WithTimeout(ctx, ownerTime)
	defer cancel()
	request, err := g.m.memberRequest(ctx, http.MethodGet, g.m.cfg.scheme()+"://"+member+ownerPath)
	if err != nil {
		return err
	}
	answer, err := g.m.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 1<<10))
	g.mu.Lock()
	defer g.mu.Unlock()
	to := slices.Index(g.members, answer.Header.Get(ownerHeader))
	if to < 0 {
		return errors.New("group: the member knows no owner")
	}
	if g.members[g.assumedOwner] == address {
		g.take(to)
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
	if n := m.cfg.groups(); group == schedule.NoGroup {
		return 0, n == 1
	} else if group >= n {
		return 0, false
	}
	return group, true
}

// hasSource reports that this member's group has the source.
func (m *Member) hasSource(s *schedule.Spec) bool { return m.HasGroup(s.Group) }

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
		return ownGroup{m}
	}
	switch shard, ok := m.shardOf(s.Group); {
	case !ok:
		return nil
	case shard == m.cfg.shard:
		return ownGroup{m}
	default:
		return m.otherGroups[shard]
	}
}
