package cluster

import (
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// refusedBy wants an error of an admission policy, which is in force a moment
// after it was applied.
func refusedBy(t *testing.T, policy string, try func() error) {
	t.Helper()
	var err error
	defer func() {
		if t.Failed() {
			t.Log("the last answer:", err)
		}
	}()
	settle(t, func() bool {
		err = try()
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), policy)
	}, "%s does not refuse it", policy)
}

// Also with the adapter's own credentials.
func TestAdapter_GetsTokensToWatchAndForSinks(t *testing.T) {
	t.Parallel()
	const ours = "x-oidc-sources.reschedule.dev-reschedulesource"
	p, ns, adapter := running(t), namespace(t, "tokens"), tokens(t)
	accounts(t, ns, ours, "operator")
	for _, account := range []string{"operator", ours} {
		s := &source{programs: p, t: t, namespace: ns, name: "with-" + account, client: typedSourcesIn(t, ns)}
		s.make(watchingWith(account))
	}
	request := func(account string, audiences ...string) error { return adapter(ns, account, audiences...) }
	granted(t, func() error { return request("operator") })
	granted(t, func() error { return request("operator", kube.Issuer) })
	refusedBy(t, tokenPolicy, func() error { return request(ours) }) // which is for the API server
	refusedBy(t, tokenPolicy, func() error { return request(ours, kube.Issuer) })
	refusedBy(t, tokenPolicy, func() error { return request(ours, "sink", kube.Issuer) })
	refusedBy(t, tokenPolicy, func() error { return request("operator", "sink") })
	refusedBy(t, tokenPolicy, func() error { return request("operator", "sink", kube.Issuer) })
	if _, err := server.Client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: ns, Name: "operator"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	refusedBy(t, tokenPolicy, func() error { return request("operator") })
	if err := request(ours, "sink"); err != nil {
		t.Errorf("the account of a source, for its sink: %v", err)
	}
	if _, err := server.Token(t.Context(), ns, "operator", kube.Issuer); err != nil {
		t.Errorf("another user: %v", err)
	}
}

// wildcardRole makes a namespace with an account dev, which has every verb on our resources
// there, and returns the sources of the namespace as an account sees them.
func wildcardRole(t *testing.T) (as func(namespace, account string) dynamic.ResourceInterface, ns string) {
	t.Helper()
	ns = namespace(t, "wildcard")
	if _, err := server.Client.RbacV1().Roles(ns).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "all"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{resource.Group}, Resources: []string{"*"}, Verbs: []string{"*"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Client.RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "all"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: ns, Name: "dev"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "all"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	accounts(t, ns, "dev")
	user, groups := serviceAccount(ns, "dev")
	settle(t, func() bool {
		return allowed(t, user, groups, ns, "sources.reschedule.dev reschedulesources/status patch")
	}, "the role is not there")
	return func(namespace, account string) dynamic.ResourceInterface {
		config, err := server.As(t.Context(), namespace, account)
		if err != nil {
			t.Fatal(err)
		}
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return client.Resource(resource).Namespace(ns)
	}, ns
}

// statusPolicy is the policy that guards the status of sources.
const statusPolicy = "reschedule-status"

// patchStatus merges into the status of the source x.
func patchStatus(t *testing.T, of dynamic.ResourceInterface, status string) error {
	_, err := of.Patch(t.Context(), "x", "application/merge-patch+json", []byte(`{"status":`+status+`}`), metav1.PatchOptions{}, "status")
	return err
}

// A wildcard in a Role is common, and was not meant for what directs deliveries.
func TestStatus_NotForWildcardRoles(t *testing.T) {
	t.Parallel()
	as, ns := wildcardRole(t)
	if _, err := as(ns, "dev").Create(t.Context(), manifest(t, "x", toURI), strict); err != nil {
		t.Fatal(err)
	}
	const elsewhere = `{"sinkUri":"http://attacker","sinkAudience":"` + kube.Issuer + `","auth":{"serviceAccountName":"operator"}}`
	refusedBy(t, statusPolicy, func() error { return patchStatus(t, as(ns, "dev"), elsewhere) })
	refusedBy(t, statusPolicy, func() error { return patchStatus(t, as(ns, "dev"), `{"pending":7}`) })
	refusedBy(t, statusPolicy, func() error { return patchStatus(t, as(kube.SystemNamespace, adapterAccount), elsewhere) })
	if err := patchStatus(t, as(kube.SystemNamespace, adapterAccount), `{"pending":7}`); err != nil {
		t.Errorf("the adapter's counts: %v", err)
	}
	if err := patchStatus(t, as(kube.SystemNamespace, controllerAccount), `{"sinkUri":"http://sink"}`); err != nil {
		t.Errorf("the controller's sink: %v", err)
	}
}
