package controller

import (
	"os"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// A handler that embeds the plain one is For too: the kind of an operator that counts its
// objects was not found, so that keys without data were refused.
func TestSeams_HandlerAroundThePlainOne(t *testing.T) {
	t.Parallel()
	type counting[T client.Object] struct {
		handler.TypedEnqueueRequestForObject[T]
		Counter int
	}
	type mapping struct{ handler.Funcs }
	type named struct {
		H handler.EnqueueRequestForObject
	}
	for _, test := range []struct {
		handler any
		want    bool
	}{
		{&handler.EnqueueRequestForObject{}, true},
		{&handler.TypedEnqueueRequestForObject[*corev1.ConfigMap]{}, true},
		{&counting[client.Object]{}, true},
		{&mapping{}, false},
		{&named{}, false},
		{handler.Funcs{}, false},
		{counting[client.Object]{}, false},
	} {
		if got := mapsToItself(reflect.TypeOf(test.handler)); got != test.want {
			t.Errorf("%T: %t", test.handler, got)
		}
	}
}

// CONTROLLER_RUNTIME is the version that make test wants these tests to run with. Without it that is the oldest.
func TestSeams_VersionIsTheOneToTest(t *testing.T) {
	t.Parallel()
	oldest, _, _ := strings.Cut(supported, " ")
	if want, set := os.LookupEnv("CONTROLLER_RUNTIME"); set {
		oldest = want
	}
	if !strings.HasPrefix(compiledIn(), oldest+".") {
		t.Errorf("this is controller-runtime %s, want %s", compiledIn(), oldest)
	}
}

// A controller of another version is refused by an error that names the version and what is not as expected.
func TestSeams_MisfitNamesVersionAndSeam(t *testing.T) {
	t.Parallel()
	named := func(what string, err error, seam string) {
		if err == nil || !strings.Contains(err.Error(), supported) || !strings.Contains(err.Error(), "has "+compiledIn()+": "+seam+" does not fit") {
			t.Errorf("%s: %v", what, err)
		}
	}
	all := []reflect.StructField{
		{Name: "Name", Type: reflect.TypeFor[string]()},
		{Name: "MaxConcurrentReconciles", Type: reflect.TypeFor[int]()},
		{Name: "NewQueue", Type: reflect.TypeFor[newQueueFunc]()},
		{Name: "Do", Type: reflect.TypeFor[reconcile.Reconciler]()},
		{Name: "startWatches", Type: reflect.TypeFor[[]source.TypedSource[reconcile.Request]](), PkgPath: controllers},
	}
	if _, err := fieldsOf(reflect.New(reflect.StructOf(all)).Elem()); err != nil {
		t.Error(err)
	}
	for i, f := range all {
		without := append(all[:i:i], all[i+1:]...)
		_, err := fieldsOf(reflect.New(reflect.StructOf(without)).Elem())
		named("without "+f.Name, err, f.Name)
		another := f
		another.Type = reflect.TypeFor[chan int]()
		_, err = fieldsOf(reflect.New(reflect.StructOf(append(without, another))).Elem())
		named("another "+f.Name, err, f.Name)
	}

	if err := partsFit(); err != nil {
		t.Error(err)
	}
	for seam, spoil := range map[string]func(*parts){
		"source.Kind":                        func(p *parts) { p.kind = struct{ Kind client.Object }{&corev1.Pod{}} },
		"handler.EnqueueRequestForObject":    func(p *parts) { p.itself = handler.Funcs{} },
		"handler.EnqueueRequestForOwner":     func(p *parts) { p.owner = &handler.EnqueueRequestForObject{} },
		"handler.EnqueueRequestsFromMapFunc": func(p *parts) { p.mapping = p.owner },
		"predicate.Or":                       func(p *parts) { p.either = predicate.Funcs{} },
	} {
		p := usualParts()
		spoil(&p)
		named("another "+seam, checkParts(p), seam)
	}
}
