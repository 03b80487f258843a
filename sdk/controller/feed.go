package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// catchUp is how long an event waits until the cache has its object.
const catchUp = 5 * time.Second

// catchUpUnsure is the same for an object that a field selector may keep out of the cache,
// so that it may never come.
const catchUpUnsure = 300 * time.Millisecond

// unknown marks an old object that is made up: predicates that compare labels
// or annotations see a difference.
const unknown = "sdk.reschedule.dev/unknown"

// feeder hands changes to the handlers of informers.
type feeder struct {
	informers *informers
	seen      objectMemory
}

// feed is a change, with the objects that handlers get.
type feed struct {
	verb    verb
	version string // as in the change
	objects []fedObject
	// nameOnly: the object is gone, and only its name is known.
	nameOnly bool
	// outside: the object is not in the namespaces of the manager's cache.
	outside bool
}

// fedObject is the object in one form; old is nil when it was not seen before.
type fedObject struct {
	kind     kind
	name     types.NamespacedName
	old, new client.Object
	bytes    int // of the new one
}

// unchanged reports an update within a version, which is a resync to controller-runtime's
// handlers. Here an earlier event was read live, with the object as it is now; and what is a
// resync, the source says.
func (f *feed) unchanged() bool {
	return slices.ContainsFunc(f.objects, func(o fedObject) bool {
		return o.old != nil && o.old.GetResourceVersion() == o.new.GetResourceVersion()
	})
}

// read makes the objects of a change. It reads an object live that was sent as a name
// only, or in another version than the handlers have. Unless fresh, the old objects
// are the objects that were seen last. An event of a source that watches is a repeat when
// it has the version of the event before: a resync, or maxInterval. A repeat is fresh.
func (f *feeder) read(ctx context.Context, c *change, fresh bool) (*feed, error) {
	n := &feed{verb: c.verb, version: c.version}
	for _, k := range f.informers.kinds(c.gvk.GroupKind()) {
		scope, err := f.informers.scope(k, c.name.Namespace)
		if err != nil {
			return nil, err
		}
		if scope == nil {
			n.outside = true
			continue
		}
		bytes, data := len(c.object), c.object
		whole := data != nil && (k.GroupVersionKind == c.gvk || k.form == metadataForm)
		live := !whole && (data == nil || c.verb != deleted)
		if live {
			data = nil // it is read into an empty object
		}
		o, err := f.object(k, c, data)
		if err != nil {
			return nil, err
		}
		if live {
			switch err = f.informers.live.Get(ctx, c.name, o); {
			case apierrors.IsNotFound(err):
				n.verb = deleted
			case err != nil:
				return nil, fmt.Errorf("reading the %s %s of an event: %w", k.Kind, c.name, err)
			default:
				whole = true
				text, _ := json.Marshal(o) // for its length
				bytes = len(text)
				if n.verb == deleted {
					n.verb, fresh = updated, true // there is another one of its name
				}
			}
		}
		last, version := f.seen.last(objectKey{k, c.name})
		switch {
		case whole:
		case last != nil:
			o = last
		default:
			n.nameOnly = true
		}
		item := fedObject{kind: k, name: c.name, new: o, bytes: bytes}
		if repeat := c.version != "" && c.version == version; !fresh && !repeat && last != nil && last.GetUID() == o.GetUID() {
			item.old = last
		}
		n.objects = append(n.objects, item)
		f.wait(ctx, n.verb, item, scope)
	}
	return n, nil
}

// catchUpWith lets a cache catch up with what an object is now. The event of a due key
// has no version, and may have taken the place of an event about the object.
func (f *feeder) catchUpWith(ctx context.Context, named objectName) error {
	if f.informers.cached == nil {
		return nil
	}
	name := named.NamespacedName
	for _, k := range f.informers.kinds(named.GroupKind) {
		scope, err := f.informers.scope(k, name.Namespace)
		if err != nil {
			return err
		}
		if scope == nil {
			continue
		}
		now := &metav1.PartialObjectMetadata{}
		now.SetGroupVersionKind(k.GroupVersionKind)
		v := updated
		switch err := f.informers.live.Get(ctx, name, now); {
		case apierrors.IsNotFound(err):
			v = deleted
		case apierrors.IsForbidden(err):
			continue // its role is for lists and watches, which fill the cache
		case err != nil:
			return fmt.Errorf("reading the %s %s of an event: %w", k.Kind, name, err)
		}
		o, err := f.object(k, &change{name: name}, nil)
		if err != nil {
			return err
		}
		o.SetUID(now.UID)
		o.SetLabels(now.Labels)
		o.SetResourceVersion(now.ResourceVersion)
		f.wait(ctx, v, fedObject{kind: k, name: name, new: o}, scope)
	}
	return nil
}

