package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"knative.dev/eventing/pkg/auth"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
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

// The adapter gets tokens of the accounts of sources for their sinks, tokens for the API server of accounts that a
// source of their namespace names, and no others, also when it was taken over.
func TestAdapter_TokensItGets(t *testing.T) {
	t.Parallel()
	const (
		ours   = "x-oidc-sources.reschedule.dev-reschedulesource"
		google = "https://container.googleapis.com/v1/projects/p/locations/l/clusters/c"

		opens, unnamed, notOurs = "API server", "no RescheduleSource of the namespace names", "only for the ServiceAccounts of RescheduleSources"
	)
	ns, elsewhere, request := namespace(t, "tokens"), namespace(t, "elsewhere"), tokens(t)
	var named []*v1alpha1.RescheduleSource
	for _, of := range [][2]string{{ns, "watcher"}, {ns, ""}, {ns, "admin"}, {ns, ours}, {"kube-system", ns}, {kube.SystemNamespace, ns}} {
		s := &v1alpha1.RescheduleSource{ObjectMeta: metav1.ObjectMeta{Namespace: of[0]}}
		s.Spec.Watch = &v1alpha1.RescheduleSourceWatch{ServiceAccountName: of[1]}
		named = append(named, s)
	}
	scaled := &v1alpha1.RescheduleSource{ObjectMeta: metav1.ObjectMeta{Namespace: ns}}
	scaled.Spec.Scale = &v1alpha1.RescheduleSourceScale{ServiceAccountName: "scaler"}
	named = append(named, scaled)
	rules, _ := resources.WatchRules(named, []string{"k3s", google}) // as the controller writes them
	text, err := json.Marshal(rules)
	if err != nil {
		t.Fatal(err)
	}
	allow(t, ns, "ClusterRole", strings.Trim(string(text), "[]"), "ServiceAccount, namespace: knative-eventing, name: "+adapterAccount)
	allow(t, ns+"-admin", "ClusterRole", `{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}`, "ServiceAccount, namespace: "+ns+", name: admin")
	accounts(t, ns, "default", "watcher", "scaler", "other", "admin", ours)
	accounts(t, elsewhere, "watcher")
	accounts(t, "kube-system", ns)
	accounts(t, kube.SystemNamespace, ns)
	granted(t, func() error { return request(ns, "watcher") })
	refusedBy(t, tokenPolicy, func() error { return request(ns, "other") })
	refusedBy(t, tokenPolicy, func() error { return request(ns, "admin") })

	says := func(what, want string, err error) {
		t.Helper()
		if (err == nil) != (want == "") || err != nil && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	for _, try := range []struct {
		account   string
		audiences []string
		says      string // "" = granted
	}{
		{"watcher", []string{kube.Issuer}, ""},
		{"watcher", []string{"k3s"}, ""},
		{"watcher", []string{google}, ""},
		{"watcher", []string{"sink"}, notOurs},
		{"watcher", []string{kube.Issuer, "sink"}, "no other audience"},
		{"default", nil, ""},
		{"scaler", nil, ""},
		{"other", []string{kube.Issuer}, unnamed},
		{"other", []string{google}, unnamed},
		{"admin", nil, "the ServiceAccount may do everything"},
		{ours, []string{"sink"}, ""},
		{ours, nil, opens}, {ours, []string{""}, opens}, {ours, []string{"k3s"}, opens}, {ours, []string{"sink", "another"}, opens},
		{ours, []string{"https://kubernetes.default.svc"}, opens}, {ours, []string{"HTTPS://kubernetes.DEFAULT.svc"}, opens},
		{ours, []string{"sink", "https://kubernetes.default.svc"}, opens},
	} {
		says(fmt.Sprintf("%s for %q", try.account, try.audiences), try.says, request(ns, try.account, try.audiences...))
	}
	// The names that Knative gives the accounts of sources, and no others.
	gvk, hash := v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.Kind), strings.Repeat("0f", 16)
	for _, name := range []string{"a", "a-b.c", "0f", strings.Repeat("a", 18), strings.Repeat("a", 19), strings.Repeat("0f", 10), strings.Repeat("a-b.c", 50)} {
		account := auth.GetOIDCServiceAccountNameForResource(gvk, metav1.ObjectMeta{Name: name})
		accounts(t, ns, account)
		says(account, "", request(ns, account, "sink"))
	}
	for _, account := range []string{
		"a-oidc", "oidc-sources.reschedule.dev-reschedulesource", "x-oidc-sources.knative.dev-pingsource", hash, "a" + hash,
		strings.Repeat("a", 30) + hash[1:] + "gh", strings.Repeat("a", 20) + hash + "-oidcsource", strings.Repeat("a", 32) + hash,
	} {
		accounts(t, ns, account)
		says(account, notOurs, request(ns, account, "sink"))
	}
	says("a source of another namespace", unnamed, request(elsewhere, "watcher"))
	says("a namespace of Kubernetes", "must neither watch nor scale", request("kube-system", ns))
	says("the adapter's own namespace", "must neither watch nor scale", request(kube.SystemNamespace, ns))
	longer := int64(3601)
	_, err = clientOf(t, adapterAccount).CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "watcher",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &longer}}, metav1.CreateOptions{})
	says("for longer", "within an hour", err)
	_, err = server.Token(t.Context(), ns, "other", kube.Issuer)
	says("another user", "", err)
}

