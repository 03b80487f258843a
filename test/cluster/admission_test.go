package cluster

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// refusedBy wants an error of an admission policy, which is in force a moment
// after it was applied.
func refusedBy(t *testing.T, policy string, try func() error) {
	t.Helper()
	var err error
	settle(t, func() bool {
		err = try()
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), policy)
	}, "%s does not refuse it: %v", policy, err)
}

// Also with the adapter's own credentials.
func TestAdapter_GetsTokensToWatchAndForSinks(t *testing.T) {
	t.Parallel()
	const ours, policy = "x-oidc-sources.reschedule.dev-reschedulesource", "reschedule-adapter-tokens"
	ns := namespace(t, "tokens")
	for _, account := range []string{ours, "operator"} {
		_, err := server.Client.CoreV1().ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	config, err := server.As(t.Context(), kube.SystemNamespace, adapterAccount)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	request := func(account string, audiences ...string) error {
		_, err := client.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), account,
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{})
		return err
	}
	refusedBy(t, policy, func() error { return request(ours) }) // which is for the API server
	refusedBy(t, policy, func() error { return request(ours, kube.Issuer) })
	refusedBy(t, policy, func() error { return request(ours, "sink", kube.Issuer) })
	refusedBy(t, policy, func() error { return request("operator", "sink") })
	refusedBy(t, policy, func() error { return request("operator", "sink", kube.Issuer) })
	if err := request("operator"); err != nil {
		t.Errorf("an account to watch with: %v", err)
	}
	if _, err := server.Client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: ns, Name: "operator"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	refusedBy(t, policy, func() error { return request("operator") })
	if err := request(ours, "sink"); err != nil {
		t.Errorf("the account of a source, for its sink: %v", err)
	}
	if _, err := server.Token(t.Context(), ns, "operator", kube.Issuer); err != nil {
		t.Errorf("another user: %v", err)
	}
}

// A wildcard in a Role is common, and was not meant for what directs deliveries.
func TestStatus_NotForWildcardRoles(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "wildcard")
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
	if _, err := server.Client.CoreV1().ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "dev"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	as := func(namespace, account string) dynamic.ResourceInterface {
		config, err := server.As(t.Context(), namespace, account)
		if err != nil {
			t.Fatal(err)
		}
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return client.Resource(resource).Namespace(ns)
	}
	user, groups := serviceAccount(ns, "dev")
	settle(t, func() bool {
		return allowed(t, user, groups, ns, "sources.reschedule.dev reschedulesources/status patch")
	}, "the role is not there")
	if _, err := as(ns, "dev").Create(t.Context(), manifest(t, "x", toURI), strict); err != nil {
		t.Fatal(err)
	}
	patch := func(of dynamic.ResourceInterface, status string) error {
		_, err := of.Patch(t.Context(), "x", "application/merge-patch+json", []byte(`{"status":`+status+`}`), metav1.PatchOptions{}, "status")
		return err
	}
	const elsewhere = `{"sinkUri":"http://attacker","sinkAudience":"` + kube.Issuer + `","auth":{"serviceAccountName":"operator"}}`
	const policy = "reschedule-status"
	refusedBy(t, policy, func() error { return patch(as(ns, "dev"), elsewhere) })
	refusedBy(t, policy, func() error { return patch(as(ns, "dev"), `{"pending":7}`) })
	refusedBy(t, policy, func() error { return patch(as(kube.SystemNamespace, adapterAccount), elsewhere) })
	if err := patch(as(kube.SystemNamespace, adapterAccount), `{"pending":7}`); err != nil {
		t.Errorf("the adapter's counts: %v", err)
	}
	if err := patch(as(kube.SystemNamespace, controllerAccount), `{"sinkUri":"http://sink"}`); err != nil {
		t.Errorf("the controller's sink: %v", err)
	}
}
