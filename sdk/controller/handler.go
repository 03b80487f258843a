package controller

import (
	"context"
	"net/http"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	crcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Handler drives a single reconciler without a manager: every event about an object is
// for the object that it names, of any kind, and a request that
// is due again comes back under the same key. The keys that a caller schedules are
// Kind/namespace/name, namespace/name or name.
//
//	http.Handle("/", controller.Handler(reconciler))
//
// To stop, let the server's Shutdown wait for the runs. The handler does not see what
// the reconciler reads: an object that is gone, without an event of its deletion, is
// looked for again with every maxInterval.
//
// It panics without a reconciler, and with [WithAudience] if no API server is configured.
func Handler(r reconcile.Reconciler, opts ...Option) http.Handler {
	return newHandler(context.Background(), r, opts...)
}

func newHandler(ctx context.Context, r reconcile.Reconciler, opts ...Option) *server {
	if r == nil {
		panic("controller: Handler needs a reconciler")
	}
	s := newServer(opts)
	s.log = ctrl.Log.WithName("reschedule")
	if err := s.setVerify(ctrl.GetConfig); err != nil {
		panic(err.Error())
	}
	s.logOpen()
	q := newQueue("reschedule", s.enqueuedWithoutEvent)
	q.prefix, q.workers = "", s.concurrency
	s.queues = []*queue{q}
	skip := true
	c, err := crcontroller.NewUnmanaged(q.name, crcontroller.Options{
		Reconciler:              &observedReconciler{r, q},
		MaxConcurrentReconciles: s.concurrency,
		SkipNameValidation:      &skip,
		NewQueue: func(string, workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
			return q
		},
	})
	if err != nil {
		panic("controller: " + err.Error())
	}
	go func() { // without sources it cannot fail
		_ = c.Start(ctx)
	}()
	return s
}
