package watch

import (
	"context"
	"errors"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

const (
	// listTurn is how long a list goes on while others wait.
	listTurn = 5 * time.Second
	// maxVanished bounds the deletions that all lists remember until they are complete, in bytes, and
	// vanishedBytes is what one costs beside its path. The next list finds more.
	maxVanished   = 4 << 20
	vanishedBytes = 48
)

// list lists a namespace, or all, until it is complete, and leaves the watch of the
// stream behind it.
func (s *stream) list(ctx context.Context, namespace string) error {
	wanted := s.wanted
	if w, _ := s.r.rows.get(namespace); namespace != s.namespace || w.complete { // only namespaces may be new in it
		wanted = time.Now()
	}
	for more := true; more; {
		src := s.r.s.settings.Load()
		t, err := s.r.s.m.takeList(ctx, src.Namespace, s.r.served.Group)
		if err != nil {
			return err
		}
		l := &listing{s: s, namespace: namespace, wanted: wanted, turns: t, since: time.Now(), held: s.r.s.m.vanished.Claim(src.Namespace, src.Name)}
		err = l.run(ctx)
		removed := l.held.Held() > 0
		l.held.Release()
		l.turns.list.Release()
		l.turns.group.Release()
		if err != nil {
			if !errors.Is(err, objects.ErrGone) && !errors.Is(err, errOwners) {
				s.r.s.tally.list(resultFailed)
			}
			return err
		}
		s.r.s.tally.list(resultComplete)
		if more = l.overflow; more && !removed && !pause(ctx, backoffLeast) { // others remember too much
			return context.Cause(ctx)
		}
	}
	return nil
}

// listing is one list, compared with the marks in their common order.
type listing struct {
	s         *stream
	namespace string
	wanted    time.Time
	names     map[string]bool // the namespaces that count; nil: all
	marks     cursor
	batch     batch

	last      string // path of the object before
	unordered bool   // no deletion is proven
	doubt     bool   // the marks are of a state that the API server has lost
	vanished  []string
	held      budget.Claim // of vanished
	overflow  bool         // there are more
	refused   error        // an object has no mark, because the namespace may not store more

	turns listTurns
	since time.Time // when the turn began
}

func (l *listing) run(ctx context.Context) error {
	s, r := l.s, l.s.r
	if s.namespaces != nil { // also if others are selected meanwhile
		l.names = map[string]bool{}
		for _, name := range s.namespaces.names() {
			l.names[name] = true
		}
	}
	if err := l.begin(); err != nil {
		return err
	}
	if l.namespace != "" {
		l.marks = cursor{r: r, prefix: l.namespace + "/", after: l.namespace + "/"}
	} else {
		l.marks = cursor{r: r}
	}
	q, version := s.query(l.namespace), ""
	for {
		page, err := l.page(ctx, q)
		if err == nil {
			err = l.flush()
		}
		if err != nil {
			return err
		}
		if version == "" {
			version = page.Version
		}
		if q.Continue = page.Continue; q.Continue == "" {
			break
		}
		if err := l.pass(ctx); err != nil {
			return err
		}
	}
	for m, err := l.marks.next(); m != nil || err != nil; m, err = l.marks.next() {
		if err != nil {
			return err
		}
		l.absent(m.Object)
	}
	if err := l.remove(); err != nil {
		return err
	}
	switch {
	case l.refused != nil:
		return l.refused
	case l.overflow:
		return nil
	}
	return l.end(ctx, version)
}

// page reads a page. Once one has come others may list the group too, however many pages follow.
func (l *listing) page(ctx context.Context, q objects.Query) (objects.Page, error) {
	r, asked := l.s.r, time.Now()
	page, err := r.s.m.cfg.API.List(ctx, r.s.account(), q, l.turns.list, func(o *objects.Object) error { return l.object(ctx, o) })
	switch {
	case err == nil:
		r.s.m.late.answered(r.served.Group)
		l.turns.group.Release()
	case ctx.Err() == nil:
		r.s.m.late.failed(r.served.Group, err, time.Since(asked))
	}
	return page, err
}

// flush stores the batch. Where the marks are too many the list goes on without new
// objects: no delivery frees bytes for a mark, but the objects that the list does not find
// do.
func (l *listing) flush() error {
	err := l.s.r.flush(&l.batch, progress{skip: l.owe})
	if queue.MarksRefused(err) {
		l.refused = err
		return nil
	}
	return err
}

// owe is owe of the stream. In doubt the object must be scheduled however it looks: until then its mark matches
// nothing, since the next list has no doubt.
func (l *listing) owe(c *change, refused error) error {
	if r := l.s.r; l.doubt {
		m, ok, err := r.s.marks.Get(r.id, c.object)
		if err == nil && ok {
			before := m.Size()
			m.Hash = 0
			err = r.s.marks.Report(nil, []store.MarkChange{{Watch: r.id, Mark: m, Before: before}})
		}
		if err != nil {
			return err
		}
	}
	return l.s.owe(c, refused)
}

// full reports that no mark can be made.
func (l *listing) full() bool { return l.refused != nil }

// pass lets other lists go first when this one took its time.
func (l *listing) pass(ctx context.Context) error {
	if time.Since(l.since) < listTurn || !l.s.r.s.m.lists.Awaited() {
		return nil
	}
	if err := l.turns.list.Pass(ctx); err != nil {
		return err
	}
	l.since = time.Now()
	return nil
}

// begin stores that a list is under way: from here on the marks are not the marks of
// the previous version.
func (l *listing) begin() error {
	r := l.s.r
	w, ok := r.rows.get(l.namespace)
	changed := !ok
	if !ok {
		w = row{resource: r.id, namespace: l.namespace, selector: r.cfg.Selector}
	}
	whole := l.namespace == ""
	if w.selector != r.cfg.Selector && w.selector != mixed { // marks of both, until the list is complete
		w.selector, changed = mixed, true
	}
	if whole && l.s.namespaces == nil && w.partial && w.selector == r.cfg.Selector {
		w.partial, w.complete, changed = false, false, true // the rows of namespaces say what was complete
	}
	l.doubt = w.version == doubted // until the list is complete
	if changed {
		if err := r.keep(w); err != nil {
			return err
		}
	}
	if l.namespace == l.s.namespace {
		l.s.owed.err, l.s.assumed = nil, 0
		if none := l.s.none(); w.version != none {
			w.version = none
			if err := r.keep(w); err != nil {
				return err
			}
		}
	}
	if !whole {
		return nil
	}
	for name := range l.names { // from here on a mark without an object is a deletion
		w, ok := r.rows.get(name)
		switch {
		case !ok:
			w = row{resource: r.id, namespace: name, selector: r.cfg.Selector}
		case w.selector == r.cfg.Selector || w.selector == mixed:
			continue
		default:
			w.selector = mixed
		}
		if err := r.keep(w); err != nil {
			return err
		}
	}
	return nil
}

// object compares one object.
func (l *listing) object(ctx context.Context, o *objects.Object) error {
	if l.counts(o.Namespace) && !l.s.nameable(o) { // it has no mark
		return nil
	}
	path := o.Path()
	if path <= l.last && !l.unordered {
		l.unordered = true
		l.s.r.s.warn(reasonOrder, "the API server lists %s out of order: deletions count only when a watch reports them", l.s.r.served.Name())
	}
	l.last = path
	before, err := l.before(path)
	if err != nil {
		return err
	}
	if !l.counts(o.Namespace) || before == nil && l.full() {
		return nil
	}
	_, complete := l.s.r.rows.covers(o.Namespace, l.s.r.cfg.Selector)
	if err := l.s.compare(ctx, &l.batch, comparison{before: before, object: o, known: complete, wanted: l.wanted, doubt: l.doubt}); err != nil {
		return err
	}
	if l.batch.full() {
		return l.flush()
	}
	return nil
}

// before is the mark of the next object of the list. The marks in front of it have no
// object.
func (l *listing) before(path string) (*store.Mark, error) {
	if l.unordered {
		return l.s.r.before(&l.batch, path)
	}
	for {
		m, err := l.marks.peek()
		if err != nil || m == nil || m.Object > path {
			return nil, err
		}
		if _, err := l.marks.next(); err != nil {
			return nil, err
		}
		if m.Object == path {
			return m, nil
		}
		l.absent(m.Object)
	}
}

// absent remembers a mark without an object, until the list is complete.
func (l *listing) absent(path string) {
	switch {
	case !l.counts(namespaceOf(path)):
	case !l.held.TryGrow(int64(len(path) + vanishedBytes)):
		l.overflow = true
	default:
		l.vanished = append(l.vanished, path)
	}
}

// counts reports whether objects of the namespace are in the scope of the list.
func (l *listing) counts(namespace string) bool {
	return l.names == nil || l.names[namespace]
}

// remove removes the marks without an object: the list is complete. Under another
// selector than before an absence proves no deletion, and nothing is scheduled.
func (l *listing) remove() error {
	r := l.s.r
	if l.unordered {
		l.vanished, l.overflow = nil, false
		return nil
	}
	for _, path := range l.vanished {
		m, err := r.before(&l.batch, path)
		if err != nil {
			return err
		}
		if m == nil {
			continue
		}
		known, _ := r.rows.covers(namespaceOf(path), r.cfg.Selector)
		c, err := r.vanished(m, known)
		if err != nil {
			return err
		}
		l.batch.add(c)
		if l.batch.full() {
			if err := r.flush(&l.batch, progress{skip: l.owe}); err != nil {
				return err
			}
		}
	}
	l.vanished = nil
	return r.flush(&l.batch, progress{skip: l.owe})
}

// end stores that the list was complete.
func (l *listing) end(ctx context.Context, version string) error {
	s, r := l.s, l.s.r
	w := row{resource: r.id, namespace: l.namespace, selector: r.cfg.Selector, version: version, complete: true}
	if l.namespace == "" && s.namespaces != nil {
		for name := range l.names {
			part := w
			part.namespace = name
			if err := r.keep(part); err != nil {
				return err
			}
		}
		w.partial = true
	}
	if l.namespace == s.namespace {
		s.version, s.kept, s.refused = version, time.Now(), false
		if s.owed.err == nil {
			s.owed.tries = 0
		}
		if s.unsettled() {
			w.version = waiting(w.partial)
		}
		r.note(s.namespace, true, s.owed.err)
	}
	if err := r.keep(w); err != nil {
		return err
	}
	if l.namespace != "" || s.namespaces != nil {
		return nil
	}
	for _, name := range r.rows.namespaces() { // all namespaces have one row now
		if err := r.s.marks.Remove(rowID(r.id, name)); err != nil {
			return err
		}
		r.rows.remove(name)
	}
	return ctx.Err()
}
