package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/reschedule-dev/reschedule/sdk"
	"github.com/reschedule-dev/reschedule/sdk/internal/cloudevent"
)

const (
	// readTimeout is how long an event may take to come in.
	readTimeout = time.Minute
	// longWait is a wait for a worker that is logged. Knative Serving may give a request
	// a minute.
	longWait = 10 * time.Second
	// elsewhere is when an event that a process leaves to the next one is due again.
	elsewhere = "1s"
	// maxOnce is how many different messages are logged once.
	maxOnce = 1000
)

// errNoKey refuses an event that did not come through a RescheduleSource: nothing
// would keep its outcome.
var errNoKey = fmt.Errorf("the event has no %s: send events to the address of a RescheduleSource whose sink is this operator", cloudevent.KeyAttribute)

// server turns events into runs, and their outcomes into answers.
type server struct {
	options
	log     logr.Logger
	answers answerMemory

	feeder *feeder // nil for a Handler
	feedMu sync.Mutex
	resync time.Duration // the SyncPeriod of a resident operator

	mu     sync.Mutex
	queues []*queue

	inFlight inFlight
	logged   sync.Map // what was logged once
	lines    atomic.Int64
}

func newServer(opts []Option) *server {
	s := &server{options: options{concurrency: 1}, log: logr.Discard(), resync: resyncPeriod, answers: answerMemory{byKey: map[string]rememberedAnswer{}}}
	for _, o := range opts {
		o(&s.options)
	}
	if s.replicas {
		s.answers.byKey = nil
	}
	return s
}

// ServeHTTP answers an event when all runs that it caused have ended and what they
// lead to under other keys is durable.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPost:
	case http.MethodGet, http.MethodHead:
		return // for probes: an operator that answers is ready
	default:
		w.Header().Set("Allow", "GET, HEAD, POST")
		http.Error(w, "events are sent with POST", http.StatusMethodNotAllowed)
		return
	}
	if s.verify != nil {
		if err := s.verify(r); err != nil {
			s.refuse(w, err)
			return
		}
	}
	leave, err := s.inFlight.enter(r)
	if err != nil {
		retryLater(w, err, time.Second)
		return
	}
	defer leave()
	e, err := readInTime(w, r)
	var a answer
	if err == nil {
		a, err = s.handle(r.Context(), e)
	}
	switch {
	case errors.Is(err, errStopping) && e.attribute("knativeerrordest") == "":
		// A success counts no attempt, and with the header alone the key keeps its event. From
		// a dead letter sink it would be the end.
		w.Header().Set(cloudevent.AfterHeader, elsewhere)
		w.WriteHeader(http.StatusNoContent)
		return
	case errors.Is(err, errUnreadable), errors.Is(err, errNoKey), errors.Is(err, errUnknownKey):
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	case errors.Is(err, errTooMany):
		retryLater(w, errTooMany, time.Second)
		return
	case err != nil:
		s.log.Error(err, "An event is refused, and must come again", "type", e.attribute("type"), "key", e.key())
		a = answer{outcome: outcome{err: err}}
	}
	if a.err != nil && s.verify == nil {
		a.err = errRunFailed
	}
	a.write(w, e.key(), e.priority())
}

// readInTime reads an event. The deadline is for its body only: a deadline that
// passed later would end a run.
func readInTime(w http.ResponseWriter, r *http.Request) (event, error) {
	reading := http.NewResponseController(w)
	_ = reading.SetReadDeadline(time.Now().Add(readTimeout)) // a recorder has none
	defer func() { _ = reading.SetReadDeadline(time.Time{}) }()
	return readEvent(r)
}

