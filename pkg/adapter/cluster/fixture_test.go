package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authn "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corefake "k8s.io/client-go/kubernetes/typed/core/v1/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/reschedule-dev/reschedule/pkg/adapter/kube"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/client/clientset/versioned/fake"
)

const systemNamespace = "knative-eventing"

// object is a RescheduleSource of namespace ops that is ready, and its uid
// tells its name and which of that name it is.
func object(name string, change ...func(*v1alpha1.RescheduleSource)) *v1alpha1.RescheduleSource {
	o := &v1alpha1.RescheduleSource{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ops", Name: name, UID: types.UID(name + "-1"), Generation: 1,
	}}
	o.Spec.Sink.Ref = &duckv1.KReference{APIVersion: "v1", Kind: "Service", Name: "sink"}
	o.Status.SinkURI, o.Status.ObservedGeneration = apis.HTTP("sink.ops"), 1
	for _, c := range change {
		c(o)
	}
	return o
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: name}, Data: data}
}

func bundle(name string, data map[string]string) *corev1.ConfigMap {
	cm := configMap(name, data)
	cm.Labels = map[string]string{"networking.knative.dev/trust-bundle": "true"}
	return cm
}

// The subjects of EventPolicies.
const (
	insider  = "system:serviceaccount:ops:operator"
	outsider = "system:serviceaccount:elsewhere:operator"
	person   = "jane@example.com"
)

// newPolicy is an EventPolicy of namespace ops that admits these subjects.
func newPolicy(name string, from ...string) *unstructured.Unstructured {
	subjects := make([]any, len(from))
	for i := range from {
		subjects[i] = from[i]
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "eventing.knative.dev/v1alpha1", "kind": "EventPolicy",
		"metadata": map[string]any{"namespace": "ops", "name": name},
		"status":   map[string]any{"from": subjects, "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
	}}
}

// coreFake is the part of client-go's fake client set that the adapter calls. The whole set would be compiled with the
// race detector for these tests alone.
type coreFake struct {
	clienttesting.Fake
	tracker clienttesting.ObjectTracker
}

func newCoreFake(t *testing.T, objects ...runtime.Object) *coreFake {
	t.Helper()
	c := &coreFake{tracker: clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())}
	for _, o := range objects {
		if err := c.tracker.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	c.AddReactor("*", "*", clienttesting.ObjectReaction(c.tracker))
	c.AddWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := c.tracker.Watch(a.GetResource(), a.GetNamespace())
		return err == nil, w, err
	})
	return c
}

func (c *coreFake) CoreV1() typedcorev1.CoreV1Interface { return &corefake.FakeCoreV1{Fake: &c.Fake} }

func (c *coreFake) Tracker() clienttesting.ObjectTracker { return c.tracker }

// IsWatchListSemanticsUnSupported makes the informers list, and then watch.
func (*coreFake) IsWatchListSemanticsUnSupported() bool { return true }

// env is a cluster of fakes.
type env struct {
	patching func(context.Context, cache.ObjectName) error // nil: none

	t        *testing.T
	kube     *coreFake
	sources  *fake.Clientset
	policies *dynamicfake.FakeDynamicClient
	registry *fakeRegistry
	log      *logBuffer
	level    *slog.LevelVar
	// sourceBytes bounds what all sources may take; 0: as shipped.
	sourceBytes int64

	ctx     context.Context
	end     context.CancelFunc
	cluster *Cluster
	running sync.WaitGroup
}

// inCluster runs a test in a bubble, with an env that holds these objects.
func inCluster(t *testing.T, test func(*env), objects ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newEnv(t, objects...)
		defer r.close()
		test(r)
	})
}

func newEnv(t *testing.T, objects ...runtime.Object) *env {
	r := &env{t: t, registry: newFakeRegistry(), log: &logBuffer{}, level: new(slog.LevelVar)}
	var core, ours []runtime.Object
	for _, o := range objects {
		if _, ok := o.(*v1alpha1.RescheduleSource); ok {
			ours = append(ours, o)
		} else {
			core = append(core, o)
		}
	}
	r.kube, r.sources = newCoreFake(t, core...), fake.NewSimpleClientset(ours...)
	r.policies = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{kube.EventPolicies: "EventPolicyList"})
	r.ctx, r.end = context.WithCancel(t.Context())
	return r
}

