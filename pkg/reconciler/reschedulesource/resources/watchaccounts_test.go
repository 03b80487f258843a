package resources

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// watcher is a source that watches with an account.
func watcher(namespace, account string) *v1alpha1.RescheduleSource {
	s := &v1alpha1.RescheduleSource{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}
	s.Spec.Watch = &v1alpha1.RescheduleSourceWatch{ServiceAccountName: account}
	return s
}

// The rules name each account of a watching source once, in order.
func TestWatchRules_NameTheAccounts(t *testing.T) {
	t.Parallel()
	leaving := watcher("ops", "leaving")
	leaving.DeletionTimestamp = &metav1.Time{}
	rules, excess := WatchRules([]*v1alpha1.RescheduleSource{
		watcher("ops", "z"), watcher("ops", "a"), {ObjectMeta: metav1.ObjectMeta{Namespace: "quiet"}}, watcher("ops", "a"), leaving, watcher("dev", ""),
	})
	want := []rbacv1.PolicyRule{{
		APIGroups: []string{"sources.reschedule.dev"}, Resources: []string{"watchaccounts"}, Verbs: []string{"watch-as"},
		ResourceNames: []string{"dev:default", "ops:a", "ops:z"},
	}}
	if diff := cmp.Diff(want, rules); diff != "" || excess != 0 {
		t.Errorf("%d left out, (-want +got):\n%s", excess, diff)
	}
}

// A rule without names would grant every name.
func TestWatchRules_NoAccountNoRule(t *testing.T) {
	t.Parallel()
	for _, all := range [][]*v1alpha1.RescheduleSource{nil, {{ObjectMeta: metav1.ObjectMeta{Namespace: "quiet"}}}} {
		if rules, excess := WatchRules(all); rules != nil || excess != 0 {
			t.Errorf("%v, %d left out", rules, excess)
		}
	}
}

// Ten thousand accounts with usual names fit. When names do not fit, a namespace with
// few accounts keeps them all.
func TestWatchRules_FitIntoAnObject(t *testing.T) {
	t.Parallel()
	var all []*v1alpha1.RescheduleSource
	for i := range 10_000 {
		all = append(all, watcher(fmt.Sprintf("namespace-of-team-%05d", i), "an-account-with-a-name-of-some-length"))
	}
	if rules, excess := WatchRules(all); excess != 0 || len(rules[0].ResourceNames) != len(all) {
		t.Errorf("%d of %d are left out", excess, len(all))
	}
	for i := range 10_000 {
		all = append(all, watcher("flood", fmt.Sprintf("%05d-%s", i, strings.Repeat("a", 240))))
	}
	rules, excess := WatchRules(all)
	names := rules[0].ResourceNames
	if !slices.IsSorted(names) || len(names)+excess != len(all) || excess == 0 {
		t.Errorf("%d names, %d left out", len(names), excess)
	}
	for _, source := range all[:10_000] {
		if _, ok := slices.BinarySearch(names, WatchAccount(source)); !ok {
			t.Fatalf("%s is left out", WatchAccount(source))
		}
	}
	// The API server refuses objects of more than 1.5 MiB, and its own fields need space.
	if size := (&rbacv1.ClusterRole{Rules: rules}).Size(); size > 5<<20/4 || size < 1_000_000 {
		t.Errorf("the role has %d bytes", size)
	}
}
