package controller

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

var (
	errStopping = errors.New("the operator is stopping")
	errRequeue  = errors.New("the reconciler asked for a retry")
	errPanicked = errors.New("the reconciler panicked")

	errAbandoned = errors.New("nobody waits for the run any more")
)

// saysAgain is the priority that a controller is told with every request, and
// says again when it speaks of the run: nobody else does, and priorities do not
// count.
const saysAgain = -0x7e5c4ed

// longest is the longest wait that is asked for: the contract has a limit of
// 100 years.
const longest = 10 * 365 * 24 * time.Hour

// run is one run of a request, or the place for one, and those who wait for its
// outcome. Who comes before it has begun joins it.
type run struct {
	target
	// settle makes the outcome durable before anybody is told, and returns what is
	// left to tell; nil where the answer is all there is to it.
	settle func(target, outcome) outcome
	done   chan struct{} // closed when the outcome is there
	outcome

	// What happened in it, under the lock of the queue.

	waiters int                // who wait for the outcome
	cancel  context.CancelFunc // ends Reconcile
	ended   bool               // Reconcile has returned or panicked: from here on the controller speaks
	failure error              // what it returned
	missing bool               // it read its own object, and there was none
	forgot  bool
	limited bool
	requeue time.Duration
}

// wish is a request that a handler has enqueued.
type wish struct {
	request reconcile.Request
	after   time.Duration
}

// queue hands requests to the workers of a controller, one at a time for each
// request, and reads the outcome of a run from what the controller calls on it
// afterwards. It has no timers: what is wanted later is part of an outcome.
type queue struct {
	name string
	// kind is that of the objects which the controller is for, zero if it is for
	// none; prefix is what its keys begin with, "" if every key is its; namespaces
	// are where the manager's cache has its objects, none for all. They are set
	// before it starts.
	kind       kind
	prefix     string
	namespaces map[string]cache.Config
	// stray takes what is enqueued while no event is fed: by a source that is no
	// watch, for example.
	stray func(*queue, wish)

	ready chan struct{} // closed when a worker is there
	once  sync.Once

	mu       sync.Mutex
	changed  *sync.Cond
	order    []reconcile.Request // of those that wait
	waiting  map[reconcile.Request]*run
	running  map[reconcile.Request]*run // until the outcome is settled
	stopping bool
	feeding  bool
	wishes   []wish // of the event that is being fed
}

var _ priorityqueue.PriorityQueue[reconcile.Request] = &queue{}

func newQueue(name string, stray func(*queue, wish)) *queue {
	q := &queue{
		name: name, prefix: name, stray: stray, ready: make(chan struct{}),
		waiting: map[reconcile.Request]*run{}, running: map[reconcile.Request]*run{},
	}
	q.changed = sync.NewCond(&q.mu)
	return q
}

// feed begins to collect what is enqueued; the function that it returns ends
// that. One event is fed at a time.
func (q *queue) feed() func() []wish {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.feeding = true
	return func() []wish {
		q.mu.Lock()
		defer q.mu.Unlock()
		wishes := q.wishes
		q.feeding, q.wishes = false, nil
		return wishes
	}
}

// fed is how much was enqueued.
func (q *queue) fed() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.wishes)
}

// join asks for a run of the target, and returns the one that it will be.
func (q *queue) join(t target, settle func(target, outcome) outcome) *run {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.waiting[t.request]
	if r == nil {
		r = &run{target: t, done: make(chan struct{})}
		if q.stopping {
			r.err = errStopping
			close(r.done)
			return r
		}
		q.waiting[t.request] = r
		q.order = append(q.order, t.request)
		q.changed.Broadcast()
	}
	if settle != nil {
		r.settle = settle
	}
	r.waiters++
	return r
}

// leave says that somebody does not wait for the run any more. When nobody does,
// it is not to begin, or to end soon: with replicas it may have begun elsewhere.
func (q *queue) leave(r *run) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.waiters--; r.waiters > 0 {
		return
	}
	if q.waiting[r.request] == r {
		r.err = errAbandoned
		close(r.done)
		delete(q.waiting, r.request)
		q.order = slices.DeleteFunc(q.order, func(of reconcile.Request) bool { return of == r.request })
	} else if r.cancel != nil {
		r.cancel()
	}
}

// target is the request with its canonical key.
func (q *queue) target(request reconcile.Request) target {
	return target{queue: q, request: request, key: q.prefix + "/" + request.Namespace + "/" + request.Name}
}

// covers says whether a resident controller could read the object of a request from
// its cache.
func (q *queue) covers(request reconcile.Request) bool {
	_, all := q.namespaces[metav1.NamespaceAll]
	_, listed := q.namespaces[request.Namespace]
	return all || listed || len(q.namespaces) == 0 || request.Namespace == ""
}

// current is the run of the request that is under way.
func (q *queue) current(request reconcile.Request) *run {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.running[request]
}

// AddWithOpts takes what handlers enqueue and what the controller says after a
// run.
func (q *queue) AddWithOpts(o priorityqueue.AddOpts, requests ...reconcile.Request) {
	for _, request := range requests {
		if w := (wish{request, min(max(o.After, 0), longest)}); !q.add(o, w) {
			q.stray(q, w)
		}
	}
}

// add is false if nobody asked for it.
func (q *queue) add(o priorityqueue.AddOpts, w wish) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r := q.running[w.request]; r != nil && o.Priority != nil && *o.Priority == saysAgain {
		r.limited, r.requeue = o.RateLimited, w.after
		return true
	}
	if q.feeding {
		q.wishes = append(q.wishes, w)
	}
	return q.feeding
}

// Forget is what the controller says of a run that went well.
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
				delete(q.waiting, request)
				return request, false
			}
		}
		q.changed.Wait()
	}
	return request, true
}

// Done ends a run. The request stays its own until the outcome is settled, so
// that outcomes are settled in the order of the runs.
func (q *queue) Done(request reconcile.Request) {
	q.mu.Lock()
	r := q.running[request]
	if r == nil {
		q.mu.Unlock()
		return
	}
	r.outcome = r.verdict()
	settle, next := r.settle, q.waiting[request]
	if settle != nil && next != nil && next.settle == nil {
		next.settle = settle
	}
	q.mu.Unlock()
	switch {
	case settle == nil:
		q.release(r)
		close(r.done)
	case next != nil: // it is due now, so its outcome is what is to last
		q.release(r)
		go func() {
			<-next.done
			r.outcome = next.outcome
			close(r.done)
		}()
	default:
		go func() {
			r.outcome = settle(r.target, r.outcome)
			q.release(r)
			close(r.done)
		}()
	}
}

func (q *queue) release(r *run) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.running, r.request)
	q.changed.Broadcast()
}

// verdict reads the outcome from what the controller called.
func (r *run) verdict() outcome {
	switch {
	case r.limited && r.failure != nil:
		return outcome{err: r.failure}
	case r.limited:
		return outcome{err: errRequeue}
	case r.requeue > 0:
		return outcome{after: r.requeue}
	case r.forgot:
		return outcome{gone: r.missing}
	case r.ended:
		return outcome{final: true}
	}
	return outcome{err: errPanicked} // it did not come to an end
}

// halt ends what waits, and lets nothing begin any more.
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

// The rest of the interface. Priorities do not count: what waits is here only as
// long as somebody waits for the answer.

// GetWithPriority is Get.
func (q *queue) GetWithPriority() (reconcile.Request, int, bool) {
	request, shutdown := q.Get()
	return request, saysAgain, shutdown
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

// ShuttingDown says whether it was shut down.
func (q *queue) ShuttingDown() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stopping
}
