package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// previews is a controller whose hooks are of a test, at HOOK.
const previews = `
apiVersion: metacontroller.k8s.io/v1alpha1
kind: CompositeController
metadata: {name: previews}
spec:
  generateSelector: true
  parentResource: {apiVersion: example.com/v1, resource: previews}
  childResources:
  - {apiVersion: v1, resource: configmaps, updateStrategy: {method: InPlace}}
  - {apiVersion: v1, resource: secrets}
  hooks:
    sync: {webhook: {url: HOOK/sync}}
`

// hooks are the hooks of a test: one at a time, with the bodies that they were sent.
type hooks struct {
	mu     sync.Mutex
	bodies []string // path and body
	answer func(path string, w http.ResponseWriter)
}

func (h *hooks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var body json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.Header.Get("Content-Type") != "application/json" {
		http.Error(w, "no JSON", http.StatusBadRequest)
		return
	}
	h.bodies = append(h.bodies, r.URL.Path+" "+string(body))
	h.answer(r.URL.Path, w)
}

// says makes the hooks answer with a status and a body.
func (h *hooks) says(status int, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = func(_ string, w http.ResponseWriter) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text))
	}
}

// take returns the requests since the last call.
func (h *hooks) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer func() { h.bodies = nil }()
	return h.bodies
}

// testBridge is a bridge with an API server that is made up, with a Preview "a" in it.
type testBridge struct {
	*bridge
	*hooks
	t     *testing.T
	fails string // a kind that cannot be listed
}

func newTestBridge(t *testing.T, manifest string) *testBridge {
	t.Helper()
	s := &testBridge{t: t, hooks: &hooks{}}
	server := httptest.NewServer(s.hooks)
	t.Cleanup(server.Close)
	all, err := parseManifests([]byte(strings.ReplaceAll(manifest, "HOOK", server.URL)))
	if err != nil || len(all) != 1 {
		t.Fatalf("%d manifests: %v", len(all), err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	preview := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Preview"}
	mapper.Add(preview, meta.RESTScopeNamespace)
	for _, kind := range []string{"ConfigMap", "Secret"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	status := &unstructured.Unstructured{}
	status.SetGroupVersionKind(preview)
	kinds := runtime.NewScheme() // one of its own: the client adds the kinds that it meets, and tests run side by side
	if err := clientgoscheme.AddToScheme(kinds); err != nil {
		t.Fatal(err)
	}
	s.bridge = &bridge{manifest: all[0], rule: all[0].parents()[0], Client: fake.NewClientBuilder().
		WithScheme(kinds).WithRESTMapper(mapper).WithStatusSubresource(status).
		WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, o ...client.ListOption) error {
				if s.fails != "" && strings.Contains(fmt.Sprintf("%T %v", l, l.GetObjectKind().GroupVersionKind()), s.fails) {
					return errors.New("the API server is away")
				}
				return c.List(ctx, l, o...)
			},
		}).Build()}
	if err := s.resolve(mapper); err != nil {
		t.Fatal(err)
	}
	s.make(`{"apiVersion":"example.com/v1","kind":"Preview","metadata":{"name":"a","namespace":"team","uid":"uid-a","generation":3},"spec":{}}`)
	return s
}

func (s *testBridge) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *testBridge) make(text string) *unstructured.Unstructured {
	s.t.Helper()
	o := &unstructured.Unstructured{}
	s.must(o.UnmarshalJSON([]byte(text)))
	s.must(s.Create(s.t.Context(), o))
	return o
}

// run syncs the Preview.
func (s *testBridge) run() (reconcile.Result, error) {
	return s.Reconcile(s.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "team", Name: "a"}})
}

func (s *testBridge) synced() reconcile.Result {
	s.t.Helper()
	r, err := s.run()
	s.must(err)
	return r
}

func (s *testBridge) parentNow() *unstructured.Unstructured {
	s.t.Helper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(s.parent.GroupVersionKind)
	s.must(s.Get(s.t.Context(), types.NamespacedName{Namespace: "team", Name: "a"}, o))
	return o
}

// configMaps are the ConfigMaps of the namespace, as name=value of the key "v".
func (s *testBridge) configMaps() (all []string) {
	s.t.Helper()
	var l corev1.ConfigMapList
	s.must(s.Client.List(s.t.Context(), &l, client.InNamespace("team")))
	for _, c := range l.Items {
		all = append(all, c.Name+"="+c.Data["v"])
	}
	slices.Sort(all)
	return all
}

