package controller

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crevent "sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

var update = flag.Bool("update", false, "write the files in testdata")

// TestPrintSource_Golden compares what is printed with the files in testdata, which
// test/manifests judges as the API server does.
func TestPrintSource_Golden(t *testing.T) {
	t.Parallel()
	selector := func(s string) labels.Selector {
		l, err := labels.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	ours := predicate.NewPredicateFuncs(func(client.Object) bool { panic("it is not asked") })
	period := time.Hour
	for name, row := range map[string]struct {
		cache cache.Options
		opts  []Option
		setup func(ctrl.Manager) error
	}{
		// For, Owns and Watches in the namespace of the source.
		"usual": {
			cache: cache.Options{DefaultNamespaces: map[string]cache.Config{"ops": {}}},
			opts:  []Option{WithAudience("websites", "system:serviceaccount:ops:websites")},
			setup: (&configs{}).SetupWithManager,
		},
		// All namespaces, and no predicates.
		"plain": {setup: func(mgr ctrl.Manager) error {
			return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Owns(&appsv1.Deployment{}).Complete(&configs{})
		}},
		// Two controllers for a kind, kinds without namespaces or an API server, a selector.
		"several": {
			cache: cache.Options{
				DefaultNamespaces:    map[string]cache.Config{"b": {}, "a": {FieldSelector: fields.OneTermEqualSelector("metadata.name", "x")}},
				DefaultLabelSelector: selector("x>1"), SyncPeriod: &period,
				ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {Label: selector("team=true,!old"), Field: fields.OneTermEqualSelector("metadata.name", "x")}},
			},
			setup: func(mgr ctrl.Manager) error {
				unserved := &unstructured.Unstructured{}
				unserved.SetAPIVersion("example.com/v1")
				unserved.SetKind("Website")
				for _, b := range []*builder.Builder{
					ctrl.NewControllerManagedBy(mgr).
						For(&corev1.ConfigMap{}, builder.WithPredicates(predicate.Or(predicate.LabelChangedPredicate{}, predicate.GenerationChangedPredicate{}), ours)).
						Owns(&appsv1.Deployment{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
						WatchesRawSource(source.Channel(make(chan crevent.GenericEvent), &handler.EnqueueRequestForObject{})),
					ctrl.NewControllerManagedBy(mgr).Named("second").
						For(&corev1.ConfigMap{}, builder.WithPredicates(predicate.And(predicate.ResourceVersionChangedPredicate{}, predicate.GenerationChangedPredicate{}))),
					ctrl.NewControllerManagedBy(mgr).For(&corev1.Node{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, ours))).
						Watches(&corev1.Pod{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
						Watches(&corev1.Secret{}, handler.Funcs{}),
					ctrl.NewControllerManagedBy(mgr).For(unserved, builder.WithPredicates(predicate.AnnotationChangedPredicate{})).Owns(&corev1.Service{}),
				} {
					if err := b.Complete((&log{}).as("no run")); err != nil {
						return err
					}
				}
				return nil
			},
		},
		// Watches of another cache than the manager's.
		"raw": {
			cache: cache.Options{DefaultNamespaces: map[string]cache.Config{"ops": {}}},
			setup: targets(&log{}),
		},
	} {
		o := cluster()
		o.Cache = row.cache
		mapper, err := o.MapperProvider(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		node := corev1.SchemeGroupVersion
		mapper.(*meta.DefaultRESTMapper).AddSpecific(node.WithKind("Node"), node.WithResource("nodes"), node.WithResource("node"), meta.RESTScopeRoot)
		o.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil }
		mgr, err := NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, o, row.opts...)
		if err != nil {
			t.Fatal(err)
		}
		if err := row.setup(mgr); err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		if err := PrintSource(mgr, &got, types.NamespacedName{Namespace: "ops", Name: "websites"}); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", "source-"+name+".yaml")
		if *update {
			if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil || got.String() != string(want) {
			t.Errorf("%s: %v\n%s", file, err, got.String())
		}
	}
}

// TestPrintSource_Refusals are errors that say what is missing.
func TestPrintSource_Refusals(t *testing.T) {
	t.Parallel()
	resident, err := ctrl.NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, cluster())
	if err != nil {
		t.Fatal(err)
	}
	empty, err := NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, cluster())
	if err != nil {
		t.Fatal(err)
	}
	ops := types.NamespacedName{Namespace: "ops", Name: "websites"}
	for want, row := range map[string]struct {
		ctrl.Manager
		types.NamespacedName
	}{
		"needs a manager of NewManager":    {resident, ops},
		"needs the namespace and the name": {empty, types.NamespacedName{Name: "websites"}},
		"no controller watches anything":   {empty, ops},
	} {
		var b strings.Builder
		if err := PrintSource(row.Manager, &b, row.NamespacedName); err == nil || !strings.Contains(err.Error(), want) || b.Len() > 0 {
			t.Errorf("%v, printed %q, want %q", err, b.String(), want)
		}
	}
}

// TestPrintSource_ByTheEnvironment starts a manager that prints and ends.
func TestPrintSource_ByTheEnvironment(t *testing.T) {
	out := os.Stdout
	defer func() { os.Stdout = out }()
	for value, want := range map[string]string{"ops/websites": "metadata: {name: websites, namespace: ops}", "ops/123": `kind: Service, name: "123"}`, "ops": `"ops" is not NAMESPACE/NAME`} {
		t.Setenv(printVariable, value)
		printed, err := os.Create(filepath.Join(t.TempDir(), "printed"))
		if err != nil {
			t.Fatal(err)
		}
		defer printed.Close()
		mgr, err := NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, cluster())
		if err == nil {
			err = (&configs{}).SetupWithManager(mgr)
		}
		if err != nil {
			t.Fatal(err)
		}
		os.Stdout = printed
		err = mgr.Start(t.Context())
		os.Stdout = out
		text, _ := os.ReadFile(printed.Name())
		if !strings.Contains(fmt.Sprint(string(text), err), want) {
			t.Errorf("%s: %v, it printed %s", value, err, text)
		}
	}
}
