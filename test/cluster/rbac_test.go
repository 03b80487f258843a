package cluster

import (
	"fmt"
	"strings"
	"testing"

	authzv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// What an account may do is held, line by line, by test/manifests. That it is enough is shown by the tests of this
// package: each program has its own account in all of them.
const (
	controllerAccount = "reschedule-controller"
	adapterAccount    = "reschedule-adapter"
)

// serviceAccount is how the API server names one.
func serviceAccount(namespace, name string) (user string, groups []string) {
	return fmt.Sprintf("system:serviceaccount:%s:%s", namespace, name), []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}
}

// allowed asks the API server whether a user may do what an entry says: "group resource[/subresource][:name] verb".
func allowed(t *testing.T, user string, groups []string, namespace, entry string) bool {
	t.Helper()
	words := strings.Fields(entry)
	resource, name, _ := strings.Cut(words[1], ":")
	resource, sub, _ := strings.Cut(resource, "/")
	r, err := server.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authzv1.SubjectAccessReview{
		Spec: authzv1.SubjectAccessReviewSpec{User: user, Groups: append(groups, "system:authenticated"), ResourceAttributes: &authzv1.ResourceAttributes{
			Namespace: namespace, Verb: words[2], Group: words[0], Resource: resource, Subresource: sub, Name: name,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Status.Allowed
}

// The viewer account of config/cli reads the schedules of every source, and changes none.
func TestCLI_ViewerReadsOnly(t *testing.T) {
	t.Parallel()
	s := guarded(t)
	if err := server.ApplyFiles(t.Context(), "../../config/cli/cli-rbac.yaml"); err != nil {
		t.Fatal(err)
	}
	user, groups := serviceAccount(kube.SystemNamespace, "reschedule-viewer")
	settle(t, func() bool {
		return allowed(t, user, groups, s.namespace, "sources.reschedule.dev reschedulesources/schedules:x get")
	}, "the viewer has no rights")
	s.permitted(t, s.tokenOf(kube.SystemNamespace, "reschedule-viewer", s.audience(), "sources.reschedule.dev/reschedulesource/"+s.namespace+"/other"), only("get", "list"))
}

// applied applies manifests in a namespace.
func applied(t *testing.T, namespace, format string, args ...any) {
	t.Helper()
	if err := server.ApplyIn(t.Context(), namespace, fmt.Appendf(nil, format, args...)); err != nil {
		t.Fatal(err)
	}
}

// allow makes a Role of one rule in a namespace, or a ClusterRole of its name, and binds it to subjects.
func allow(t *testing.T, namespace, kind, rules string, subjects ...string) {
	t.Helper()
	applied(t, namespace, `apiVersion: rbac.authorization.k8s.io/v1
kind: %[1]s
metadata: {name: %[2]s}
rules: [%[3]s]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: %[1]sBinding
metadata: {name: %[2]s}
subjects: [{kind: %[4]s}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: %[1]s, name: %[2]s}
`, kind, namespace, rules, strings.Join(subjects, "}, {kind: "))
}

// grant gives a ServiceAccount of a namespace a role in the source's.
func (s *source) grant(namespace, account, kind, role string) {
	s.t.Helper()
	applied(s.t, s.namespace, `apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %s}
subjects: [{kind: ServiceAccount, namespace: %s, name: %[1]s}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: %[3]s, name: %[4]s}
`, account, namespace, kind, role)
	user, groups := serviceAccount(namespace, account)
	settle(s.t, func() bool {
		return allowed(s.t, user, groups, s.namespace, "sources.reschedule.dev reschedulesources/schedules:x get")
	}, "the grant has no effect")
}