func (s *testBridge) wantConfigMaps(want ...string) {
	s.t.Helper()
	if got := s.configMaps(); !slices.Equal(got, want) {
		s.t.Errorf("the ConfigMaps are %q, want %q", got, want)
	}
}

// configMap is a child as hooks return it.
func configMap(name, value string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"v":%q}}`, name, value)
}

// What the hook returns is made, changed and deleted, and the status is replaced.
func TestSync_FollowsTheHook(t *testing.T) {
	t.Parallel()
	s := newTestBridge(t, previews)
	s.says(200, `{"status":{"phase":"one"},"children":[`+configMap("x", "1")+`,`+configMap("y", "1")+`],"resyncAfterSeconds":1.5}`)
	if r := s.synced(); r.RequeueAfter.Seconds() != 1.5 {
		t.Errorf("due again after %s", r.RequeueAfter)
	}
	s.wantConfigMaps("x=1", "y=1")
	var x corev1.ConfigMap
	s.must(s.Get(t.Context(), types.NamespacedName{Namespace: "team", Name: "x"}, &x))
	if ref := metav1.GetControllerOf(&x); ref == nil || ref.UID != "uid-a" || ref.Kind != "Preview" || x.Labels[generatedLabel] != "uid-a" {
		t.Errorf("its controller is %v, its labels are %v", ref, x.Labels)
	}
	s.says(200, `{"status":{"count":2},"children":[`+configMap("x", "2")+`]}`)
	if r := s.synced(); r.RequeueAfter != 0 {
		t.Errorf("due again after %s", r.RequeueAfter)
	}
	s.wantConfigMaps("x=2")
	if got := fmt.Sprint(s.parentNow().Object["status"]); got != "map[count:2 observedGeneration:3]" {
		t.Errorf("the status is %s", got)
	}
	bodies := s.take()
	for _, want := range []string{
		`"children":{"ConfigMap.v1":{"x":{`, `,"y":{`, `"Secret.v1":{}`, `"related":{}`, `"finalizing":false`, `"controller":{"apiVersion":"metacontroller.k8s.io/v1alpha1"`,
	} {
		if !strings.Contains(bodies[1], want) {
			t.Errorf("the hook was not sent %s:\n%s", want, bodies[1])
		}
	}
}

// A v2 hook names objects by namespace and name, and its response has no unknown field.
func TestSync_V2(t *testing.T) {
	t.Parallel()
	s := newTestBridge(t, strings.Replace(previews, "sync: {webhook", "sync: {version: v2, webhook", 1))
	s.says(200, `{"children":[`+configMap("x", "1")+`]}`)
	s.synced()
	s.synced()
	if body := s.take()[1]; !strings.Contains(body, `"ConfigMap.v1":{"team/x":{`) {
		t.Errorf("the hook was sent %s", body)
	}
	s.says(200, `{"children":[],"childs":[]}`)
	if _, err := s.run(); err == nil || !strings.Contains(err.Error(), `unknown field "childs"`) {
		t.Errorf("the error is %v", err)
	}
	s.wantConfigMaps("x=1")
}

// A hook is not called when its children cannot all be read: it would take the others for
// gone.
func TestSync_PartialGatherIsNotPosted(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"ConfigMap", "Secret"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newTestBridge(t, previews)
			s.says(200, `{"children":[`+configMap("x", "1")+`]}`)
			s.synced()
			s.take()
			s.says(200, `{"children":[]}`)
			s.fails = kind
			if _, err := s.run(); err == nil || !strings.Contains(err.Error(), "is away") {
				t.Errorf("the error is %v", err)
			}
			if posted := s.take(); len(posted) > 0 {
				t.Errorf("the hook was sent %s", posted)
			}
			s.fails = ""
			s.wantConfigMaps("x=1")
		})
	}
}

// Only 200 counts, 429 says when to come back, and no other answer changes an object.
func TestHook_Answers(t *testing.T) {
	t.Parallel()
	slow := make(chan struct{})
	for name, c := range map[string]struct {
		status int
		header string
		body   string
		after  float64 // seconds; 0 is an error
		says   string
		answer func(w http.ResponseWriter) // in place of the body
	}{
		"201":         {status: 201, body: `{}`, says: "status 201, want 200"},
		"500":         {status: 500, body: "boom", says: "status 500, want 200: boom"},
		"429":         {status: 429, header: "7", after: 7},
		"429 without": {status: 429, says: "without a Retry-After"},
		"429 past":    {status: 429, header: "Mon, 02 Jan 2006 15:04:05 GMT", says: "without a Retry-After"},
		"no JSON":     {status: 200, body: "<html>", says: "invalid character"},
		"too long":    {status: 200, body: strings.Repeat(" ", maxResponse+1), says: "more than 8388608 bytes"},
		"without an end": {says: "more than 8388608 bytes", answer: func(w http.ResponseWriter) {
			for page := make([]byte, 1<<20); ; {
				if _, err := w.Write(page); err != nil {
					return
				}
			}
		}},
		"too late":             {says: "deadline exceeded", answer: func(http.ResponseWriter) { <-slow }},
		"null child":           {status: 200, body: `{"children":[null]}`, says: "null as child 0"},
		"unknown kind":         {status: 200, body: `{"children":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"}}]}`, says: "does not have among its children"},
		"without a name":       {status: 200, body: `{"children":[` + configMap("", "1") + `]}`, says: "it has no name"},
		"of another namespace": {status: 200, body: `{"children":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"p","namespace":"b"}}]}`, says: "must be in the namespace of its parent, team"},
		"foreign label":        {status: 200, body: `{"children":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"p","labels":{"controller-uid":"b"}}}]}`, says: "do not match the selector"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTestBridge(t, previews)
			s.says(200, `{"children":[`+configMap("x", "1")+`]}`)
			s.synced()
			s.hooks.mu.Lock()
			s.answer = func(_ string, w http.ResponseWriter) {
				if c.answer != nil {
					c.answer(w)
					return
				}
				w.Header().Set("Retry-After", c.header)
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body))
			}
			s.hooks.mu.Unlock()
			if name == "too late" {
				s.Spec.Hooks.Sync.timeout = 20 * time.Millisecond
				t.Cleanup(func() { close(slow) })
			}
			r, err := s.run()
			if c.after > 0 && (err != nil || r.RequeueAfter.Seconds() != c.after) {
				t.Errorf("due again after %s: %v", r.RequeueAfter, err)
			}
			if c.after == 0 && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("the error is %v, want %q", err, c.says)
			}
			s.wantConfigMaps("x=1")
		})
	}
}

// An object of the name of a child that is not a child stays as it is.
func TestSync_ForeignObjectStays(t *testing.T) {
	t.Parallel()
	s := newTestBridge(t, previews)
	s.make(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","namespace":"team"},"data":{"v":"theirs"}}`)
	s.says(200, `{"children":[`+configMap("x", "1")+`,`+configMap("y", "1")+`]}`)
	if _, err := s.run(); err == nil || !strings.Contains(err.Error(), "team/x: an object of this name exists") {
		t.Errorf("the error is %v", err)
	}
	s.wantConfigMaps("x=theirs", "y=1") // one failure does not keep the others
}

// What each update strategy does with a child that differs.
func TestSync_UpdateStrategies(t *testing.T) {
	t.Parallel()
	for method, want := range map[string][]string{"OnDelete": {"x=1"}, "InPlace": {"x=2"}, "Recreate": nil} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			s := newTestBridge(t, strings.Replace(previews, "InPlace", method, 1))
			s.says(200, `{"children":[`+configMap("x", "1")+`]}`)
			s.synced()
			s.synced() // the same is no difference
			s.wantConfigMaps("x=1")
			s.says(200, `{"children":[`+configMap("x", "2")+`]}`)
			s.synced()
			s.wantConfigMaps(want...)
			if method == "Recreate" {
				s.synced()
				s.wantConfigMaps("x=2")
			}
		})
	}
}