// handle plans what an event leads to, and does it. A run that failed is in the
// answer.
func (s *server) handle(ctx context.Context, e event) (answer, error) {
	key, at, priority := e.key(), e.attribute("time"), priorityOf(e.priority())
	if key == "" {
		s.once("Events are refused that do not come from a RescheduleSource", "type", e.attribute("type"))
		return answer{}, errNoKey
	}
	c, err := readChange(e)
	if err != nil {
		return answer{}, err
	}
	last, known, version := s.answers.begin(key, at)
	var p plan
	var f *feed
	if c == nil {
		p, err = s.planner(priority).due(key, e.due(), e.attribute(cloudevent.CauseAttribute))
	} else {
		p, f, err = s.planChange(ctx, observation{key: key, priority: priority, change: c, watched: e.watched(), last: last, known: known}, e.retried() || e.watched() && (c.version == "" || last.gone))
	}
	if err == nil && !e.answered() {
		err = s.catchUp(ctx, p.run, c, e.attribute(cloudevent.CauseAttribute))
	}
	for _, name := range p.outside {
		s.once("What is not in the namespaces of the manager's cache is not reconciled", "controller", name)
	}
	if err != nil {
		return answer{}, err
	}
	if ds := s.answers.unscheduled(key, e.attribute("id"), p.schedule); len(ds) > 0 {
		if err := s.schedule(ctx, ds); err != nil {
			return answer{}, err
		}
		s.answers.schedule(key, e.attribute("id"), ds)
	}
	outcomes, err := s.runAll(ctx, p.run)
	if err != nil {
		return answer{}, err
	}
	a := combine(slices.Concat(p.decided, outcomes), s.resync, func(t target) bool {
		return slices.ContainsFunc(s.planner(priority).ofKey(key, &plan{}), t.is)
	})
	if a.doubts = p.doubts; e.answered() {
		a.doubts = last.doubts // it is the time of such a run, or says nothing about them
	}
	if a.err == nil { // a failed run has seen nothing, and is not the answer to a repeat
		if f != nil {
			s.feeder.seen.keep(f)
		}
		s.answers.keep(key, version, at, a)
		if a.after == 0 && !a.gone && len(p.survivors) > 0 {
			// To the source the event of a deletion is the end of the key, also for
			// maxInterval. So the key gets another event.
			for _, t := range p.survivors {
				a.add(delayed{t, time.Millisecond})
			}
		}
	}
	return a, nil
}

func (s *server) planner(priority int) planner {
	return planner{queues: s.all(), withClient: s.client != nil, priority: priority}
}

// planChange feeds an event to the handlers, and plans what they and the memory say.
// Unless fresh, the object that was seen last is the old object of an update.
func (s *server) planChange(ctx context.Context, o observation, fresh bool) (p plan, f *feed, err error) {
	if s.feeder == nil {
		return s.planner(o.priority).change(o), nil, nil
	}
	// The object that was seen last counts only while the last answer does.
	f, err = s.feeder.read(ctx, o.change, fresh || !o.known)
	if err != nil {
		return p, nil, err
	}
	o.atStart = !s.feeder.informers.mapped[o.change.gvk.GroupKind()] &&
		!slices.ContainsFunc(f.objects, func(f fedObject) bool { return f.old != nil })
	o.compared = o.watched && slices.ContainsFunc(f.objects, func(f fedObject) bool { return f.old != nil })
	switch o.unknown = len(f.objects) == 0; {
	case f.outside:
		s.once("What is not in the namespaces of the manager's cache is not reconciled", "kind", o.change.gvk.String())
	case o.unknown && !slices.ContainsFunc(s.all(), func(q *queue) bool { return q.elsewhere[o.change.gvk.GroupKind()] }):
		s.once("Events of a kind that no controller watches are dropped", "kind", o.change.gvk.String())
	}
	if o.enqueued, err = s.feed(f, o.priority); err != nil {
		return p, nil, err
	}
	o.gone = f.verb == deleted
	p = s.planner(o.priority).change(o)
	if p.dropped() && len(p.outside) == 0 && !o.unknown && s.client != nil && !o.known {
		if p.decided, err = s.replaced(ctx, o.key, o.priority); err != nil {
			return p, nil, err
		}
	}
	for _, t := range p.check {
		passes, err := s.check(ctx, t)
		if err != nil {
			return p, nil, err
		}
		switch {
		case !passes:
		case o.doubtful(t):
			p.doubt(t, o.last.doubts)
		default:
			p.run = append(p.run, t)
		}
	}
	return p, f, nil
}

// replaced are the targets of a key with the timer whose place the event took that is being
// delivered. Without one the key ends. The source knows the timer, though this process does not.
func (s *server) replaced(ctx context.Context, key string, priority int) (ds []decision, err error) {
	is, err := s.client.Get(ctx, key)
	gone := errors.Is(err, sdk.ErrNotFound)
	if err != nil && !gone {
		return nil, fmt.Errorf("reading what waited under the key: %w", err)
	}
	if gone || !is.PreviousDueAt.After(time.Now()) {
		return []decision{{outcome: outcome{gone: true}}}, nil
	}
	for _, t := range s.planner(priority).ofKey(key, &plan{}) {
		if t.key == key {
			ds = append(ds, decision{t, outcome{after: max(time.Until(is.PreviousDueAt), time.Millisecond)}})
		}
	}
	return ds, nil
}

