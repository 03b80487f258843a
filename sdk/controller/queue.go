package controller

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/reschedule-dev/reschedule/sdk/internal/cloudevent"
)

var (
	errStopping  = errors.New("the operator is stopping")
	errRequeue   = errors.New("the reconciler asked for a retry")
	errPanicked  = errors.New("the reconciler panicked")
	errAbandoned = errors.New("no delivery waits for the run any more")
)

// runPriority is the priority of every request that a worker gets. A controller
// gives it back with what it adds after the run, which distinguishes its calls from the calls
// of handlers. It is the lowest of all priorities: no handler uses it.
const runPriority = math.MinInt

// run is one run of a request, or the place for one, which all deliveries share that
// ask for it before it begins.
type run struct {
	target
	done   chan struct{} // closed when the outcome is there
	joined time.Time     // since when it waits for a worker
	outcome

	// What happened in it, under the lock of the queue.

	begun   time.Time          // when a worker took it
	waiters int                // deliveries that wait for the outcome
	cancel  context.CancelFunc // ends Reconcile
	ended   bool               // Reconcile has returned or panicked: from here on the controller's calls are outcomes
	failure error              // the error that it returned
	missing bool               // it read its own object, and there was none
	forgot  bool
	limited bool
	requeue time.Duration
}

// enqueued is a request that a handler enqueued.
type enqueued struct {
	request  reconcile.Request
	after    time.Duration
	priority int
}

// queue hands requests to the workers of a controller, one at a time for each
// request, and reads the outcome of a run from what the controller calls on it
// afterwards. It has no timers: a later run is part of an outcome.
type queue struct {
	name string
	// kind is the kind of object that the controller is For, zero if there is none;
	// prefix begins the keys of its requests, "" if every key is its; namespaces are
	// the namespaces of the manager's cache, none for all. They are set before it
	// starts.
	kind       kind
	prefix     string
	namespaces map[string]cache.Config
	caused     bool                      // it has watches of other objects, whose changes make its keys due
	elsewhere  map[schema.GroupKind]bool // what it watches with another cache, whose handlers no event reaches
	workers    int                       // MaxConcurrentReconciles
	// withoutEvent takes what is enqueued while no event is fed: by a source that is
	// not a watch, for example.
	withoutEvent func(*queue, enqueued)

	ready chan struct{} // closed when a worker is there
	once  sync.Once

	mu         sync.Mutex
	changed    *sync.Cond
	order      []reconcile.Request // of the requests that wait: the highest priority first, within one the oldest
	waiting    map[reconcile.Request]*run
	running    map[reconcile.Request]*run
	stopping   bool
	collecting bool
	collection []enqueued // for the event that is being fed
	priority   int        // of that event: of what its handlers enqueue without one of their own
}

var _ priorityqueue.PriorityQueue[reconcile.Request] = &queue{}

func newQueue(name string, withoutEvent func(*queue, enqueued)) *queue {
	q := &queue{
		name: name, prefix: name, withoutEvent: withoutEvent, ready: make(chan struct{}),
		elsewhere: map[schema.GroupKind]bool{}, waiting: map[reconcile.Request]*run{}, running: map[reconcile.Request]*run{},
	}
	q.changed = sync.NewCond(&q.mu)
	return q
}

// collect begins to collect what is enqueued; the function that it returns ends it.
// One event is fed at a time.
func (q *queue) collect(priority int) func() []enqueued {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.collecting, q.priority = true, priority
	return func() []enqueued {
		q.mu.Lock()
		defer q.mu.Unlock()
		all := q.collection
		q.collecting, q.collection, q.priority = false, nil, 0
		return all
	}
}

// collected is how much was enqueued.
func (q *queue) collected() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.collection)
}

// join asks for a run of the target, and returns it. As in controller-runtime's queue, a
// run that waits is lifted to a higher priority, behind the others that have it.
func (q *queue) join(t target) *run {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.waiting[t.request]
	if r == nil {
		r = &run{target: t, done: make(chan struct{}), joined: time.Now()}
		if q.stopping {
			r.err = errStopping
			close(r.done)
			return r
		}
		q.waiting[t.request] = r
		q.insert(r)
		q.changed.Broadcast()
	} else if t.priority > r.priority {
		q.remove(r)
		r.priority = t.priority
		q.insert(r)
	}
	r.waiters++
	return r
}

// insert puts a run that waits in its place, under the lock; remove takes it out.
func (q *queue) insert(r *run) {
	i := slices.IndexFunc(q.order, func(other reconcile.Request) bool { return q.waiting[other].priority < r.priority })
	if i < 0 {
		i = len(q.order)
	}
	q.order = slices.Insert(q.order, i, r.request)
}

func (q *queue) remove(r *run) {
	q.order = slices.DeleteFunc(q.order, func(of reconcile.Request) bool { return of == r.request })
}

// waited is how long a run waited for a worker, until now if none took it yet.
func (q *queue) waited(r *run) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.begun.IsZero() {
		return time.Since(r.joined)
	}
	return r.begun.Sub(r.joined)
}

