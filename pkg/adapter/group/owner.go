package group

import (
	"sync"

	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch"
)

// owner is who owns the group, as the tenure of this member and its log say.
type owner struct {
	member string // this one
	view   *view
	stage  *stage

	// mu guards the two below. runTenure writes them, and each call reads them; nothing is done meanwhile.
	mu      sync.Mutex
	tenure  *tenure       // of this member; nil: it does not own the group
	changed chan struct{} // closed when tenure changes
}

// here implements ownership.
func (o *owner) here() (*tenure, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tenure, o.changed
}

// elsewhere implements ownership.
func (o *owner) elsewhere() (address string, moved <-chan struct{}) {
	now, _, moved := o.stage.engine.Load().group.Owner()
	if now.Member == o.member {
		return "", moved
	}
	return now.Address, moved
}

// isSealed implements ownership.
func (o *owner) isSealed() bool { return o.view.Sealed() }

func (o *owner) current() *tenure {
	t, _ := o.here()
	return t
}

// setTenure makes the tenure serve; nil: none does.
func (o *owner) setTenure(t *tenure) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tenure = t
	close(o.changed)
	o.changed = make(chan struct{})
}

// Lookup finds a source, if this member owns the group.
func (o *owner) Lookup(namespace, name string) (*queue.Source, bool) {
	t := o.current()
	if t == nil {
		return nil, false
	}
	return t.queue.Lookup(namespace, name)
}

// Serving are the parts that serve while this member owns the group, else nil; deliveries and
// watches may be nil even then.
func (o *owner) Serving() (*queue.Queue, *dispatch.Dispatcher, *watch.Manager) {
	t := o.current()
	if t == nil || !t.lease.Valid() {
		return nil, nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.queue, t.dispatch, t.watches
}
