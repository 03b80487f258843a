package resources

import (
	"encoding/base64"
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
	}, []string{"k3s"})
	want := []rbacv1.PolicyRule{{
		APIGroups: []string{"sources.reschedule.dev"}, Resources: []string{"watchaccounts"}, Verbs: []string{"watch-as"},
		ResourceNames: []string{"dev:default", "ops:a", "ops:z"},
	}, {
		APIGroups: []string{"sources.reschedule.dev"}, Resources: []string{"apiaudiences"}, Verbs: []string{"request"}, ResourceNames: []string{"k3s"},
	}}
	if diff := cmp.Diff(want, rules); diff != "" || excess != 0 {
		t.Errorf("%d left out, (-want +got):\n%s", excess, diff)
	}
}

// A rule without names would grant every name.
func TestWatchRules_NoAccountNoRule(t *testing.T) {
	t.Parallel()
	for _, all := range [][]*v1alpha1.RescheduleSource{nil, {{ObjectMeta: metav1.ObjectMeta{Namespace: "quiet"}}}} {
		if rules, excess := WatchRules(all, nil); rules != nil || excess != 0 {
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
	if rules, excess := WatchRules(all, nil); excess != 0 || len(rules[0].ResourceNames) != len(all) {
		t.Errorf("%d of %d are left out", excess, len(all))
	}
	for i := range 10_000 {
		all = append(all, watcher("flood", fmt.Sprintf("%05d-%s", i, strings.Repeat("a", 240))))
	}
	rules, excess := WatchRules(all, nil)
	names := rules[0].ResourceNames
	if !slices.IsSorted(names) || len(names)+excess != len(all) || excess == 0 {
		t.Errorf("%d names, %d left out", len(names), excess)
	}
	for _, source := range all[:10_000] {
		if _, ok := slices.BinarySearch(names, Accounts(source)[0]); !ok {
			t.Fatalf("%s is left out", Accounts(source)[0])
		}
	}
	// The API server refuses objects of more than 1.5 MiB, and its own fields need space.
	if size := (&rbacv1.ClusterRole{Rules: rules}).Size(); size > 5<<20/4 || size < 1_000_000 {
		t.Errorf("the role has %d bytes", size)
	}
}

// The API server's audiences that the policy does not know are read from the controller's token.
func TestAPIAudiences_OfTheToken(t *testing.T) {
	t.Parallel()
	for claims, want := range map[string][]string{
		`{"aud":["https://kubernetes.default.svc"]}`:                                                           {},
		`{"aud":["https://kubernetes.default.svc.cluster.local","k3s"]}`:                                       {"k3s"},
		`{"aud":["z","https://container.googleapis.com/v1/projects/p","",  "HTTPS://kubernetes.default.svc"]}`: {"https://container.googleapis.com/v1/projects/p", "z"},
		`{}`: {}, `{`: {}, `{"aud":7}`: {},
	} {
		token := "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
		if got := APIAudiences(token); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", claims, got, want)
		}
	}
	for _, token := range []string{"", "opaque", "a.b", "a..c"} {
		if got := APIAudiences(token); len(got) > 0 {
			t.Errorf("%q: %q", token, got)
		}
	}
}
