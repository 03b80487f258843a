package reschedulesource

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/logging"
	"knative.dev/pkg/reconciler"
)

const (
	// workers reconcile sources at once, each of another namespace.
	workers = 4
	// The wait after a failure: it doubles.
	retryLeast, retryMost = 5 * time.Millisecond, 1000 * time.Second
	// The longest wait for a kind that the cluster does not have: no event tells when it has.
	retryKind = 30 * time.Second
)

// fair makes the namespaces take turns. Knative's queue is first come, first served, also its slow
// lane, which is emptied into the same queue: a neighbour of 3,000 changed sources waited for all of
// them. Its wait after a failure is one bucket for all keys, ten a second.
//
// A key from Knative's queue is reconciled if no other key of its namespace is. Else it goes into
// the queue of its namespace, which takes no time, and comes back when its turn has come.
type fair struct {
	controller.Reconciler
	reconciler.LeaderAware
	enqueue func(types.NamespacedName)
	retries workqueue.TypedRateLimiter[string]

	mu     sync.Mutex
	queues map[string]*keyQueue // by namespace, of which a key has its turn
}

// keyQueue has the keys of a namespace.
type keyQueue struct {
	turn    string   // the key that is reconciled, or comes back to be
	waiting []string // in the order of their coming
	waits   map[string]bool
}

// takeTurns makes the controller reconcile the namespaces in turn.
func takeTurns(impl *controller.Impl) {
	impl.Reconciler = &fair{
		Reconciler: impl.Reconciler, LeaderAware: impl.Reconciler.(reconciler.LeaderAware), enqueue: impl.EnqueueKey,
		retries: workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryLeast, retryMost), queues: map[string]*keyQueue{},
	}
	impl.Concurrency = workers
}

// Reconcile implements controller.Reconciler.
func (f *fair) Reconcile(ctx context.Context, key string) error {
	namespace, _, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return f.Reconciler.Reconcile(ctx, key) // it logs that
	}
	if !f.begin(namespace, key) {
		return controller.NewSkipKey(key)
	}
	defer f.end(namespace)
	err = f.Reconciler.Reconcile(ctx, key)
	requeued, _ := controller.IsRequeueKey(err)
	switch {
	case requeued:
		return err
	case err == nil, controller.IsSkipKey(err), controller.IsPermanentError(err):
		f.retries.Forget(key)
		return err
	}
	wait := f.retries.When(key)
	log := logging.FromContext(ctx).Errorw
	switch {
	case apierrors.IsConflict(err): // the cache was late
		log = logging.FromContext(ctx).Debugw
	case isNoKind(err) && wait > retryKind: // it was logged before
		wait, log = retryKind, logging.FromContext(ctx).Debugw
	}
	log("Reconcile error", zap.Error(err), zap.Duration("retryAfter", wait))
	return controller.NewRequeueAfter(wait)
}

// isNoKind reports whether the API server does not have the kind of an object: its answer names none.
func isNoKind(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) {
		return false
	}
	details := status.Status().Details
	return details == nil || details.Name == ""
}

// begin reports whether the key may be reconciled now. If not, its turn will come.
func (f *fair) begin(namespace, key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.queues[namespace]
	if q == nil {
		f.queues[namespace] = &keyQueue{turn: key, waits: map[string]bool{}}
		return true
	}
	if q.turn == key {
		return true
	}
	if !q.waits[key] {
		q.waits[key] = true
		q.waiting = append(q.waiting, key)
	}
	return false
}

// end gives the turn to the next key of the namespace.
func (f *fair) end(namespace string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.queues[namespace]
	if len(q.waiting) == 0 {
		delete(f.queues, namespace)
		return
	}
	q.turn, q.waiting = q.waiting[0], q.waiting[1:]
	delete(q.waits, q.turn)
	_, name, _ := cache.SplitMetaNamespaceKey(q.turn) // begin took it apart
	f.enqueue(types.NamespacedName{Namespace: namespace, Name: name})
}
