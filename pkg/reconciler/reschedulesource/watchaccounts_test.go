package reschedulesource

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgotesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	fakekubeclient "knative.dev/pkg/client/injection/kube/client/fake"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/logging"
	logtesting "knative.dev/pkg/logging/testing"
	"knative.dev/pkg/reconciler"
	. "knative.dev/pkg/reconciler/testing"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
)

// watchingAs makes a source watch with an account.
func watchingAs(account string) option {
	return func(s *v1alpha1.RescheduleSource) {
		s.Spec.Watch = &v1alpha1.RescheduleSourceWatch{ServiceAccountName: account}
	}
}

// watchRole is the ClusterRole that lets the adapter watch with these accounts.
func watchRole(names ...string) *rbacv1.ClusterRole {
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{
		Name: resources.WatchRoleName, ResourceVersion: "41", Labels: map[string]string{"app.kubernetes.io/name": "reschedule"},
	}}
	if len(names) > 0 {
		role.Rules = []rbacv1.PolicyRule{{
			APIGroups: []string{"sources.reschedule.dev"}, Resources: []string{"watchaccounts"}, ResourceNames: names, Verbs: []string{"watch-as"},
		}}
	}
	return role
}

func updated(role *rbacv1.ClusterRole) []clientgotesting.UpdateActionImpl {
	return []clientgotesting.UpdateActionImpl{{Object: role}}
}

func called(name string) option { return func(s *v1alpha1.RescheduleSource) { s.Name = name } }

// allowing makes the controller of watch accounts of a row.
func allowing(t *testing.T, row *TableRow) (controller.Reconciler, ActionRecorderList, EventList) {
	t.Helper()
	cluster := sorted(row.Objects)
	ctx := logging.WithLogger(t.Context(), logtesting.TestLogger(t))
	row.Ctx = ctx
	_, kube := fakekubeclient.With(ctx, cluster.of(rbacv1.AddToScheme)...)
	for _, reactor := range row.WithReactors {
		kube.PrependReactor("*", "*", reactor)
	}
	w := &WatchAccounts{kube: kube, roles: cluster.clusterRoles(), sources: cluster.sources(), token: func() string { return "" }}
	if row.OtherTestData["follower"] == nil {
		lead(t, w)
	}
	return w, ActionRecorderList{kube}, EventList{Recorder: record.NewFakeRecorder(1)}
}

// The ClusterRole names the accounts of all sources that watch, and is written only
// when they change.
func TestWatchAccounts_Role(t *testing.T) {
	t.Parallel()
	everything := watchRole()
	everything.Rules = []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}}
	ours, second := source(watchingAs("watcher")), source(called("second"), watchingAs("builder"))
	row := func(name string, updates []clientgotesting.UpdateActionImpl, objects ...runtime.Object) TableRow {
		return TableRow{Name: name, Objects: objects, WantUpdates: updates}
	}
	for _, row := range (TableTest{
		{Name: "bad workqueue key", Key: "too/many/parts"},
		{Name: "another key", Key: "ops/reschedule-adapter-watch", Objects: []runtime.Object{ours, watchRole()}},
		row("watching is forbidden: there is no role", nil, ours),
		row("no source watches", nil, source(), watchRole()),
		row("the first source that watches", updated(watchRole("ops:watcher")), ours, watchRole()),
		row("the second account", updated(watchRole("ops:builder", "ops:watcher")), ours, second, watchRole("ops:watcher")),
		row("another source with the same account", nil, ours, source(called("second"), watchingAs("watcher")), watchRole("ops:watcher")),
		row("an account that no source names any more", updated(watchRole("ops:watcher")), ours, source(called("second")), watchRole("ops:builder", "ops:watcher")),
		row("a source that is being deleted", updated(watchRole()), source(watchingAs("watcher"), deleted), watchRole("ops:watcher")),
		row("a source that scales", updated(watchRole("ops:scaler")), source(scalingAs(v1alpha1.ScaleAuto, "scaler")), watchRole()),
		row("a source that observes", nil, source(scalingAs(v1alpha1.ScaleObserve, "scaler")), watchRole()),
		row("a source that scales as it watches", nil, source(watchingAs("watcher"), scalingAs(v1alpha1.ScaleAwake, "")), watchRole("ops:watcher")),
		row("a workload that is held by another account", updated(watchRole("ops:former", "ops:scaler")), source(scalingAs(v1alpha1.ScaleAuto, "scaler"), holding("former")), watchRole("ops:scaler")),
		row("a source that is being deleted, and holds a workload", updated(watchRole("ops:former")), source(scalingAs(v1alpha1.ScaleAuto, "scaler"), holding("former"), deleted), watchRole("ops:scaler")),
		row("the last source is gone", updated(watchRole()), watchRole("ops:watcher")),
		row("rules by another hand", updated(watchRole("ops:watcher")), ours, everything),
		{
			Name: "the write fails", Objects: []runtime.Object{ours, watchRole()},
			WithReactors: reactors(InduceFailure("update", "clusterroles")), WantErr: true, WantUpdates: updated(watchRole("ops:watcher")),
		},
		// The key is skipped.
		{Name: "a follower does nothing", Objects: []runtime.Object{ours, watchRole()}, OtherTestData: map[string]any{"follower": true}, WantErr: true},
	}) {
		if row.Key == "" {
			row.Key = watchRoleKey.Name
		}
		TableTest{row}.Test(t, allowing)
	}
}

