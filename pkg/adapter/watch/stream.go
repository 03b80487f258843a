package watch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

const (
	// flushGap is the least time between two batches of a watch: meanwhile more events
	// arrive for the next one.
	flushGap = 20 * time.Millisecond
	// backlogGap is the wait at the begin of a watch. What changed before it arrives
	// meanwhile, so that several changes of an object are one batch, and one run.
	backlogGap = 100 * time.Millisecond
	// versionGap is the least time between two versions that are stored by themselves.
	versionGap = 30 * time.Second
	// reselectGap collects changes of namespaces.
	reselectGap = time.Second
	// startJitter and goneJitter spread the streams of a start, and the lists after a
	// version expired.
	startJitter, goneJitter = time.Second, 10 * time.Second
)

// youngest is how much older than the first wish for its list an object may be that a first list schedules at once,
// though the source is older: a source that lost its memory, or watches otherwise now, has objects of any age that are
// no news. A list that comes late, as for a right that was missing, has objects that were made meanwhile.
const youngest = 2 * time.Minute

// failuresBeforeList is how many failures in a row make a stream list: a change that is refused
// for its mark hides deletions, which free space.
const failuresBeforeList = 6

// stream is one watch of a resource: of all namespaces, or of one. One goroutine lists
// and watches, so that the changes of an object are reported in their order.
type stream struct {
	r          *resource
	namespace  string        // "" = all
	namespaces *namespaceSet // the namespaces of a watch of all that count; nil: all of them

	claim   budget.Claim // of one watch
	wanted  time.Time    // since when the first list is wanted
	version string       // where the watch goes on; "" = a list is needed
	kept    time.Time
	opened  time.Time // when the watch began to wait for events; zero: it did not
	batch   batch
	reading reading
	refused bool      // for a quota, and not stored since
	denied  time.Time // since when all namespaces are denied; zero: they are not
	owed    owed
	// ownerless is when the API server was asked for the kind of the owners and had none.
	ownerless time.Time
	// assumed is how often it had none since an object was taken to have owners with a namespace; 0: none was. The
	// kind is asked for until it comes, and if it has no namespace a list finds the right keys. No version is stored
	// until then, so that a restart lists too.
	assumed int
}

func (r *resource) stream(namespace string, namespaces *namespaceSet) *stream {
	s := &stream{r: r, namespace: namespace, namespaces: namespaces, wanted: time.Now()}
	if !r.rows.listed() {
		s.wanted = r.wanted
	}
	w, ok := r.rows.get(namespace)
	if ok && w.complete && w.selector == r.cfg.Selector && w.partial == (namespaces != nil) && w.version != relisting && w.version != doubted {
		s.version = w.version
	}
	return s
}

// run lists and watches until ctx ends, or the source or the kind is gone.
func (s *stream) run(ctx context.Context) error {
	return s.runUntil(ctx, func(error) bool { return false })
}

// runUntil is run, and returns the first error for which it shall end.
func (s *stream) runUntil(ctx context.Context, ends func(error) bool) error {
	defer s.r.forget(s.namespace)
	src := s.r.s.settings.Load()
	s.claim = s.r.s.m.streams.Claim(src.Namespace, src.Name)
	defer s.claim.Release()
	if s.version != "" { // the list was complete before
		s.r.note(s.namespace, true, nil)
	}
	if !pause(ctx, time.Duration(s.r.s.m.cfg.Random()*float64(startJitter))) {
		return context.Cause(ctx)
	}
	// A version that has expired is no failure of the calls before it, but one expires after the other
	// when the lists take longer than the API server remembers.
	for failures, gone := 0, 0; ctx.Err() == nil; {
		began := time.Now()
		s.opened = time.Time{}
		err := s.once(ctx)
		if err != nil {
			s.r.s.m.worked(s.opened, &failures, &gone)
		}
		wait := &failures
		switch {
		case ctx.Err() != nil || s.r.s.removed(err):
			return err
		case errors.Is(err, errReselect):
			if !pause(ctx, reselectGap) {
				return context.Cause(ctx)
			}
			continue
		case errors.Is(err, errOwed):
			s.version = ""
			continue
		case err == nil && time.Since(began) >= shortLife:
			failures, gone = 0, 0
			continue
		case errors.Is(err, objects.ErrGone):
			s.version = ""
			s.r.s.tally.list(resultGone)
			gone++
			if !pause(ctx, time.Duration(s.r.s.m.cfg.Random()*float64(goneJitter))) {
				return context.Cause(ctx)
			}
			if wait = &gone; gone == 1 {
				continue
			}
		case err != nil:
			failures++
			s.fail(err, failures)
			if ends(err) || errors.Is(err, objects.ErrNoSuchKind) {
				return err
			}
		default:
			failures++
		}
		s.claim.Release() // what cannot watch now gives way
		if !pause(ctx, s.r.s.m.wait(err, *wait)) {
			return context.Cause(ctx)
		}
	}
	return context.Cause(ctx)
}