const finalize = "    finalize: {webhook: {url: HOOK/finalize}}\n"

// The finalizer is there before the first child, and goes when the hook says so.
func TestFinalize_IsAskedUntilDone(t *testing.T) {
	t.Parallel()
	s := newTestBridge(t, previews+finalize)
	s.answer = func(_ string, w http.ResponseWriter) {
		if !s.marked(s.parentNow()) {
			t.Error("the hook is called before the finalizer is there")
		}
		_, _ = w.Write([]byte(`{"children":[` + configMap("x", "1") + `]}`))
	}
	s.synced()
	s.must(s.Delete(t.Context(), s.parentNow()))
	s.take()
	s.says(200, `{"children":[],"finalized":false,"resyncAfterSeconds":9}`)
	if r := s.synced(); r.RequeueAfter.Seconds() != 9 {
		t.Errorf("due again after %s", r.RequeueAfter)
	}
	s.wantConfigMaps()
	if body := s.take()[0]; !strings.HasPrefix(body, "/finalize ") || !strings.Contains(body, `"finalizing":true`) {
		t.Errorf("the hook was sent %s", body)
	}
	s.says(200, `{"finalized":true}`)
	s.synced()
	if err := s.Get(t.Context(), types.NamespacedName{Namespace: "team", Name: "a"}, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Preview"}}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the Preview is still there: %v", err)
	}
	if r := s.synced(); r.RequeueAfter != 0 {
		t.Errorf("due again after %s", r.RequeueAfter)
	}
}

