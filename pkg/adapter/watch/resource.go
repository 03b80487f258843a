package watch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/expression"
)

// maxNoKindWait is the longest wait for a kind that does not exist yet, and maxNoRightWait for
// a right that the account does not have yet.
// A refused call costs the API server little, and its people wait for the result.
const maxNoKindWait, maxNoRightWait = 30 * time.Second, time.Minute

// maxUnreachableWait is the longest wait for an API server that cannot be reached: what changed
// meanwhile is found after it.
const maxUnreachableWait = 30 * time.Second

// resource is one entry of spec.watch.resources.
type resource struct {
	s     *source
	cfg   *schedule.WatchResource
	id    uint64
	key   *expression.WatchKey // nil: none
	fault error                // the expression does not compile
	rows  rows
	// wanted is since when its list is wanted, if none was complete yet.
	wanted time.Time
	twins  *twins // nil: there are none

	served objects.Resource                 // set before the first stream
	owners atomic.Pointer[objects.Resource] // their kind; nil: it is not known

	counting     sync.Mutex   // held while a batch changes the number or the bytes of marks
	objects      atomic.Int64 // that have a mark, or uncounted
	bytes        int64        // of the marks, once they are counted
	open         atomic.Int64 // watches
	perNamespace atomic.Bool  // each namespace has a watch of its own

	mu     sync.Mutex
	health map[string]*health // of its streams, by namespace
}

// uncounted is the number of objects of a resource without a row of it.
const uncounted = -1

// health is how a stream is.
type health struct {
	complete bool
	err      error
	since    time.Time // of the error
}

func (h *health) note(complete bool, err error) {
	if err != nil && h.err == nil {
		h.since = time.Now()
	}
	h.err, h.complete = err, h.complete || complete
}

// lasts reports that the error is there for long, or that it never worked before.
func (h *health) lasts(now time.Time) bool {
	return !h.complete || now.Sub(h.since) >= unreachableAfter
}

// note records how a stream is, and publishes it. nil: it works.
func (r *resource) note(namespace string, complete bool, err error) {
	r.mu.Lock()
	h := r.health[namespace]
	if h == nil {
		h = &health{}
		r.health[namespace] = h
	}
	h.note(complete, err)
	r.mu.Unlock()
	r.s.publish()
}

// complete reports that all streams had a complete list.
func (r *resource) complete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.health {
		if !h.complete {
			return false
		}
	}
	return true
}

// listed reports that there are streams, and that all had a complete list.
func (r *resource) listed() bool {
	r.mu.Lock()
	streams := len(r.health)
	r.mu.Unlock()
	return streams > 0 && r.complete()
}

func (r *resource) forget(namespace string) {
	r.mu.Lock()
	delete(r.health, namespace)
	r.mu.Unlock()
	r.s.publish()
}

// run watches the resource until ctx ends. A kind that goes may come back with another plural or scope, so it is
// found anew.
func (r *resource) run(ctx context.Context) {
	if r.fault != nil {
		return // the status says it
	}
	for failures := 0; ; failures++ {
		began := time.Now()
		err := r.watch(ctx)
		if ctx.Err() != nil || !errors.Is(err, objects.ErrNoSuchKind) {
			return
		}
		r.note("", false, err) // the stream is gone with its error
		r.s.m.worked(began, &failures)
		if !pause(ctx, r.s.m.wait(err, failures+1)) {
			return
		}
	}
}

// watch finds the kind, and watches it until ctx ends, or the source or the kind is gone.
func (r *resource) watch(ctx context.Context) error {
	if !r.retry(ctx, "", r.begin) { // what waits for its kind takes no watch of the others
		return context.Cause(ctx)
	}
	r.forget("")
	w := r.s.watch
	switch {
	case !r.served.Namespaced:
		return r.stream("", nil).run(ctx)
	case w.OwnNamespace:
		return r.stream(r.s.account().Namespace, nil).run(ctx)
	case r.s.namespaces == nil:
		return r.stream("", nil).run(ctx)
	}
	return r.runSelected(ctx)
}