// Many changes within a second make two writes, and the last one has them all. A large
// role is written less often.
func TestWatchAccounts_WritesAreCoalesced(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		account string
		gap     time.Duration
	}{
		"few accounts":  {"watcher", time.Second},
		"many accounts": {"watcher-with-a-rather-long-name-to-fill-the-role", 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var all []runtime.Object
				if c.gap > time.Second {
					for i := range 10_000 {
						all = append(all, source(called(fmt.Sprint(i)), watchingAs(fmt.Sprintf("%s-%d", c.account, i))))
					}
				}
				cluster := sorted(append(all, watchRole()))
				ctx := logging.WithLogger(t.Context(), logtesting.TestLogger(t))
				_, kube := fakekubeclient.With(ctx, cluster.of(rbacv1.AddToScheme)...)
				w := &WatchAccounts{kube: kube, roles: cluster.clusterRoles(), sources: cluster.sources(), token: func() string { return "" }}
				lead(t, w)
				kube.PrependReactor("update", "clusterroles", func(a clientgotesting.Action) (bool, runtime.Object, error) {
					role := a.(clientgotesting.UpdateAction).GetObject()
					return true, role, cluster.index(&rbacv1.ClusterRole{}).Update(role) // as the informer does
				})
				change := func(account string) {
					if err := cluster.index(&v1alpha1.RescheduleSource{}).Add(source(called(account), watchingAs(account))); err != nil {
						t.Fatal(err)
					}
				}
				writes := func() int { return len(kube.Actions()) }
				change("a")
				if err := w.Reconcile(ctx, watchRoleKey.Name); err != nil || writes() != 1 {
					t.Fatalf("%d writes at once: %v", writes(), err)
				}
				for _, account := range []string{"b", "c", "d"} {
					change(account)
					ok, wait := controller.IsRequeueKey(w.Reconcile(ctx, watchRoleKey.Name))
					if !ok || wait < c.gap || wait > 2*c.gap || writes() != 1 {
						t.Fatalf("%t, waits %s, %d writes", ok, wait, writes())
					}
				}
				for range 2 {
					time.Sleep(2 * c.gap)
					if err := w.Reconcile(ctx, watchRoleKey.Name); err != nil || writes() != 2 {
						t.Fatalf("%d writes: %v", writes(), err)
					}
				}
				role, err := w.roles.Get(resources.WatchRoleName)
				if err != nil || len(role.Rules[0].ResourceNames) != len(all)+4 {
					t.Errorf("the role: %v", err)
				}
			})
		})
	}
}

// A new leader checks the role.
func TestWatchAccounts_NewLeader(t *testing.T) {
	t.Parallel()
	ctx, _ := faked(t)
	var got []types.NamespacedName
	err := NewWatchAccounts(ctx, nil).Reconciler.(reconciler.LeaderAware).Promote(reconciler.UniversalBucket(),
		func(_ reconciler.Bucket, key types.NamespacedName) { got = append(got, key) })
	if err != nil || len(got) != 1 || got[0] != watchRoleKey {
		t.Errorf("enqueued %v, %v", got, err)
	}
}

// The controller runs when the account of a source changes, and when the role does, and
// for nothing else.
func TestWatchAccounts_Queued(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := watched(t, NewWatchAccounts, nil)
		defer c.impl.WorkQueue().ShutDown()
		queued := func(what string, want int) {
			t.Helper()
			synctest.Wait()
			if got := c.impl.WorkQueue().Len(); got != want {
				t.Errorf("%s: %d keys", what, got)
			}
			for range c.impl.WorkQueue().Len() {
				key, _ := c.impl.WorkQueue().Get()
				if key != any(watchRoleKey) {
					t.Errorf("%s: %v", what, key)
				}
				c.impl.WorkQueue().Done(key)
			}
		}
		c.save(t, "create", source())
		queued("a source without spec.watch", 0)
		c.save(t, "update", source(watchingAs("watcher")))
		queued("spec.watch", 1)
		c.save(t, "update", source(watchingAs("watcher"), counted))
		queued("its counts", 0)
		c.save(t, "update", source(watchingAs("other")))
		queued("another account", 1)
		c.save(t, "update", source(watchingAs("other"), deleted))
		queued("its deletion begins", 1)
		c.save(t, "delete", source())
		queued("it is gone", 0)
		c.save(t, "create", source(scalingAs(v1alpha1.ScaleAuto, "scaler")))
		queued("spec.scale", 1)
		c.save(t, "update", source(scalingAs(v1alpha1.ScaleAuto, "scaler"), holding("scaler"), deleted))
		queued("its deletion begins, and it holds the workload", 0)
		c.save(t, "update", source(scalingAs(v1alpha1.ScaleAuto, "scaler"), deleted))
		queued("it holds nothing any more", 1)
		if err := fakekubeclient.Get(c.ctx).Tracker().Add(watchRole()); err != nil {
			t.Fatal(err)
		}
		queued("the role", 1)
	})
}