// object is the object that was sent, as far as a kind can have it, or one with
// its name only.
func (f *feeder) object(k kind, c *change, data []byte) (client.Object, error) {
	var o client.Object
	switch k.form {
	case unstructuredForm:
		o = &unstructured.Unstructured{}
	case metadataForm:
		o = &metav1.PartialObjectMetadata{}
	default:
		v, err := f.informers.scheme.New(k.GroupVersionKind)
		if err != nil {
			return nil, err
		}
		var ok bool
		if o, ok = v.(client.Object); !ok {
			return nil, fmt.Errorf("%s is no kind of objects", k)
		}
	}
	if data != nil {
		if k.GroupVersionKind != c.gvk { // the metadata are the same in all versions
			data = fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,"metadata":%s}`, k.GroupVersion(), k.Kind, c.metadata)
		}
		if err := json.Unmarshal(data, o); err != nil {
			return nil, fmt.Errorf("%w: the object does not fit %T: %w", errUnreadable, o, err)
		}
	}
	o.GetObjectKind().SetGroupVersionKind(k.GroupVersionKind)
	o.SetNamespace(c.name.Namespace)
	o.SetName(c.name.Name)
	return o, nil
}

// wait lets a cache catch up with the event: a resident controller never reads an
// object older than the event that woke it. From a cache with a selector an object is gone
// that the selector does not select.
func (f *feeder) wait(ctx context.Context, v verb, item fedObject, in *cacheScope) {
	if f.informers.cached == nil {
		return
	}
	selected, sure := in.selects(item.new)
	if v != deleted && !selected {
		v = deleted
	}
	limit := catchUp
	if !sure {
		limit = catchUpUnsure
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		have := item.new.DeepCopyObject().(client.Object)
		err := f.informers.cached.Get(ctx, item.name, have)
		switch {
		case v == deleted && (apierrors.IsNotFound(err) || err == nil && item.new.GetUID() != "" && have.GetUID() != item.new.GetUID()):
			return
		case v != deleted && err == nil && !older(have, item.new):
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// older compares resource versions, which are numbers that grow.
func older(a, b client.Object) bool {
	va, errA := strconv.ParseUint(a.GetResourceVersion(), 10, 64)
	vb, errB := strconv.ParseUint(b.GetResourceVersion(), 10, 64)
	return errA == nil && errB == nil && va < vb
}

// call calls the handlers; collected is how many requests they enqueued. A panic in a
// predicate or a handler is an error.
func (f *feeder) call(n *feed, collected func() int) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a predicate or handler panicked: %v\n%s", p, debug.Stack())
		}
	}()
	for _, item := range n.objects {
		informer := f.informers.of(item.kind)
		switch {
		case n.verb == deleted:
			informer.each(func(h toolscache.ResourceEventHandler) { h.OnDelete(item.new) })
		case n.verb == added:
			informer.each(func(h toolscache.ResourceEventHandler) { h.OnAdd(item.new, false) })
		case item.old != nil:
			informer.each(func(h toolscache.ResourceEventHandler) { h.OnUpdate(item.old, item.new) })
		default:
			informer.each(func(h toolscache.ResourceEventHandler) { unknownChange(h, item.new, collected) })
		}
	}
	return nil
}

// unknownChange calls a handler when it is not known what has changed. So everything in the
// metadata has. When predicates drop that, the object is taken as a resident controller takes
// every object when it starts, and then as one that had nothing but metadata. A predicate may
// panic on such an object, which a cluster cannot have.
func unknownChange(h toolscache.ResourceEventHandler, o client.Object, collected func() int) {
	n, old := collected(), before(o)
	if h.OnUpdate(old, o); collected() == n {
		h.OnAdd(o, false)
	}
	if collected() == n {
		defer func() { _ = recover() }()
		h.OnUpdate(bare(old), o)
	}
}

// bare is an object of the same type that has the metadata alone.
func bare(o client.Object) client.Object {
	var metadata struct {
		APIVersion string          `json:"apiVersion"`
		Kind       string          `json:"kind"`
		Metadata   json.RawMessage `json:"metadata"`
	}
	made := reflect.New(reflect.TypeOf(o).Elem()).Interface().(client.Object)
	b, err := json.Marshal(o)
	if err == nil && json.Unmarshal(b, &metadata) == nil {
		b, _ = json.Marshal(metadata)
		_ = json.Unmarshal(b, made)
	}
	return made
}

// before makes up the old object of an update.
func before(o client.Object) client.Object {
	old := o.DeepCopyObject().(client.Object)
	old.SetGeneration(o.GetGeneration() - 1)
	old.SetResourceVersion("0") // no object has it: handlers give an update within a version a low priority
	for _, m := range []struct {
		get func() map[string]string
		set func(map[string]string)
	}{{old.GetLabels, old.SetLabels}, {old.GetAnnotations, old.SetAnnotations}} {
		marked := maps.Clone(m.get())
		if marked == nil {
			marked = map[string]string{}
		}
		marked[unknown] = ""
		m.set(marked)
	}
	return old
}