// begin counts the objects, finds the kind, and removes what is not watched any more.
func (r *resource) begin(ctx context.Context) error {
	if err := r.count(); err != nil {
		return err
	}
	var err error
	if r.served, err = r.s.m.cfg.API.Resolve(ctx, r.s.account(), r.cfg.Group, r.cfg.Version, r.cfg.Kind); err != nil {
		return err
	}
	parts := r.served.Namespaced && (r.s.watch.OwnNamespace || r.s.namespaces != nil)
	if _, ok := r.rows.get(""); !ok { // marks are found under it
		if err := r.keep(row{resource: r.id, partial: parts, selector: r.cfg.Selector}); err != nil {
			return err
		}
	}
	if !r.s.watch.OwnNamespace || !r.served.Namespaced {
		return nil
	}
	own := r.s.account().Namespace
	err = r.narrow(ctx, []string{own}, func(namespace string) membership {
		if namespace == own {
			return selected
		}
		return deselected
	})
	if err != nil {
		return err
	}
	return r.part()
}

// count counts the marks of a resource that has no row of their number and bytes. The
// queue reads the row, and counts the bytes of the namespace from then on.
func (r *resource) count() error {
	r.counting.Lock()
	defer r.counting.Unlock()
	if r.objects.Load() != uncounted {
		return nil
	}
	n, size, err := r.s.marks.Count(r.id)
	if err != nil {
		return err
	}
	if err := r.s.marks.SetState(counted(r.id, n, size)); err != nil {
		return err
	}
	r.bytes = size
	r.objects.Store(n)
	return nil
}

// marked is the number of objects that have a mark, 0 before they are counted.
func (r *resource) marked() int64 { return max(0, r.objects.Load()) }

// relisting is the version of a watch of all namespaces whose list is under way: the
// rows of its namespaces have no version to go on from either.
const relisting = "-"

// doubted is the version of a watch whose marks are of a state that the API server has lost: its next
// list schedules every object.
const doubted = "?"

// part gives each namespace a row for a watch of its own. Before, one watch of all
// namespaces may have reported their objects.
func (r *resource) part() error {
	whole, ok := r.rows.get("")
	if !ok || whole.version == "" {
		return nil
	}
	version := whole.version
	if version == relisting {
		version = ""
	}
	for _, name := range r.rows.namespaces() {
		w, _ := r.rows.get(name)
		if standingOf(w.version, version) == lost { // its own list was later
			continue
		}
		w.version = version
		if err := r.keep(w); err != nil {
			return err
		}
	}
	whole.version = ""
	return r.keep(whole)
}

// membership is what became of a namespace for a source.
type membership uint8

const (
	selected membership = iota
	deselected
	gone // it does not exist any more
)

// narrow records in the rows that only selected namespaces are watched, and removes the
// marks of all others. Objects of a namespace that is gone are gone too; about all
// others nothing is scheduled.
func (r *resource) narrow(ctx context.Context, names []string, of func(namespace string) membership) error {
	if whole, ok := r.rows.get(""); ok && !whole.partial {
		err := r.sweep(ctx, "", func(m *store.Mark) (remove, report bool) {
			f := of(namespaceOf(m.Object))
			return f != selected, f == gone
		})
		if err != nil {
			return err
		}
		for _, name := range names {
			if _, ok := r.rows.get(name); !ok {
				w := whole
				w.namespace = name
				if err := r.keep(w); err != nil {
					return err
				}
			}
		}
		whole.partial = true
		if err := r.keep(whole); err != nil {
			return err
		}
	}
	for _, name := range r.rows.namespaces() {
		if f := of(name); f != selected {
			if err := r.drop(ctx, name, f == gone); err != nil {
				return err
			}
		}
	}
	return nil
}

