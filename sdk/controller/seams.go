package controller

import (
	"cmp"
	"fmt"
	"reflect"
	goruntime "runtime"
	"runtime/debug"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	crmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// What this package knows of controller-runtime beyond its public API is in this file, and is checked in Add: the
// public API sets the queue of one controller, in the options that the operator writes, and not of all controllers of
// a manager, and its type of a controller is internal. So this file uses reflection: of a controller it sets two
// exported fields and reads two, and one that is not exported. Of sources, handlers and predicates it reads what they
// are. [ADR 8] says what to do for another version.
//
// [ADR 8]: https://github.com/reschedule-dev/reschedule/blob/main/docs/adr/0008-controllers-are-opened-by-reflection.md
const (
	library   = "sigs.k8s.io/controller-runtime"
	supported = "v0.23 to v0.25" // what the tests run with
)

// controllers is the package of the type of a controller.
const controllers = library + "/pkg/internal/controller"

// compiledIn is the version of controller-runtime that the program has: its build says so, but for a test, which has
// it in the names of files.
func compiledIn() string { return versionIn(debug.ReadBuildInfo()) }

func versionIn(b *debug.BuildInfo, _ bool) string {
	for i := 0; b != nil && i < len(b.Deps); i++ {
		if d := b.Deps[i]; d.Path == library {
			return cmp.Or(d.Replace, d).Version
		}
	}
	f := goruntime.FuncForPC(reflect.ValueOf(crmanager.New).Pointer())
	file, _ := f.FileLine(f.Entry())
	_, version, _ := strings.Cut(file, library+"@")
	version, _, _ = strings.Cut(version, "/")
	return cmp.Or(version, "a version that is not known")
}

// misfit is the error of Add for what is not as in the supported versions.
func misfit(seam, why string, values ...any) error {
	return fmt.Errorf("controller: this package is for %s %s and for controllers of reconcile.Request, and the program has %s: %s does not fit: %s",
		library, supported, compiledIn(), seam, fmt.Sprintf(why, values...))
}

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
			return nil, misfit("its queue", "%T is a controller, but not of %s", r, controllers)
		}
		return nil, nil
	}
	if err := partsFit(); err != nil {
		return nil, err
	}
	f, err := fieldsOf(v.Elem())
	if err != nil {
		return nil, err
	}
	q := newQueue(f.name.String(), withoutEvent)
	q.workers = int(f.workers.Int())
	f.makeQueue.Set(reflect.ValueOf(func(string, workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
		return q
	}))
	reconciler, _ := reflect.TypeAssert[reconcile.Reconciler](f.do) // nil stays nil
	f.do.Set(reflect.ValueOf(&observedReconciler{reconciler, q}))
	return &adopted{q, f.watches}, nil
}

// opened are the fields of a controller that are read or set.
type opened struct{ name, workers, makeQueue, do, watches reflect.Value }

func fieldsOf(c reflect.Value) (f opened, err error) {
	get := func(v reflect.Value, misfit error) reflect.Value {
		err = cmp.Or(err, misfit)
		return v
	}
	f.name, f.workers = get(field[string](c, "Name")), get(field[int](c, "MaxConcurrentReconciles"))
	f.makeQueue, f.do = get(field[newQueueFunc](c, "NewQueue")), get(field[reconcile.Reconciler](c, "Do"))
	f.watches = get(field[[]source.TypedSource[reconcile.Request]](c, "startWatches"))
	return f, err
}

// watch is the watch of a kind of objects, as far as reflection shows it.
type watch struct {
	object, cache, handler, predicates reflect.Value
}

// watchOf is a source as a watch, if it is a source.Kind or has its fields.
func watchOf(source reflect.Value) (w watch, ok bool) {
	v := reflect.Indirect(source)
	if v.Kind() != reflect.Struct {
		return w, false
	}
	w = watch{dynamic(v.FieldByName("Type")), dynamic(v.FieldByName("Cache")), dynamic(v.FieldByName("Handler")), v.FieldByName("Predicates")}
	return w, w.handler.IsValid() && w.object.IsValid() && w.object.Type().Implements(reflect.TypeFor[client.Object]())
}

// elsewhere reports whether the watch is of another cache than the manager's. Events cannot be fed to its handler.
func (w watch) elsewhere(in *informers) bool {
	return w.cache.IsValid() && (w.cache.Type() != reflect.TypeOf(in) || w.cache.Pointer() != reflect.ValueOf(in).Pointer())
}