// A CompositeController with selectors adopts and releases, and deletes what it adopted
// and the hook does not return.
func TestGather_AdoptsAndReleases(t *testing.T) {
	t.Parallel()
	s := newTestBridge(t, strings.Replace(previews, "generateSelector: true", "generateSelector: false", 1))
	s.says(200, `{"children":[]}`)
	if _, err := s.run(); err == nil || !strings.Contains(err.Error(), "spec.selector: must have matchLabels") {
		t.Errorf("the error is %v", err)
	}
	p := s.parentNow()
	s.must(unstructured.SetNestedStringMap(p.Object, map[string]string{"app": "a"}, "spec", "selector", "matchLabels"))
	s.must(s.Update(t.Context(), p))
	s.make(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"orphan","namespace":"team","labels":{"app":"a"}}}`)
	s.make(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"other","namespace":"team","labels":{"app":"b"}}}`)
	owned := s.make(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"strayed","namespace":"team","labels":{"app":"c"},
		"ownerReferences":[{"apiVersion":"example.com/v1","kind":"Preview","name":"a","uid":"uid-a","controller":true}]}}`)
	s.make(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"theirs","namespace":"team","labels":{"app":"a"},
		"ownerReferences":[{"apiVersion":"example.com/v1","kind":"Preview","name":"b","uid":"uid-b","controller":true}]}}`)
	s.synced()
	s.wantConfigMaps("other=", "strayed=", "theirs=")
	s.must(s.Get(t.Context(), client.ObjectKeyFromObject(owned), owned))
	if metav1.GetControllerOf(owned) != nil {
		t.Error("the ConfigMap that the selector does not match is still owned")
	}
	if body := s.take()[0]; !strings.Contains(body, `"orphan":{`) || strings.Contains(body, `"theirs":{`) || strings.Contains(body, `"strayed":{`) {
		t.Errorf("the hook was sent %s", body)
	}
}