// leave ends the wait of one delivery for a run. A run without waiters does not
// begin, or its context ends: with replicas it may have begun in another one.
func (q *queue) leave(r *run) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.waiters--; r.waiters > 0 {
		return
	}
	if q.waiting[r.request] == r {
		r.err = errAbandoned
		close(r.done)
		q.remove(r)
		delete(q.waiting, r.request)
	} else if r.cancel != nil {
		r.cancel()
	}
}

// target is the request with its canonical key.
func (q *queue) target(request reconcile.Request) target {
	return target{queue: q, request: request, key: q.prefix + "/" + request.Namespace + "/" + request.Name}
}

// covers reports whether a resident controller could read the object of a request from
// its cache.
func (q *queue) covers(request reconcile.Request) bool {
	return covers(q.namespaces, request.Namespace)
}

// current is the run of the request that is under way.
func (q *queue) current(request reconcile.Request) *run {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.running[request]
}

// AddWithOpts takes what handlers enqueue and what the controller adds after a run.
func (q *queue) AddWithOpts(o priorityqueue.AddOpts, requests ...reconcile.Request) {
	for _, request := range requests {
		if e := (enqueued{request: request, after: min(max(o.After, 0), cloudevent.MaxWait)}); !q.add(o, &e) {
			q.withoutEvent(q, e)
		}
	}
}

// add is false for a request that neither a run nor an event led to.
func (q *queue) add(o priorityqueue.AddOpts, e *enqueued) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r := q.running[e.request]; r != nil && o.Priority != nil && *o.Priority == runPriority {
		r.limited, r.requeue = o.RateLimited, e.after
		return true
	}
	if e.priority = q.priority; o.Priority != nil {
		e.priority = *o.Priority
	}
	if q.collecting {
		q.collection = append(q.collection, *e)
	}
	return q.collecting
}

// Forget is what the controller calls after a run that went well.
func (q *queue) Forget(request reconcile.Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r := q.running[request]; r != nil && r.ended {
		r.forgot = true
	}
}

// Get hands out the first request that is not being run.
func (q *queue) Get() (request reconcile.Request, shutdown bool) {
	q.once.Do(func() { close(q.ready) })
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.stopping {
		for i, request := range q.order {
			if q.running[request] == nil {
				q.order = slices.Delete(q.order, i, i+1)
				q.running[request] = q.waiting[request]
				q.running[request].begun = time.Now()
				delete(q.waiting, request)
				return request, false
			}
		}
		q.changed.Wait()
	}
	return request, true
}

// Done ends a run.
func (q *queue) Done(request reconcile.Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.running[request]
	if r == nil {
		return
	}
	r.outcome = r.result()
	delete(q.running, request)
	q.changed.Broadcast()
	close(r.done)
}

// result reads the outcome from what the controller called.
func (r *run) result() outcome {
	switch {
	case r.limited && r.failure != nil:
		return outcome{err: r.failure}
	case r.limited:
		return outcome{err: errRequeue}
	case r.requeue > 0:
		return outcome{after: r.requeue}
	case r.forgot:
		return outcome{gone: r.missing}
	case r.ended: // with a TerminalError
		return outcome{}
	}
	return outcome{err: errPanicked}
}

// halt ends what waits. Nothing begins any more.
func (q *queue) halt() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopping = true
	for _, r := range q.waiting {
		r.err = errStopping
		close(r.done)
	}
	clear(q.waiting)
	q.order = nil
	q.changed.Broadcast()
}

// drain waits until nothing runs.
func (q *queue) drain(ctx context.Context) {
	defer context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.changed.Broadcast()
	})()
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.running) > 0 && ctx.Err() == nil {
		q.changed.Wait()
	}
}

// The rest of the interface.

// GetWithPriority is Get. The worker gets a priority by which its calls are known.
func (q *queue) GetWithPriority() (reconcile.Request, int, bool) {
	request, shutdown := q.Get()
	return request, runPriority, shutdown
}

// Add is AddWithOpts.
func (q *queue) Add(request reconcile.Request) { q.AddWithOpts(priorityqueue.AddOpts{}, request) }

// AddAfter is AddWithOpts.
func (q *queue) AddAfter(request reconcile.Request, d time.Duration) {
	q.AddWithOpts(priorityqueue.AddOpts{After: d}, request)
}

// AddRateLimited is AddWithOpts.
func (q *queue) AddRateLimited(request reconcile.Request) {
	q.AddWithOpts(priorityqueue.AddOpts{RateLimited: true}, request)
}

// NumRequeues is 0: the RescheduleSource counts.
func (q *queue) NumRequeues(reconcile.Request) int { return 0 }

// Len is how many requests wait.
func (q *queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

// ShutDown ends the workers.
func (q *queue) ShutDown() { q.halt() }

// ShutDownWithDrain ends the workers, and waits for them.
func (q *queue) ShutDownWithDrain() {
	q.halt()
	q.drain(context.Background())
}

// ShuttingDown reports whether it was shut down.
func (q *queue) ShuttingDown() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stopping
}
