package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// informers is the cache of a manager whose informers watch nothing: the events of
// the operator are fed to their handlers. Reads go to the API server, or
// to a real cache.
type informers struct {
	scheme  *runtime.Scheme
	options cache.Options // what a resident operator would have in its cache
	live    client.Reader
	cached  cache.Cache // nil: reads are live
	// mapped are the kinds whose objects a controller maps to others. It is complete
	// before events are served.
	mapped map[schema.GroupKind]bool

	mu      sync.Mutex
	byKind  map[kind]*informer
	failure error // of a read since an event began to be fed
}

var _ cache.Cache = &informers{}

// kind is a kind in one of the forms in which objects are handled.
type kind struct {
	schema.GroupVersionKind
	form
}

type form int

const (
	typed form = iota
	unstructuredForm
	metadataForm
)

func kindOf(o runtime.Object, scheme *runtime.Scheme) (kind, error) {
	gvk, err := apiutil.GVKForObject(o, scheme)
	k := kind{GroupVersionKind: gvk}
	switch o.(type) {
	case runtime.Unstructured:
		k.form = unstructuredForm
	case *metav1.PartialObjectMetadata:
		k.form = metadataForm
	}
	return k, err
}

// Get implements client.Reader.
func (i *informers) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return i.reader().Get(ctx, key, o, opts...)
}

// List implements client.Reader.
func (i *informers) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return i.reader().List(ctx, list, opts...)
}

func (i *informers) reader() client.Reader {
	if i.cached != nil {
		return notingReader{i.cached, i}
	}
	return notingReader{i.live, i}
}

// readFailure is the error of a read that has failed since the last call, if any.
func (i *informers) readFailure() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	err := i.failure
	i.failure = nil
	if err != nil {
		err = fmt.Errorf("a predicate or handler could not read: %w", err)
	}
	return err
}

// GetInformer implements cache.Informers. What a controller watches is in the
// cache before it starts: a kind that it may not list fails then.
func (i *informers) GetInformer(ctx context.Context, o client.Object, opts ...cache.InformerGetOption) (cache.Informer, error) {
	k, err := kindOf(o, i.scheme)
	if err != nil {
		return nil, err
	}
	if i.cached != nil {
		if _, err := i.cached.GetInformer(ctx, o, opts...); err != nil {
			return nil, err
		}
	}
	return i.of(k), nil
}

// GetInformerForKind implements cache.Informers.
func (i *informers) GetInformerForKind(ctx context.Context, gvk schema.GroupVersionKind, opts ...cache.InformerGetOption) (cache.Informer, error) {
	if !i.scheme.Recognizes(gvk) {
		return nil, runtime.NewNotRegisteredErrForKind(i.scheme.Name(), gvk)
	}
	if i.cached != nil {
		if _, err := i.cached.GetInformerForKind(ctx, gvk, opts...); err != nil {
			return nil, err
		}
	}
	return i.of(kind{GroupVersionKind: gvk}), nil
}

func (i *informers) of(k kind) *informer {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.byKind[k] == nil {
		i.byKind[k] = &informer{ResourceEventHandlerRegistration: listed}
	}
	return i.byKind[k]
}

// kinds are the kinds with handlers, in all versions and forms.
func (i *informers) kinds(gk schema.GroupKind) []kind {
	i.mu.Lock()
	defer i.mu.Unlock()
	var ks []kind
	for k := range i.byKind {
		if k.GroupKind() == gk {
			ks = append(ks, k)
		}
	}
	return ks
}

// RemoveInformer implements cache.Informers.
func (i *informers) RemoveInformer(ctx context.Context, o client.Object) error {
	k, err := kindOf(o, i.scheme)
	if err != nil {
		return err
	}
	i.mu.Lock()
	delete(i.byKind, k)
	i.mu.Unlock()
	if i.cached != nil {
		return i.cached.RemoveInformer(ctx, o)
	}
	return nil
}

// Start implements cache.Informers.
func (i *informers) Start(ctx context.Context) error {
	if i.cached != nil {
		return i.cached.Start(ctx)
	}
	<-ctx.Done()
	return nil
}

// WaitForCacheSync implements cache.Informers.
func (i *informers) WaitForCacheSync(ctx context.Context) bool {
	return i.cached == nil || i.cached.WaitForCacheSync(ctx)
}

// IndexField implements client.FieldIndexer.
func (i *informers) IndexField(ctx context.Context, o client.Object, field string, extract client.IndexerFunc) error {
	if i.cached == nil {
		return fmt.Errorf("controller: the index %q of %T needs a cache, and reads are live: give controller.WithCachedReads() to NewManager, or list without the index", field, o)
	}
	return i.cached.IndexField(ctx, o, field, extract)
}