// wildcardRole makes a namespace with an account dev and one that is called as the controller's, which have every verb on
// our resources there, and returns the sources of the namespace as an account sees them.
func wildcardRole(t *testing.T) (as func(namespace, account string) dynamic.ResourceInterface, ns string) {
	t.Helper()
	ns = namespace(t, "wildcard")
	const all = `{apiGroups: [sources.reschedule.dev], resources: ["*"], verbs: ["*"]}`
	allow(t, ns, "Role", all, "ServiceAccount, namespace: "+ns+", name: dev", "ServiceAccount, namespace: "+ns+", name: "+controllerAccount)
	accounts(t, ns, "dev", controllerAccount)
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

// heldBy is a status with a workload that is held with an account.
func heldBy(account string) string {
	return `{"scale":{"state":"Asleep","held":{"apiVersion":"apps/v1","kind":"Deployment","name":"x","replicas":1,"serviceAccountName":"` + account + `"}}}`
}

// The adapter gets tokens of the account in status.scale.held, so it may write the account of spec.scale only.
func TestStatus_HeldIsOfSpecScale(t *testing.T) {
	t.Parallel()
	as, ns := wildcardRole(t)
	adapter, admin := as(kube.SystemNamespace, adapterAccount), server.Dynamic.Resource(resource).Namespace(ns)
	if _, err := admin.Create(t.Context(), manifest(t, "x", toURI), strict); err != nil {
		t.Fatal(err)
	}
	refusedBy(t, statusPolicy, func() error { return patchStatus(t, adapter, heldBy("operator")) })
	const target = `{"targetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"x"}`
	const watch = `{"serviceAccountName":"watcher","resources":[{"apiVersion":"v1","kind":"Secret"}]}`
	for _, c := range []struct {
		scale, watch string
		held         string // what the adapter may write
	}{
		{target + "}", "null", "default"},
		{target + "}", watch, "watcher"},
		{target + `,"serviceAccountName":"scaler"}`, watch, "scaler"},
		{"null", "null", "scaler"}, // it holds the workload still
		{target + `,"serviceAccountName":""}`, "null", "default"},
	} {
		_, err := admin.Patch(t.Context(), "x", "application/merge-patch+json", []byte(`{"spec":{"scale":`+c.scale+`,"watch":`+c.watch+`}}`), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, account := range []string{"operator", c.held} {
			if err := patchStatus(t, adapter, heldBy(account)); (err == nil) != (account == c.held) || err != nil && !apierrors.IsForbidden(err) {
				t.Errorf("scale %s, watch %s, held by %s: %v", c.scale, c.watch, account, err)
			}
		}
	}
}

// The controller may patch sources, but changes their finalizer of spec.scale alone.
func TestFinalizer_ControllerChangesNothingElse(t *testing.T) {
	t.Parallel()
	as, ns := wildcardRole(t)
	controller, dev := as(kube.SystemNamespace, controllerAccount), as(ns, "dev")
	o := manifest(t, "x", toURI)
	o.SetFinalizers([]string{"another.controller/f"})
	o.SetLabels(map[string]string{"a": "b"})
	if _, err := dev.Create(t.Context(), o, strict); err != nil {
		t.Fatal(err)
	}
	patch := func(of dynamic.ResourceInterface, text string) error {
		_, err := of.Patch(context.WithoutCancel(t.Context()), "x", "application/merge-patch+json", []byte(text), metav1.PatchOptions{})
		return err
	}
	t.Cleanup(func() {
		if err := patch(dev, `{"metadata":{"finalizers":[]}}`); err != nil {
			t.Error(err)
		}
	})
	refusedBy(t, "reschedule-finalizer", func() error { return patch(controller, `{"spec":{"suspend":true}}`) })
	const ours = `"sources.reschedule.dev/scale"`
	for _, c := range []struct {
		text    string
		allowed bool
	}{
		{`{"metadata":{"finalizers":["another.controller/f",` + ours + `]}}`, true},
		{`{"metadata":{"finalizers":[` + ours + `]}}`, false},
		{`{"metadata":{"finalizers":["another.controller/f",` + ours + `,"x.y/z"]}}`, false},
		{`{"metadata":{"finalizers":["another.controller/f",` + ours + `],"labels":{"a":"c"}}}`, false},
		{`{"metadata":{"labels":null}}`, false},
		{`{"metadata":{"annotations":{"a":"b"}}}`, false},
		{`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Secret","name":"x","uid":"y"}]}}`, false},
		{`{"spec":{"sink":{"uri":"http://attacker"}}}`, false},
		{`{"metadata":{"finalizers":["another.controller/f"]}}`, true},
	} {
		if err := patch(controller, c.text); (err == nil) != c.allowed || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("the controller writes %s: %v", c.text, err)
		}
	}
	if err := patch(dev, `{"spec":{"suspend":true},"metadata":{"labels":{"a":"c"}}}`); err != nil {
		t.Errorf("an author of sources: %v", err)
	}
}

// The programs alone write the status, and the adapter only what it counts: where deliveries go is the controller's. A
// wildcard in a Role is common, and was not meant for that.
func TestStatus_WrittenByTheProgramsOnly(t *testing.T) {
	t.Parallel()
	as, ns := wildcardRole(t)
	dev, namesake := as(ns, "dev"), as(ns, controllerAccount)
	adapter, controller := as(kube.SystemNamespace, adapterAccount), as(kube.SystemNamespace, controllerAccount)
	if _, err := dev.Create(t.Context(), manifest(t, "x", toURI), strict); err != nil {
		t.Fatal(err)
	}
	const counts = `{"pending":7}`
	refusedBy(t, statusPolicy, func() error { return patchStatus(t, dev, counts) })
	for _, c := range []struct {
		who     string
		of      dynamic.ResourceInterface
		patch   string
		allowed bool
	}{
		{"the adapter", adapter, `{"sinkUri":"http://attacker"}`, false}, // where there is none
		{"the controller", controller, `{"sinkUri":"http://sink","sinkAudience":"sink","auth":{"serviceAccountName":"x-oidc"},"address":{"url":"http://adapter/ops/x"}}`, true},
		{"the adapter", adapter, counts, true},
		{"the adapter", adapter, heldBy(""), true},          // it is observed
		{"the adapter", adapter, heldBy("operator"), false}, // there is no spec.scale
		{"the controller", controller, heldBy("former"), false},
		{"a break-glass administrator", server.Dynamic.Resource(resource).Namespace(ns), heldBy("former"), true},
		{"the adapter", adapter, `{"scale":{"starts":3}}`, true}, // the account of a spec.scale that was removed stays
		{"the adapter", adapter, `{"watched":2,"watch":{"status":"True"},"refused":"no memory","conditions":[]}`, true},
		{"the controller", controller, `{"sinkRevision":"worker-00002"}`, true},
		{"a break-glass administrator", server.Dynamic.Resource(resource).Namespace(ns), `{"sinkUri":"http://other"}`, true},
		{"an account with a wildcard role", dev, `{"sinkUri":"http://attacker"}`, false},
		{"the controller of another namespace", namesake, counts, false},
		{"the adapter", adapter, `{"sinkUri":null}`, false},
		{"the adapter", adapter, "null", false},
		{"the adapter", adapter, `{"sinkUri":"http://attacker"}`, false},
		{"the adapter", adapter, `{"sinkAudience":"` + kube.Issuer + `"}`, false},
		{"the adapter", adapter, `{"sinkCACerts":"attacker"}`, false},
		{"the adapter", adapter, `{"deadLetterSinkUri":"http://attacker"}`, false},
		{"the adapter", adapter, `{"deadLetterSinkAudience":"attacker"}`, false},
		{"the adapter", adapter, `{"deadLetterSinkCACerts":"attacker"}`, false},
		{"the adapter", adapter, `{"auth":{"serviceAccountName":"operator"}}`, false},
		{"the adapter", adapter, `{"address":{"url":"http://attacker"}}`, false},
		{"the adapter", adapter, `{"addresses":[{"url":"http://attacker"}]}`, false},
		{"the adapter", adapter, `{"sinkRevision":"attacker"}`, false},
	} {
		if err := patchStatus(t, c.of, c.patch); (err == nil) != c.allowed || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s writes %s: %v", c.who, c.patch, err)
		}
	}
}