// fail records an error for the status of the source. A refusal of the queue is no failure of
// the API server: the status shows only that a quota is exceeded, which the author can change.
func (s *stream) fail(err error, failures int) {
	if refused, ok := errors.AsType[*schedule.Error](err); ok && refused.Code != schedule.CodeInvalid {
		if s.refused = overQuota(err); s.refused {
			s.r.note(s.namespace, false, err)
		}
		if failures >= failuresBeforeList && queue.MarksRefused(err) { // a list finds what frees space for more
			s.version = ""
		}
		return
	}
	s.r.note(s.namespace, false, err)
}

// wait is the wait after an error.
func (m *Manager) wait(err error, failures int) time.Duration {
	d := m.backoff(failures)
	var denied *objects.Forbidden
	switch {
	case errors.Is(err, objects.ErrNoSuchKind):
		return min(d, maxNoKindWait)
	case errors.As(err, &denied):
		return min(d, maxNoRightWait)
	case isOverShare(err), err != nil && !errors.Is(err, objects.ErrGone) && classify("", err).reason == schedule.WatchUnreachable:
		return min(d, maxUnreachableWait)
	}
	return d
}

// retry calls do until it succeeds; false when ctx ended or the source is gone.
func (r *resource) retry(ctx context.Context, namespace string, do func(context.Context) error) bool {
	for failures := 1; ; failures++ {
		err := do(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() != nil || r.s.removed(err) {
			return false
		}
		r.note(namespace, false, err)
		if !pause(ctx, r.s.m.wait(err, failures)) {
			return false
		}
	}
}

// errOwners ends a list or a watch that needs to know the kind of the owners. It has a turn that
// others wait for, and the call that finds the kind waits for the limits of its namespace.
var errOwners = errors.New("watch: the kind of the owners is not known")

// missingOwnerLife is how long a watch takes a kind that did not exist as one that does not.
const missingOwnerLife = 5 * time.Second

// once lists what must be listed, and watches until the watch ends.
func (s *stream) once(ctx context.Context) error {
	s.ownerless = time.Time{}
	if s.r.owners.Load() != nil || s.assumed > 0 { // the kind may have been installed, or again with another scope
		if err := s.findOwners(ctx); err != nil {
			return err
		}
	}
	for {
		err := s.listAndWatch(ctx)
		if !errors.Is(err, errOwners) {
			return err
		}
		if err := s.findOwners(ctx); err != nil {
			return err
		}
	}
}

// findOwners finds the kind of the owners, or that there is none.
func (s *stream) findOwners(ctx context.Context) error {
	cfg := s.r.cfg
	kind, err := s.r.s.m.cfg.API.Resolve(ctx, s.r.s.account(), cfg.OwnerGroup, "", cfg.OwnerKind)
	switch {
	case err == nil:
		s.r.owners.Store(&kind)
		s.settle(kind)
	case errors.Is(err, objects.ErrNoSuchKind):
		s.ownerless = time.Now()
		if s.assumed > 0 {
			s.assumed++
		}
	default:
		return err
	}
	return nil
}

// settle ends what was assumed about the kind of the owners.
func (s *stream) settle(kind objects.Resource) {
	if s.assumed > 0 && !kind.Namespaced {
		s.version = ""
	}
	s.assumed = 0
}

// ownersDue reports that the kind of the owners must be asked for again. To open the watch anew may take longer.
func (s *stream) ownersDue() bool {
	return s.assumed > 0 && min(time.Since(s.ownerless), time.Since(s.opened)) >= max(missingOwnerLife, s.r.s.m.backoff(s.assumed))
}

// unsettled reports that a list is needed after a restart, whatever the watch has reported.
func (s *stream) unsettled() bool { return s.owed.err != nil || s.assumed > 0 }

// needsOwners reports that the kind of the object's owners must be found first. An owner of
// another kind costs no call. A list keeps one answer to its end: a new one would begin it anew.
func (s *stream) needsOwners(o *objects.Object, listing bool) bool {
	r := s.r
	if r.key != nil || r.cfg.OwnerKind == "" || r.owners.Load() != nil || !slices.ContainsFunc(o.Owners, r.owns) {
		return false
	}
	// To open the watch anew may take longer: then the answer is as old as the watch.
	if s.ownerless.IsZero() || !listing && min(time.Since(s.ownerless), time.Since(s.opened)) >= missingOwnerLife {
		return true
	}
	s.assumed = max(s.assumed, 1)
	return false
}

// listAndWatch is once, until it needs to know the kind of the owners.
func (s *stream) listAndWatch(ctx context.Context) error {
	if !s.claim.Renew() && !s.claim.TryGrow(1) {
		if s.r.perNamespace.Load() {
			return s.r.errPartWatches()
		}
		return errWatches
	}
	var selection <-chan struct{}
	if s.namespaces != nil {
		var err error
		if selection, err = s.namespaces.wait(ctx); err != nil {
			return err
		}
	}
	if s.version != "" {
		if err := s.check(ctx); err != nil {
			return err
		}
	}
	if s.version == "" {
		if err := s.list(ctx, s.namespace); err != nil {
			return err
		}
	}
	if s.namespaces != nil {
		if err := s.reselect(ctx); err != nil {
			return err
		}
	}
	return s.watch(ctx, selection)
}

// errReselect ends a watch whose namespaces have changed.
var errReselect = errors.New("watch: the namespaces have changed")

// watch reports the events until the watch ends.
func (s *stream) watch(ctx context.Context, selection <-chan struct{}) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if selection != nil {
		go func() {
			select {
			case <-selection:
				end(errReselect)
			case <-ctx.Done():
			}
		}()
	}
	s.batch.reset()
	defer s.reading.done()
	s.r.open.Add(1)
	defer s.r.open.Add(-1)
	working := false
	from := s.version
	seen := from // of the last event, reported or not
	again := func(err error) error {
		if err != nil { // the batch is lost, and read again
			seen = s.version
		}
		return err
	}
	idle := func() error {
		if !working {
			working, s.opened, s.denied = true, time.Now(), time.Time{}
			if !s.refused {
				s.r.note(s.namespace, true, s.owed.err)
			}
			if !pause(ctx, backlogGap) {
				return context.Cause(ctx)
			}
		}
		err := again(s.idle(ctx, seen))
		if err == nil && s.refused && s.version != from { // the change that was refused is stored: it came first
			s.refused = false
			s.r.note(s.namespace, true, s.owed.err)
		}
		if err == nil && s.owed.err != nil && time.Since(s.owed.at) >= s.r.s.m.backoff(s.owed.tries) {
			err = errOwed
		}
		if err == nil && s.ownersDue() {
			err = errOwners
		}
		return err
	}
	flush := func() error { return again(s.flush()) }
	begin := func() error { return s.reading.begin(ctx, s.r.s, flush) }
	each := func(t objects.EventType, o *objects.Object) error {
		if t != objects.Bookmark && newer(o.Version, seen) { // else it came before
			if err := s.event(ctx, t, o); err != nil {
				return err
			}
		}
		if o.Version != "" {
			seen = o.Version
		}
		if !s.batch.full() {
			return nil
		}
		return flush()
	}
	err := s.r.s.m.cfg.API.Watch(ctx, s.r.s.account(), s.query(s.namespace), objects.Handler{Begin: begin, Each: each, Idle: idle})
	if errors.Is(context.Cause(ctx), errReselect) {
		err = errReselect
	}
	if err == nil || errors.Is(err, errReselect) {
		if failed := s.idle(ctx, seen); failed != nil && !errors.Is(context.Cause(ctx), errReselect) {
			return failed
		}
	}
	return err
}

