package cluster

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
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

// A token of another source is refused.
func TestToken_OfAnotherSourceIsRefused(t *testing.T) {
	t.Parallel()
	s := guarded(t)
	account, err := server.Client.CoreV1().ServiceAccounts(s.namespace).Get(t.Context(), "caller", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	forge := func(from, to time.Duration) string {
		now := time.Now()
		token, err := server.SignToken(map[string]any{
			"iss": kube.Issuer, "aud": []string{s.audience()}, "sub": "system:serviceaccount:" + s.namespace + ":caller",
			"iat": now.Add(from).Unix(), "nbf": now.Add(from).Unix(), "exp": now.Add(to).Unix(),
			"kubernetes.io": map[string]any{"namespace": s.namespace, "serviceaccount": map[string]any{"name": "caller", "uid": account.UID}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
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
		{"garbage", "garbage", 401},
		{"three parts of garbage", "a.b.c", 401},
		{"the API server's audience", s.tokenOf(s.namespace, "caller"), 401},
		{"another source's audience", s.tokenOf(s.namespace, "caller", strings.TrimSuffix(s.audience(), "x")+"y"), 401},
		{"the audience of a source of that name elsewhere", s.tokenOf(s.namespace, "caller", "sources.reschedule.dev/reschedulesource/other/x"), 401},
		{"expired", forge(-2*time.Hour, -time.Hour), 401},
		{"not yet valid", forge(time.Hour, 2*time.Hour), 401},
		{"of a ServiceAccount that is gone", gone, 401},
		{"without a signature", parts[0] + "." + parts[1] + ".", 401},
		{"with the signature of another", parts[0] + "." + parts[1] + "." + strings.Split(gone, ".")[2], 401},
		{"good, made by hand", forge(-time.Minute, time.Hour), 200},
		{"good", s.token, 200},
		{"good, for two audiences", s.tokenOf(s.namespace, "caller", "another", s.audience()), 200},
		{"of a stranger", s.tokenOf(namespace(t, "stranger"), "stranger", s.audience()), 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s.permitted(t, c.token, always(c.want))
		})
	}
}

// Only callers of its namespace learn that a source does not exist.
func TestToken_AbsentSourceIsTheNamespacesSecret(t *testing.T) {
	t.Parallel()
	s := guarded(t)
	insider := s.tokenOf(s.namespace, "caller", strings.TrimSuffix(s.audience(), "x")+"absent")
	stranger := s.tokenOf(namespace(t, "stranger"), "stranger", strings.TrimSuffix(s.audience(), "x")+"absent")
	for token, want := range map[string]int{"": 401, stranger: 403, insider: 404} {
		r, err := harness.Do(t.Context(), "GET", strings.TrimSuffix(s.address(), "x")+"absent", "", "Authorization", "Bearer "+token)
		if err != nil || r.Status != want {
			t.Errorf("%+v: %v, want %d", r, err, want)
		}
	}
}

// grant gives a ServiceAccount of a namespace a ClusterRole in the source's.
func (s *source) grant(namespace, account, kind, role string) {
	s.t.Helper()
	_, err := server.Client.RbacV1().RoleBindings(s.namespace).Create(s.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "grant-"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: account}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role},
	}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	user, groups := serviceAccount(namespace, account)
	settle(s.t, func() bool {
		e := "sources.reschedule.dev reschedulesources/schedules:x get"
		return allowed(s.t, user, groups, s.namespace, e)
	}, "the grant has no effect")
}

// RBAC admits a stranger to the schedule API.
func TestToken_RBACAdmitsAStranger(t *testing.T) {
	t.Parallel()
	s := guarded(t)
	other := namespace(t, "stranger")
	_, err := server.Client.RbacV1().Roles(s.namespace).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"sources.reschedule.dev"}, Resources: []string{"reschedulesources/schedules"}, ResourceNames: []string{"x"}, Verbs: []string{"get", "create"},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for account, c := range map[string]struct {
		kind, role string
		want       func(string) int
	}{
		"viewer": {"ClusterRole", "reschedule-namespaced-view", only("get", "list")},
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
	t.Run("stranger", func(t *testing.T) {
		t.Parallel()
		s.permitted(t, s.tokenOf(other, "stranger", s.audience()), always(403))
	})
}

// policy makes an EventPolicy as eventing's controller, which does not run
// here, leaves it.
func (s *source) policy(name, from, spec, ready string) {
	s.t.Helper()
	err := server.Apply(s.t.Context(), fmt.Appendf(nil, `apiVersion: eventing.knative.dev/v1alpha1
kind: EventPolicy
metadata: {name: %s, namespace: %s}
spec: %s
`, name, s.namespace, fmt.Sprintf(spec, from)))
	if err != nil {
		s.t.Fatal(err)
	}
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

// A ready EventPolicy admits a stranger to the schedule API.
func TestToken_EventPolicyAdmitsAStranger(t *testing.T) {
	t.Parallel()
	const ours = "{ref: {apiVersion: sources.reschedule.dev/v1alpha1, kind: RescheduleSource, name: x}}"
	for name, c := range map[string]struct {
		spec, ready string
		want        int // for create: a policy is about sending, and opens nothing else
	}{
		"to this source":      {"{from: [{sub: '%s'}], to: [" + ours + "]}", "True", 200},
		"to everything":       {"{from: [{sub: '%s'}]}", "True", 200},
		"that is not ready":   {"{from: [{sub: '%s'}], to: [" + ours + "]}", "False", 403},
		"with a filter":       {"{from: [{sub: '%s'}], to: [" + ours + "], filters: [{prefix: {type: dev}}]}", "True", 403},
		"to another":          {"{from: [{sub: '%s'}], to: [{ref: {apiVersion: v1, kind: Service, name: x}}]}", "True", 403},
		"to what is labelled": {"{from: [{sub: '%s'}], to: [{selector: {apiVersion: sources.reschedule.dev/v1alpha1, kind: RescheduleSource, matchLabels: {a: b}}}]}", "True", 403},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := guarded(t)
			other := namespace(t, "stranger")
			user, _ := serviceAccount(other, "stranger")
			token := s.tokenOf(other, "stranger", s.audience())
			s.policy("p", user, c.spec, c.ready)
			// The source's status names the policy when the controller has seen
			// it, and the adapter sees it no later than that plus a moment.
			if c.want == http.StatusOK {
				settle(t, func() bool { return s.call(token, "PUT", "/schedules/waits", `{"delay":"1h"}`).Status == 200 }, "the policy has no effect")
				s.permitted(t, token, only("create"))
				return
			}
			s.permitted(t, token, always(c.want))
		})
	}
}
