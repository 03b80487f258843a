package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	crcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	crmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/reschedule-dev/reschedule/sdk/internal/cloudevent"
)

const patience = 30 * time.Second

// sender sends events. It does not share connections with http.DefaultTransport: a test server that ends
// closes these, also while an answer without a body comes in.
var sender = &http.Client{Transport: &http.Transport{}}

// configs is an operator written in the usual way: For ConfigMaps whose generation
// changes, with Secrets of its own. It Watches ServiceAccounts, which name ConfigMaps.
type configs struct {
	client.Client
	results func(reconcile.Request) (reconcile.Result, error) // for an object that is there; nil is zero

	mu   sync.Mutex
	runs []string
	busy map[reconcile.Request]bool
}

// Reconcile implements reconcile.Reconciler.
func (c *configs) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	c.mu.Lock()
	c.runs = append(c.runs, r.String())
	if c.busy[r] {
		panic("twice at once: " + r.String())
	}
	c.busy[r] = true
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.busy, r)
	}()
	var o corev1.ConfigMap
	if err := c.Get(ctx, r.NamespacedName, &o); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if c.results == nil {
		return reconcile.Result{}, nil
	}
	return c.results(r)
}

// SetupWithManager is called in main.go.
func (c *configs) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&corev1.ConfigMap{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&corev1.Secret{}).
		Watches(&corev1.ServiceAccount{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) (rs []reconcile.Request) {
			for name := range strings.SplitSeq(o.GetAnnotations()["configs"], ",") {
				if name == "panic" {
					panic("a bug")
				}
				if name != "" {
					rs = append(rs, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}})
				}
			}
			return rs
		})).
		Complete(c)
}

// ran are the runs since the last call.
func (c *configs) ran() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	runs := c.runs
	c.runs = nil
	slices.Sort(runs)
	return runs
}

// operator is a process of an operator, and a way to send it events.
type operator struct {
	t       *testing.T
	url     string
	stop    func() error
	manager *manager
	ctx     context.Context // of its requests; nil: the context of the test
	tokens  []string        // of its requests, each in a header
}

// cluster are the options of a manager without an API server. The controllers of other
// tests may have the same names.
func cluster(objects ...client.Object) ctrl.Options {
	skip := true
	o := ctrl.Options{
		Logger: logr.Discard(),
		NewClient: func(*rest.Config, client.Options) (client.Client, error) {
			return fake.NewClientBuilder().WithObjects(objects...).Build(), nil
		},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			m := meta.NewDefaultRESTMapper(nil)
			for gvk := range scheme.Scheme.AllKnownTypes() {
				m.Add(gvk, meta.RESTScopeNamespace)
			}
			return m, nil
		},
	}
	o.Controller.SkipNameValidation = &skip
	return o
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	return listenAt(t, "127.0.0.1:0")
}

