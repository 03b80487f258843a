package controller

import (
	"fmt"
	"reflect"
	"strings"
	"unsafe"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	crmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// supported is the version whose insides this file knows. A queue can be given
// to a controller, but not to all controllers of a manager, and which kind a
// controller is for is known to nobody outside it; so both are reached by
// reflection.
const supported = "sigs.k8s.io/controller-runtime v0.25"

// controllers is where the type of a controller is.
const controllers = "sigs.k8s.io/controller-runtime/pkg/internal/controller"

// seam is where a controller was opened.
type seam struct {
	controller reflect.Value // the struct
	queue      *queue
}

type newQueueFunc = func(string, workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request]

// adopt gives a controller a queue of ours, and watches its reconciler. The seam
// is nil if the runnable is no controller.
func adopt(r crmanager.Runnable, stray func(*queue, wish)) (*seam, error) {
	v := reflect.ValueOf(r)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct || v.Type().Elem().PkgPath() != controllers {
		if _, ok := r.(crcontroller.Controller); ok {
			return nil, fmt.Errorf("controller: %T is a controller, but not one of %s: its queue cannot be taken over", r, supported)
		}
		return nil, nil
	}
	s := &seam{controller: v.Elem()}
	name, err := field[string](s.controller, "Name")
	if err != nil {
		return nil, err
	}
	makeQueue, err := field[newQueueFunc](s.controller, "NewQueue")
	if err != nil {
		return nil, err
	}
	do, err := field[reconcile.Reconciler](s.controller, "Do")
	if err != nil {
		return nil, err
	}
	s.queue = newQueue(*name, stray)
	*makeQueue = func(string, workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
		return s.queue
	}
	*do = &watched{*do, s.queue}
	return s, nil
}

// reconciled is the kind whose objects a controller is for, as For says it: the
// first that it watches without mapping its objects to others; zero if there
// is none.
func (s *seam) reconciled(scheme *runtime.Scheme) (kind, error) {
	watches, err := field[[]source.TypedSource[reconcile.Request]](s.controller, "startWatches")
	if err != nil {
		return kind{}, err
	}
	for _, w := range *watches {
		v := reflect.Indirect(reflect.ValueOf(w))
		if v.Kind() != reflect.Struct {
			continue
		}
		h, o := v.FieldByName("Handler"), v.FieldByName("Type")
		if !h.IsValid() || !o.IsValid() || !h.CanInterface() || !o.CanInterface() || !mapsToItself(h.Interface()) {
			continue
		}
		if o, ok := o.Interface().(client.Object); ok {
			return kindOf(o, scheme)
		}
	}
	return kind{}, nil
}

// mapsToItself says that a handler is an EnqueueRequestForObject, of whatever
// type of objects.
func mapsToItself(h any) bool {
	t, of := reflect.TypeOf(h), reflect.TypeFor[handler.EnqueueRequestForObject]()
	if t == nil || t.Kind() != reflect.Pointer {
		return false
	}
	name, _, _ := strings.Cut(of.Name(), "[")
	return t.Elem().PkgPath() == of.PkgPath() && strings.HasPrefix(t.Elem().Name(), name+"[")
}

// field is the address of a field of a struct.
func field[T any](of reflect.Value, name string) (*T, error) {
	f, want := of.FieldByName(name), reflect.TypeFor[T]()
	if !f.IsValid() || f.Type() != want {
		have := "has none"
		if f.IsValid() {
			have = "has a " + f.Type().String()
		}
		return nil, fmt.Errorf("controller: this package is for %s and for controllers of reconcile.Request, where the field %s is a %s; %s %s", supported, name, want, of.Type(), have)
	}
	return (*T)(unsafe.Pointer(f.UnsafeAddr())), nil
}
