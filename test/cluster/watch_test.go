package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

const tokenPolicy = "reschedule-adapter-tokens"

// watchingWith is the spec of a source that watches with an account.
func watchingWith(account string) string {
	return toURI + fmt.Sprintf("watch: {serviceAccountName: %s, resources: [{apiVersion: v1, kind: Secret}]}\n", account)
}

// accounts makes ServiceAccounts in a namespace.
func accounts(t *testing.T, namespace string, names ...string) {
	t.Helper()
	for _, name := range names {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := server.Client.CoreV1().ServiceAccounts(namespace).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// clientOf is a client with the rights of one of the programs.
func clientOf(t *testing.T, account string) kubernetes.Interface {
	t.Helper()
	config, err := server.As(t.Context(), kube.SystemNamespace, account)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// tokens requests tokens with the rights of the adapter.
func tokens(t *testing.T) func(namespace, account string, audiences ...string) error {
	t.Helper()
	client := clientOf(t, adapterAccount)
	return func(namespace, account string, audiences ...string) error {
		_, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account,
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{})
		return err
	}
}

// granted waits for a request that is not refused any more.
func granted(t *testing.T, try func() error) {
	t.Helper()
	var err error
	defer func() {
		if t.Failed() {
			t.Log("the last answer:", err)
		}
	}()
	settle(t, func() bool {
		err = try()
		return err == nil
	}, "it is still refused")
}

// The adapter gets a token of an account to watch with while a source of the account's
// namespace names the account.
func TestWatchToken_OnlyForNamedAccounts(t *testing.T) {
	t.Parallel()
	p, request := running(t), tokens(t)
	ns, elsewhere := namespace(t, "named"), namespace(t, "elsewhere")
	accounts(t, ns, "watcher", "other")
	accounts(t, elsewhere, "watcher")
	refusedBy(t, tokenPolicy, func() error { return request(ns, "watcher") })

	s := &source{programs: p, t: t, namespace: ns, name: "x", client: typedSourcesIn(t, ns)}
	s.make(watchingWith("watcher"))
	granted(t, func() error { return request(ns, "watcher") })
	refusedBy(t, tokenPolicy, func() error { return request(ns, "other") })
	refusedBy(t, tokenPolicy, func() error { return request(elsewhere, "watcher") })

	// Applying the manifests again takes no account away.
	if err := server.ApplyFiles(t.Context(), "../../config/206-adapter-watch-rbac.yaml"); err != nil {
		t.Fatal(err)
	}
	role, err := server.Client.RbacV1().ClusterRoles().Get(t.Context(), resources.WatchRoleName, metav1.GetOptions{})
	if err != nil || len(role.Rules) != 1 || !slices.Contains(role.Rules[0].ResourceNames, ns+":watcher") {
		t.Errorf("the ClusterRole after it was applied again: %+v: %v", role, err)
	}

	s.patch(`{"watch":{"serviceAccountName":"other"}}`)
	granted(t, func() error { return request(ns, "other") })
	refusedBy(t, tokenPolicy, func() error { return request(ns, "watcher") })
	s.delete()
	refusedBy(t, tokenPolicy, func() error { return request(ns, "other") })
}

// The controller may write the accounts to watch with into the one ClusterRole, also as
// many as fit, and no other rights.
func TestWatchToken_ControllerGrantsNothingElse(t *testing.T) {
	t.Parallel()
	roles := clientOf(t, controllerAccount).RbacV1().ClusterRoles()
	write := func(name string, rules ...rbacv1.PolicyRule) error {
		_, err := roles.Update(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules},
			metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	var all []*v1alpha1.RescheduleSource
	for i := range 20_000 {
		source := &v1alpha1.RescheduleSource{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("namespace-%05d", i)}}
		source.Spec.Watch = &v1alpha1.RescheduleSourceWatch{ServiceAccountName: strings.Repeat("a", 50)}
		all = append(all, source)
	}
	full, excess := resources.WatchRules(all, nil)
	if excess == 0 {
		t.Error("the role is not full")
	}
	if err := write(resources.WatchRoleName, full...); err != nil {
		t.Errorf("the accounts: %v", err)
	}
	if err := write("view", full...); !apierrors.IsForbidden(err) {
		t.Errorf("another role: %v", err)
	}
	for _, rule := range []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}},
		{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}},
		{APIGroups: []string{"sources.reschedule.dev"}, Resources: []string{"watchaccounts"}, Verbs: []string{"*"}},
		{APIGroups: []string{"rbac.authorization.k8s.io"}, Resources: []string{"clusterroles"}, Verbs: []string{"update"}},
	} {
		if err := write(resources.WatchRoleName, rule); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "attempting to grant RBAC permissions not currently held") {
			t.Errorf("%v: %v", rule, err)
		}
	}

	// A full role can be stored; a dry run does not show that.
	stored, err := server.Client.RbacV1().ClusterRoles().Create(t.Context(),
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "full-"}, Rules: full}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Client.RbacV1().ClusterRoles().Delete(context.Background(), stored.Name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}