// clients are calls to the fakes.
func (r *env) clients() kube.Clients {
	sources, configs := r.sources.SourcesV1alpha1(), r.kube.CoreV1().ConfigMaps(systemNamespace)
	return kube.Clients{
		Sources:      listing(r.sources, sources.RescheduleSources("").List, sources.RescheduleSources("").Watch),
		Policies:     cache.ToListWatcherWithWatchListSemantics(kube.ListWatch(r.policies.Resource(kube.EventPolicies)), r.policies),
		ConfigMaps:   listing(r.kube, configs.List, configs.Watch),
		RequestToken: requestTokens(r.kube),
		PatchStatus: func(ctx context.Context, source cache.ObjectName, patch []byte) error {
			if r.patching != nil { // not a reactor, which holds a lock
				if err := r.patching(ctx, source); err != nil {
					return err
				}
			}
			_, err := sources.RescheduleSources(source.Namespace).Patch(ctx, source.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
			return err
		},
		GetSource: func(ctx context.Context, source cache.ObjectName) (*v1alpha1.RescheduleSource, error) {
			return sources.RescheduleSources(source.Namespace).Get(ctx, source.Name, metav1.GetOptions{})
		},
		Events: &typedcorev1.EventSinkImpl{Interface: r.kube.CoreV1().Events("")},
	}
}

func listing[L runtime.Object](of any, list func(context.Context, metav1.ListOptions) (L, error), follow cache.WatchFuncWithContext) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return follow(ctx, o) },
	}, of)
}

func requestTokens(clientset *coreFake) kube.TokenRequester {
	return func(ctx context.Context, account cache.ObjectName, r *authn.TokenRequest) (*authn.TokenRequest, error) {
		return clientset.CoreV1().ServiceAccounts(account.Namespace).CreateToken(ctx, account.Name, r, metav1.CreateOptions{})
	}
}

func (r *env) connect() *Cluster {
	r.t.Helper()
	r.cluster = New(Config{
		SourceBytes: r.sourceBytes,
		Level:       r.level, Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: r.level})),
	})
	if _, err := r.cluster.connect(r.ctx, r.clients()); err != nil {
		r.t.Fatal(err)
	}
	return r.cluster
}

// run connects, fills the registry, and follows.
func (r *env) run() *Cluster {
	r.t.Helper()
	c := r.connect()
	r.registry.start(c.Sources())
	r.follow()
	return c
}

func (r *env) follow() {
	r.running.Go(func() { r.cluster.Run(r.ctx, r.registry) })
	synctest.Wait()
}

func (r *env) close() {
	r.end()
	r.running.Wait()
	if r.cluster != nil {
		r.cluster.Close()
	}
}

// put writes an object past the API, and waits until everybody knows.
func (r *env) put(o runtime.Object) {
	r.t.Helper()
	tracker, resource := r.sources.Tracker(), v1alpha1.SchemeGroupVersion.WithResource("reschedulesources")
	if _, ok := o.(*corev1.ConfigMap); ok {
		tracker, resource = r.kube.Tracker(), corev1.SchemeGroupVersion.WithResource("configmaps")
	}
	m := o.(metav1.Object)
	err := tracker.Update(resource, o, m.GetNamespace())
	if err != nil {
		err = tracker.Create(resource, o, m.GetNamespace())
	}
	if err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
}

func (r *env) remove(o runtime.Object) {
	r.t.Helper()
	tracker, resource := r.sources.Tracker(), v1alpha1.SchemeGroupVersion.WithResource("reschedulesources")
	if _, ok := o.(*corev1.ConfigMap); ok {
		tracker, resource = r.kube.Tracker(), corev1.SchemeGroupVersion.WithResource("configmaps")
	}
	m := o.(metav1.Object)
	if err := tracker.Delete(resource, m.GetNamespace(), m.GetName()); err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
}