// catchUp lets a cache catch up with the objects of runs, and with the object whose change
// caused them. The event is of the last change only: it may have taken the place of others
// under its key.
func (s *server) catchUp(ctx context.Context, runs []target, c *change, cause string) error {
	if s.feeder == nil {
		return nil
	}
	objects := map[objectName]bool{}
	for _, t := range runs {
		if c == nil || !t.isOf(c) { // whose object was waited for
			objects[objectName{t.queue.kind.GroupKind(), t.request.NamespacedName}] = true
		}
	}
	if n, ok := causeOf(cause); ok {
		objects[n] = true
	}
	for o := range objects {
		if err := s.feeder.catchUpWith(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// check reports whether predicates let pass what the object of a target is now, as
// they do when a resident operator starts.
func (s *server) check(ctx context.Context, t target) (bool, error) {
	f, err := s.feeder.read(ctx, &change{verb: updated, gvk: t.queue.kind.GroupVersionKind, name: t.request.NamespacedName}, true)
	if err != nil {
		return false, err
	}
	all, err := s.feed(f, t.priority)
	return slices.ContainsFunc(all, func(d delayed) bool { return t.is(d.target) }), err
}

// feed calls the handlers, and returns what they enqueued, each request once. One
// event is fed at a time, so that it is the cause.
func (s *server) feed(f *feed, priority int) ([]delayed, error) {
	s.feedMu.Lock()
	defer s.feedMu.Unlock()
	queues := s.all()
	ends := make([]func() []enqueued, len(queues))
	for i, q := range queues {
		ends[i] = q.collect(priority)
	}
	_ = s.feeder.informers.readFailure() // of an event before
	err := s.feeder.call(f, func() (n int) {
		for _, q := range queues {
			n += q.collected()
		}
		return n
	})
	err = cmp.Or(err, s.feeder.informers.readFailure())
	var all []delayed
	for i, q := range queues {
		requests := ends[i]()
		if f.nameOnly && q.kind.GroupKind() == f.objects[0].kind.GroupKind() {
			// Predicates cannot judge an object that is gone by its name. The reconciler
			// finds out that it is gone.
			requests = append(requests, enqueued{request: reconcile.Request{NamespacedName: f.objects[0].name}, priority: priority})
		}
		soonest := map[reconcile.Request]int{}
		for _, e := range requests {
			if e.priority == handler.LowPriority && f.unchanged() {
				e.priority = priority
			}
			at, there := soonest[e.request]
			if !there {
				soonest[e.request] = len(all)
				all = append(all, delayed{q.target(e.request), e.after})
				all[len(all)-1].priority = e.priority
			} else {
				all[at].after, all[at].priority = min(e.after, all[at].after), max(e.priority, all[at].priority)
			}
		}
	}
	return all, err
}

// runAll runs targets, and waits for their outcomes.
func (s *server) runAll(ctx context.Context, ts []target) ([]decision, error) {
	runs := make([]*run, len(ts))
	for i, t := range ts {
		runs[i] = t.queue.join(t)
	}
	outcomes := make([]decision, len(ts))
	for i, r := range runs {
		late := func() {
			if ts[i].queue.waited(r) > longWait {
				s.once("A delivery waited for a worker for more than 10 s: it fails when it waits longer than timeoutSeconds or delivery.timeout. Set limits.maxInFlight of the RescheduleSource to the sum of MaxConcurrentReconciles",
					"controller", ts[i].queue.name, "maxInFlight", s.workers())
			}
		}
		select {
		case <-r.done:
			if errors.Is(r.err, errStopping) {
				return nil, errStopping
			}
			late()
			if outcomes[i] = (decision{ts[i], r.outcome}); r.err == nil {
				outcomes[i].failures = 0
			}
			outcomes[i].priority = r.priority
		case <-ctx.Done():
			late()
			if s.replicas {
				for i, r := range runs {
					ts[i].queue.leave(r)
				}
			}
			return nil, fmt.Errorf("the request ended before the run of %s: %w", ts[i].key, context.Cause(ctx))
		}
	}
	return outcomes, nil
}

// workers is how many requests are reconciled at once.
func (s *server) workers() (n int) {
	for _, q := range s.all() {
		n += q.workers
	}
	return n
}

func (s *server) all() []*queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.queues)
}

// once logs a message once in the life of the process. The number of messages is
// bounded: what they are about comes from outside.
func (s *server) once(message string, about ...any) {
	if s.lines.Load() >= maxOnce {
		return
	}
	if _, before := s.logged.LoadOrStore(fmt.Sprint(message, about), true); !before {
		s.lines.Add(1)
		s.log.Info(message, about...)
	}
}

// due is the data of an event that brings a key back. Data that is not ours is the
// data of a caller, and the key alone says what is due.
func (e event) due() (d due) {
	if e.attribute("type") == cloudevent.DueType && len(e.Data) > 0 && json.Unmarshal(e.Data, &d) != nil {
		return due{}
	}
	for i := range d.Requests {
		if r := &d.Requests[i]; !r.At.IsZero() {
			r.after = min(max(time.Until(r.At), 0), cloudevent.MaxWait)
		}
	}
	return d
}