func listenAt(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// trusting admits every event, as if it had a good token.
func trusting(o *options) { o.verify = func(*http.Request) error { return nil } }

// open is NewManager without WithAudience.
func open(o *options) { o.verify = nil }

// startManager starts an operator, as main.go does. It trusts its senders, unless
// the options say otherwise.
func startManager(t *testing.T, o ctrl.Options, setup func(ctrl.Manager) error, opts ...Option) *operator {
	t.Helper()
	return startManagerOf(t, "http://127.0.0.1:1", o, setup, append([]Option{trusting}, opts...)...)
}

// startManagerOf is startManager with the address of an API server. It does not trust
// its senders.
func startManagerOf(t *testing.T, apiServer string, o ctrl.Options, setup func(ctrl.Manager) error, opts ...Option) *operator {
	t.Helper()
	l := newServer(opts).listener
	if l == nil {
		l = listen(t)
		opts = append(opts, WithListener(l))
	}
	mgr, err := NewManager(&rest.Config{Host: apiServer}, o, opts...)
	if err != nil {
		t.Fatal(err)
	}
	if err := setup(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	op := &operator{t: t, url: "http://" + l.Addr().String(), manager: mgr.(*manager)}
	op.stop = sync.OnceValue(func() error {
		sender.CloseIdleConnections() // a server waits 5 s for one that no request has come over
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return fmt.Errorf("the manager has not ended in %s", patience)
		}
	})
	t.Cleanup(func() {
		if err := op.stop(); err != nil {
			t.Error(err)
		}
	})
	return op
}

// start is startManager with the operator of the tests.
func start(t *testing.T, c *configs, objects []client.Object, opts ...Option) *operator {
	t.Helper()
	c.busy = map[reconcile.Request]bool{}
	return startManager(t, cluster(objects...), func(mgr ctrl.Manager) error {
		c.Client = mgr.GetClient()
		return c.SetupWithManager(mgr)
	}, opts...)
}

// answered is the answer of an operator.
type answered struct {
	code  int
	after string
	body  string
	http.Header
}

func (a answered) String() string {
	return strings.TrimSpace(strings.Join([]string{fmt.Sprint(a.code), a.after}, " "))
}

func (op *operator) send(attributes map[string]string, data string) answered {
	op.t.Helper()
	a, err := op.try(attributes, data)
	if err != nil {
		op.t.Fatal(err)
	}
	return a
}

func (op *operator) try(attributes map[string]string, data string) (answered, error) {
	ctx := op.ctx
	if ctx == nil {
		ctx = op.t.Context()
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, op.url, strings.NewReader(data))
	if err != nil {
		return answered{}, err
	}
	for name, value := range attributes {
		r.Header.Set("Ce-"+name, value)
	}
	r.Header["Authorization"] = op.tokens
	resp, err := sender.Do(r)
	if err != nil {
		return answered{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answered{resp.StatusCode, resp.Header.Get("Reschedule-After"), string(body), resp.Header}, err
}

var sent atomic.Int64

// changed are the attributes of an event of an ApiServerSource, delivered under a key if
// there is one. Each has another time.
func changed(what, key string) map[string]string {
	a := map[string]string{"specversion": "1.0", "id": "1", "source": "api", "type": "dev.knative.apiserver." + what, "name": "x", "namespace": ""}
	a["time"] = time.Date(2026, 11, 21, 9, 0, 0, int(sent.Add(1)), time.UTC).Format(time.RFC3339Nano)
	if key != "" {
		maps.Copy(a, map[string]string{"reschedulekey": key, "reschedulerevision": "1", "rescheduleattempt": "0"})
	}
	return a
}

func dueEvent(key string) map[string]string {
	a := changed("", key)
	a["type"] = cloudevent.DueType
	return a
}

func configMap(name string, generation int64) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Generation: generation},
	}
}

func toJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func secret(owner string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"ns","ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":%q,"uid":"u","controller":true}]}}`, owner)
}

func account(configs string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"sa","namespace":"ns","annotations":{"configs":%q}}}`, configs)
}

