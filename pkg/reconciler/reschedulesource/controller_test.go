package reschedulesource

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clientgotesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"knative.dev/eventing/pkg/auth"
	_ "knative.dev/eventing/pkg/client/injection/client/fake"
	fakeeventingclient "knative.dev/eventing/pkg/client/injection/client/fake"
	fakekubeclient "knative.dev/pkg/client/injection/kube/client/fake"
	_ "knative.dev/pkg/client/injection/kube/informers/core/v1/serviceaccount/filtered/fake"
	filteredfactory "knative.dev/pkg/client/injection/kube/informers/factory/filtered"
	_ "knative.dev/pkg/client/injection/kube/informers/factory/filtered/fake"
	"knative.dev/pkg/configmap"
	"knative.dev/pkg/configmap/informer"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/injection"
	_ "knative.dev/pkg/injection/clients/dynamicclient/fake"
	. "knative.dev/pkg/reconciler/testing"
	"knative.dev/pkg/system"
	"knative.dev/pkg/tracker"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	fakeclient "github.com/reschedule-dev/reschedule/pkg/client/injection/client/fake"
	"github.com/reschedule-dev/reschedule/pkg/client/injection/informers/sources/v1alpha1/reschedulesource"
	_ "github.com/reschedule-dev/reschedule/pkg/client/injection/informers/sources/v1alpha1/reschedulesource/fake"
)

func init() {
	injection.Fake.RegisterInformer(withStatefulSetInformer)
	injection.Fake.RegisterInformer(withSecretInformer)
	injection.Fake.RegisterInformer(withWatchRoleInformer)
}

var (
	gitRepos = types.NamespacedName{Namespace: "ops", Name: "git-repos"}
	second   = types.NamespacedName{Namespace: "ops", Name: "second"}
)

// a cluster of two sources, which a controller watches.
type cluster struct {
	ctx  context.Context
	impl *controller.Impl
}

// faked is a context with fake clients, and informers that are not running.
func faked(t *testing.T) (context.Context, []controller.Informer) {
	t.Helper()
	ctx, cancel, informers := SetupFakeContextWithCancel(t, func(ctx context.Context) context.Context {
		return filteredfactory.WithSelectors(ctx, auth.OIDCLabelSelector)
	})
	t.Cleanup(cancel)
	return ctx, informers
}

