package cluster

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// withCLI applies config/cli, and binds a user to one of its Roles.
func withCLI(t *testing.T, user, role string) {
	t.Helper()
	if err := server.ApplyFiles(t.Context(), "../../config/cli/cli-rbac.yaml"); err != nil {
		t.Fatal(err)
	}
	_, err := server.Client.RbacV1().RoleBindings(kube.SystemNamespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "cli-"},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: user}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// A user of the command line with edit and its Role has what it needs, and nothing more.
func TestCLI_RightsAreExact(t *testing.T) {
	t.Parallel()
	const user = "cli-user"
	own := namespace(t, "cli")
	withCLI(t, user, "reschedule-cli")
	bind(t, user, "edit", own)
	bind(t, "cli-viewer", "view", own)
	system := flat([]string{
		"core pods/portforward:reschedule-adapter-0 get create",
		"core pods/portforward:reschedule-adapter-1 get create",
		"core pods/portforward:reschedule-adapter-2 get create",
		"core pods:reschedule-adapter-0 get",
		"apps statefulsets:reschedule-adapter get",
	})
	settle(t, func() bool {
		return allowed(t, user, nil, kube.SystemNamespace, system[0]) && allowed(t, user, nil, own, "core serviceaccounts/token:default create") &&
			allowed(t, "cli-viewer", nil, own, "core pods get")
	}, "the rights of %s are not there", user)
	for _, e := range flat([]string{
		"core pods/portforward:reschedule-adapter-0 get create delete",
		"core pods/portforward:reschedule-adapter-1 get create",
		"core pods/portforward:reschedule-adapter-2 get create",
		"core pods/portforward:eventing-controller-0 get create",
		"core pods/portforward get create",
		"core pods:reschedule-adapter-0 get list delete patch",
		"core pods:another get",
		"core pods/exec:reschedule-adapter-0 get create",
		"core pods/log:reschedule-adapter-0 get",
		"core secrets:reschedule-adapter-server-tls get list",
		"core serviceaccounts/token:reschedule-adapter create",
		"core serviceaccounts/token:reschedule-viewer create",
		"apps statefulsets:reschedule-adapter get update patch delete",
		"apps statefulsets/scale:reschedule-adapter get update patch",
		"sources.reschedule.dev reschedulesources/schedules:x get list create delete",
	}) {
		if want := slices.Contains(system, e); allowed(t, user, nil, kube.SystemNamespace, e) != want {
			t.Errorf("in the system namespace, %s: allowed is %t", e, !want)
		}
	}
	for user, want := range map[string]bool{user: true, "cli-viewer": false} {
		if allowed(t, user, nil, own, "core serviceaccounts/token:default create") != want {
			t.Errorf("%s may request a token in its namespace: %t", user, !want)
		}
		if allowed(t, user, nil, kube.SystemNamespace, "core serviceaccounts/token:reschedule-viewer create") {
			t.Errorf("%s may read the schedules of all namespaces", user)
		}
	}
}

// The viewer account reads the schedules of every source, and changes none. Only users who
// are bound to its Role have its token.
func TestCLI_ViewerReadsOnly(t *testing.T) {
	t.Parallel()
	s := guarded(t)
	withCLI(t, "cli-reader", "reschedule-viewer-token")
	user, groups := serviceAccount(kube.SystemNamespace, "reschedule-viewer")
	settle(t, func() bool {
		return allowed(t, user, groups, s.namespace, "sources.reschedule.dev reschedulesources/schedules:x get") &&
			allowed(t, "cli-reader", nil, kube.SystemNamespace, "core serviceaccounts/token:reschedule-viewer create")
	}, "the viewer has no rights")
	s.permitted(t, s.tokenOf(kube.SystemNamespace, "reschedule-viewer", s.audience(), "sources.reschedule.dev/reschedulesource/"+s.namespace+"/other"), only("get", "list"))
	for _, e := range flat([]string{
		"sources.reschedule.dev reschedulesources create update patch delete",
		"sources.reschedule.dev reschedulesources/schedules:x create delete update",
		"core secrets get list",
		"core pods get list",
	}) {
		if allowed(t, user, groups, s.namespace, e) {
			t.Errorf("the viewer may %s", e)
		}
	}
	for _, e := range flat([]string{"core serviceaccounts/token:reschedule-adapter create", "core pods/portforward:reschedule-adapter-0 create get"}) {
		if allowed(t, "cli-reader", nil, kube.SystemNamespace, e) {
			t.Errorf("a reader may %s", e)
		}
	}
}