// drop removes the marks and the row of a namespace. report: its objects are deleted,
// which schedules their keys.
func (r *resource) drop(ctx context.Context, namespace string, report bool) error {
	// After a crash on the way the namespace is listed if it is selected again: a watch that goes on would report what was
	// reported.
	if w, ok := r.rows.get(namespace); ok && w.complete {
		w.complete = false
		if err := r.keep(w); err != nil {
			return err
		}
	}
	err := r.sweep(ctx, namespace+"/", func(*store.Mark) (bool, bool) { return true, report })
	if err != nil {
		return err
	}
	if err := r.s.marks.Remove(rowID(r.id, namespace)); err != nil {
		return err
	}
	r.rows.remove(namespace)
	return nil
}

// sweep removes marks by their prefix, and reports the objects of some as deleted.
func (r *resource) sweep(ctx context.Context, prefix string, judge func(*store.Mark) (remove, report bool)) error {
	marks := cursor{r: r, prefix: prefix, after: prefix}
	var b batch
	for ctx.Err() == nil {
		m, err := marks.next()
		if err != nil {
			return err
		}
		if m != nil {
			if remove, report := judge(m); remove {
				c, err := r.vanished(m, report)
				if err != nil {
					return err
				}
				b.add(c)
			}
		}
		if b.full() || m == nil {
			if err := r.flush(&b, progress{}); err != nil {
				return err
			}
		}
		if m == nil {
			return nil
		}
	}
	return context.Cause(ctx)
}

// vanished is the change of a mark without an object.
func (r *resource) vanished(m *store.Mark, report bool) (change, error) {
	last := &observed{path: m.Object, uid: m.UID, own: m.Keys == nil}
	d := decision{remove: true, more: -1}
	if report {
		d = decide(r.cfg.Kind, m, last, true)
	}
	return r.change(m, d, last, "")
}

// keep stores a row.
func (r *resource) keep(w row) error {
	undo, err := r.rows.reserve(&w)
	if err != nil {
		return err
	}
	if err := r.s.marks.SetState(w.state()); err != nil {
		undo()
		return err
	}
	r.rows.set(w)
	return nil
}

// observe reads an object as it counts.
func (r *resource) observe(ctx context.Context, o *objects.Object) (*observed, error) {
	s := &observed{path: o.Path(), uid: usable(o.UID), version: o.Version, created: o.Created}
	var err error
	switch {
	case r.key != nil:
		s.targets, err = r.evaluate(ctx, o)
	case r.cfg.OwnerKind != "":
		kind := r.owners.Load() // one that does not exist counts as one with a namespace
		var more bool
		if s.targets, more = ownerTargets(o, r.cfg.OwnerGroup, r.cfg.OwnerKind, kind == nil || kind.Namespaced); more {
			r.s.warn(reasonKey, "%s %s has more than %d owners of the kind %s: its change schedules only these", r.served.Name(), o.Path(), maxOwners, r.cfg.OwnerKind)
		}
	default:
		s.own = true
		s.targets = []target{{key: keyOf(r.cfg.Kind, o.Namespace, o.Name), uid: s.uid}}
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, &keyError{err}
	}
	s.hash = fingerprint(o, r.cfg.Changes)
	return s, nil
}

// evaluate evaluates the expression for an object, in turn with the other sources.
func (r *resource) evaluate(ctx context.Context, o *objects.Object) ([]target, error) {
	src := r.s.settings.Load()
	turn, err := r.s.m.evaluating.Take(ctx, src.Namespace, src.Name)
	if err != nil {
		return nil, err
	}
	defer turn.Release()
	return expressionTargets(ctx, r.key, r.served, o)
}

// owns reports whether an owner is of the group and kind that count.
func (r *resource) owns(o objects.Owner) bool {
	return o.Kind == r.cfg.OwnerKind && groupOf(o.APIVersion) == r.cfg.OwnerGroup
}

// keyError is an expression that failed for an object.
type keyError struct{ error }

func (e *keyError) Unwrap() error { return e.error }