// namespaces are the namespaces in which a resident controller would cache a kind, none
// for all, and the options of the cache for this kind alone.
func (i *informers) namespaces(k kind) (map[string]cache.Config, cache.ByObject, error) {
	var own cache.ByObject
	for o, by := range i.options.ByObject {
		gvk, err := apiutil.GVKForObject(o, i.scheme)
		if err != nil {
			return nil, own, err
		}
		if gvk == k.GroupVersionKind {
			own = by
		}
	}
	namespaces := i.options.DefaultNamespaces
	if own.Namespaces != nil {
		namespaces = own.Namespaces
	}
	return namespaces, own, nil
}

// cacheScope is what a resident operator's cache selects in a namespace.
type cacheScope struct {
	labels labels.Selector
	fields fields.Selector
}

// scope is what the cache selects of a kind in a namespace, nil if the namespace is not in
// the cache.
func (i *informers) scope(k kind, namespace string) (*cacheScope, error) {
	namespaces, own, err := i.namespaces(k)
	if err != nil || !covers(namespaces, namespace) {
		return nil, err
	}
	of := func(from map[string]cache.Config) cache.Config {
		c, ok := from[namespace]
		if !ok {
			c = from[metav1.NamespaceAll]
		}
		return c
	}
	s := &cacheScope{labels.Everything(), fields.Everything()}
	for _, c := range []cache.Config{ // as cache.Options says, the strongest last
		{LabelSelector: i.options.DefaultLabelSelector, FieldSelector: i.options.DefaultFieldSelector},
		of(i.options.DefaultNamespaces), {LabelSelector: own.Label, FieldSelector: own.Field}, of(own.Namespaces),
	} {
		if c.LabelSelector != nil {
			s.labels = c.LabelSelector
		}
		if c.FieldSelector != nil {
			s.fields = c.FieldSelector
		}
	}
	return s, nil
}

// selects reports whether the cache selects an object. It is not sure of a field that is
// not in the metadata.
func (s *cacheScope) selects(o client.Object) (selected, sure bool) {
	for _, r := range s.fields.Requirements() {
		if r.Field != "metadata.name" && r.Field != "metadata.namespace" {
			return s.labels.Matches(labels.Set(o.GetLabels())), false
		}
	}
	of := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
	return s.fields.Matches(of) && s.labels.Matches(labels.Set(o.GetLabels())), true
}

// covers reports whether a namespace is one of the namespaces of a cache.
func covers(namespaces map[string]cache.Config, namespace string) bool {
	_, all := namespaces[metav1.NamespaceAll]
	_, listed := namespaces[namespace]
	return all || listed || len(namespaces) == 0 || namespace == ""
}

// listed has the methods that say that a list is complete: client-go has one more of them since 0.36. It is an empty
// queue of client-go, which was given its list.
var listed = func() toolscache.ResourceEventHandlerRegistration {
	q := toolscache.NewFIFO(toolscache.MetaNamespaceKeyFunc)
	_ = q.Replace(nil, "") // nothing cannot fail
	return q
}()

// informer keeps the handlers of a kind. There is nothing to wait for.
type informer struct {
	toolscache.ResourceEventHandlerRegistration
	mu       sync.Mutex
	handlers []*registration
}

var _ cache.Informer = &informer{}

type registration struct {
	toolscache.ResourceEventHandler
	toolscache.ResourceEventHandlerRegistration
}

// each calls every handler in turn.
func (i *informer) each(call func(toolscache.ResourceEventHandler)) {
	i.mu.Lock()
	handlers := slices.Clone(i.handlers)
	i.mu.Unlock()
	for _, h := range handlers {
		call(h.ResourceEventHandler)
	}
}

// AddEventHandler implements cache.Informer.
func (i *informer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	r := &registration{h, listed}
	i.handlers = append(i.handlers, r)
	return r, nil
}

// AddEventHandlerWithResyncPeriod implements cache.Informer. There is no resync.
func (i *informer) AddEventHandlerWithResyncPeriod(h toolscache.ResourceEventHandler, _ time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(h)
}

// AddEventHandlerWithOptions implements cache.Informer.
func (i *informer) AddEventHandlerWithOptions(h toolscache.ResourceEventHandler, _ toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(h)
}

// RemoveEventHandler implements cache.Informer.
func (i *informer) RemoveEventHandler(h toolscache.ResourceEventHandlerRegistration) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.handlers = slices.DeleteFunc(i.handlers, func(r *registration) bool { return r == h })
	return nil
}

// AddIndexers implements cache.Informer.
func (*informer) AddIndexers(toolscache.Indexers) error {
	return errors.New("controller: an informer that is fed by events has no store to index")
}

// IsStopped implements cache.Informer.
func (*informer) IsStopped() bool { return false }