// TestOperator_RunsUnchanged sends one event after the other to an operator.
func TestOperator_RunsUnchanged(t *testing.T) {
	t.Parallel()
	const key = "ConfigMap/ns/a"
	c := &configs{}
	op := start(t, c, []client.Object{configMap("a", 1), configMap("b", 1)})
	ref := `{"apiVersion":"v1","kind":"ConfigMap","namespace":"ns","name":"a"}`
	for i, e := range []struct {
		about      string
		attributes map[string]string
		data       string
		want       string
		runs       string
	}{
		{"a new object", changed("resource.add", key), toJSON(configMap("a", 1)), "204", "ns/a"},
		{"its status", changed("resource.update", key), toJSON(configMap("a", 1)), "204", ""},
		{"its spec", changed("resource.update", key), toJSON(configMap("a", 2)), "204", "ns/a"},
		{"its status again", changed("resource.update", key), toJSON(configMap("a", 2)), "204", ""},
		{"an object that was not seen before", changed("resource.update", "ConfigMap/ns/b"), toJSON(configMap("b", 7)), "204", "ns/b"},
		{"a name", changed("ref.update", key), ref, "204", "ns/a"}, // the object of the cluster has another generation
		{"a name, without a key", changed("ref.add", ""), ref, "400", ""},
		{"what it owns", changed("resource.add", "Secret/ns/s"), secret("a"), "204", "ns/a"},
		{"what it owns, under its own key", changed("resource.update", key), secret("a"), "204", "ns/a"},
		{"what it owns, deleted", changed("resource.delete", key), secret("a"), "200 1ms", "ns/a"},
		{"what it owns, in another version, deleted", changed("resource.delete", "Secret/ns/s"), strings.Replace(secret("a"), `"apiVersion":"v1"`, `"apiVersion":"v2","data":7`, 1), "204", "ns/a"},
		{"the key after that", dueEvent(key), `{"controller":"configmap","namespace":"ns","name":"a"}`, "204", "ns/a"},
		{"what another owns", changed("resource.add", "Secret/ns/s"), strings.ReplaceAll(secret("a"), "ConfigMap", "Pod"), "204", ""},
		{"what maps to two", changed("resource.add", "ServiceAccount/ns/sa"), account("a,b"), "204", "ns/a ns/b"},
		{"what maps to none", changed("resource.add", "ServiceAccount/ns/sa"), account(""), "204", ""},
		{"a panic in a handler", changed("resource.add", "ServiceAccount/ns/sa"), account("panic"), "503", ""},
		{"the next event after that", changed("resource.add", "ServiceAccount/ns/sa"), account("b"), "204", "ns/b"},
		{"a kind that no controller watches", changed("resource.add", "Pod/ns/p"), `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"}}`, "204", ""},
		{"a kind that is not in the scheme", changed("ref.add", "X//x"), `{"apiVersion":"x/v1","kind":"X","name":"p"}`, "204", ""},
		{"a key that is due", dueEvent(key), "", "204", "ns/a"},
		{"a key that is due, of a controller", dueEvent("configmap/ns/a"), "", "204", "ns/a"},
		{"a key that is due, with a request", dueEvent("any"), `{"controller":"configmap","namespace":"ns","name":"b"}`, "204", "ns/b"},
		{"a key that is due, with requests", dueEvent("any"), `{"requests":[{"controller":"configmap","namespace":"ns","name":"b"},{"controller":"configmap","namespace":"ns","name":"a"}]}`, "204", "ns/a ns/b"},
		{"a key that is due, with data of a caller", dueEvent(key), `[1]`, "204", "ns/a"},
		{"a key that is due, of no controller", dueEvent("Pod/ns/a"), "", "400", ""},
		{"an object that is deleted", changed("resource.delete", "ConfigMap/ns/gone"), toJSON(configMap("gone", 1)), "204 never", "ns/gone"},
		{"a name that is deleted", changed("ref.update", "ConfigMap/ns/gone"), strings.ReplaceAll(ref, `"a"`, `"gone"`), "204 never", "ns/gone"},
		{"a name that is deleted, and there again", changed("ref.delete", key), ref, "200 1ms", "ns/a"},
		{"a key of what is gone", dueEvent("ConfigMap/ns/gone"), "", "204 never", "ns/gone"},
		{"no event", nil, "{}", "400", ""},
		{"an event without an object", changed("resource.add", key), "{}", "400", ""},
		{"an event that is no JSON", changed("resource.add", key), "hello", "400", ""},
		{"an object of other types", changed("resource.add", key), `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","generation":"one"}}`, "400", ""},
		{"an event too large", changed("resource.add", key), strings.Repeat(" ", maxBody+1), "400", ""},
	} {
		a := op.send(e.attributes, e.data)
		if runs := strings.Join(c.ran(), " "); a.String() != e.want || runs != e.runs {
			t.Errorf("%d, %s: answered with %s %q and ran %q, want %s and %q", i, e.about, a, a.body, runs, e.want, e.runs)
		}
		if a.code == 400 && !strings.Contains(a.body, errUnreadable.Error()) && strings.TrimSpace(a.body) != errNoKey.Error() && !strings.Contains(a.body, "its keys are ConfigMap/namespace/name") {
			t.Errorf("%s: the answer says %q", e.about, a.body)
		}
	}
}

