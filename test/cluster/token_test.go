package cluster

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// calls are the kinds of calls that the schedule API tells apart.
var calls = []struct{ verb, method, path, body string }{
	{"get", "GET", "/schedules/waits", ""},
	{"get", "GET", "", ""},
	{"list", "GET", "/schedules", ""},
	{"create", "PUT", "/schedules/waits", `{"delay":"1h"}`},
	{"create", "POST", "/schedules", `{"items":[{"key":"waits","delay":"1h"}]}`},
	{"delete", "DELETE", "/schedules?prefix=nothing", ""},
	{"delete", "DELETE", "/schedules/nothing", ""},
}

// permitted wants each call with a token to be let in, refused, or as the
// token itself deserves.
func (s *source) permitted(t *testing.T, token string, want func(verb string) int) {
	t.Helper()
	for _, c := range calls {
		r := s.call(token, c.method, c.path, c.body)
		code := map[int]string{401: `"unauthenticated"`, 403: `"permission_denied"`}[want(c.verb)]
		ok := r.Status/100 == 2 && want(c.verb) == 200
		if !ok && (r.Status != want(c.verb) || !strings.Contains(string(r.Body), code)) {
			t.Errorf("%s %s: %d %s, want %d", c.method, c.path, r.Status, r.Body, want(c.verb))
		}
	}
}

func always(status int) func(string) int { return func(string) int { return status } }

// only lets some verbs in.
func only(verbs ...string) func(string) int {
	return func(verb string) int {
		if strings.Contains(strings.Join(verbs, " "), verb) {
			return http.StatusOK
		}
		return http.StatusForbidden
	}
}

// guarded is a source with one waiting key, for calls that must not change it.
func guarded(t *testing.T) *source {
	t.Helper()
	s := running(t).create(t, namespace(t, "guard"), "x", toURI+"suspend: true")
	s.served()
	s.put("waits", `{"delay":"1h"}`)
	return s
}

// Only a token for the source, of an account that there is, is accepted, and then its namespace counts.
func TestToken_OfAnotherSourceIsRefused(t *testing.T) {
	t.Parallel()
	s := guarded(t)
	parts := strings.Split(s.token, ".")
	gone := s.tokenOf(s.namespace, "gone", s.audience())
	if err := server.Client.CoreV1().ServiceAccounts(s.namespace).Delete(t.Context(), "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, token string
		want        int
	}{
		{"none", "", 401},
		{"the API server's audience", s.tokenOf(s.namespace, "caller"), 401},
		{"another source's audience", s.tokenOf(s.namespace, "caller", strings.TrimSuffix(s.audience(), "x")+"y"), 401},
		{"of a ServiceAccount that is gone", gone, 401},
		{"with the signature of another", parts[0] + "." + parts[1] + "." + strings.Split(gone, ".")[2], 401},
		{"good, for two audiences", s.tokenOf(s.namespace, "caller", "another", s.audience()), 200},
		{"of a stranger", s.tokenOf(namespace(t, "stranger"), "stranger", s.audience()), 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s.permitted(t, c.token, always(c.want))
		})
	}
}

// RBAC admits a stranger to the schedule API.
func TestToken_RBACAdmitsAStranger(t *testing.T) {
	t.Parallel()
	s := guarded(t)
	other := namespace(t, "stranger")
	applied(t, s.namespace, `apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: one}
rules: [{apiGroups: [sources.reschedule.dev], resources: [reschedulesources/schedules], resourceNames: [x], verbs: [get, create]}]
`)
	for account, c := range map[string]struct {
		kind, role string
		want       func(string) int
	}{
		"editor": {"ClusterRole", "reschedule-namespaced-edit", only("get", "list", "create", "delete")},
		"reader": {"ClusterRole", "view", only("get", "list")},
		"of-one": {"Role", "one", only("get", "create")},
	} {
		t.Run(account, func(t *testing.T) {
			t.Parallel()
			token := s.tokenOf(other, account, s.audience())
			s.grant(other, account, c.kind, c.role)
			s.permitted(t, token, c.want)
		})
	}
}

// policy makes an EventPolicy as eventing's controller, which does not run
// here, leaves it.
func (s *source) policy(name, from, spec, ready string) {
	s.t.Helper()
	applied(s.t, s.namespace, `apiVersion: eventing.knative.dev/v1alpha1
kind: EventPolicy
metadata: {name: %s}
spec: %s
`, name, fmt.Sprintf(spec, from))
	policies, err := server.Resource(schema.GroupVersionKind{Group: "eventing.knative.dev", Version: "v1alpha1", Kind: "EventPolicy"}, s.namespace)
	if err != nil {
		s.t.Fatal(err)
	}
	_, err = policies.Patch(s.t.Context(), name, "application/merge-patch+json",
		fmt.Appendf(nil, `{"status":{"from":[%q],"conditions":[{"type":"Ready","status":%q}]}}`, from, ready), metav1.PatchOptions{}, "status")
	if err != nil {
		s.t.Fatal(err)
	}
}

// A ready EventPolicy admits a stranger to the schedule API, for create alone: a policy is about sending.
func TestToken_EventPolicyAdmitsAStranger(t *testing.T) {
	t.Parallel()
	s, other := guarded(t), namespace(t, "stranger")
	user, _ := serviceAccount(other, "stranger")
	token := s.tokenOf(other, "stranger", s.audience())
	const ours = "{from: [{sub: '%s'}], to: [{ref: {apiVersion: sources.reschedule.dev/v1alpha1, kind: RescheduleSource, name: x}}]}"
	s.policy("p", user, ours, "False")
	s.permitted(t, token, always(http.StatusForbidden))
	s.policy("p", user, ours, "True")
	settle(t, func() bool { return s.call(token, "PUT", "/schedules/waits", `{"delay":"1h"}`).Status == 200 }, "the policy has no effect")
	s.permitted(t, token, only("create"))
}