// sources are what the controller watches, and the types of its sources that are no
// watches of objects.
func (a *adopted) sources() (watches []watch, others []reflect.Type) {
	for i := range a.watches.Len() {
		v := a.watches.Index(i).Elem()
		if w, ok := watchOf(v); ok {
			watches = append(watches, w)
		} else if v = reflect.Indirect(v); v.IsValid() {
			others = append(others, v.Type())
		}
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

// mapsToOwners reports whether a handler is EnqueueRequestForOwner, which Owns uses, for
// whatever type of object. It is a handler.Funcs with functions of controller-runtime;
// handlers of operators have functions of their own.
func mapsToOwners(h reflect.Value) bool {
	funcs := reflect.TypeFor[handler.Funcs]()
	generic := func(t reflect.Type) string {
		name, _, _ := strings.Cut(t.Name(), "[")
		return t.PkgPath() + "." + name
	}
	if generic(h.Type()) != generic(funcs) || h.FieldByName("CreateFunc").IsNil() {
		return false
	}
	f := goruntime.FuncForPC(h.FieldByName("CreateFunc").Pointer())
	return f != nil && strings.HasPrefix(f.Name(), funcs.PkgPath()+".")
}

// predicatesOf are the predicates in a list of them.
func predicatesOf(list reflect.Value) (all []reflect.Value) {
	if list.Kind() == reflect.Slice {
		for i := range list.Len() {
			all = append(all, list.Index(i))
		}
	}
	return all
}

// changesOf is what passes a predicate of controller-runtime. Any other may let
// everything pass.
func changesOf(p reflect.Value) (c changes, known bool) {
	p = reflect.Indirect(dynamic(p))
	if !p.IsValid() || p.Type().PkgPath() != reflect.TypeFor[predicate.Funcs]().PkgPath() {
		return changesAny, false
	}
	name, _, _ := strings.Cut(p.Type().Name(), "[")
	switch name {
	case "TypedGenerationChangedPredicate":
		return changesSpec, true
	case "TypedLabelChangedPredicate", "TypedAnnotationChangedPredicate":
		return changesMetadata, true
	case "TypedResourceVersionChangedPredicate":
		return changesAny, true
	case "and", "or":
		c, known = changesAny, true
		for i, of := range predicatesOf(p.FieldByName("predicates")) {
			part, ok := changesOf(of)
			switch known = known && ok; {
			case i == 0:
				c = part
			case name == "and":
				c = min(c, part)
			default:
				c = max(c, part)
			}
		}
		return c, known
	}
	return changesAny, false
}

// field is a field of a controller.
func field[T any](of reflect.Value, name string) (reflect.Value, error) {
	f, want := of.FieldByName(name), reflect.TypeFor[T]()
	if !f.IsValid() {
		return f, misfit(name, "%s has no such field, want a %s", of.Type(), want)
	}
	if f.Type() != want {
		return f, misfit(name, "in %s it is a %s, want a %s", of.Type(), f.Type(), want)
	}
	return f, nil
}

// parts are what controllers are made of.
type parts struct{ kind, itself, owner, mapping, either any }

func usualParts() parts {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(schema.GroupVersion{Version: "v1"}, &metav1.PartialObjectMetadata{})
	itself := &handler.EnqueueRequestForObject{}
	either := predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{})
	return parts{
		kind:    source.Kind[client.Object](&informers{}, &metav1.PartialObjectMetadata{}, itself, either),
		itself:  itself,
		owner:   handler.EnqueueRequestForOwner(scheme, nil, &metav1.PartialObjectMetadata{}),
		mapping: handler.EnqueueRequestsFromMapFunc(nil),
		either:  either,
	}
}

// partsFit checks once what is known of sources, handlers and predicates.
var partsFit = sync.OnceValue(func() error { return checkParts(usualParts()) })

func checkParts(p parts) error {
	w, isKind := watchOf(reflect.ValueOf(p.kind))
	c, known := changesOf(reflect.ValueOf(p.either))
	for _, seam := range []struct {
		name string
		fits bool
	}{
		{"source.Kind", isKind && w.elsewhere(&informers{}) && len(predicatesOf(w.predicates)) == 1},
		{"handler.EnqueueRequestForObject", mapsToItself(reflect.TypeOf(p.itself))},
		{"handler.EnqueueRequestForOwner", mapsToOwners(reflect.ValueOf(p.owner))},
		{"handler.EnqueueRequestsFromMapFunc", !mapsToOwners(reflect.ValueOf(p.mapping))},
		{"predicate.Or", known && c == changesMetadata},
	} {
		if !seam.fits {
			return misfit(seam.name, "it is made in another way")
		}
	}
	return nil
}
