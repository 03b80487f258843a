package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authzv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

const (
	controllerAccount = "reschedule-controller"
	adapterAccount    = "reschedule-adapter"
)

// grants are lines "group resource[:name] verb...", and * is everywhere. What
// is not here is not granted; who adds a line says what for.
var (
	controllerEverywhere = []string{
		// What it reconciles, and what it writes of that. finalizers is for
		// owning a ServiceAccount where admission asks for it.
		"sources.reschedule.dev reschedulesources get list watch",
		"sources.reschedule.dev reschedulesources/status patch update",
		"sources.reschedule.dev reschedulesources/finalizers update",
		// The identities of sources.
		"core serviceaccounts create delete get list update watch",
		"eventing.knative.dev eventpolicies get list watch",
		"core events create patch",
		// The accounts that the adapter may watch with, and the right to grant
		// them, which opens nothing.
		"rbac.authorization.k8s.io clusterroles:reschedule-adapter-watch list update watch",
		"sources.reschedule.dev watchaccounts watch-as",
		"sources.reschedule.dev apiaudiences request",
	}
	controllerInSystem = []string{
		"core configmaps get list watch",
		"coordination.k8s.io leases create get update",
		// Only to see and to scale this StatefulSet.
		"apps statefulsets:reschedule-adapter get list watch",
		"apps statefulsets/scale:reschedule-adapter get patch update",
		// Only that one: its CA goes into addresses.
		"core secrets:reschedule-adapter-server-tls get list watch",
	}
	adapterEverywhere = []string{
		"sources.reschedule.dev reschedulesources get list watch",
		"sources.reschedule.dev reschedulesources/status patch",
		// Who is it, and may they?
		"authentication.k8s.io tokenreviews create",
		"authorization.k8s.io subjectaccessreviews create",
		"eventing.knative.dev eventpolicies get list watch",
		"core events create patch",
		// The tokens that sources show to their sinks.
		"core serviceaccounts/token create",
	}
	adapterInSystem = []string{
		"core configmaps get list watch",
	}
)