func watched(t *testing.T, make func(context.Context, configmap.Watcher) *controller.Impl, cmw configmap.Watcher) cluster {
	t.Helper()
	ctx, informers := faked(t)
	c := cluster{ctx, make(ctx, cmw)}
	ctx, cancel := context.WithCancel(ctx)
	wait, err := RunAndSyncInformers(ctx, informers...)
	t.Cleanup(func() { cancel(); wait() })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func twoSources(t *testing.T) (cluster, *manual) {
	t.Helper()
	cmw := &manual{}
	c := watched(t, NewController, cmw)
	other := source()
	other.Name = second.Name
	c.save(t, "create", source())
	c.save(t, "create", other)
	c.expect(t, gitRepos, second)
	return c, cmw
}

// save writes sources by verb.
func (c cluster) save(t *testing.T, verb string, s *v1alpha1.RescheduleSource) {
	t.Helper()
	client := fakeclient.Get(c.ctx).SourcesV1alpha1().RescheduleSources(s.Namespace)
	var err error
	switch verb {
	case "create":
		_, err = client.Create(c.ctx, s, metav1.CreateOptions{})
	case "update":
		_, err = client.Update(c.ctx, s, metav1.UpdateOptions{})
	case "delete":
		err = client.Delete(c.ctx, s.Name, metav1.DeleteOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// expect takes that many keys from the queue, and wants them to be these, in
// whatever order.
func (c cluster) expect(t *testing.T, want ...types.NamespacedName) {
	t.Helper()
	missing := map[types.NamespacedName]bool{}
	for _, key := range want {
		missing[key] = true
	}
	deadline := time.After(30 * time.Second)
	for range want {
		got := make(chan types.NamespacedName, 1)
		go func() {
			key, down := c.impl.WorkQueue().Get()
			if !down {
				c.impl.WorkQueue().Done(key)
				got <- key.(types.NamespacedName)
			}
		}()
		select {
		case key := <-got:
			if !missing[key] {
				t.Fatalf("%s is looked at, want %v", key, slices.Collect(maps.Keys(missing)))
			}
			delete(missing, key)
		case <-deadline:
			t.Fatalf("%v is not looked at", slices.Collect(maps.Keys(missing)))
		}
	}
}

// Each change of a source but the adapter's counts requires a reconciliation.
func TestConcerns_AllButTheCounts(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*v1alpha1.RescheduleSource){
		"spec":       func(s *v1alpha1.RescheduleSource) { s.Spec.Suspend = true },
		"label":      func(s *v1alpha1.RescheduleSource) { s.Labels = nil },
		"deletion":   deleted,
		"conditions": func(s *v1alpha1.RescheduleSource) { s.Status.Conditions = settled().Status.Conditions },
		"address":    func(s *v1alpha1.RescheduleSource) { s.Status.Address = nil },
		"resync":     func(s *v1alpha1.RescheduleSource) { s.ResourceVersion = "1" },
		"report":     reported("False", "Forbidden", "no"),
		"workload":   scaleReport("Awake", "Forbidden", "no"),
		"no memory":  func(s *v1alpha1.RescheduleSource) { s.Status.Refused = "too large" },
	} {
		before, after := source(counted, reported("True", "", "")), source(reported("True", "", ""))
		*after.Status.Watched = 4
		scaleReport("Awake", "", "")(before)
		scaleReport("Asleep", "", "")(after)
		after.Status.Scale.Starts, after.Status.Scale.AwakeSeconds = 8, 60
		before.ResourceVersion, after.ResourceVersion = "1", "2"
		before.Status.Address = at("http", address)
		after.Status.Address = at("http", address)
		if concerns(before, after) {
			t.Error("an update of the counts is work")
		}
		change(after)
		if !concerns(before, after) {
			t.Errorf("%s: an update is no work", name)
		}
	}
}

// An update of the counts queues nothing.
func TestController_IgnoresCounts(t *testing.T) {
	t.Parallel()
	c, _ := twoSources(t)
	counts := source(counted)
	counts.ResourceVersion = "7"
	c.save(t, "update", counts)
	other := source()
	other.Name, other.ResourceVersion, other.Spec.Suspend = second.Name, "8", true
	c.save(t, "update", other) // seen after the counts
	c.expect(t, second)
	if n := c.impl.WorkQueue().Len(); n != 0 {
		t.Errorf("%d more in the queue", n)
	}
}

// A deleted source is no longer tracked.
func TestController_DeletedSource(t *testing.T) {
	t.Parallel()
	c, _ := twoSources(t)
	ref := tracker.Reference{APIVersion: "v1", Kind: "Service", Namespace: "ops", Name: "plain"}
	if err := c.impl.Tracker.TrackReference(ref, source()); err != nil {
		t.Fatal(err)
	}
	c.expect(t, gitRepos) // the tracker says so itself the first time
	c.save(t, "delete", source())
	c.expect(t, gitRepos)
	service := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "plain"}}
	if left := c.impl.Tracker.GetObservers(service); len(left) != 0 {
		t.Errorf("still tracks for %v", left)
	}
}

// A change of a shared object that a status shows queues the sources.
func TestController_SharedObjects(t *testing.T) {
	t.Parallel()
	ours, other := account(), account()
	ours.OwnerReferences[0].UID, other.Name, other.OwnerReferences = "5f0c", "another", nil
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "reschedule-adapter-server-tls"}}
	create := func(object runtime.Object) func(*testing.T, cluster) {
		return func(t *testing.T, c cluster) {
			t.Helper()
			add := fakekubeclient.Get(c.ctx).Tracker().Add
			if _, ok := object.(*v1alpha1.RescheduleSource); ok {
				add = fakeclient.Get(c.ctx).Tracker().Add
			}
			if err := add(object); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, test := range []struct {
		name   string
		change func(*testing.T, cluster)
		want   []types.NamespacedName
	}{
		{"the adapter is there", create(adapter(1, 1)), []types.NamespacedName{gitRepos, second}},
		{"there is a certificate", create(secret), []types.NamespacedName{gitRepos, second}},
		{"the identity of one", create(ours), []types.NamespacedName{gitRepos}},
		{"a policy for all", func(t *testing.T, c cluster) {
			if err := fakeeventingclient.Get(c.ctx).Tracker().Add(policy("all", true)); err != nil {
				t.Fatal(err)
			}
		}, []types.NamespacedName{gitRepos, second}},
		{"a policy for one", func(t *testing.T, c cluster) {
			if err := fakeeventingclient.Get(c.ctx).Tracker().Add(policy("one", true, toSource("second"))); err != nil {
				t.Fatal(err)
			}
		}, []types.NamespacedName{second}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c, _ := twoSources(t)
			test.change(t, c)
			c.expect(t, test.want...)
		})
	}
	t.Run("a flag", func(t *testing.T) {
		t.Parallel()
		c, cmw := twoSources(t)
		cmw.OnChange(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "config-features", ResourceVersion: "1"}, Data: map[string]string{"authentication-oidc": "enabled"}})
		c.expect(t, gitRepos, second)
	})
}