// TestMemory_FailedEventIsNews says that an object whose run failed does not count as
// seen.
func TestMemory_FailedEventIsNews(t *testing.T) {
	t.Parallel()
	const key = "ConfigMap/ns/a"
	fail := true
	c := &configs{results: func(reconcile.Request) (reconcile.Result, error) {
		if fail {
			return reconcile.Result{}, errBoom
		}
		return reconcile.Result{}, nil
	}}
	op := start(t, c, []client.Object{configMap("a", 1)})
	for i, want := range []string{"503", "503", "204", "204"} {
		fail = want == "503"
		a := op.send(changed("resource.update", key), toJSON(configMap("a", 1)))
		if runs := c.ran(); a.String() != want || (len(runs) == 1) != (i < 3) || fail && strings.TrimSpace(a.body) != "boom" {
			t.Errorf("%d: answered with %s %q, ran %q", i, a, a.body, runs)
		}
	}
	// The retry of a delivery is one, whatever was seen.
	retry := changed("resource.update", key)
	retry["rescheduleattempt"] = "1"
	if a := op.send(retry, toJSON(configMap("a", 1))); a.String() != "204" || len(c.ran()) != 1 {
		t.Errorf("a retry was answered with %s", a)
	}
}

// TestQueue_RunsARequestOnceAtATime sends many events of few objects at once. The
// operator panics if it sees one object twice, which is a 503.
func TestQueue_RunsARequestOnceAtATime(t *testing.T) {
	t.Parallel()
	c := &configs{busy: map[reconcile.Request]bool{}, results: func(reconcile.Request) (reconcile.Result, error) {
		return reconcile.Result{RequeueAfter: time.Hour}, nil
	}}
	var objects []client.Object
	for i := range 5 {
		objects = append(objects, configMap(fmt.Sprint("c", i), 1))
	}
	op := startManager(t, cluster(objects...), func(mgr ctrl.Manager) error {
		c.Client = mgr.GetClient()
		return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).
			WithOptions(crcontroller.Options{MaxConcurrentReconciles: 8}).Complete(c)
	})
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			for j := range 10 {
				name := fmt.Sprint("c", (i+j)%5)
				attributes := changed("resource.update", "ConfigMap/ns/"+name)
				if j%2 == 0 {
					attributes = dueEvent("ConfigMap/ns/" + name)
				}
				if a, err := op.try(attributes, toJSON(configMap(name, int64(i*100+j)))); err != nil || a.code != 200 {
					t.Errorf("answered with %s %s, %v", a, a.body, err)
				}
			}
		})
	}
	all.Wait()
	if n := len(c.ran()); n < 5 || n > 400 {
		t.Errorf("%d runs", n)
	}
}

// other is a request of another type.
type other string

// TestAdopt_RefusesOtherControllers says that a controller that does not fit is an
// error of Add.
func TestAdopt_RefusesOtherControllers(t *testing.T) {
	t.Parallel()
	mgr, err := NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, cluster())
	if err != nil {
		t.Fatal(err)
	}
	skip := true
	_, err = crcontroller.NewTyped("other", mgr, crcontroller.TypedOptions[other]{
		SkipNameValidation: &skip,
		Reconciler:         reconcile.TypedFunc[other](func(context.Context, other) (reconcile.Result, error) { return reconcile.Result{}, nil }),
	})
	if err == nil || !strings.Contains(err.Error(), supported) || !strings.Contains(err.Error(), "reconcile.Request") {
		t.Errorf("a controller of other requests: %v", err)
	}
	if err := mgr.Add(struct{ crcontroller.Controller }{}); err == nil {
		t.Error("a controller of another make is taken")
	}
	for _, r := range []crmanager.Runnable{crmanager.RunnableFunc(nil), &struct{ crmanager.Runnable }{}} {
		if err := mgr.Add(r); err != nil {
			t.Errorf("what is no controller: %v", err)
		}
	}
	err = mgr.GetFieldIndexer().IndexField(t.Context(), &corev1.ConfigMap{}, "x", nil)
	if err == nil || !strings.Contains(err.Error(), "WithCachedReads") {
		t.Errorf("an index without a cache: %v", err)
	}
	var o corev1.ConfigMap
	if err := mgr.GetCache().Get(t.Context(), client.ObjectKey{Name: "none"}, &o); !apierrors.IsNotFound(err) {
		t.Errorf("a live read: %v", err)
	}
}