// flat is one entry for each verb of lines.
func flat(lines ...[]string) []string {
	var all []string
	for _, line := range slices.Concat(lines...) {
		words := strings.Fields(line)
		for _, verb := range words[2:] {
			all = append(all, words[0]+" "+words[1]+" "+verb)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// flatten makes such entries of rules.
func flatten(rules []authzv1.ResourceRule) []string {
	var all []string
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, name := range append(slices.Clone(rule.ResourceNames), "")[:max(1, len(rule.ResourceNames))] {
					for _, verb := range rule.Verbs {
						all = append(all, entry(group, resource, name, verb))
					}
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func entry(group, resource, name, verb string) string {
	if group == "" {
		group = "core"
	}
	if name != "" {
		name = ":" + name
	}
	return group + " " + resource + name + " " + verb
}

// rules is everything that a ServiceAccount is granted in a namespace beyond
// what every ServiceAccount is.
func rules(t *testing.T, account, namespace string) []string {
	t.Helper()
	of := func(account string) *authzv1.SubjectRulesReviewStatus {
		config, err := server.As(t.Context(), kube.SystemNamespace, account)
		if err != nil {
			t.Fatal(err)
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		r, err := client.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
			&authzv1.SelfSubjectRulesReview{Spec: authzv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}, metav1.CreateOptions{})
		if err != nil || r.Status.Incomplete {
			t.Fatalf("the rules of %s: %+v: %v", account, r, err)
		}
		return &r.Status
	}
	roleless, its := of(withoutRole(t)), of(account)
	if diff := cmp.Diff(paths(roleless.NonResourceRules), paths(its.NonResourceRules)); diff != "" {
		t.Errorf("%s may call paths that others may not:\n%s", account, diff)
	}
	everybodys := flatten(roleless.ResourceRules)
	return slices.DeleteFunc(flatten(its.ResourceRules), func(e string) bool {
		// The sources of other tests name accounts to watch with.
		return slices.Contains(everybodys, e) || strings.HasPrefix(e, "sources.reschedule.dev watchaccounts:")
	})
}

// paths are the paths of rules, in order.
func paths(rules []authzv1.NonResourceRule) []string {
	var all []string
	for _, r := range rules {
		for _, path := range r.NonResourceURLs {
			all = append(all, fmt.Sprint(r.Verbs, path))
		}
	}
	slices.Sort(all)
	return all
}

// withoutRole is a ServiceAccount without a role.
func withoutRole(t *testing.T) string {
	t.Helper()
	account, err := server.Client.CoreV1().ServiceAccounts(kube.SystemNamespace).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{GenerateName: "roleless-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return account.Name
}

// addressables is what eventing's addressable-resolver lets the controller see:
// whatever can be a sink.
func addressables(t *testing.T) []string {
	t.Helper()
	role, err := server.Client.RbacV1().ClusterRoles().Get(t.Context(), "addressable-resolver", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var rules []authzv1.ResourceRule
	for _, r := range role.Rules {
		rules = append(rules, authzv1.ResourceRule{Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames})
	}
	all := flatten(rules)
	for _, e := range all {
		// Eventing's own exception, for the owners of channels.
		if verb := e[strings.LastIndexByte(e, ' ')+1:]; !slices.Contains([]string{"get", "list", "watch"}, verb) && e != "messaging.knative.dev channels/finalizers update" {
			t.Errorf("addressable-resolver grants %s", e)
		}
	}
	return all
}

// A service account has the rules of its program and no other.
func TestRBAC_RulesAreExact(t *testing.T) {
	t.Parallel()
	other := namespace(t, "rules")
	for _, c := range []struct {
		account, namespace string
		want               []string
	}{
		{controllerAccount, kube.SystemNamespace, flat(controllerEverywhere, controllerInSystem, addressables(t))},
		{controllerAccount, other, flat(controllerEverywhere, addressables(t))},
		{controllerAccount, "kube-system", flat(controllerEverywhere, addressables(t))},
		{adapterAccount, kube.SystemNamespace, flat(adapterEverywhere, adapterInSystem)},
		{adapterAccount, other, flat(adapterEverywhere)},
		{adapterAccount, "kube-system", flat(adapterEverywhere)},
	} {
		t.Run(c.account+" in "+strings.TrimSuffix(c.namespace, other[len("rules"):]), func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, rules(t, c.account, c.namespace)); diff != "" {
				t.Errorf("(-justified +granted):\n%s", diff)
			}
		})
	}
}

// accessAttempts are what an intruder who has taken over a pod would try, and what
// the programs do.
var accessAttempts = func() []string {
	resources := []string{
		"core pods", "core pods/exec", "core pods/log", "core pods/ephemeralcontainers", "core secrets", "core secrets:reschedule-adapter-server-tls", "core configmaps",
		"core serviceaccounts", "core serviceaccounts/token", "core nodes", "core nodes/proxy", "core namespaces", "core services", "core services/status", "core services/proxy",
		"core endpoints", "core events", "core persistentvolumes", "core persistentvolumeclaims", "core replicationcontrollers", "core users", "core groups", "core resourcequotas",
		"apps statefulsets", "apps statefulsets:reschedule-adapter", "apps statefulsets/scale", "apps statefulsets/scale:reschedule-adapter", "apps statefulsets/status:reschedule-adapter",
		"apps deployments", "apps deployments:reschedule-controller", "apps deployments/scale", "apps daemonsets", "batch jobs", "batch cronjobs",
		"rbac.authorization.k8s.io roles", "rbac.authorization.k8s.io rolebindings", "rbac.authorization.k8s.io clusterroles", "rbac.authorization.k8s.io clusterrolebindings",
		"rbac.authorization.k8s.io clusterroles:reschedule-adapter-watch", "rbac.authorization.k8s.io clusterroles:cluster-admin",
		"authentication.k8s.io tokenreviews", "authorization.k8s.io subjectaccessreviews", "authorization.k8s.io localsubjectaccessreviews",
		"certificates.k8s.io certificatesigningrequests", "certificates.k8s.io certificatesigningrequests/approval",
		"admissionregistration.k8s.io validatingwebhookconfigurations", "admissionregistration.k8s.io mutatingwebhookconfigurations",
		"apiextensions.k8s.io customresourcedefinitions", "apiregistration.k8s.io apiservices", "coordination.k8s.io leases", "networking.k8s.io networkpolicies", "networking.k8s.io ingresses",
		"policy poddisruptionbudgets", "storage.k8s.io storageclasses", "discovery.k8s.io endpointslices",
		"sources.reschedule.dev reschedulesources", "sources.reschedule.dev reschedulesources/status", "sources.reschedule.dev reschedulesources/finalizers",
		"sources.reschedule.dev reschedulesources/schedules", "sources.reschedule.dev watchaccounts", "sources.reschedule.dev watchaccounts:ops:default", "sources.reschedule.dev apiaudiences",
		"eventing.knative.dev eventpolicies", "eventing.knative.dev eventpolicies/status", "eventing.knative.dev brokers", "eventing.knative.dev triggers",
		"* *",
	}
	verbs := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "bind", "escalate", "impersonate", "approve", "watch-as", "request", "*"}
	var all []string
	for _, r := range resources {
		for _, v := range verbs {
			all = append(all, r+" "+v)
		}
	}
	return all
}()

// allowed asks the API server whether a user may do what an entry says.
func allowed(t *testing.T, user string, groups []string, namespace, entry string) bool {
	t.Helper()
	words := strings.Fields(entry)
	resource, name, _ := strings.Cut(words[1], ":")
	resource, sub, _ := strings.Cut(resource, "/")
	group := words[0]
	if group == "core" {
		group = ""
	}
	r, err := server.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authzv1.SubjectAccessReview{
		Spec: authzv1.SubjectAccessReviewSpec{User: user, Groups: append(groups, "system:authenticated"), ResourceAttributes: &authzv1.ResourceAttributes{
			Namespace: namespace, Verb: words[2], Group: group, Resource: resource, Subresource: sub, Name: name,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Status.Allowed
}

// A service account can do what its program needs and nothing more.
func TestRBAC_RightsAreExact(t *testing.T) {
	t.Parallel()
	other := namespace(t, "attempts")
	for account, c := range map[string]struct{ everywhere, system []string }{
		controllerAccount: {slices.Concat(flat(controllerEverywhere), addressables(t)), flat(controllerInSystem)},
		adapterAccount:    {flat(adapterEverywhere), flat(adapterInSystem)},
	} {
		for name, scope := range map[string]string{"its own": kube.SystemNamespace, "another": other, "kube-system": "kube-system", "the whole cluster": ""} {
			t.Run(account+" in "+name, func(t *testing.T) {
				t.Parallel()
				can := c.everywhere
				if scope == kube.SystemNamespace {
					can = slices.Concat(c.everywhere, c.system)
				}
				for _, attempt := range slices.Concat(accessAttempts, can) {
					user, groups := serviceAccount(kube.SystemNamespace, account)
					// Without a name it is about all of them.
					words := strings.Fields(attempt)
					resource, _, _ := strings.Cut(words[1], ":")
					want := slices.Contains(can, attempt) || slices.Contains(can, words[0]+" "+resource+" "+words[2])
					if got := allowed(t, user, groups, scope, attempt); got != want {
						t.Errorf("%s: allowed is %v", attempt, got)
					}
				}
			})
		}
	}
}

// serviceAccount is how the API server names one.
func serviceAccount(namespace, name string) (user string, groups []string) {
	return fmt.Sprintf("system:serviceaccount:%s:%s", namespace, name), []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}
}
