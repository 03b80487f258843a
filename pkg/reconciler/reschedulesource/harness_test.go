package reschedulesource

import (
	"context"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
	clientgotesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	eventingv1alpha1 "knative.dev/eventing/pkg/apis/eventing/v1alpha1"
	"knative.dev/eventing/pkg/apis/feature"
	eventinglisters "knative.dev/eventing/pkg/client/listers/eventing/v1alpha1"
	"knative.dev/pkg/client/injection/ducks/duck/v1/addressable"
	_ "knative.dev/pkg/client/injection/ducks/duck/v1/addressable/fake"
	fakekubeclient "knative.dev/pkg/client/injection/kube/client/fake"
	"knative.dev/pkg/controller"
	fakedynamicclient "knative.dev/pkg/injection/clients/dynamicclient/fake"
	"knative.dev/pkg/logging"
	logtesting "knative.dev/pkg/logging/testing"
	"knative.dev/pkg/reconciler"
	. "knative.dev/pkg/reconciler/testing"
	"knative.dev/pkg/resolver"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/client/clientset/versioned/fake"
	fakeclient "github.com/reschedule-dev/reschedule/pkg/client/injection/client/fake"
	generated "github.com/reschedule-dev/reschedule/pkg/client/injection/reconciler/sources/v1alpha1/reschedulesource"
	listers "github.com/reschedule-dev/reschedule/pkg/client/listers/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
)

const systemNamespace = "knative-eventing"

func init() {
	if err := os.Setenv("SYSTEM_NAMESPACE", systemNamespace); err != nil {
		panic(err)
	}
}

var adapterKey = types.NamespacedName{Namespace: systemNamespace, Name: resources.AdapterName}

// objects sorts a row's objects into what a cluster would have in memory.
type objects struct{ sorter ObjectSorter }

var builders = []func(*runtime.Scheme) error{v1alpha1.AddToScheme, kubescheme.AddToScheme, eventingv1alpha1.AddToScheme}