// manual is a watcher of ConfigMaps that are not there.
type manual struct {
	configmap.ManualWatcher
	defaulted []string
}

func (m *manual) WatchWithDefault(cm corev1.ConfigMap, observers ...configmap.Observer) {
	m.defaulted = append(m.defaulted, cm.Name)
	m.Watch(cm.Name, observers...)
	for _, observe := range observers {
		observe(&cm)
	}
}

// The controller starts without its ConfigMaps.
func TestController_StartsWithoutConfigMaps(t *testing.T) {
	t.Parallel()
	ctx, _ := faked(t)
	cmw := &manual{}
	NewController(ctx, cmw)
	if want := []string{"config-reschedule", "config-features", "config-kreference-mapping"}; !slices.Equal(cmw.defaulted, want) {
		t.Errorf("has defaults for %q, want %q", cmw.defaulted, want)
	}
}

// A ConfigMap that is replaced is not there for a moment, and all identities
// would be deleted and made anew.
func TestController_DeletedConfigMap(t *testing.T) {
	t.Parallel()
	core, logged := observer.New(zap.ErrorLevel)
	client := kubefake.NewClientset()
	cmw := informer.NewInformedWatcher(client, system.Namespace())
	changed := make(chan string, 10)
	lenient{cmw, zap.New(core).Sugar(), record.NewFakeRecorder(1)}.Watch("config-features", func(cm *corev1.ConfigMap) { changed <- cm.Data["authentication-oidc"] })
	if err := cmw.Start(t.Context().Done()); err != nil {
		t.Fatal(err)
	}
	next := func(want string) {
		t.Helper()
		select {
		case got := <-changed:
			if got != want {
				t.Errorf("told %q, want %q", got, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%q is not told", want)
		}
	}
	configs := client.CoreV1().ConfigMaps(system.Namespace())
	put := func(value string) {
		t.Helper()
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "config-features", ResourceVersion: "1"}, Data: map[string]string{"authentication-oidc": value}}
		if _, err := configs.Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	next("")
	put("enabled")
	next("enabled")
	if err := configs.Delete(t.Context(), "config-features", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	put("disabled")
	next("disabled") // and nothing before
	if n := logged.FilterMessageSnippet("stays in force").Len(); n != 1 {
		t.Errorf("%d lines", n)
	}
}

// A slip in config-features would be off to Knative, and all identities would be deleted.
func TestController_SlipInAFlag(t *testing.T) {
	t.Parallel()
	events, cmw := record.NewFakeRecorder(10), &manual{}
	var got []string
	lenient{cmw, zap.NewNop().Sugar(), events}.Watch("config-features", func(cm *corev1.ConfigMap) { got = append(got, cm.Data["authentication-oidc"]) })
	for _, step := range []struct {
		value, got, event string
	}{
		{"enabeld", "Enabled", "The strictest features are in force"},
		{"Allowed", "Allowed", ""},
		{"disable", "", `The features stay as they were: authentication-oidc: "disable" is none of`},
		{"disabled", "disabled", ""},
	} {
		got = nil
		cmw.OnChange(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "config-features", ResourceVersion: "1"}, Data: map[string]string{"authentication-oidc": step.value}})
		if strings.Join(got, " ") != step.got {
			t.Errorf("%s: told %q, want %q", step.value, got, step.got)
		}
		event := ""
		if len(events.Events) > 0 {
			event = <-events.Events
		}
		if (event != "") != (step.event != "") || !strings.Contains(event, step.event) || step.event != "" && !strings.Contains(event, "Warning InvalidConfig") {
			t.Errorf("%s: Event %q, want %q", step.value, event, step.event)
		}
	}
}