func (s *stream) query(namespace string) objects.Query {
	return objects.Query{Resource: s.r.served, Namespace: namespace, Selector: s.r.cfg.Selector, Version: s.version}
}

// event adds an event to the batch, if it counts.
func (s *stream) event(ctx context.Context, t objects.EventType, o *objects.Object) error {
	s.r.s.touch()
	if !s.counts(o) || !s.nameable(o) {
		return nil
	}
	before, err := s.r.before(&s.batch, o.Path())
	if err != nil {
		return err
	}
	return s.compare(ctx, &s.batch, comparison{before: before, object: o, gone: t == objects.Deleted, known: true, version: o.Version})
}

// comparison is an object and what is known about it before it is looked at.
type comparison struct {
	before  *store.Mark // nil: it has none
	object  *objects.Object
	gone    bool      // it was deleted
	known   bool      // a list was complete, so an object without a mark is new
	wanted  time.Time // if not: since when it is wanted
	doubt   bool      // an object that looks unchanged may have changed
	version string    // how far the watch has come with it; "" in a list
}

// compare adds what an object means to the batch.
func (s *stream) compare(ctx context.Context, b *batch, c comparison) error {
	if s.needsOwners(c.object, c.version == "") {
		return errOwners
	}
	now, err := s.observe(ctx, c.object)
	if err != nil {
		return err
	}
	if now == nil { // it cannot be read
		if !c.gone || c.before == nil {
			return nil
		}
		now = &observed{path: c.object.Path(), uid: usable(c.object.UID), version: c.object.Version}
	}
	d := decide(s.r.cfg.Kind, c.before, now, c.gone)
	unchanged := d.verb == ""
	if unchanged && c.doubt {
		d = decision{verb: updated, targets: now.targets}
	}
	if len(d.targets) == 0 && d.mark == nil && !d.remove {
		return nil
	}
	w := s.r.s.settings.Load().Watch
	change, err := s.r.change(c.before, d, now, c.version)
	if err != nil {
		return err
	}
	first := c.before == nil && !c.gone && !c.known && w != nil && now.created.Before(w.Since.Add(max(0, c.wanted.Sub(w.Since)-youngest)))
	if w != nil && (first || unchanged) {
		// One change has one delay: each key has its own time.
		for i := range change.items {
			delay := s.r.s.pace.delay(change.items[i].Key, w.ResyncOver)
			change.items[i].Request.Delay, change.items[i].Request.Priority = &delay, schedule.LowPriority
		}
	}
	b.add(change)
	return nil
}

