package controller

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// observedReconciler is the operator's reconciler; what it reads and returns is noted
// in its run.
type observedReconciler struct {
	reconcile.Reconciler
	queue *queue
}

type runContextKey struct{}

// runContext is what the context of Reconcile has for the readers of its run.
type runContext struct {
	run   *run
	queue *queue
}

// Reconcile implements reconcile.Reconciler. It keeps the priority in the result for
// itself: the controller must give back runPriority.
func (w *observedReconciler) Reconcile(ctx context.Context, request reconcile.Request) (result reconcile.Result, err error) {
	r := w.queue.current(request)
	if r == nil { // no worker called it
		return w.Reconciler.Reconcile(ctx, request)
	}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, runContextKey{}, runContext{r, w.queue}))
	defer cancel()
	w.queue.mu.Lock()
	r.cancel = cancel
	w.queue.mu.Unlock()
	defer func() {
		w.queue.mu.Lock()
		defer w.queue.mu.Unlock()
		r.ended, r.failure = true, err
	}()
	err = errPanicked // unless it returns
	result, err = w.Reconciler.Reconcile(ctx, request)
	if p := result.Priority; p != nil {
		w.queue.mu.Lock()
		r.priority, result.Priority = *p, nil
		w.queue.mu.Unlock()
	}
	return result, err
}

// noteGet notes in the run of ctx that its own object was or was not there.
func (i *informers) noteGet(ctx context.Context, key client.ObjectKey, o client.Object, err error) {
	n, ok := ctx.Value(runContextKey{}).(runContext)
	switch {
	case !ok:
		i.noteFailure(ctx, err)
		return
	case n.run.request.NamespacedName != key, err != nil && !apierrors.IsNotFound(err):
		return
	}
	gvk, unknown := apiutil.GVKForObject(o, i.scheme)
	if unknown != nil || gvk.GroupKind() != n.queue.kind.GroupKind() {
		return
	}
	n.queue.mu.Lock()
	defer n.queue.mu.Unlock()
	if !n.run.ended { // a goroutine that it started may go on reading
		n.run.missing = err != nil
	}
}

// noteFailure notes that a predicate or a handler could not read. A map function
// cannot return an error: it logs it, and maps to nothing.
func (i *informers) noteFailure(ctx context.Context, err error) {
	if err == nil || ctx.Value(runContextKey{}) != nil || apierrors.IsNotFound(err) || apierrors.IsBadRequest(err) || meta.IsNoMatchError(err) {
		return // another try would end the same
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.failure = err
}

// notingReader and notingClient note what is read.
type notingReader struct {
	client.Reader
	in *informers
}

// Get implements client.Reader.
func (r notingReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	err := r.Reader.Get(ctx, key, o, opts...)
	r.in.noteGet(ctx, key, o, err)
	return err
}

// List implements client.Reader.
func (r notingReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := r.Reader.List(ctx, list, opts...)
	r.in.noteFailure(ctx, err)
	return err
}

type notingClient struct {
	client.Client
	in *informers
}

// Get implements client.Reader.
func (c notingClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return notingReader{c.Client, c.in}.Get(ctx, key, o, opts...)
}

// List implements client.Reader.
func (c notingClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return notingReader{c.Client, c.in}.List(ctx, list, opts...)
}
