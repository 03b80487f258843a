package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// metacontrollerExample is a module of its own.
const metacontrollerExample = "../../sdk/examples/metacontroller"

var previews = schema.GroupVersionResource{Group: "metacontroller.reschedule.dev", Version: "v1", Resource: "previews"}

// metacontrollerPrograms builds the bridge and the hook of the example, once.
var metacontrollerPrograms = sync.OnceValues(func() (dir string, err error) {
	// go test runs this package again when a file has changed that it read.
	for _, pattern := range []string{metacontrollerExample, metacontrollerExample + "/hook", "../../sdk", "../../sdk/controller"} {
		files, err := filepath.Glob(filepath.Join(pattern, "*.go"))
		if err != nil {
			return "", err
		}
		for _, file := range files {
			if _, err := os.ReadFile(file); err != nil {
				return "", err
			}
		}
	}
	dir = filepath.Join(scratch, "metacontroller") + "/"
	cmd := exec.Command("go", "build", "-trimpath", "-o", dir, ".", "./hook")
	cmd.Dir, cmd.Env = metacontrollerExample, append(os.Environ(), "CGO_ENABLED=0")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", metacontrollerExample, err, out)
	}
	return dir, nil
})

// launch runs a program of the example until the end of the test, once it listens.
func launch(t *testing.T, name, address string, env []string, args ...string) {
	t.Helper()
	dir, err := metacontrollerPrograms()
	if err != nil {
		t.Fatal(err)
	}
	p, err := kube.Launch(filepath.Join(t.TempDir(), name+".log"), env, dir+name, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s:\n%s", name, tail(p.Log()))
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), kube.Patience)
	defer cancel()
	err = p.Until(ctx, listens(address))
	if err != nil {
		t.Fatal(err)
	}
}

// listens is nil when a connection to the address is accepted.
func listens(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			err = c.Close()
		}
		return err
	}
}

// startBridge runs the bridge with an account and a manifest, and returns its URL.
func startBridge(t *testing.T, namespace, account, manifest string, args ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "controller.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := server.Kubeconfig(t.Context(), namespace, account)
	if err != nil {
		t.Fatal(err)
	}
	address, err := harness.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(address)
	launch(t, "metacontroller", address, []string{"KUBECONFIG=" + config, "PORT=" + port, "WATCH_NAMESPACE=" + namespace}, append(args, file)...)
	return "http://" + address
}

// applyExample applies the manifests of the example without the Knative Service. It
// returns the manifest of its controller and the spec of its source without the sink.
func applyExample(t *testing.T, ns string) (controller, spec string) {
	t.Helper()
	if err := server.ApplyFiles(t.Context(), metacontrollerExample+"/config/100-preview.yaml"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(metacontrollerExample + "/config/200-operator.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := kube.Objects(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		switch o.GetKind() {
		case "Service":
			continue
		case "RescheduleSource":
			watching := o.Object["spec"].(map[string]any)
			delete(watching, "sink")
			out, err := yaml.Marshal(watching)
			if err != nil {
				t.Fatal(err)
			}
			spec = string(out)
			continue
		case "ConfigMap":
			controller, _, _ = unstructured.NestedString(o.Object, "data", "controller.yaml")
		case "RoleBinding":
			subjects := o.Object["subjects"].([]any)
			subjects[0].(map[string]any)["namespace"] = ns
		}
		one, err := o.MarshalJSON()
		if err == nil {
			err = server.ApplyIn(t.Context(), ns, one)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return controller, spec
}

func makePreview(t *testing.T, ns, name, spec string) {
	t.Helper()
	o := &unstructured.Unstructured{}
	text := fmt.Sprintf(`{"apiVersion":"metacontroller.reschedule.dev/v1","kind":"Preview","metadata":{"name":%q},"spec":%s}`, name, spec)
	if err := o.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Dynamic.Resource(previews).Namespace(ns).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// previewStatus is the status of a Preview, as text; "gone" if there is none.
func previewStatus(t *testing.T, ns, name string) string {
	t.Helper()
	o, err := server.Dynamic.Resource(previews).Namespace(ns).Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "gone"
	}
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(o.Object["status"])
}

// dataOf is the data of a ConfigMap, nil if it is not there.
func dataOf(t *testing.T, ns, name string) map[string]string {
	t.Helper()
	c, err := server.Client.CoreV1().ConfigMaps(ns).Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return c.Data
}

// The example works as its manifests say, with the rights that they give: its hook is
// called for a new Preview and when its time is over, and a child that is changed is
// repaired.
func TestMetacontroller_Example(t *testing.T) {
	t.Parallel()
	p, ns := running(t), namespace(t, "previews")
	controller, spec := applyExample(t, ns)
	hook, err := harness.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(controller, "localhost:9000") {
		t.Fatalf("the controller does not have the address of the hook:\n%s", controller)
	}
	launch(t, "hook", hook, []string{"LISTEN=" + hook})
	bridge := startBridge(t, ns, "previews", strings.Replace(controller, "localhost:9000", hook, 1))
	p.create(t, ns, "previews", fmt.Sprintf("sink: {uri: %q}\n", bridge)+spec)

	const ttl = 10 * time.Second
	made := time.Now()
	makePreview(t, ns, "a", `{"ttlSeconds":10,"data":{"color":"blue"}}`)
	settle(t, func() bool { return dataOf(t, ns, "a")["color"] == "blue" }, "there is no ConfigMap")
	settle(t, func() bool { return previewStatus(t, ns, "a") == "map[configMaps:1 observedGeneration:1 phase:Active]" }, "the status does not count one ConfigMap")
	_, err = server.Client.CoreV1().ConfigMaps(ns).Patch(t.Context(), "a", types.MergePatchType, []byte(`{"data":{"color":"red"}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	settle(t, func() bool { return dataOf(t, ns, "a")["color"] == "blue" }, "the ConfigMap is not repaired")
	settle(t, func() bool { return dataOf(t, ns, "a") == nil }, "the ConfigMap is still there")
	if early := time.Since(made); early < ttl-time.Second { // creationTimestamp has whole seconds
		t.Errorf("it was deleted after %s, want %s", early, ttl)
	}
	settle(t, func() bool { return strings.HasPrefix(previewStatus(t, ns, "a"), "map[configMaps:0 ") }, "the status does not count zero ConfigMaps")
}
