package controller

import (
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	crmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// supported is the version of controller-runtime whose controllers this file
// adopts. Its public API sets the queue of one controller, in the options that the
// operator writes, and not of all controllers of a manager. Its type of a
// controller is internal. So this file uses reflection: it sets two exported
// fields and reads one, and it reads one that is not exported.
const supported = "sigs.k8s.io/controller-runtime v0.25"

// controllers is the package of the type of a controller.
const controllers = "sigs.k8s.io/controller-runtime/pkg/internal/controller"

// adopted is a controller with a queue of this package.
type adopted struct {
	queue   *queue
	watches reflect.Value // of the controller, until it starts
}

type newQueueFunc = func(string, workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request]

// adopt gives a controller a queue of this package, and observes its reconciler.
// It returns nil for a runnable that is not a controller.
func adopt(r crmanager.Runnable, withoutEvent func(*queue, enqueued)) (*adopted, error) {
	v := reflect.ValueOf(r)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct || v.Type().Elem().PkgPath() != controllers {
		if _, ok := r.(crcontroller.Controller); ok {
			return nil, fmt.Errorf("controller: %T is a controller, but not of %s: its queue cannot be replaced", r, supported)
		}
		return nil, nil
	}
	c := v.Elem()
	name, err := field[string](c, "Name")
	if err != nil {
		return nil, err
	}
	makeQueue, err := field[newQueueFunc](c, "NewQueue")
	if err != nil {
		return nil, err
	}
	do, err := field[reconcile.Reconciler](c, "Do")
	if err != nil {
		return nil, err
	}
	watches, err := field[[]source.TypedSource[reconcile.Request]](c, "startWatches")
	if err != nil {
		return nil, err
	}
	q := newQueue(name.String(), withoutEvent)
	makeQueue.Set(reflect.ValueOf(func(string, workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
		return q
	}))
	reconciler, _ := do.Interface().(reconcile.Reconciler) // nil stays nil
	do.Set(reflect.ValueOf(&observedReconciler{reconciler, q}))
	return &adopted{q, watches}, nil
}

// sources are what the controller watches when it starts. The field is not exported; adopt
// has checked its type.
func (a *adopted) sources() []source.TypedSource[reconcile.Request] {
	return *(*[]source.TypedSource[reconcile.Request])(a.watches.Addr().UnsafePointer())
}

// reconciled is the kind of object that the controller is For: the first kind that
// it watches without mapping objects to others, zero if there is none.
func (a *adopted) reconciled(scheme *runtime.Scheme) (kind, error) {
	for _, s := range a.sources() {
		if w, err := watchOf(s, scheme); w != nil && mapsToItself(reflect.TypeOf(w.handler)) {
			return w.kind, err
		}
	}
	return kind{}, nil
}

// watch is the watch of a kind of objects.
type watch struct {
	kind       kind
	handler    any
	predicates []any
}

// watchOf reads a source of a controller; it is nil for a source that is no watch. The
// type is controller-runtime's own, and internal, and its fields are exported.
func watchOf(s source.TypedSource[reconcile.Request], scheme *runtime.Scheme) (*watch, error) {
	w := &watch{}
	v := reflect.Indirect(reflect.ValueOf(s))
	if v.Kind() != reflect.Struct {
		return nil, nil
	}
	o, h, predicates := v.FieldByName("Type"), v.FieldByName("Handler"), v.FieldByName("Predicates")
	if !o.IsValid() || !h.IsValid() || !predicates.IsValid() || predicates.Kind() != reflect.Slice {
		return nil, nil
	}
	object, ok := o.Interface().(client.Object)
	if !ok || dynamic(h).Kind() == reflect.Invalid {
		return nil, nil
	}
	w.handler = h.Interface()
	if p := reflect.ValueOf(object); p.Kind() == reflect.Pointer && p.IsNil() {
		return w, fmt.Errorf("controller: a %T is watched without a value, so that its kind is not known", object)
	}
	for i := range predicates.Len() {
		w.predicates = append(w.predicates, predicates.Index(i).Interface())
	}
	var err error
	w.kind, err = kindOf(object, scheme)
	return w, err
}

// dynamic is the value in an interface, and any other value itself.
func dynamic(v reflect.Value) reflect.Value {
	if v.Kind() == reflect.Interface {
		return v.Elem()
	}
	return v
}

// mapsToItself reports whether a type of handler is an EnqueueRequestForObject,
// for whatever type of object.
func mapsToItself(t reflect.Type) bool {
	of := reflect.TypeFor[handler.EnqueueRequestForObject]()
	if t.Kind() != reflect.Pointer {
		return false
	}
	name, _, _ := strings.Cut(of.Name(), "[")
	return t.Elem().PkgPath() == of.PkgPath() && strings.HasPrefix(t.Elem().Name(), name+"[")
}

// field is a field of a controller.
func field[T any](of reflect.Value, name string) (reflect.Value, error) {
	f, want := of.FieldByName(name), reflect.TypeFor[T]()
	if !f.IsValid() || f.Type() != want {
		have := "has none"
		if f.IsValid() {
			have = "has a " + f.Type().String()
		}
		return f, fmt.Errorf("controller: this package is for %s and for controllers of reconcile.Request, where the field %s is a %s; %s %s", supported, name, want, of.Type(), have)
	}
	return f, nil
}
