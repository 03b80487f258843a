package manifests

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
)

// grants are what an identity may do: "verb group/resource name", the group ""
// spelled core, and the name only where the rule has one.
func grants(rules []rbacv1.PolicyRule) (out []string) {
	for _, r := range rules {
		names := r.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range r.APIGroups {
			if group == "" {
				group = "core"
			}
			for _, resource := range r.Resources {
				for _, name := range names {
					for _, verb := range r.Verbs {
						grant := verb + " " + group + "/" + resource
						if name != "" {
							grant += " " + name
						}
						out = append(out, grant)
					}
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

// of is what a ServiceAccount is granted cluster-wide, in knative-eventing, and
// by roles that others own.
func of(t *testing.T, account string) (cluster, local, others []string) {
	t.Helper()
	roles := map[string][]rbacv1.PolicyRule{}
	for _, r := range all[rbacv1.ClusterRole](t, "ClusterRole") {
		roles["ClusterRole/"+r.Name] = r.Rules
	}
	for _, r := range all[rbacv1.Role](t, "Role") {
		roles["Role/"+r.Name] = r.Rules
	}
	mine := func(subjects []rbacv1.Subject) bool {
		return slices.Contains(subjects, rbacv1.Subject{Kind: "ServiceAccount", Name: account, Namespace: namespace})
	}
	for _, b := range all[rbacv1.ClusterRoleBinding](t, "ClusterRoleBinding") {
		if rules, ours := roles["ClusterRole/"+b.RoleRef.Name]; mine(b.Subjects) && ours {
			cluster = append(cluster, grants(rules)...)
		} else if mine(b.Subjects) {
			others = append(others, b.RoleRef.Name)
		}
	}
	for _, b := range all[rbacv1.RoleBinding](t, "RoleBinding") {
		if mine(b.Subjects) {
			local = append(local, grants(roles[b.RoleRef.Kind+"/"+b.RoleRef.Name])...)
		}
	}
	slices.Sort(cluster)
	slices.Sort(local)
	return cluster, local, others
}

// A new right must be added here too, and a reviewer asks why.
func TestRBAC_Controller(t *testing.T) {
	t.Parallel()
	cluster, local, others := of(t, "reschedule-controller")
	wantCluster := []string{
		"create core/events",
		"create core/serviceaccounts",
		"delete core/serviceaccounts",
		"get core/serviceaccounts",
		"get eventing.knative.dev/eventpolicies",
		"get sources.reschedule.dev/reschedulesources",
		"list core/serviceaccounts",
		"list eventing.knative.dev/eventpolicies",
		"list rbac.authorization.k8s.io/clusterroles reschedule-adapter-watch",
		"list sources.reschedule.dev/reschedulesources",
		"patch core/events",
		"patch sources.reschedule.dev/reschedulesources/status",
		"request sources.reschedule.dev/apiaudiences", // as watch-as
		"update core/serviceaccounts",
		"update rbac.authorization.k8s.io/clusterroles reschedule-adapter-watch",
		"update sources.reschedule.dev/reschedulesources/finalizers",
		"update sources.reschedule.dev/reschedulesources/status",
		"watch core/serviceaccounts",
		"watch eventing.knative.dev/eventpolicies",
		"watch rbac.authorization.k8s.io/clusterroles reschedule-adapter-watch",
		"watch sources.reschedule.dev/reschedulesources",
		"watch-as sources.reschedule.dev/watchaccounts", // what it writes into that ClusterRole; no API serves it
	}
	wantLocal := []string{
		"create coordination.k8s.io/leases",
		"get apps/statefulsets reschedule-adapter",
		"get apps/statefulsets/scale reschedule-adapter",
		"get coordination.k8s.io/leases",
		"get core/configmaps",
		"get core/secrets reschedule-adapter-server-tls",
		"list apps/statefulsets reschedule-adapter",
		"list core/configmaps",
		"list core/secrets reschedule-adapter-server-tls",
		"patch apps/statefulsets/scale reschedule-adapter",
		"update apps/statefulsets/scale reschedule-adapter",
		"update coordination.k8s.io/leases",
		"watch apps/statefulsets reschedule-adapter",
		"watch core/configmaps",
		"watch core/secrets reschedule-adapter-server-tls",
	}
	if diff := cmp.Diff(wantCluster, cluster); diff != "" {
		t.Errorf("everywhere (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantLocal, local); diff != "" {
		t.Errorf("in %s (-want +got):\n%s", namespace, diff)
	}
	if diff := cmp.Diff([]string{"addressable-resolver"}, others); diff != "" {
		t.Errorf("by roles of others (-want +got):\n%s", diff)
	}
}

// The adapter may do this and nothing else. As shipped it may watch with no account: the
// controller writes the rules of the ClusterRole reschedule-adapter-watch.
func TestRBAC_Adapter(t *testing.T) {
	t.Parallel()
	cluster, local, others := of(t, "reschedule-adapter")
	wantCluster := []string{
		"create authentication.k8s.io/tokenreviews",
		"create authorization.k8s.io/subjectaccessreviews",
		"create core/events",
		"create core/serviceaccounts/token",
		"get eventing.knative.dev/eventpolicies",
		"get sources.reschedule.dev/reschedulesources",
		"list eventing.knative.dev/eventpolicies",
		"list sources.reschedule.dev/reschedulesources",
		"patch core/events",
		"patch sources.reschedule.dev/reschedulesources/status",
		"watch eventing.knative.dev/eventpolicies",
		"watch sources.reschedule.dev/reschedulesources",
	}
	if diff := cmp.Diff(wantCluster, cluster); diff != "" {
		t.Errorf("everywhere (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"get core/configmaps", "list core/configmaps", "watch core/configmaps"}, local); diff != "" {
		t.Errorf("in %s (-want +got):\n%s", namespace, diff)
	}
	if len(others) > 0 {
		t.Errorf("by roles of others: %v", others)
	}
	if role := one[rbacv1.ClusterRole](t, "ClusterRole", resources.WatchRoleName); role.Rules != nil {
		t.Errorf("applying %s again changes its rules: %v", role.Name, role.Rules)
	}
}

// The right to tokens can be left out with its file.
func TestRBAC_TokensAreOptional(t *testing.T) {
	t.Parallel()
	const file = "204-adapter-oidc-rbac.yaml"
	for _, o := range installed(t) {
		if o.Kind != "ClusterRole" && o.Kind != "Role" {
			continue
		}
		tokens := false
		for _, rule := range decode[rbacv1.Role](t, object{o.file, o.TypeMeta, o.ObjectMeta, o.raw}).Rules {
			tokens = tokens || slices.Contains(rule.Resources, "serviceaccounts/token")
		}
		if tokens != (o.file == file) {
			t.Errorf("%s %s in %s gives tokens: %v", o.Kind, o.Name, o.file, tokens)
		}
	}
}

// People get what their role in a namespace says.
func TestRBAC_People(t *testing.T) {
	t.Parallel()
	read := []string{
		"get sources.reschedule.dev/reschedulesources",
		"get sources.reschedule.dev/reschedulesources/schedules",
		"get sources.reschedule.dev/reschedulesources/status",
		"list sources.reschedule.dev/reschedulesources",
		"list sources.reschedule.dev/reschedulesources/schedules",
		"watch sources.reschedule.dev/reschedulesources",
	}
	write := append([]string{
		"create sources.reschedule.dev/reschedulesources",
		"create sources.reschedule.dev/reschedulesources/schedules",
		"delete sources.reschedule.dev/reschedulesources",
		"delete sources.reschedule.dev/reschedulesources/schedules",
		"deletecollection sources.reschedule.dev/reschedulesources",
		"patch sources.reschedule.dev/reschedulesources",
		"update sources.reschedule.dev/reschedulesources",
	}, read...)
	slices.Sort(write)
	for role, want := range map[string][]string{"admin": write, "edit": write, "view": read} {
		got := one[rbacv1.ClusterRole](t, "ClusterRole", "reschedule-namespaced-"+role)
		if got.Labels["rbac.authorization.k8s.io/aggregate-to-"+role] != "true" {
			t.Errorf("%s is not aggregated to %s", got.Name, role)
		}
		if diff := cmp.Diff(want, grants(got.Rules)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", got.Name, diff)
		}
	}
}

// No role is wider than it must be.
func TestRBAC_NoWildcards(t *testing.T) {
	t.Parallel()
	for _, role := range all[rbacv1.ClusterRole](t, "ClusterRole") {
		checkWidth(t, role.Name, role.Rules, true)
	}
	for _, role := range all[rbacv1.Role](t, "Role") {
		checkWidth(t, role.Name, role.Rules, false)
	}
}

func checkWidth(t *testing.T, name string, rules []rbacv1.PolicyRule, everywhere bool) {
	t.Helper()
	for _, r := range rules {
		if slices.Contains(r.Verbs, "*") || slices.Contains(r.Resources, "*") || slices.Contains(r.APIGroups, "*") || len(r.NonResourceURLs) > 0 {
			t.Errorf("%s has a wildcard: %v", name, r)
		}
		if slices.Contains(r.Resources, "secrets") && (everywhere || len(r.ResourceNames) == 0) {
			t.Errorf("%s may read secrets that it does not know by name", name)
		}
		// With a name, create is never granted: the API server does not know it yet.
		if len(r.ResourceNames) > 0 && slices.Contains(r.Verbs, "create") {
			t.Errorf("%s has a create by name, which grants nothing", name)
		}
	}
}

// Every binding joins a role and an identity that exist.
func TestRBAC_BindingsAreComplete(t *testing.T) {
	t.Parallel()
	have := map[string]bool{"ClusterRole/addressable-resolver": true} // eventing's own
	for _, o := range installed(t) {
		have[o.Kind+"/"+o.Name] = true
	}
	check := func(binding string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
		if !have[ref.Kind+"/"+ref.Name] || ref.APIGroup != rbacv1.GroupName {
			t.Errorf("%s points at %+v, which is not there", binding, ref)
		}
		for _, s := range subjects {
			if s.Kind != "ServiceAccount" || !have["ServiceAccount/"+s.Name] || s.Namespace != namespace {
				t.Errorf("%s is for %+v, who is not there", binding, s)
			}
		}
		have["bound "+ref.Kind+"/"+ref.Name] = true
	}
	for _, b := range all[rbacv1.ClusterRoleBinding](t, "ClusterRoleBinding") {
		check(b.Name, b.RoleRef, b.Subjects)
	}
	for _, b := range all[rbacv1.RoleBinding](t, "RoleBinding") {
		check(b.Name, b.RoleRef, b.Subjects)
	}
	for _, o := range installed(t) {
		aggregated := o.file == "201-aggregated-clusterroles.yaml"
		if (o.Kind == "ClusterRole" || o.Kind == "Role") && !aggregated && !have["bound "+o.Kind+"/"+o.Name] {
			t.Errorf("%s %s is bound to no account", o.Kind, o.Name)
		}
	}
}

// Each binary has an identity of its own.
func TestRBAC_OneIdentityPerBinary(t *testing.T) {
	t.Parallel()
	accounts := map[string]bool{}
	for _, a := range all[corev1.ServiceAccount](t, "ServiceAccount") {
		accounts[a.Name] = true
	}
	for name, account := range map[string]string{
		"reschedule-controller": one[appsv1.Deployment](t, "Deployment", "reschedule-controller").Spec.Template.Spec.ServiceAccountName,
		"reschedule-adapter":    one[appsv1.StatefulSet](t, "StatefulSet", "reschedule-adapter").Spec.Template.Spec.ServiceAccountName,
	} {
		if account != name || !accounts[account] {
			t.Errorf("%s runs as %q", name, account)
		}
		delete(accounts, account)
	}
	if len(accounts) > 0 {
		t.Errorf("no pod runs as %v", accounts)
	}
}
