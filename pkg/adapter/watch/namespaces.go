package watch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// goneGrace is how long a deleted namespace still counts: the events of its objects
// come on other watches.
const goneGrace = 10 * time.Second

// Each namespace has a watch of its own for firstRetry, then for twice as long, up to perNamespaceRetry, before one
// watch of all namespaces is tried again: the account may have got the right.
const firstRetry, perNamespaceRetry = time.Minute, 10 * time.Minute

// perNamespaceRetry is that time with its jitter, after so many tries.
func (m *Manager) perNamespaceRetry(tries int) time.Duration {
	least := min(firstRetry<<min(tries, 4), perNamespaceRetry)
	return least + time.Duration(m.cfg.Random()*float64(least))
}

// namespaceResource is the resource of namespaces.
var namespaceResource = objects.Resource{Version: "v1", Kind: "Namespace", Plural: "namespaces"}

// namespaceSet follows the namespaces whose labels match, for all resources of a source.
type namespaceSet struct {
	s        *source
	selector labels.Selector
	opened   time.Time // as of a stream

	mu      sync.Mutex
	known   map[string]bool // the namespaces that exist, and whether they are selected
	memory  memory          // of known
	health  health
	ready   chan struct{} // closed once listed
	changed chan struct{} // closed at the next change of the selected ones
}

func newNamespaceSet(s *source, selector string) (*namespaceSet, error) {
	parsed, err := labels.Parse(selector)
	if err != nil {
		return nil, fmt.Errorf("the selector of namespaces: %w", err)
	}
	n := &namespaceSet{s: s, selector: parsed, known: map[string]bool{}, ready: make(chan struct{}), changed: make(chan struct{})}
	n.memory.claim = s.remembering()
	return n, nil
}

// wait waits for the first list, and returns a channel that is closed at the next
// change.
func (n *namespaceSet) wait(ctx context.Context) (<-chan struct{}, error) {
	select {
	case <-n.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed, nil
}

// names are the selected namespaces, in order.
func (n *namespaceSet) names() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var names []string
	for name, is := range n.known {
		if is {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// membership says what became of a namespace.
func (n *namespaceSet) membership(namespace string) membership {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch is, exists := n.known[namespace]; {
	case is:
		return selected
	case exists:
		return deselected
	}
	return gone
}

// set records a namespace, if the source may remember one more.
func (n *namespaceSet) set(o *objects.Object) error {
	set := labels.Set{}
	for name, value := range o.Labels {
		set[name], _ = value.(string)
	}
	is := n.selector.Matches(set)
	n.mu.Lock()
	defer n.mu.Unlock()
	was, exists := n.known[o.Name]
	if !exists {
		if err := n.memory.grow(int64(nameBytes + len(o.Name))); err != nil {
			return err
		}
	}
	n.known[o.Name] = is
	if is != was {
		n.signal()
	}
	return nil
}

// release forgets the namespaces, before the first list is complete: no stream has asked for them.
func (n *namespaceSet) release() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.known)
	n.memory.shrink(n.memory.bytes)
}

// remove records that a namespace is gone, after a while.
func (n *namespaceSet) remove(ctx context.Context, namespace string) {
	time.AfterFunc(goneGrace, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if was, exists := n.known[namespace]; exists && ctx.Err() == nil {
			n.memory.shrink(int64(nameBytes + len(namespace)))
			delete(n.known, namespace)
			if was {
				n.signal()
			}
		}
	})
}

// signal wakes the streams. The caller holds the lock.
func (n *namespaceSet) signal() {
	if n.health.complete {
		close(n.changed)
		n.changed = make(chan struct{})
	}
}

