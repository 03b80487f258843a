package main

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/yaml"

	reschedule "github.com/reschedule-dev/reschedule/sdk/controller"
)

// The bridge prints the watches of the example's source, with changes: Any for the parent,
// since Metacontroller counts a status as a change.
func TestPrint_IsTheExamplesSource(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("config/200-operator.yaml")
	if err != nil {
		t.Fatal(err)
	}
	documents := strings.Split(string(text), "\n---\n")
	var file struct{ Data map[string]string }
	if err := yaml.Unmarshal([]byte(documents[0]), &file); err != nil {
		t.Fatal(err)
	}
	manifests, err := parseManifests([]byte(file.Data["controller.yaml"]))
	if err != nil || len(manifests) != 1 {
		t.Fatalf("%d manifests: %v", len(manifests), err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(schema.GroupVersionKind{Group: "metacontroller.reschedule.dev", Version: "v1", Kind: "Preview"}, meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, meta.RESTScopeNamespace)
	mgr, err := reschedule.NewManager(&rest.Config{Host: "127.0.0.1:1"}, ctrl.Options{
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil },
		Controller:     config.Controller{SkipNameValidation: new(true)}, // go test -count runs it again in one process
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := setup(mgr, manifests[0], manifests[0].parents()[0], "", nil, 1); err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	if err := reschedule.PrintSource(mgr, &printed, types.NamespacedName{Namespace: "demo", Name: "previews"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\n      - {apiVersion: metacontroller.reschedule.dev/v1, kind: Preview, changes: Any}\n",
		"\n      - {apiVersion: v1, kind: ConfigMap, owner: {apiVersion: metacontroller.reschedule.dev/v1, kind: Preview}}\n",
	} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("it prints no %q:\n%s", want, &printed)
		}
		if in := strings.TrimSpace(strings.Replace(want, ", changes: Any", "", 1)); !strings.Contains(string(text), in) {
			t.Errorf("the example's source has no %q", in)
		}
	}
}