// The informers watch one StatefulSet, one Secret and one ClusterRole.
func TestInformers_WatchOneObject(t *testing.T) {
	t.Parallel()
	c, _ := twoSources(t)
	seen := map[string]int{}
	for _, action := range fakekubeclient.Get(c.ctx).Actions() {
		resource := action.GetResource().Resource
		var fields, labels string
		switch a := action.(type) {
		case clientgotesting.ListAction:
			fields, labels = a.GetListRestrictions().Fields.String(), a.GetListRestrictions().Labels.String()
		case clientgotesting.WatchAction:
			fields, labels = a.GetWatchRestrictions().Fields.String(), a.GetWatchRestrictions().Labels.String()
		}
		want := map[string]string{
			"statefulsets": "knative-eventing metadata.name=reschedule-adapter ", "serviceaccounts": "  eventing.knative.dev/oidc",
			"secrets": "knative-eventing metadata.name=reschedule-adapter-server-tls ", "clusterroles": " metadata.name=reschedule-adapter-watch ",
		}[resource]
		if got := action.GetNamespace() + " " + fields + " " + labels; got != want {
			t.Errorf("%s of %s: %q, want %q", action.GetVerb(), resource, got, want)
		}
		seen[resource+" "+action.GetVerb()]++
	}
	want := map[string]int{
		"statefulsets list": 1, "statefulsets watch": 1, "secrets list": 1, "secrets watch": 1, "serviceaccounts list": 1, "serviceaccounts watch": 1,
		"clusterroles list": 1, "clusterroles watch": 1,
	}
	if !maps.Equal(seen, want) {
		t.Errorf("seen %v, want %v", seen, want)
	}
}

// The scaler runs when sources come and go, and when the adapter changes.
func TestScaler_Queued(t *testing.T) {
	t.Parallel()
	c := watched(t, NewScaler, nil)
	c.save(t, "create", source())
	c.expect(t, adapterKey)
	c.save(t, "delete", source())
	c.expect(t, adapterKey)
	if err := fakekubeclient.Get(c.ctx).Tracker().Add(adapter(1, 1)); err != nil {
		t.Fatal(err)
	}
	c.expect(t, adapterKey)
}

// A missed deletion is handled with the last known state.
func TestUntombed_LastKnownState(t *testing.T) {
	t.Parallel()
	var got []any
	h := withLastState(cache.ResourceEventHandlerFuncs{DeleteFunc: func(o any) { got = append(got, o) }})
	a, b := account(), account()
	h.OnDelete(a)
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "ops/x", Obj: b})
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "ops/y"})
	if len(got) != 2 || got[0] != any(a) || got[1] != any(b) {
		t.Errorf("got %v", got)
	}
}

// Metadata that no program reads is not kept in memory: an author may write 1.4 MB of it. Nor are
// labels above the bound, each of which took eight times its text.
func TestController_DropsMetadata(t *testing.T) {
	t.Parallel()
	c, _ := twoSources(t)
	third := source()
	third.Name, third.ManagedFields = "third", []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	third.Annotations, third.Finalizers = map[string]string{"a": "b"}, []string{"a/b"}
	third.OwnerReferences, third.Labels = []metav1.OwnerReference{{Name: "a"}}, map[string]string{}
	for i := range 10 * v1alpha1.MaxLabels {
		third.Labels[fmt.Sprint("label-", i)] = "x"
	}
	c.save(t, "create", third)
	c.expect(t, types.NamespacedName{Namespace: "ops", Name: "third"})
	kept, err := reschedulesource.Get(c.ctx).Lister().RescheduleSources("ops").Get("third")
	if err != nil {
		t.Fatal(err)
	}
	if kept.ManagedFields != nil || kept.Annotations != nil || kept.Finalizers != nil || kept.OwnerReferences != nil || len(kept.Labels) != v1alpha1.MaxLabels+1 {
		t.Errorf("kept %+v", kept.ObjectMeta)
	}
	if err := kept.Validate(c.ctx); err == nil || !strings.Contains(err.Error(), "metadata.labels") {
		t.Errorf("its labels are valid: %v", err)
	}
}
