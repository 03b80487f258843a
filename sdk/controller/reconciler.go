package controller

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// watched is the operator's reconciler; what it does is noted in its run.
type watched struct {
	reconcile.Reconciler
	queue *queue
}

type noteKey struct{}

// note is what the reader of a run writes to.
type note struct {
	run   *run
	queue *queue
}

// Reconcile implements reconcile.Reconciler.
func (w *watched) Reconcile(ctx context.Context, request reconcile.Request) (result reconcile.Result, err error) {
	r := w.queue.current(request)
	if r == nil { // called by somebody else than a worker
		return w.Reconciler.Reconcile(ctx, request)
	}
	defer func() {
		w.queue.mu.Lock()
		defer w.queue.mu.Unlock()
		r.ended, r.failure = true, err
	}()
	err = errPanicked // unless it returns
	result, err = w.Reconciler.Reconcile(context.WithValue(ctx, noteKey{}, note{r, w.queue}), request)
	return result, err
}

// noteRead notes in the run of ctx that its own object was or was not there.
func noteRead(ctx context.Context, scheme *runtime.Scheme, key client.ObjectKey, o client.Object, err error) {
	n, ok := ctx.Value(noteKey{}).(note)
	if !ok || n.run.request.NamespacedName != key || err != nil && !apierrors.IsNotFound(err) {
		return
	}
	gvk, unknown := apiutil.GVKForObject(o, scheme)
	if unknown != nil || gvk.GroupKind() != n.queue.gvk.GroupKind() {
		return
	}
	n.queue.mu.Lock()
	defer n.queue.mu.Unlock()
	n.run.missing = err != nil
}

// notingReader and notingClient note what a run reads.
type notingReader struct {
	client.Reader
	scheme *runtime.Scheme
}

// Get implements client.Reader.
func (r notingReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	err := r.Reader.Get(ctx, key, o, opts...)
	noteRead(ctx, r.scheme, key, o, err)
	return err
}

type notingClient struct{ client.Client }

// Get implements client.Reader.
func (c notingClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	err := c.Client.Get(ctx, key, o, opts...)
	noteRead(ctx, c.Scheme(), key, o, err)
	return err
}
