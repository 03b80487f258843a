package cluster

import (
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
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

// The controller alone says which group of adapters has a source. Neither a tenant with every
// verb on sources nor the adapter chooses or changes the group, by whichever verb.
func TestStatus_GroupIsTheControllers(t *testing.T) {
	t.Parallel()
	as, ns := wildcardRole(t)
	dev, adapter, controller := as(ns, "dev"), as(kube.SystemNamespace, adapterAccount), as(kube.SystemNamespace, controllerAccount)
	annotated := func(o *unstructured.Unstructured, group string) *unstructured.Unstructured {
		t.Helper()
		if err := unstructured.SetNestedField(o.Object, group, "status", "annotations", v1alpha1.GroupAnnotation); err != nil {
			t.Fatal(err)
		}
		return o
	}
	read := func() *unstructured.Unstructured {
		t.Helper()
		o, err := dev.Get(t.Context(), "x", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	expect := func(what, want string) {
		t.Helper()
		if got, _, _ := unstructured.NestedString(read().Object, "status", "annotations", v1alpha1.GroupAnnotation); got != want {
			t.Errorf("%s: the source is in group %q, want %q", what, got, want)
		}
	}
	choose := func() {
		t.Helper()
		if _, err := dev.Create(t.Context(), annotated(manifest(t, "x", toURI), "1"), strict); err != nil {
			t.Fatal(err)
		}
		expect("create", "")
	}
	choose()
	group := func(number string) string {
		return `{"annotations":{"` + v1alpha1.GroupAnnotation + `":` + number + `}}`
	}
	if err := patchStatus(t, controller, group(`"0"`)); err != nil {
		t.Fatalf("the controller places a source: %v", err)
	}
	expect("the controller", "0")

	for what, try := range map[string]func(of dynamic.ResourceInterface, subresources ...string) error{
		"update": func(of dynamic.ResourceInterface, subresources ...string) error {
			return retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the programs write too
				_, err := of.Update(t.Context(), annotated(read(), "1"), metav1.UpdateOptions{}, subresources...)
				return err
			})
		},
		"update without annotations": func(of dynamic.ResourceInterface, subresources ...string) error {
			return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
				o := read()
				unstructured.RemoveNestedField(o.Object, "status", "annotations")
				_, err := of.Update(t.Context(), o, metav1.UpdateOptions{}, subresources...)
				return err
			})
		},
		"merge patch": func(of dynamic.ResourceInterface, subresources ...string) error {
			_, err := of.Patch(t.Context(), "x", types.MergePatchType, []byte(`{"status":`+group(`"1"`)+`}`), metav1.PatchOptions{}, subresources...)
			return err
		},
		"merge patch that removes it": func(of dynamic.ResourceInterface, subresources ...string) error {
			_, err := of.Patch(t.Context(), "x", types.MergePatchType, []byte(`{"status":`+group("null")+`}`), metav1.PatchOptions{}, subresources...)
			return err
		},
		"JSON patch": func(of dynamic.ResourceInterface, subresources ...string) error {
			patch := `[{"op":"add","path":"/status/annotations/` + strings.ReplaceAll(v1alpha1.GroupAnnotation, "/", "~1") + `","value":"1"}]`
			_, err := of.Patch(t.Context(), "x", types.JSONPatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
			return err
		},
		"apply": func(of dynamic.ResourceInterface, subresources ...string) error {
			o := annotated(manifest(t, "x", toURI), "1")
			if len(subresources) > 0 {
				delete(o.Object, "spec")
			}
			_, err := of.Apply(t.Context(), "x", o, metav1.ApplyOptions{FieldManager: "dev", Force: true}, subresources...)
			return err
		},
	} {
		if err := try(dev); err != nil {
			t.Errorf("%s of the source, whose status is left alone: %v", what, err)
		}
		expect(what, "0")
		refusedBy(t, statusPolicy, func() error { return try(dev, "status") })
		if err := try(adapter, "status"); !apierrors.IsForbidden(err) {
			t.Errorf("%s of the status by the adapter: %v", what, err)
		}
		expect(what+" of the status", "0")
	}
	if err := patchStatus(t, controller, group(`"1"`)); err != nil {
		t.Errorf("the controller: %v", err)
	}
	expect("the controller", "1")
	if err := dev.Delete(t.Context(), "x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	choose() // another source of the name
}
