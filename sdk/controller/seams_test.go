package controller

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
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
	dep := &debug.Module{Path: library, Version: "v1"}
	replaced := &debug.Module{Path: library, Version: "v1", Replace: &debug.Module{Version: "v2"}}
	other := &debug.Module{Path: "x", Version: "v3"}
	for want, deps := range map[string][]*debug.Module{"v1": {other, dep}, "v2": {replaced}} {
		if got := versionIn(&debug.BuildInfo{Deps: deps}, true); got != want {
			t.Errorf("a program with %s says %s", want, got)
		}
	}
}

// Errors name the versions that sdk/go.mod and sdk/versions have.
func TestSeams_SupportedIsWhatIsTested(t *testing.T) {
	t.Parallel()
	module, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	oldest := regexp.MustCompile(library + ` (v\d+\.\d+)`).FindSubmatch(module)
	others, _ := filepath.Glob("../versions/v*")
	if len(oldest) == 0 || len(others) == 0 {
		t.Fatalf("sdk/go.mod has %q, sdk/versions has %q", oldest, others)
	}
	if want := string(oldest[1]) + " to " + filepath.Base(others[len(others)-1]); supported != want {
		t.Errorf("supported is %q, want %q", supported, want)
	}
}

// Add looks at the parts too. Other tests do not run at the same time: partsFit is of the package.
func TestSeams_AddChecksTheParts(t *testing.T) {
	fit := partsFit
	defer func() { partsFit = fit }()
	partsFit = func() error { return misfit("a part", "it is another") }
	mgr, err := NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, cluster())
	if err != nil {
		t.Fatal(err)
	}
	if err := ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete((&log{}).as("no run")); err == nil || !strings.Contains(err.Error(), "a part does not fit") {
		t.Error(err)
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