// change makes the items and the mark of a decision. before is the mark of the object, nil
// when it has none.
func (r *resource) change(before *store.Mark, d decision, now *observed, version string) (change, error) {
	if err := r.known(d.targets); err != nil {
		return change{}, err
	}
	c := change{object: now.path, version: version, verb: d.verb, more: d.more}
	for _, t := range d.targets {
		c.items = append(c.items, item(t, 0, r.cfg.Priority, r.event(d.verb, now, t), ""))
	}
	switch {
	case d.mark != nil:
		c.marks = []store.MarkChange{{Watch: r.id, Mark: *d.mark}}
	case d.remove:
		c.marks = []store.MarkChange{{Watch: r.id, Mark: store.Mark{Object: now.path}, Remove: true}}
	}
	if before != nil && len(c.marks) > 0 {
		c.marks[0].Before = before.Size()
	}
	return c, nil
}

// event is the event for a target of a change.
func (r *resource) event(v verb, now *observed, t target) *schedule.Event {
	if r.own() && t.key == keyOfPath(r.cfg.Kind, now.path) {
		return ownEvent(r.s.settings.Load(), r.served, now, v)
	}
	return causedEvent(r.served, now, t.final)
}

// flush reports a batch and empties it, and counts what is stored.
func (r *resource) flush(b *batch, p progress) error {
	defer b.reset()
	if r.twins != nil {
		r.twins.mu.Lock()
		defer r.twins.mu.Unlock()
		if err := r.correct(b); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(b.changes, func(c change) bool { return c.more != 0 || c.growth() != 0 }) { // the others need not wait
		r.counting.Lock()
		defer r.counting.Unlock()
	}
	p.counted = func(more, growth int64) store.MarkChange {
		row := counted(r.id, r.objects.Load()+more, r.bytes+growth)
		return store.MarkChange{Watch: row.Watch, State: &row}
	}
	follow := p.done
	p.done = func(changes []change, version string) {
		for i := range changes {
			if growth := changes[i].growth(); growth != 0 { // counting is held
				r.bytes += growth
			}
			r.objects.Add(changes[i].more)
			if len(changes[i].items) > 0 {
				r.s.tally.change(string(changes[i].verb))
			}
		}
		if follow != nil {
			follow(changes, version)
		}
	}
	err := report(r.s.marks, b.changes, p)
	var refused *schedule.Error
	if errors.As(err, &refused) && !r.s.removed(err) {
		r.s.warn(reasonRefused, "changes of %s wait, because the source may not store more: %s", r.served.Name(), refused.Detail)
		r.s.tally.change(resultRefused)
	}
	return err
}

// before is the mark of an object, as it will be once the batch is stored.
func (r *resource) before(b *batch, path string) (*store.Mark, error) {
	if m, ok := b.pending[path]; ok {
		return m, nil
	}
	m, ok, err := r.s.marks.Get(r.id, path)
	if err != nil || !ok {
		return nil, err
	}
	return &m, nil
}

// cursor reads the marks of a resource in their order, by page.
type cursor struct {
	r             *resource
	prefix, after string
	page          []store.Mark
	ended         bool
}

const cursorPage = 500

// peek returns the next mark, nil at the end.
func (c *cursor) peek() (*store.Mark, error) {
	for len(c.page) == 0 {
		if c.ended {
			return nil, nil
		}
		page, more, err := c.r.s.marks.List(c.r.id, c.after, cursorPage)
		if err != nil {
			return nil, fmt.Errorf("watch: reading marks: %w", err)
		}
		c.page, c.ended = page, !more
		if len(page) > 0 {
			c.after = page[len(page)-1].Object
		}
	}
	m := &c.page[0]
	if len(m.Object) < len(c.prefix) || m.Object[:len(c.prefix)] != c.prefix {
		c.page, c.ended = nil, true
		return nil, nil
	}
	return m, nil
}

// next returns the next mark and goes on, nil at the end.
func (c *cursor) next() (*store.Mark, error) {
	m, err := c.peek()
	if m != nil {
		c.page = c.page[1:]
	}
	return m, err
}