// take lets time go by.
func take(d time.Duration) { time.Sleep(d) }

// pass lets time go by, and waits until all goroutines are idle.
func pass(d time.Duration) {
	take(d)
	synctest.Wait()
}

// patches are the status patches so far, as "name body".
func (r *env) patches() (all []string) {
	for _, a := range r.sources.Actions() {
		if p, ok := a.(clienttesting.PatchAction); ok {
			if p.GetSubresource() != "status" || p.GetPatchType() != types.MergePatchType {
				r.t.Errorf("a patch of %q of type %s", p.GetSubresource(), p.GetPatchType())
			}
			all = append(all, p.GetName()+" "+string(p.GetPatch()))
		}
	}
	return all
}

// events returns the events recorded so far, as "name type reason count".
func (r *env) events() (all []string) {
	list, err := r.kube.CoreV1().Events("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range list.Items {
		all = append(all, fmt.Sprintf("%s %s %s %d", e.InvolvedObject.Name, e.Type, e.Reason, e.Count))
	}
	slices.Sort(all)
	return all
}

// logBuffer keeps log lines.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *logBuffer) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *logBuffer) count(part string) (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for line := range strings.Lines(j.text.String()) {
		if strings.Contains(line, part) {
			n++
		}
	}
	return n
}

func (j *logBuffer) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// fakeRegistry records calls and keeps the sources that were set.
type fakeRegistry struct {
	mu     sync.Mutex
	calls  []string // "set uid", "remove uid", failed ones too
	has    map[string]*schedule.Spec
	counts map[string]sources.Counts
	full   bool // every change fails
	takes  time.Duration
	watch  map[string]schedule.WatchStatus
	scale  map[string]schedule.ScaleStatus
	others bool // another adapter serves the sources
}

var errFull = errors.New("no space left on device")

func newFakeRegistry() *fakeRegistry {
	return &fakeRegistry{has: map[string]*schedule.Spec{}, counts: map[string]sources.Counts{}, watch: map[string]schedule.WatchStatus{}, scale: map[string]schedule.ScaleStatus{}}
}

func (p *fakeRegistry) start(wanted []*schedule.Spec, _ []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range wanted {
		p.has[s.UID] = s
	}
}

func (p *fakeRegistry) SetSource(s *schedule.Spec) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, "set "+s.UID)
	if p.full {
		return errFull
	}
	p.has[s.UID] = s
	return nil
}

func (p *fakeRegistry) RemoveSource(uid string) error {
	time.Sleep(p.takes)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, "remove "+uid)
	if p.full {
		return errFull
	}
	delete(p.has, uid)
	return nil
}

func (p *fakeRegistry) Counts(uid string) (sources.Counts, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.counts[uid]
	return c, ok && !p.others
}

func (p *fakeRegistry) WatchStatus(uid string) (schedule.WatchStatus, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.counts[uid]
	return p.watch[uid], ok && !p.others
}

func (p *fakeRegistry) Workload(uid string) (schedule.ScaleStatus, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.counts[uid]
	return p.scale[uid], ok && !p.others
}

func (p *fakeRegistry) scales(uid string, s schedule.ScaleStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scale[uid] = s
}

func (p *fakeRegistry) Serves() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.others
}

func (p *fakeRegistry) watches(uid string, s schedule.WatchStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch[uid] = s
}

func (p *fakeRegistry) watchesNot(uid string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.watch, uid)
}

func (p *fakeRegistry) count(uid string, pending int64, next time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[uid] = sources.Counts{Pending: pending, NextDueAt: next, Delivering: sources.Delivering{Status: "Unknown"}}
}

func (p *fakeRegistry) handOver() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.others = true
}

func (p *fakeRegistry) takeOver() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.others = false
}

func (p *fakeRegistry) fill(full bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full = full
}

// newCalls returns the calls since the last newCalls.
func (p *fakeRegistry) newCalls() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	calls := p.calls
	p.calls = nil
	return calls
}

func (p *fakeRegistry) source(uid string) *schedule.Spec {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.has[uid]
}

func (p *fakeRegistry) uids() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.has))
}
