package watch

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// lateGroups are the API groups whose last page did not come in time, as of an aggregated API that
// hangs. They ask for one namespace at a time: with all turns for lists such a group, which many
// namespaces watch, would delay the lists of all others for as long as it hangs.
type lateGroups struct {
	mu  sync.Mutex
	all map[string]*lateGroup // that were late once
}

type lateGroup struct {
	late bool
	one  *budget.Budget
}

// of returns the turn of a group that is late, or nil.
func (g *lateGroups) of(group string) *budget.Budget {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.all[group]; l != nil && l.late {
		return l.one
	}
	return nil
}

// lateAfter is when a failure is taken as a late one: a proxy before the API server may be the first to
// lose patience.
const lateAfter = 10 * time.Second

// answered notes that a page has come. A refusal does not count: the API server refuses a caller
// without rights before it asks an API that hangs.
func (g *lateGroups) answered(group string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.all[group]; l != nil {
		l.late = false
	}
}

// failed notes that no page has come, after so long.
func (g *lateGroups) failed(group string, err error, took time.Duration) {
	if !isLate(err, took) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.all[group]; l != nil {
		l.late = true
	} else {
		g.all[group] = &lateGroup{true, budget.NewTurns(1, 1, 0)}
	}
}

// isLate reports that a page failed since something did not come in time.
func isLate(err error, took time.Duration) bool {
	switch {
	case errors.Is(err, objects.ErrGone), errors.Is(err, errOwners):
		return false
	case errors.Is(err, context.DeadlineExceeded):
		return true
	}
	if waited, ok := errors.AsType[net.Error](err); ok && waited.Timeout() {
		return true
	}
	var refused *schedule.Error
	return took >= lateAfter && !errors.As(err, &refused) && classify("", err).reason == schedule.WatchUnreachable
}

// listTurns are what a list needs: group is one of a group that is late, until its first page comes.
type listTurns struct{ list, group *budget.Claim }

// takeList waits until a namespace may list a group. A group may become late while its lists wait.
func (m *Manager) takeList(ctx context.Context, namespace, group string) (t listTurns, err error) {
	for alone := false; ; alone = true {
		if t.list, err = m.lists.Take(ctx, namespace, ""); err != nil {
			t.group.Release()
			return t, err
		}
		one := m.late.of(group)
		if one == nil || alone {
			return t, nil
		}
		t.list.Release()
		if t.group, err = one.Take(ctx, namespace, ""); err != nil {
			return t, err
		}
	}
}
