package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
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

// metahooks are hooks of a test. What they answer follows from the objects that they get.
type metahooks struct {
	mu   sync.Mutex
	seen []string // path, name of the parent, and whatever the test wants to know
}

func (h *metahooks) count(prefix string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.seen {
		if strings.HasPrefix(s, prefix) {
			n++
		}
	}
	return n
}

func (h *metahooks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Parent, Object struct {
			Metadata metav1.ObjectMeta
			Spec     struct{ Data map[string]string }
		}
		Children, Attachments, Related map[string]map[string]corev1.ConfigMap
		Finalizing                     bool
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	name := q.Parent.Metadata.Name + q.Object.Metadata.Name
	h.mu.Lock()
	h.seen = append(h.seen, r.URL.Path+" "+name)
	n := len(h.seen)
	h.mu.Unlock()
	child := func(name string, data map[string]string) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}, "data": data}
	}
	answer := map[string]any{}
	switch ns := q.Parent.Metadata.Namespace; r.URL.Path {
	case "/sync":
		source := q.Related["ConfigMap.v1"][ns+"/settings"]
		answer["children"] = []any{child(name+"-copy", source.Data)}
		answer["status"] = map[string]any{"phase": fmt.Sprint("settings ", len(source.Data)), "configMaps": len(q.Children["ConfigMap.v1"])}
	case "/customize":
		answer["relatedResources"] = []any{map[string]any{"apiVersion": "v1", "resource": "configmaps", "namespace": ns, "names": []string{"settings"}}}
	case "/finalize":
		// In order: first the children go, then the parent.
		answer["finalized"] = len(q.Children["ConfigMap.v1"]) == 0
		answer["children"] = []any{}
	case "/decorate":
		if n%2 == 1 { // each other call is too early
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		answer["labels"] = map[string]any{"decorated": "yes"}
		answer["attachments"] = []any{child(name+"-badge", map[string]string{"of": name})}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

const hookedControllers = `
apiVersion: metacontroller.k8s.io/v1alpha1
kind: CompositeController
metadata: {name: copies}
spec:
  generateSelector: true
  parentResource: {apiVersion: metacontroller.reschedule.dev/v1, resource: previews, labelSelector: {matchLabels: {copy: "yes"}}}
  childResources: [{apiVersion: v1, resource: configmaps, updateStrategy: {method: Recreate}}]
  hooks:
    sync: {version: v2, webhook: {url: HOOK/sync}}
    finalize: {version: v2, webhook: {url: HOOK/finalize}}
    customize: {version: v2, webhook: {url: HOOK/customize}}
---
apiVersion: metacontroller.k8s.io/v1alpha1
kind: DecoratorController
metadata: {name: badges}
spec:
  resources: [{apiVersion: metacontroller.reschedule.dev/v1, resource: previews, annotationSelector: {matchAnnotations: {badge: "yes"}}}]
  attachments: [{apiVersion: v1, resource: configmaps}]
  hooks:
    sync: {webhook: {url: HOOK/decorate}}
`

// Two controllers of one bridge: a related object wakes its parents, Recreate deletes and
// makes again, a finalizer is served in order, a hook that is not ready is called again,
// and a kind that cannot be read keeps the hook from being called.
func TestMetacontroller_Hooks(t *testing.T) {
	t.Parallel()
	p, ns := running(t), namespace(t, "hooked")
	applyExample(t, ns)
	patchRole := func(rules ...rbacv1.PolicyRule) {
		t.Helper()
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "previews"}, Rules: rules}
		if _, err := server.Client.RbacV1().Roles(ns).Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	parents := rbacv1.PolicyRule{APIGroups: []string{"metacontroller.reschedule.dev"}, Resources: []string{"previews", "previews/status"}, Verbs: []string{"get", "list", "patch", "update"}}
	configs := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "create", "patch", "delete"}}
	patchRole(parents, configs)
	hooks := &metahooks{}
	web := httptest.NewServer(hooks)
	t.Cleanup(web.Close)
	bridge := startBridge(t, ns, "previews", strings.ReplaceAll(hookedControllers, "HOOK", web.URL), "-related", "v1/configmaps")
	s := p.create(t, ns, "previews", fmt.Sprintf(`
sink: {uri: %q}
delivery: {backoffDelay: PT0.1S}
watch:
  serviceAccountName: previews-watcher
  resources:
  - {apiVersion: metacontroller.reschedule.dev/v1, kind: Preview}
  - {apiVersion: v1, kind: ConfigMap, owner: {apiVersion: metacontroller.reschedule.dev/v1, kind: Preview}}
  - {apiVersion: v1, kind: ConfigMap}
`, bridge))
	settings := func(data map[string]string) {
		t.Helper()
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: data}
		_, err := server.Client.CoreV1().ConfigMaps(ns).Create(t.Context(), o, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = server.Client.CoreV1().ConfigMaps(ns).Update(t.Context(), o, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	change := func(name, patch string) {
		t.Helper()
		if _, err := server.Dynamic.Resource(previews).Namespace(ns).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	makePreview(t, ns, "a", `{"ttlSeconds":1}`)
	change("a", `{"metadata":{"labels":{"copy":"yes"}}}`)
	settle(t, func() bool { return strings.Contains(previewStatus(t, ns, "a"), "phase:settings 0") }, "a Preview that is labelled is not synced")
	settings(map[string]string{"color": "blue"})
	settle(t, func() bool { return dataOf(t, ns, "a-copy")["color"] == "blue" }, "a related object does not wake its parent")
	before, err := server.Client.CoreV1().ConfigMaps(ns).Get(t.Context(), "a-copy", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	settings(map[string]string{"color": "red"})
	settle(t, func() bool { return dataOf(t, ns, "a-copy")["color"] == "red" }, "the copy is not made again")
	after, err := server.Client.CoreV1().ConfigMaps(ns).Get(t.Context(), "a-copy", metav1.GetOptions{})
	if err != nil || after.UID == before.UID {
		t.Errorf("Recreate changed the ConfigMap in place: %v", err)
	}

	makePreview(t, ns, "b", `{"ttlSeconds":1}`)
	change("b", `{"metadata":{"annotations":{"badge":"yes"}}}`)
	settle(t, func() bool { return dataOf(t, ns, "b-badge")["of"] == "b" }, "the attachment is not made")

	attempts := func() int {
		var key harness.Schedule
		s.call(s.token, "GET", harness.KeyPath("Preview/"+ns+"/a"), "").Into(t, &key)
		if key.Attempt == nil {
			return 0
		}
		return *key.Attempt
	}
	failed := func(least int) (times int) {
		settle(t, func() bool { times = attempts(); return times >= least }, "the sync does not fail without a right to read")
		return times
	}
	// The hook would delete everything if it were called with the children of nothing. Children are
	// listed, and related objects are got by their names.
	for i, verb := range []string{"list", "get"} {
		without := configs
		without.Verbs = slices.DeleteFunc(slices.Clone(configs.Verbs), func(v string) bool { return v == verb })
		patchRole(parents, without)
		settle(t, func() bool {
			return !allowed(t, "system:serviceaccount:"+ns+":previews", nil, ns, "core configmaps "+verb)
		}, "the right is not gone")
		generation := i + 2
		change("a", fmt.Sprintf(`{"spec":{"ttlSeconds":%d}}`, generation))
		first := failed(1) // that sync may have read while there was the right
		calls := hooks.count("/sync a")
		failed(first + 2)
		if now := hooks.count("/sync a"); now != calls {
			t.Errorf("the hook was called %d times though it is forbidden to %s ConfigMaps", now-calls, verb)
		}
		patchRole(parents, configs)
		settle(t, func() bool {
			return strings.Contains(previewStatus(t, ns, "a"), fmt.Sprint("observedGeneration:", generation)) && attempts() == 0
		}, "the sync does not succeed with the right")
	}

	if err := server.Dynamic.Resource(previews).Namespace(ns).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	settle(t, func() bool { return previewStatus(t, ns, "a") == "gone" }, "the finalizer is not removed")
	if dataOf(t, ns, "a-copy") != nil || hooks.count("/finalize a") < 2 {
		t.Errorf("the copy must go first: it is %v, and finalize was called %d times", dataOf(t, ns, "a-copy"), hooks.count("/finalize a"))
	}
}
