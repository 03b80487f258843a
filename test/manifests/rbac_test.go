package manifests

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
)

// grants are what rules allow, as "group/resource name: verbs": the group "" is spelled core, and the name is there only
// where the rule has one.
func grants(rules ...rbacv1.PolicyRule) (out []string) {
	verbs := map[string][]string{}
	for _, r := range rules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				if group == "" {
					group = "core"
				}
				what := group + "/" + resource
				for _, name := range append(slices.Clone(r.ResourceNames), "")[:max(1, len(r.ResourceNames))] {
					of := strings.TrimSpace(what + " " + name)
					verbs[of] = append(verbs[of], r.Verbs...)
				}
			}
		}
		for _, path := range r.NonResourceURLs {
			verbs[path] = append(verbs[path], r.Verbs...)
		}
	}
	for what, all := range verbs {
		slices.Sort(all)
		out = append(out, what+": "+strings.Join(all, " "))
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
	var everywhere, here []rbacv1.PolicyRule
	for _, b := range all[rbacv1.ClusterRoleBinding](t, "ClusterRoleBinding") {
		if rules, ours := roles["ClusterRole/"+b.RoleRef.Name]; mine(b.Subjects) && ours {
			everywhere = append(everywhere, rules...)
		} else if mine(b.Subjects) {
			others = append(others, b.RoleRef.Name)
		}
	}
	for _, b := range all[rbacv1.RoleBinding](t, "RoleBinding") {
		if mine(b.Subjects) {
			here = append(here, roles[b.RoleRef.Kind+"/"+b.RoleRef.Name]...)
		}
	}
	return grants(everywhere...), grants(here...), others
}

// A new right must be added here too, and a reviewer asks why. As shipped the adapter may watch with no account: the
// controller writes the rules of the ClusterRole reschedule-adapter-watch.
func TestRBAC_RightsAreExact(t *testing.T) {
	t.Parallel()
	for account, want := range map[string][3][]string{
		"reschedule-controller": {{
			"core/events: create patch",
			"core/serviceaccounts: create delete get list update watch", // the identities of sources
			"eventing.knative.dev/eventpolicies: get list watch",
			"rbac.authorization.k8s.io/clusterroles reschedule-adapter-watch: list update watch",
			"sources.reschedule.dev/apiaudiences: request",                // as watch-as
			"sources.reschedule.dev/reschedulesources/finalizers: update", // for owning a ServiceAccount where admission asks for it
			"sources.reschedule.dev/reschedulesources/status: patch update",
			"sources.reschedule.dev/reschedulesources: get list patch watch", // reschedule-finalizer bounds the patch
			"sources.reschedule.dev/watchaccounts: watch-as",                 // what it writes into that ClusterRole; no API serves it
		}, {
			"apps/statefulsets reschedule-adapter: get list watch",
			"apps/statefulsets/scale reschedule-adapter: get patch update",
			"coordination.k8s.io/leases: create get update",
			"core/configmaps: get list watch",
			"core/secrets reschedule-adapter-server-tls: get list watch", // its CA goes into addresses
		}, {"addressable-resolver"}},
		"reschedule-adapter": {{
			"authentication.k8s.io/tokenreviews: create",
			"authorization.k8s.io/subjectaccessreviews: create",
			"core/events: create patch",
			"core/serviceaccounts/token: create", // the tokens that sources show to their sinks
			"eventing.knative.dev/eventpolicies: get list watch",
			"sources.reschedule.dev/reschedulesources/status: patch",
			"sources.reschedule.dev/reschedulesources: get list watch",
		}, {"core/configmaps: get list watch"}, nil},
	} {
		cluster, local, others := of(t, account)
		if diff := cmp.Diff(want, [3][]string{cluster, local, others}); diff != "" {
			t.Errorf("%s, everywhere, in %s, and by roles of others (-want +got):\n%s", account, namespace, diff)
		}
	}
	if role := one[rbacv1.ClusterRole](t, "ClusterRole", resources.WatchRoleName); role.Rules != nil {
		t.Errorf("applying %s again changes its rules: %v", role.Name, role.Rules)
	}
}

// A user of the command line reaches the adapter's pods by name, and beside it may at most have tokens of the viewer
// account, which reads schedules. A controller that manages the adapter makes that StatefulSet alone; one without Knative reads
// Services too.
func TestRBAC_Optional(t *testing.T) {
	t.Parallel()
	want := map[string][]string{
		"reschedule-viewer":       {"sources.reschedule.dev/reschedulesources/schedules: get list"},
		"reschedule-viewer-token": {"core/serviceaccounts/token reschedule-viewer: create"},
		"reschedule-controller-adapter": {
			"apps/deployments reschedule-controller: get", "apps/statefulsets reschedule-adapter: create patch",
		},
		"reschedule-cli": {"apps/statefulsets reschedule-adapter: get"},
		// Without Knative: the sinks of Kubernetes, and a role that sums up all roles for sinks.
		"reschedule-services": {"core/services: get list watch"},
		"reschedule-sinks":    nil,
	}
	for i := range 3 {
		pod := fmt.Sprint("reschedule-adapter-", i)
		want["reschedule-cli"] = append(want["reschedule-cli"], "core/pods "+pod+": get", "core/pods/portforward "+pod+": create get")
	}
	for _, o := range append(extra(t), read(t, "components/*/*.yaml")...) {
		if o.Kind == "Role" || o.Kind == "ClusterRole" {
			slices.Sort(want[o.Name])
			if diff := cmp.Diff(want[o.Name], grants(decode[rbacv1.ClusterRole](t, o).Rules...)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", o.Name, diff)
			}
			delete(want, o.Name)
		}
	}
	if len(want) > 0 {
		t.Errorf("there is no %v", slices.Collect(maps.Keys(want)))
	}
}

// A policy that breaks lets nothing through, and each refusal says why. What they admit is tested by test/cluster.
func TestPolicies_FailClosed(t *testing.T) {
	t.Parallel()
	for _, p := range all[admissionv1.ValidatingAdmissionPolicy](t, "ValidatingAdmissionPolicy") {
		if !is(p.Spec.FailurePolicy, admissionv1.Fail) {
			t.Errorf("%s lets everything through when it breaks", p.Name)
		}
		for _, v := range p.Spec.Validations {
			if v.Message == "" || v.Reason == nil {
				t.Errorf("%s: %q is refused without a word", p.Name, v.Expression)
			}
		}
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
		"sources.reschedule.dev/reschedulesources/schedules: get list",
		"sources.reschedule.dev/reschedulesources/status: get",
		"sources.reschedule.dev/reschedulesources: get list watch",
	}
	write := []string{
		"sources.reschedule.dev/reschedulesources/schedules: create delete get list",
		"sources.reschedule.dev/reschedulesources/status: get",
		"sources.reschedule.dev/reschedulesources: create delete deletecollection get list patch update watch",
	}
	for role, want := range map[string][]string{"admin": write, "edit": write, "view": read} {
		got := one[rbacv1.ClusterRole](t, "ClusterRole", "reschedule-namespaced-"+role)
		if got.Labels["rbac.authorization.k8s.io/aggregate-to-"+role] != "true" {
			t.Errorf("%s is not aggregated to %s", got.Name, role)
		}
		if diff := cmp.Diff(want, grants(got.Rules...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", got.Name, diff)
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
