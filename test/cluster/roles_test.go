package cluster

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// bind gives a user a ClusterRole, in a namespace or, with "", everywhere.
func bind(t *testing.T, user, role, namespace string) {
	t.Helper()
	subject := []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: user}}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}
	meta := metav1.ObjectMeta{GenerateName: "bind-"}
	var err error
	if namespace == "" {
		_, err = server.Client.RbacV1().ClusterRoleBindings().Create(t.Context(),
			&rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subject, RoleRef: ref}, metav1.CreateOptions{})
	} else {
		_, err = server.Client.RbacV1().RoleBindings(namespace).Create(t.Context(),
			&rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subject, RoleRef: ref}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The roles of people and of Knative reach sources.
func TestRoles_OfPeopleAndKnative(t *testing.T) {
	t.Parallel()
	own, other := namespace(t, "roles"), namespace(t, "roles")
	write := []string{
		"sources.reschedule.dev reschedulesources create delete deletecollection get list patch update watch",
		"sources.reschedule.dev reschedulesources/status get",
		"sources.reschedule.dev reschedulesources/schedules create delete get list",
	}
	for _, c := range []struct {
		role  string
		whole bool // bound in the whole cluster
		can   []string
	}{
		{role: "admin", can: write},
		{role: "edit", can: write},
		{role: "view", can: []string{
			"sources.reschedule.dev reschedulesources get list watch",
			"sources.reschedule.dev reschedulesources/status get",
			"sources.reschedule.dev reschedulesources/schedules get list",
		}},
		{role: "source-observer", whole: true, can: []string{"sources.reschedule.dev reschedulesources get list watch"}},
		{role: "addressable-resolver", whole: true, can: []string{
			"sources.reschedule.dev reschedulesources get list watch",
			"sources.reschedule.dev reschedulesources/status get list watch",
		}},
	} {
		t.Run(c.role, func(t *testing.T) {
			t.Parallel()
			user, scope := "user-"+c.role, own
			if c.whole {
				scope = ""
			}
			bind(t, user, c.role, scope)
			can := flat(c.can)
			// The authorizer sees a new binding a moment later.
			settle(t, func() bool { return allowed(t, user, nil, own, can[0]) }, "%s cannot %s", c.role, can[0])
			for _, resource := range []string{"", "/status", "/schedules", "/finalizers"} {
				for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"} {
					e := "sources.reschedule.dev reschedulesources" + resource + " " + verb
					for ns, reached := range map[string]bool{own: true, other: c.whole} {
						want := reached && slices.Contains(can, e)
						if allowed(t, user, nil, ns, e) != want {
							t.Errorf("%s: allowed is %v", e, !want)
						}
					}
				}
			}
		})
	}
}

// What the reviews say is what happens.
func TestRoles_ViewersCannotChange(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "people")
	bind(t, "viewer", "view", ns)
	bind(t, "editor", "edit", ns)
	as := func(user string) dynamic.ResourceInterface {
		config := rest.CopyConfig(server.Config)
		config.Impersonate.UserName = user
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return client.Resource(resource).Namespace(ns)
	}
	settle(t, func() bool { return allowed(t, "editor", nil, ns, "sources.reschedule.dev reschedulesources create") }, "the editor's role is not there")
	settle(t, func() bool { return allowed(t, "viewer", nil, ns, "sources.reschedule.dev reschedulesources get") }, "the viewer's role is not there")
	if _, err := as("viewer").Create(t.Context(), manifest(t, "x", toURI), strict); !apierrors.IsForbidden(err) {
		t.Errorf("the viewer creates: %v", err)
	}
	if _, err := as("editor").Create(t.Context(), manifest(t, "x", toURI), strict); err != nil {
		t.Errorf("the editor creates: %v", err)
	}
	if _, err := as("viewer").Get(t.Context(), "x", metav1.GetOptions{}); err != nil {
		t.Errorf("the viewer reads: %v", err)
	}
	if _, err := as("editor").Patch(t.Context(), "x", "application/merge-patch+json", []byte(`{"status":{"pending":1}}`), metav1.PatchOptions{}, "status"); !apierrors.IsForbidden(err) {
		t.Errorf("the editor writes a status: %v", err)
	}
	if err := as("viewer").Delete(t.Context(), "x", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the viewer deletes: %v", err)
	}
	if err := as("editor").Delete(t.Context(), "x", metav1.DeleteOptions{}); err != nil {
		t.Errorf("the editor deletes: %v", err)
	}
}