func sorted(all []runtime.Object) objects {
	scheme := runtime.NewScheme()
	for _, add := range builders {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	o := objects{NewObjectSorter(scheme)}
	o.sorter.AddObjects(all...)
	return o
}

func (o objects) of(add func(*runtime.Scheme) error) []runtime.Object {
	return o.sorter.ObjectsForSchemeFunc(add)
}

func (o objects) index(of runtime.Object) cache.Indexer { return o.sorter.IndexerForObjectType(of) }

func (o objects) sources() listers.RescheduleSourceLister {
	return listers.NewRescheduleSourceLister(o.index(&v1alpha1.RescheduleSource{}))
}

func (o objects) statefulSets() appslisters.StatefulSetNamespaceLister {
	return appslisters.NewStatefulSetLister(o.index(&appsv1.StatefulSet{})).StatefulSets(systemNamespace)
}

func (o objects) clusterRoles() rbaclisters.ClusterRoleLister {
	return rbaclisters.NewClusterRoleLister(o.index(&rbacv1.ClusterRole{}))
}

func (o objects) secrets() corelisters.SecretNamespaceLister {
	return corelisters.NewSecretLister(o.index(&corev1.Secret{})).Secrets(systemNamespace)
}

// statusUpdates shows the patch of a status as the update that it comes to, so
// that a table can say the whole status that is wanted.
type statusUpdates struct{ *fake.Clientset }

func (s statusUpdates) Actions() []clientgotesting.Action {
	var shown []clientgotesting.Action
	for _, action := range s.Clientset.Actions() {
		patch, ok := action.(clientgotesting.PatchAction)
		if !ok || patch.GetSubresource() != "status" {
			shown = append(shown, action)
			continue
		}
		after, err := s.Tracker().Get(patch.GetResource(), patch.GetNamespace(), patch.GetName())
		if err == nil {
			shown = append(shown, clientgotesting.NewUpdateSubresourceAction(
				patch.GetResource(), "status", patch.GetNamespace(), after))
		}
	}
	return shown
}

// Where a row's tracker and client are found after it has run.
const trackerOf, kubeOf = "tracker", "kube"

// ceilingsOf is where a row has its ceilings; without any there are none.
const ceilingsOf = "ceilings"

// getServices is where the context of a row has what a read of a Knative Service gives.
type getServices struct{}

// reconciling makes the reconciler of a row, in a cluster with these sinks.
func reconciling(t *testing.T, row *TableRow) (controller.Reconciler, ActionRecorderList, EventList) {
	t.Helper()
	cluster := sorted(row.Objects)
	ctx := row.Ctx
	if ctx == nil {
		ctx = t.Context()
	}
	ctx = logging.WithLogger(ctx, logtesting.TestLogger(t))
	row.Ctx = ctx
	ctx, kube := fakekubeclient.With(ctx, cluster.of(kubescheme.AddToScheme)...)
	ctx, client := fakeclient.With(ctx, cluster.of(v1alpha1.AddToScheme)...)
	nothings := schema.GroupVersionResource{Group: "nowhere.dev", Version: "v1", Resource: "nothings"}
	ctx, dynamic := fakedynamicclient.With(ctx, runtime.NewScheme(), append(sinks(), sink("nowhere.dev/v1", "Nothing", "nowhere", "x", nil))...)
	dynamic.PrependReactor("list", nothings.Resource, func(clientgotesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewGenericServerResponse(http.StatusNotFound, "list", nothings.GroupResource(), "", "", 0, true)
	})
	if reactor, ok := ctx.Value(getServices{}).(clientgotesting.ReactionFunc); ok {
		dynamic.PrependReactor("get", "services", reactor)
	}
	for _, reactor := range row.WithReactors {
		kube.PrependReactor("*", "*", reactor)
		client.PrependReactor("*", "*", reactor)
	}
	ctx = addressable.WithDuck(ctx)
	tracker := &FakeTracker{}
	row.OtherTestData = map[string]any{trackerOf: tracker, ceilingsOf: row.OtherTestData[ceilingsOf]}
	events := record.NewFakeRecorder(10)
	limits, _ := row.OtherTestData[ceilingsOf].(*ceilings.Config)

	r := &Reconciler{
		systemNamespace: systemNamespace,
		client:          client,
		kube:            kube,
		dynamic:         dynamic,
		resolver:        resolver.NewURIResolverFromTracker(ctx, tracker),
		statefulSets:    cluster.statefulSets(),
		secrets:         cluster.secrets(),
		accounts:        corelisters.NewServiceAccountLister(cluster.index(&corev1.ServiceAccount{})),
		ceilings:        func() *ceilings.Config { return limits },
		policies:        eventinglisters.NewEventPolicyLister(cluster.index(&eventingv1alpha1.EventPolicy{})),
	}
	impl := generated.NewReconciler(ctx, logging.FromContext(ctx), client, cluster.sources(), events, r,
		controller.Options{SkipStatusUpdates: true})
	lead(t, impl)
	return impl, ActionRecorderList{statusUpdates{client}, kube}, EventList{Recorder: events}
}

// scaling makes the scaler of a row.
func scaling(t *testing.T, row *TableRow) (controller.Reconciler, ActionRecorderList, EventList) {
	t.Helper()
	cluster := sorted(row.Objects)
	ctx := logging.WithLogger(t.Context(), logtesting.TestLogger(t))
	row.Ctx = ctx
	stored := cluster.of(v1alpha1.AddToScheme)
	if more, ok := row.OtherTestData["stored"].([]runtime.Object); ok {
		stored = append(stored, more...)
	}
	ctx, kube := fakekubeclient.With(ctx, cluster.of(kubescheme.AddToScheme)...)
	_, client := fakeclient.With(ctx, stored...)
	for _, reactor := range row.WithReactors {
		kube.PrependReactor("*", "*", reactor)
		client.PrependReactor("*", "*", reactor)
	}
	row.OtherTestData = maps.Clone(row.OtherTestData)
	if row.OtherTestData == nil {
		row.OtherTestData = map[string]any{}
	}
	row.OtherTestData[kubeOf] = kube
	events := record.NewFakeRecorder(10)
	s := &Scaler{
		key:          adapterKey,
		client:       client,
		kube:         kube,
		statefulSets: cluster.statefulSets(),
		sources:      cluster.sources(),
		synced:       func() bool { return row.OtherTestData["unsynced"] == nil },
		recorder:     events,
	}
	if row.OtherTestData["follower"] == nil {
		lead(t, s)
	}
	return s, ActionRecorderList{client, kube}, EventList{Recorder: events}
}

func lead(t *testing.T, r controller.Reconciler) {
	t.Helper()
	err := r.(reconciler.LeaderAware).Promote(reconciler.UniversalBucket(), func(reconciler.Bucket, types.NamespacedName) {})
	if err != nil {
		t.Fatal(err)
	}
}

// sinks are what there is to send to.
func sinks() []runtime.Object {
	at := func(url string) map[string]any { return map[string]any{"address": map[string]any{"url": url}} }
	secure := map[string]any{
		"address": map[string]any{"url": "http://broker/ops/default"},
		"addresses": []any{
			map[string]any{"name": "https", "url": "https://broker/ops/default", "CACerts": "the broker's CA", "audience": "the broker"},
			map[string]any{"name": "http", "url": "http://broker/ops/default"},
		},
	}
	revised := func(url, revision string) map[string]any {
		return map[string]any{"address": map[string]any{"url": url}, "latestReadyRevisionName": revision}
	}
	moving := revised("http://moving.ops.svc.cluster.local", "moving-00003")
	moving["conditions"] = []any{map[string]any{"type": "Ready", "status": "Unknown"}}
	return []runtime.Object{
		sink("serving.knative.dev/v1", "Service", "ops", "moving", moving),
		sink("serving.knative.dev/v1", "Service", "ops", "revised", revised("http://revised.ops.svc.cluster.local", "revised-00002")),
		sink("serving.knative.dev/v1", "Service", "other", "revised", revised("http://revised.other.svc.cluster.local", "revised-00007")),
		sink("serving.knative.dev/v1", "Service", "ops", "worker", at("http://worker.ops.svc.cluster.local")),
		sink("serving.knative.dev/v1", "Service", "other", "worker", at("http://worker.other.svc.cluster.local")),
		sink("serving.knative.dev/v1", "Service", "ops", "starting", map[string]any{}),
		sink("serving.knative.dev/v1", "Service", "ops", "longwinded", revised("http://longwinded.ops.svc.cluster.local", strings.Repeat("r", 254))),
		sink("serving.knative.dev/v1", "Service", "ops", "far", at("http://far.ops.svc.cluster.local/"+strings.Repeat("x", 2048))),
		sink("serving.knative.dev/v1", "Service", "ops", "trusting", map[string]any{"address": map[string]any{
			"url": "https://trusting.ops.svc.cluster.local", "CACerts": strings.Repeat("x", 256<<10+1), "audience": strings.Repeat("x", 2049)}}),
		sink("eventing.knative.dev/v1", "Broker", "ops", "default", secure),
		sink("messaging.knative.dev/v1", "Channel", "ops", "pipe", at("http://pipe-kn-channel.ops.svc.cluster.local")),
		sink("v1", "Service", "ops", "plain", nil),
		part("labelled", map[string]string{"serving.knative.dev/service": "worker"}, metav1.OwnerReference{}),
		part("owned", nil, metav1.OwnerReference{APIVersion: "serving.knative.dev/v1", Kind: "Route", Name: "worker"}),
	}
}

func sink(apiVersion, kind, namespace, name string, status map[string]any) runtime.Object {
	o := map[string]any{
		"apiVersion": apiVersion, "kind": kind,
		"metadata": map[string]any{"namespace": namespace, "name": name, "uid": "uid-of-" + name},
	}
	if status != nil {
		o["status"] = status
	}
	return &unstructured.Unstructured{Object: o}
}

// part is a Service that Knative made for a Knative Service.
func part(name string, labels map[string]string, owner metav1.OwnerReference) runtime.Object {
	o := sink("v1", "Service", "ops", name, nil).(*unstructured.Unstructured)
	o.SetLabels(labels)
	o.SetOwnerReferences([]metav1.OwnerReference{owner})
	return o
}

func with(t *testing.T, flags ...string) context.Context {
	t.Helper()
	f := feature.Flags{}
	for pair := range slices.Chunk(flags, 2) {
		f[pair[0]] = feature.Flag(pair[1])
	}
	return feature.ToContext(t.Context(), f)
}

// tracks wants every reference to be watched.
func tracks(want ...string) func(*testing.T, *TableRow) {
	return func(t *testing.T, row *TableRow) {
		t.Helper()
		var got []string
		for _, r := range row.OtherTestData[trackerOf].(*FakeTracker).References() {
			got = append(got, r.APIVersion+" "+r.Kind+" "+r.Namespace+"/"+r.Name)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("tracks %q, want %q", got, want)
		}
	}
}

func adapter(replicas, ready int32) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: resources.AdapterName, ResourceVersion: "41"},
		Spec:       appsv1.StatefulSetSpec{Replicas: &replicas},
		Status:     appsv1.StatefulSetStatus{Replicas: replicas, ReadyReplicas: ready, UpdatedReplicas: replicas},
	}
}