// run follows the namespaces until ctx ends.
func (n *namespaceSet) run(ctx context.Context) {
	going := map[string]context.CancelFunc{} // removals that wait
	defer func() {
		for _, stay := range going {
			stay()
		}
		n.mu.Lock() // known stays: without it all namespaces would be gone for a stream that ends later
		defer n.mu.Unlock()
		n.memory.claim.Release()
	}()
	version := ""
	src := n.s.settings.Load()
	claim := n.s.m.streams.Claim(src.Namespace, src.Name)
	defer claim.Release()
	for failures, gone := 0, 0; ctx.Err() == nil; { // as of a stream
		began := time.Now()
		n.opened = time.Time{}
		var err error
		if !claim.Renew() && !claim.TryGrow(1) {
			err = errWatches
		}
		q := objects.Query{Resource: namespaceResource, Version: version}
		if err == nil && version != "" {
			var is standing
			if is, err = n.s.standing(ctx, q); is != held {
				version = ""
			}
		}
		if err == nil && version == "" {
			version, err = n.list(ctx, going)
		}
		if err == nil {
			version, err = n.watch(ctx, version, going)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil && !n.status().complete { // it takes no memory while it waits
			n.release()
		}
		if err != nil {
			n.note(err)
			n.s.m.worked(n.opened, &failures, &gone)
		}
		if err == nil && time.Since(began) >= shortLife {
			failures, gone = 0, 0
			continue
		}
		count := &failures
		if errors.Is(err, objects.ErrGone) {
			version, count = "", &gone
		}
		*count++
		claim.Release()
		if !pause(ctx, n.s.m.wait(err, *count)) {
			return
		}
	}
}

func (n *namespaceSet) note(err error) {
	n.mu.Lock()
	n.health.note(false, err)
	n.mu.Unlock()
	n.s.publish()
}

func (n *namespaceSet) status() health {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.health
}

// list reads all namespaces.
func (n *namespaceSet) list(ctx context.Context, going map[string]context.CancelFunc) (version string, err error) {
	api, account := n.s.m.cfg.API, n.s.account()
	turn, err := n.s.m.lists.Take(ctx, account.Namespace, "")
	if err != nil {
		return "", err
	}
	defer turn.Release()
	seen := map[string]bool{}
	q := objects.Query{Resource: namespaceResource}
	for {
		page, err := api.List(ctx, account, q, turn, func(o *objects.Object) error {
			seen[o.Name] = true
			return n.exists(o, going)
		})
		if err != nil {
			return "", err
		}
		if version == "" {
			version = page.Version
		}
		if q.Continue = page.Continue; q.Continue == "" {
			break
		}
	}
	n.mu.Lock()
	var lost []string
	for name := range n.known {
		if !seen[name] {
			lost = append(lost, name)
		}
	}
	if !n.health.complete {
		n.health.complete = true
		close(n.ready)
	}
	n.mu.Unlock()
	for _, name := range lost {
		n.drop(ctx, name, going)
	}
	return version, nil
}

func (n *namespaceSet) exists(o *objects.Object, going map[string]context.CancelFunc) error {
	if stay := going[o.Name]; stay != nil { // it was made again
		stay()
		delete(going, o.Name)
	}
	return n.set(o)
}

func (n *namespaceSet) drop(ctx context.Context, name string, going map[string]context.CancelFunc) {
	if going[name] == nil {
		ctx, stay := context.WithCancel(ctx)
		going[name] = stay
		n.remove(ctx, name)
	}
}

// watch follows changes until the watch ends, and returns where the next one goes on.
func (n *namespaceSet) watch(ctx context.Context, version string, going map[string]context.CancelFunc) (string, error) {
	working := false
	var reading reading
	defer reading.done()
	err := n.s.m.cfg.API.Watch(ctx, n.s.account(), objects.Query{Resource: namespaceResource, Version: version}, objects.Handler{
		Begin: func() error { return reading.begin(ctx, n.s, func() error { return nil }) },
		Each: func(t objects.EventType, o *objects.Object) error {
			switch t {
			case objects.Added, objects.Modified:
				if err := n.exists(o, going); err != nil {
					return err
				}
			case objects.Deleted:
				n.drop(ctx, o.Name, going)
			case objects.Bookmark:
			}
			if o.Version != "" {
				version = o.Version
			}
			return nil
		},
		Idle: func() error {
			reading.done()
			if !working {
				working, n.opened = true, time.Now()
				n.note(nil)
			}
			return nil
		},
	})
	return version, err
}

// runSelected watches the namespaces that are selected: all of them with one watch
// where the account may, else each with its own.
func (r *resource) runSelected(ctx context.Context) error {
	for {
		whole := r.stream("", r.s.namespaces)
		err := whole.runUntil(ctx, whole.deniesAll)
		if ctx.Err() != nil || r.s.removed(err) || errors.Is(err, objects.ErrNoSuchKind) {
			return err
		}
		if !r.retry(ctx, "", func(context.Context) error { return r.part() }) {
			return context.Cause(ctx)
		}
		r.perNamespace.Store(true)
		r.forget("")
		err = r.runParts(ctx)
		r.perNamespace.Store(false)
		if err != nil {
			return err
		}
	}
}

// deniesAll reports that the account may not watch all namespaces. Where it could, the refusal must last: an API
// server that starts refuses until it has read RBAC.
func (s *stream) deniesAll(err error) bool {
	denied, ok := errors.AsType[*objects.Forbidden](err)
	switch {
	case !ok || denied.Verb == "" || denied.Namespace != "":
		s.denied = time.Time{}
		return false
	case s.denied.IsZero():
		s.denied = time.Now()
	}
	return !s.r.listed() || time.Since(s.denied) >= unreachableAfter
}

// wholeAllowed reports that the account may list and watch all namespaces by now.
func (r *resource) wholeAllowed(ctx context.Context) bool {
	enough := errors.New("watch: it is allowed")
	api, q := r.s.m.cfg.API, objects.Query{Resource: r.served, Selector: r.cfg.Selector}
	turn, err := r.s.m.lists.Take(ctx, r.s.account().Namespace, "")
	if err != nil {
		return false
	}
	_, err = api.List(ctx, r.s.account(), q, turn, func(*objects.Object) error { return enough })
	turn.Release()
	if err != nil && !errors.Is(err, enough) {
		return false
	}
	begun := func() error { return enough }
	err = api.Watch(ctx, r.s.account(), q, objects.Handler{Begin: begun, Each: func(objects.EventType, *objects.Object) error { return enough }, Idle: begun})
	return err == nil || errors.Is(err, enough)
}

// runParts has a watch for each selected namespace, until one watch may serve all of them, which
// is no error, or ctx ends, or the kind is gone.
func (r *resource) runParts(ctx context.Context) error {
	ctx, gone := context.WithCancelCause(ctx)
	defer gone(nil)
	var running sync.WaitGroup
	defer running.Wait()
	type part struct {
		end  context.CancelFunc
		done chan struct{}
	}
	parts := map[string]part{}
	held := r.s.remembering() // for them
	defer held.Release()
	tries := 0
	whole := time.NewTimer(r.s.m.perNamespaceRetry(tries))
	defer whole.Stop()
	for {
		changed, err := r.s.namespaces.wait(ctx)
		if err != nil {
			break
		}
		names := r.s.namespaces.names()
		for name, p := range parts {
			if !slices.Contains(names, name) {
				p.end()
				<-p.done
				delete(parts, name)
				held.Shrink(partBytes)
			}
		}
		if !r.retry(ctx, "", func(ctx context.Context) error { return r.narrow(ctx, names, r.s.namespaces.membership) }) {
			break
		}
		r.forget("")
		var again <-chan time.Time
		for _, name := range names {
			if _, ok := parts[name]; ok {
				continue
			}
			if !held.TryGrow(partBytes) {
				err := r.errPartWatches()
				r.note("", false, err)
				again = time.After(r.s.m.wait(err, len(parts)+1))
				break
			}
			ctx, end := context.WithCancel(ctx)
			p := part{end: end, done: make(chan struct{})}
			parts[name] = p
			running.Go(func() {
				defer close(p.done)
				defer end()
				if err := r.stream(name, nil).run(ctx); errors.Is(err, objects.ErrNoSuchKind) {
					gone(err)
				}
			})
		}
		allowed := false
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
		case <-whole.C:
			allowed = r.wholeAllowed(ctx)
			tries++
			whole.Reset(r.s.m.perNamespaceRetry(tries))
		}
		if allowed && r.complete() {
			r.note("", true, nil) // the status stays while all namespaces are listed
		}
		if allowed || !pause(ctx, reselectGap) {
			break
		}
	}
	for _, p := range parts {
		p.end()
	}
	return context.Cause(ctx)
}
