package controller

import (
	"fmt"
	"reflect"
	goruntime "runtime"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
// fields and reads two, and it reads the types in one that is not exported.
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
	workers, err := field[int](c, "MaxConcurrentReconciles")
	if err != nil {
		return nil, err
	}
	q := newQueue(name.String(), withoutEvent)
	q.workers = int(workers.Int())
	makeQueue.Set(reflect.ValueOf(func(string, workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
		return q
	}))
	reconciler, _ := reflect.TypeAssert[reconcile.Reconciler](do) // nil stays nil
	do.Set(reflect.ValueOf(&observedReconciler{reconciler, q}))
	return &adopted{q, watches}, nil
}

// watch is the watch of a kind of objects, as far as reflection shows it.
type watch struct {
	object, handler, predicates reflect.Value
}

// sources are what the controller watches, and the types of its sources that are no
// watches of objects.
func (a *adopted) sources() (watches []watch, others []reflect.Type) {
	for i := range a.watches.Len() {
		v := reflect.Indirect(a.watches.Index(i).Elem())
		if !v.IsValid() {
			continue
		}
		if v.Kind() == reflect.Struct {
			w := watch{dynamic(v.FieldByName("Type")), dynamic(v.FieldByName("Handler")), v.FieldByName("Predicates")}
			if w.handler.IsValid() && w.object.IsValid() && w.object.Type().Implements(reflect.TypeFor[client.Object]()) {
				watches = append(watches, w)
				continue
			}
		}
		others = append(others, v.Type())
	}
	return watches, others
}

// reconciled is the kind of object that the controller is For: the first kind that
// it watches without mapping objects to others, zero if there is none.
func (a *adopted) reconciled(scheme *runtime.Scheme) (kind, error) {
	watches, _ := a.sources()
	for _, w := range watches {
		if mapsToItself(w.handler.Type()) {
			return kindOfValue(w.object, scheme)
		}
	}
	return kind{}, nil
}

// dynamic is the value in an interface, and any other value itself.
func dynamic(v reflect.Value) reflect.Value {
	if v.Kind() == reflect.Interface {
		return v.Elem()
	}
	return v
}

// kindOfValue is kindOf for an object that was found through a field that is not
// exported, of which reflection shows the type and the strings only.
func kindOfValue(v reflect.Value, scheme *runtime.Scheme) (kind, error) {
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return kind{}, fmt.Errorf("controller: a %s is watched without a value, so that its kind is not known", v.Type())
	}
	o := reflect.New(v.Type().Elem()).Interface().(client.Object)
	switch o := o.(type) {
	case *unstructured.Unstructured:
		content := v.Elem().FieldByName("Object")
		o.SetGroupVersionKind(schema.FromAPIVersionAndKind(text(content, "apiVersion"), text(content, "kind")))
	case *metav1.PartialObjectMetadata:
		o.APIVersion, o.Kind = v.Elem().FieldByName("APIVersion").String(), v.Elem().FieldByName("Kind").String()
	}
	return kindOf(o, scheme)
}

// text is a string in a map of anything, "" if there is none.
func text(m reflect.Value, key string) string {
	v := dynamic(m.MapIndex(reflect.ValueOf(key)))
	if v.Kind() != reflect.String {
		return ""
	}
	return v.String()
}

// mapsToItself reports whether a type of handler is an EnqueueRequestForObject, for
// whatever type of object, or a struct around one, such as the instrumented handler of
// operator-lib that operators of Helm and Ansible use.
func mapsToItself(t reflect.Type) bool {
	of := reflect.TypeFor[handler.EnqueueRequestForObject]()
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return false
	}
	t = t.Elem()
	name, _, _ := strings.Cut(of.Name(), "[")
	if t.PkgPath() == of.PkgPath() && strings.HasPrefix(t.Name(), name+"[") {
		return true
	}
	return t.NumField() > 0 && t.Field(0).Anonymous && mapsToItself(reflect.PointerTo(t.Field(0).Type))
}

// mapsToOwners reports whether a handler is EnqueueRequestForOwner, which Owns uses. It
// is a handler.Funcs with functions of controller-runtime; handlers of operators have
// functions of their own.
func mapsToOwners(h reflect.Value) bool {
	funcs := reflect.TypeFor[handler.Funcs]()
	if h.Type() != funcs || h.FieldByName("CreateFunc").IsNil() {
		return false
	}
	f := goruntime.FuncForPC(h.FieldByName("CreateFunc").Pointer())
	return f != nil && strings.HasPrefix(f.Name(), funcs.PkgPath()+".")
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