// nameable reports that the object can have a key and a mark; else the owner is warned. The API server takes
// names of any length for some kinds, also with control characters.
func (s *stream) nameable(o *objects.Object) bool {
	err := schedule.ValidateKey(keyOf(s.r.cfg.Kind, o.Namespace, o.Name))
	if err == nil && o.Name != "" {
		return true
	}
	if o.Name == "" {
		err = errNoName
	}
	s.r.s.warn(reasonKey, "the name of %s %.64q cannot be used: %v; its changes schedule nothing", s.r.served.Name(), o.Path(), err)
	s.r.s.tally.change(resultKeyFailed)
	return false
}

var errNoName = errors.New("it is empty")

// observe reads an object; nil when it cannot be used, which the owner is warned of, or must not be.
func (s *stream) observe(ctx context.Context, o *objects.Object) (*observed, error) {
	if ofWorkload(o, s.r.served, s.r.s.settings.Load()) {
		return nil, nil
	}
	if o.TooLarge {
		s.r.s.warn(reasonTooLarge, "the metadata of %s %s is too large to be watched: its changes schedule nothing", s.r.served.Name(), o.Path())
		s.r.s.tally.change(resultTooLarge)
		return nil, nil
	}
	now, err := s.r.observe(ctx, o)
	if failed, ok := errors.AsType[*keyError](err); ok {
		s.r.s.warn(reasonKey, "the key of %s %s: %v; its change schedules nothing", s.r.served.Name(), o.Path(), failed.error)
		s.r.s.tally.change(resultKeyFailed)
		return nil, nil
	}
	return now, err
}

// counts reports whether an event of a watch of all namespaces counts: its namespace
// is selected and was listed, and the list was before the event.
func (s *stream) counts(o *objects.Object) bool {
	if s.namespaces == nil {
		return true
	}
	w, ok := s.r.rows.get(o.Namespace)
	return ok && w.complete && s.namespaces.membership(o.Namespace) == selected && newer(o.Version, w.version)
}

// idle reports what has arrived, before the watch waits for more.
func (s *stream) idle(ctx context.Context, seen string) error {
	if len(s.batch.changes) > 0 {
		if err := s.flush(); err != nil {
			return err
		}
		s.version = seen
		s.reading.done()
		if !pause(ctx, flushGap) {
			return context.Cause(ctx)
		}
		return nil
	}
	s.reading.done()
	if seen == s.version {
		return nil
	}
	s.version = seen
	if time.Since(s.kept) < versionGap || s.unsettled() {
		return nil
	}
	s.kept = time.Now()
	w := s.row(seen)
	if err := s.r.s.marks.SetState(w.state()); err != nil {
		return err
	}
	s.r.rows.set(w)
	return nil
}

// row is the row of the stream at a version.
func (s *stream) row(version string) row {
	w, _ := s.r.rows.get(s.namespace)
	w.resource, w.namespace, w.version = s.r.id, s.namespace, version
	return w
}

// flush stores the batch, and with it where the watch goes on.
func (s *stream) flush() error {
	return s.r.flush(&s.batch, progress{
		row: func(version string) (store.MarkChange, bool) {
			state := s.row(version)
			stored := state.state()
			return store.MarkChange{Watch: stored.Watch, State: &stored}, !s.unsettled()
		},
		skip: s.owe,
		done: func(_ []change, version string) {
			if version == "" {
				return
			}
			s.version, s.kept = version, time.Now()
			if !s.unsettled() {
				s.r.rows.set(s.row(version))
			}
		},
	})
}

// reselect lists the namespaces that are selected now and were not before, and removes
// the namespaces that are not any more.
func (s *stream) reselect(ctx context.Context) error {
	if err := s.r.narrow(ctx, s.namespaces.names(), s.namespaces.membership); err != nil {
		return err
	}
	for _, name := range s.namespaces.names() {
		if w, ok := s.r.rows.get(name); ok && w.complete && w.selector == s.r.cfg.Selector {
			continue
		}
		if err := s.list(ctx, name); err != nil {
			return fmt.Errorf("namespace %s: %w", name, err)
		}
	}
	return nil
}