// Related objects come by name, by label, of the parent's namespace or, for v2, of all.
func TestCustomize_Related(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		version, rule string
		want          string // in the body of sync
		says          string
	}{
		"by name":              {"v1", `{"apiVersion":"v1","resource":"configmaps","names":["one","gone"]}`, `"related":{"ConfigMap.v1":{"one":{`, ""},
		"by label":             {"v1", `{"apiVersion":"v1","resource":"configmaps","labelSelector":{"matchLabels":{"l":"1"}}}`, `"related":{"ConfigMap.v1":{"one":{`, ""},
		"elsewhere v1":         {"v1", `{"apiVersion":"v1","resource":"configmaps","namespace":"b"}`, "", "must be the namespace of the parent, team"},
		"elsewhere v2":         {"v2", `{"apiVersion":"v1","resource":"configmaps","namespace":"b"}`, `"related":{"ConfigMap.v1":{"b/two":{`, ""},
		"everywhere v2":        {"v2", `{"apiVersion":"v1","resource":"configmaps","names":["one","two"]}`, `"related":{"ConfigMap.v1":{"b/two":{`, ""},
		"by namespace":         {"v2", `{"apiVersion":"v1","resource":"configmaps","namespaceSelector":{"matchLabels":{"n":"b"}}}`, `"related":{"ConfigMap.v1":{"b/two":{`, ""},
		"none":                 {"v2", `{"apiVersion":"v1","resource":"secrets","namespace":"b"}`, `"related":{"Secret.v1":{}}`, ""},
		"names and a selector": {"v2", `{"apiVersion":"v1","resource":"secrets","names":["x"],"labelSelector":{}}`, "", "names must not have a selector"},
		"both namespaces":      {"v2", `{"apiVersion":"v1","resource":"secrets","namespace":"b","namespaceSelector":{}}`, "", "must have no namespace beside it"},
		"unknown":              {"v2", `{"apiVersion":"v1","resource":"widgets"}`, "", "widgets of v1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTestBridge(t, previews+"    customize: {version: "+c.version+", webhook: {url: HOOK/customize}}\n")
			s.make(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"b","labels":{"n":"b"}}}`)
			s.make(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":"team","labels":{"l":"1"}}}`)
			s.make(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"two","namespace":"b","labels":{"l":"2"}}}`)
			s.answer = func(path string, w http.ResponseWriter) {
				text := `{}`
				if path == "/customize" {
					text = `{"relatedResources":[` + c.rule + `]}`
				}
				_, _ = w.Write([]byte(text))
			}
			_, err := s.run()
			bodies := s.take()
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) || len(bodies) != 1 {
					t.Errorf("the error is %v, want %q; the hooks were sent %s", err, c.says, bodies)
				}
				return
			}
			s.must(err)
			if !strings.Contains(bodies[1], c.want) || strings.Contains(bodies[1], `"one":{"apiVersion"`) != strings.Contains(c.want, `"one"`) {
				t.Errorf("sync was sent %s, want %s", bodies[1], c.want)
			}
		})
	}
}

const decorator = `
apiVersion: metacontroller.k8s.io/v1alpha1
kind: DecoratorController
metadata: {name: deco}
spec:
  resources:
  - {apiVersion: example.com/v1, resource: previews, annotationSelector: {matchAnnotations: {decorate: "yes"}}}
  attachments:
  - {apiVersion: v1, resource: configmaps}
  hooks:
    sync: {webhook: {url: HOOK/sync}}
    finalize: {webhook: {url: HOOK/finalize}}
`

// A DecoratorController syncs the objects that it selects, changes their labels,
// annotations and status, and finalizes an object that opts out.
func TestDecorator_OptsInAndOut(t *testing.T) {
	t.Parallel()
	s := newTestBridge(t, decorator)
	s.says(200, `{"labels":{"l":"1","gone":null},"annotations":{"n":"1"},"status":{"s":1},"attachments":[`+configMap("x", "1")+`]}`)
	s.synced()
	if posted := s.take(); len(posted) > 0 {
		t.Fatalf("the hook was sent %s", posted)
	}
	p := s.parentNow()
	p.SetAnnotations(map[string]string{"decorate": "yes"})
	p.SetLabels(map[string]string{"gone": "1", "stays": "1"})
	s.must(s.Update(t.Context(), p))
	s.synced()
	p = s.parentNow()
	if got := fmt.Sprint(p.GetLabels(), p.GetAnnotations(), p.Object["status"], p.GetFinalizers()); got !=
		"map[l:1 stays:1] map[decorate:yes n:1] map[s:1] [metacontroller.io/decoratorcontroller-deco]" {
		t.Errorf("the object has %s", got)
	}
	s.says(200, `{"attachments":[`+configMap("x", "1")+`]}`)
	s.synced()
	if body := s.take()[1]; !strings.Contains(body, `"attachments":{"ConfigMap.v1":{"x":{`) || !strings.Contains(body, `"object":{`) || strings.Contains(body, `"children"`) {
		t.Errorf("the hook was sent %s", body)
	}
	if got := fmt.Sprint(s.parentNow().Object["status"]); got != "map[s:1]" {
		t.Errorf("a status of null must change nothing, it is %s", got)
	}
	p = s.parentNow()
	p.SetAnnotations(nil)
	s.must(s.Update(t.Context(), p))
	s.says(200, `{"attachments":[],"finalized":true}`)
	s.synced()
	s.wantConfigMaps()
	if posted := s.take(); len(posted) != 1 || !strings.HasPrefix(posted[0], "/finalize ") || s.marked(s.parentNow()) {
		t.Errorf("the hooks were sent %s; the finalizers are %v", posted, s.parentNow().GetFinalizers())
	}
}

// The parents that a related object is for, whatever its labels are now.
func TestRelated_WakesItsParents(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rule string
		want int
	}{
		"its name":          {`{"apiVersion":"v1","resource":"configmaps","names":["one"]}`, 1},
		"its label was":     {`{"apiVersion":"v1","resource":"configmaps","labelSelector":{"matchLabels":{"l":"1"}}}`, 1},
		"another name":      {`{"apiVersion":"v1","resource":"configmaps","names":["two"]}`, 0},
		"another kind":      {`{"apiVersion":"v1","resource":"secrets","names":["one"]}`, 0},
		"another namespace": {`{"apiVersion":"v1","resource":"configmaps","namespace":"b"}`, 0},
		"no answer":         {`nonsense`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTestBridge(t, previews+"    customize: {version: v2, webhook: {url: HOOK/customize}}\n")
			s.says(200, `{"relatedResources":[`+c.rule+`]}`)
			r, err := resolve(s.RESTMapper(), "v1", "configmaps")
			s.must(err)
			got := s.relatedTo(r)(t.Context(), s.make(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":"team"}}`))
			if len(got) != c.want {
				t.Errorf("it wakes %v, want %d", got, c.want)
			}
		})
	}
}
