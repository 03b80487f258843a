package manifests

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/common/types"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	authuser "k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"
	"knative.dev/eventing/pkg/auth"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
)

const (
	adapterUser    = "system:serviceaccount:knative-eventing:reschedule-adapter"
	controllerUser = "system:serviceaccount:knative-eventing:reschedule-controller"
)

// expression is one of a policy.
type expression string

func (e expression) GetExpression() string { return string(e) }
func (e expression) ReturnTypes() []*types.Type {
	return []*types.Type{types.BoolType}
}

// variable is one that a policy declares.
type variable admissionv1.Variable

func (v variable) GetName() string            { return v.Name }
func (v variable) GetExpression() string      { return v.Expression }
func (v variable) ReturnTypes() []*types.Type { return []*types.Type{types.AnyType, types.DynType} }

// rights says what users may do, each as "user verb group/resource namespace/name", or as
// "user *" for everything.
type rights []string

// Authorize implements authorizer.Authorizer.
func (r rights) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	asked := fmt.Sprintf("%s %s %s/%s %s/%s", a.GetUser().GetName(), a.GetVerb(), a.GetAPIGroup(), a.GetResource(), a.GetNamespace(), a.GetName())
	if slices.Contains(r, asked) || slices.Contains(r, a.GetUser().GetName()+" *") {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// gate is an admission policy as the API server compiles it.
type gate struct {
	*admissionv1.ValidatingAdmissionPolicy
	rights             rights
	matches, validates cel.ConditionEvaluator
}

func newGate(t *testing.T, name string) *gate {
	t.Helper()
	p := one[admissionv1.ValidatingAdmissionPolicy](t, "ValidatingAdmissionPolicy", name)
	b := one[admissionv1.ValidatingAdmissionPolicyBinding](t, "ValidatingAdmissionPolicyBinding", name)
	if b.Spec.PolicyName != name || fmt.Sprint(b.Spec.ValidationActions) != "[Deny]" || b.Spec.MatchResources != nil || b.Spec.ParamRef != nil {
		t.Fatalf("the binding does not deny what the policy does not admit: %+v", b.Spec)
	}
	if p.Spec.FailurePolicy == nil || *p.Spec.FailurePolicy != admissionv1.Fail {
		t.Fatal("a policy that breaks lets everything through")
	}
	env, err := cel.NewCompositionEnv(cel.VariablesTypeName, environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	compiler := cel.NewCompositedCompilerFromTemplate(env)
	options := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	var variables []cel.NamedExpressionAccessor
	for _, v := range p.Spec.Variables {
		variables = append(variables, variable(v))
	}
	compiler.CompileAndStoreVariables(variables, options, environment.StoredExpressions)
	var conditions, validations []cel.ExpressionAccessor
	for _, c := range p.Spec.MatchConditions {
		conditions = append(conditions, expression(c.Expression))
	}
	for _, v := range p.Spec.Validations {
		validations = append(validations, expression(v.Expression))
		if v.Message == "" || v.Reason == nil {
			t.Errorf("%q is refused without a word", v.Expression)
		}
	}
	g := &gate{
		ValidatingAdmissionPolicy: &p, matches: compiler.CompileCondition(conditions, options, environment.StoredExpressions),
		validates: compiler.CompileCondition(validations, options, environment.StoredExpressions),
	}
	for _, e := range []cel.ConditionEvaluator{g.matches, g.validates} {
		for _, err := range e.CompilationErrors() {
			t.Fatalf("%s: %v", name, err)
		}
	}
	return g
}

// admits says whether the request passes, and else what is said.
func (g *gate) admits(t *testing.T, a admission.Attributes) (bool, string) {
	t.Helper()
	versioned := &admission.VersionedAttributes{Attributes: a, VersionedKind: a.GetKind(), VersionedObject: a.GetObject(), VersionedOldObject: a.GetOldObject()}
	request := cel.CreateAdmissionRequest(a, metav1.GroupVersionResource(a.GetResource()), metav1.GroupVersionKind(a.GetKind()))
	all := func(e cel.ConditionEvaluator) int {
		results, _, err := e.ForInput(context.Background(), versioned, request, cel.OptionalVariableBindings{Authorizer: g.rights}, nil, celconfig.RuntimeCELCostBudget)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range results {
			if r.Error != nil {
				t.Fatalf("%s: %v", r.ExpressionAccessor.GetExpression(), r.Error)
			}
			if r.EvalResult != types.True {
				return i
			}
		}
		return -1
	}
	if all(g.matches) >= 0 {
		return true, ""
	}
	if i := all(g.validates); i >= 0 {
		return false, g.Spec.Validations[i].Message
	}
	return true, ""
}

// tokenRequest asks for a token of an account of namespace ops.
func tokenRequest(t *testing.T, who, account string, audiences ...string) admission.Attributes {
	t.Helper()
	return tokenRequestOf(t, who, "ops", account, authenticationv1.TokenRequestSpec{Audiences: audiences})
}

func tokenRequestOf(t *testing.T, who, namespace, account string, spec authenticationv1.TokenRequestSpec) admission.Attributes {
	t.Helper()
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&authenticationv1.TokenRequest{Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	return admission.NewAttributesRecord(&unstructured.Unstructured{Object: object}, nil, authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"), namespace, account,
		schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}, "token", admission.Create, &metav1.CreateOptions{}, false,
		&authuser.DefaultInfo{Name: who})
}

// Also an adapter that was taken over gets no token of a source's own account that
// opens the cluster.
func TestAdapter_NoSinkTokenOpensTheCluster(t *testing.T) {
	t.Parallel()
	g := newGate(t, "reschedule-adapter-tokens")
	const account = "git-repos-oidc-sources.reschedule.dev-reschedulesource"
	g.rights = namedBy(t, "ops", account, "k3s")
	for _, audiences := range [][]string{
		{}, {""}, {"https://kubernetes.default.svc"}, {"https://kubernetes.default.svc.cluster.local"}, {"HTTPS://kubernetes.DEFAULT.svc"},
		{"sink", "https://kubernetes.default.svc"}, {"k3s"}, {"sink", "another"},
	} {
		if ok, says := g.admits(t, tokenRequest(t, adapterUser, account, audiences...)); ok || !strings.Contains(says, "API server") {
			t.Errorf("audiences %q: %t %s", audiences, ok, says)
		}
		if ok, _ := g.admits(t, tokenRequest(t, "system:node:a", "default", audiences...)); !ok {
			t.Errorf("the kubelet gets no token for %q", audiences)
		}
	}
	if ok, says := g.admits(t, tokenRequest(t, adapterUser, account, "sink")); !ok {
		t.Errorf("a token for a sink: %s", says)
	}
}

// The names that Knative gives the accounts, and no others.
func TestAdapter_HasTokensOfSourcesOnly(t *testing.T) {
	t.Parallel()
	g := newGate(t, "reschedule-adapter-tokens")
	gvk := v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.Kind)
	for n := range 253 {
		for _, pattern := range []string{"a", "a-b.c", "0f"} {
			source := strings.Trim(strings.Repeat(pattern, 253)[:n+1], "-.")
			if source == "" {
				continue
			}
			account := auth.GetOIDCServiceAccountNameForResource(gvk, metav1.ObjectMeta{Name: source})
			if ok, says := g.admits(t, tokenRequest(t, adapterUser, account, "sink")); !ok {
				t.Errorf("source %q: %s: %s", source, account, says)
			}
		}
	}
	hash := strings.Repeat("0f", 16)
	for _, account := range []string{
		"default", "cluster-admin-operator", "a-oidc", "oidc-sources.reschedule.dev-reschedulesource", "x-oidc-sources.knative.dev-pingsource",
		hash, "a" + hash, strings.Repeat("a", 30) + hash[1:] + "gh", strings.Repeat("a", 20) + hash + "-oidcsource", strings.Repeat("a", 32) + hash,
	} {
		if ok, says := g.admits(t, tokenRequest(t, adapterUser, account, "sink")); ok || !strings.Contains(says, "only for the ServiceAccounts of RescheduleSources") {
			t.Errorf("%s: %t %s", account, ok, says)
		}
	}
}

// namedBy are the rights of the adapter while a source names an account: the rules that the
// controller writes into the ClusterRole which is bound to the adapter.
func namedBy(t *testing.T, namespace, account string, audiences ...string) rights {
	t.Helper()
	source := &v1alpha1.RescheduleSource{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "x"}}
	source.Spec.Watch = &v1alpha1.RescheduleSourceWatch{ServiceAccountName: account}
	rules, _ := resources.WatchRules([]*v1alpha1.RescheduleSource{source}, audiences)
	var all rights
	for _, rule := range rules {
		for _, name := range rule.ResourceNames {
			all = append(all, fmt.Sprintf("%s %s %s/%s /%s", adapterUser, rule.Verbs[0], rule.APIGroups[0], rule.Resources[0], name))
		}
	}
	return all
}

// The adapter watches with accounts that a source of their namespace names, and with no
// account that opens the whole cluster.
func TestAdapter_WatchesOnlyWithNamedAccounts(t *testing.T) {
	t.Parallel()
	const issuer, admin = "https://kubernetes.default.svc.cluster.local", "system:serviceaccount:ops:admin *"
	const google = "https://container.googleapis.com/v1/projects/p/locations/l/clusters/c"
	hour, longer := int64(3600), int64(3601)
	for name, c := range map[string]struct {
		rights             rights
		namespace, account string
		spec               authenticationv1.TokenRequestSpec
		says               string
	}{
		"named":                       {namedBy(t, "ops", "watcher"), "ops", "watcher", authenticationv1.TokenRequestSpec{Audiences: []string{issuer}, ExpirationSeconds: &hour}, ""},
		"named, default audience":     {namedBy(t, "ops", "watcher"), "ops", "watcher", authenticationv1.TokenRequestSpec{}, ""},
		"the default account":         {namedBy(t, "ops", ""), "ops", "default", authenticationv1.TokenRequestSpec{}, ""},
		"not named":                   {nil, "ops", "watcher", authenticationv1.TokenRequestSpec{Audiences: []string{issuer}}, "no RescheduleSource of the namespace names"},
		"another account":             {namedBy(t, "ops", "other"), "ops", "watcher", authenticationv1.TokenRequestSpec{}, "no RescheduleSource of the namespace names"},
		"a source elsewhere":          {namedBy(t, "other", "watcher"), "ops", "watcher", authenticationv1.TokenRequestSpec{}, "no RescheduleSource of the namespace names"},
		"named, for a sink":           {namedBy(t, "ops", "watcher"), "ops", "watcher", authenticationv1.TokenRequestSpec{Audiences: []string{"sink"}}, "only for the ServiceAccounts of RescheduleSources"},
		"named, also for a sink":      {namedBy(t, "ops", "watcher"), "ops", "watcher", authenticationv1.TokenRequestSpec{Audiences: []string{issuer, "sink"}}, "no other audience"},
		"named, at k3s":               {namedBy(t, "ops", "watcher", "k3s"), "ops", "watcher", authenticationv1.TokenRequestSpec{Audiences: []string{"k3s"}}, ""},
		"named, at GKE":               {namedBy(t, "ops", "watcher", google), "ops", "watcher", authenticationv1.TokenRequestSpec{Audiences: []string{google}}, ""},
		"not named, at GKE":           {namedBy(t, "ops", "", google), "ops", "watcher", authenticationv1.TokenRequestSpec{Audiences: []string{google}}, "no RescheduleSource of the namespace names"},
		"named, for longer":           {namedBy(t, "ops", "watcher"), "ops", "watcher", authenticationv1.TokenRequestSpec{ExpirationSeconds: &longer}, "within an hour"},
		"an account that may do all":  {append(namedBy(t, "ops", "admin"), admin), "ops", "admin", authenticationv1.TokenRequestSpec{}, "the ServiceAccount may do everything"},
		"a namespace of Kubernetes":   {namedBy(t, "kube-system", "x"), "kube-system", "x", authenticationv1.TokenRequestSpec{}, "must not watch"},
		"the adapter's own namespace": {namedBy(t, "knative-eventing", "x"), "knative-eventing", "x", authenticationv1.TokenRequestSpec{}, "must not watch"},
	} {
		g := newGate(t, "reschedule-adapter-tokens")
		g.rights = c.rights
		if ok, says := g.admits(t, tokenRequestOf(t, adapterUser, c.namespace, c.account, c.spec)); ok != (c.says == "") || !strings.Contains(says, c.says) {
			t.Errorf("%s: %t %s", name, ok, says)
		}
	}
}

// Status is written by the programs only.
func TestStatus_WrittenByTheProgramsOnly(t *testing.T) {
	t.Parallel()
	g := newGate(t, "reschedule-status")
	status := func(s map[string]any) *unstructured.Unstructured {
		o := map[string]any{"apiVersion": "sources.reschedule.dev/v1alpha1", "kind": "RescheduleSource", "metadata": map[string]any{"name": "x", "namespace": "ops"}}
		if s != nil {
			o["status"] = s
		}
		return &unstructured.Unstructured{Object: o}
	}
	before := map[string]any{
		"sinkUri": "http://sink", "sinkAudience": "sink", "auth": map[string]any{"serviceAccountName": "x-oidc"},
		"address": map[string]any{"url": "http://adapter/ops/x"}, "pending": int64(1), "conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
	}
	with := func(key string, value any) map[string]any {
		s := runtime.DeepCopyJSON(before)
		if s[key] = value; value == nil {
			delete(s, key)
		}
		return s
	}
	type try struct {
		who     string
		from    map[string]any
		to      map[string]any
		allowed bool
	}
	tries := map[string]try{
		"the controller":                       {controllerUser, before, with("sinkUri", "http://attacker"), true},
		"the controller, for the first time":   {controllerUser, nil, before, true},
		"the adapter, its counts":              {adapterUser, before, with("pending", int64(2)), true},
		"the adapter, its counts for once":     {adapterUser, nil, map[string]any{"pending": int64(2)}, true},
		"the adapter, its report":              {adapterUser, before, with("watch", map[string]any{"status": "True"}), true},
		"the adapter, its watched objects":     {adapterUser, before, with("watched", int64(2)), true},
		"the controller, the revision":         {controllerUser, before, with("sinkRevision", "worker-00002"), true},
		"the adapter, a condition":             {adapterUser, before, with("conditions", []any{}), true},
		"the adapter, nothing":                 {adapterUser, before, before, true},
		"the adapter, no status":               {adapterUser, nil, nil, true},
		"an account with a wildcard role":      {"system:serviceaccount:ops:dev", before, with("pending", int64(2)), false},
		"the controller of another namespace":  {"system:serviceaccount:ops:reschedule-controller", before, with("pending", int64(2)), false},
		"a break-glass administrator":          {"admin", before, with("sinkUri", "http://other"), true},
		"the adapter, the sink gone":           {adapterUser, before, with("sinkUri", nil), false},
		"the adapter, everything gone":         {adapterUser, before, nil, false},
		"the adapter, a sink where there none": {adapterUser, nil, map[string]any{"sinkUri": "http://attacker"}, false},
	}
	for _, field := range []string{
		"sinkUri", "sinkAudience", "sinkCACerts", "deadLetterSinkUri", "deadLetterSinkAudience", "deadLetterSinkCACerts", "auth", "address", "addresses",
		"sinkRevision",
	} {
		tries["the adapter, "+field] = try{adapterUser, before, with(field, "attacker"), false}
	}
	for name, c := range tries {
		groups := []string{"system:authenticated"}
		if c.who == "admin" {
			groups = append(groups, "system:masters")
		}
		a := admission.NewAttributesRecord(status(c.to), status(c.from), v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.Kind), "ops", "x",
			v1alpha1.SchemeGroupVersion.WithResource("reschedulesources"), "status", admission.Update, &metav1.PatchOptions{}, false,
			&authuser.DefaultInfo{Name: c.who, Groups: groups})
		if ok, says := g.admits(t, a); ok != c.allowed {
			t.Errorf("%s: admitted %t: %s", name, ok, says)
		}
	}
}

// A policy on another resource would not be asked.
func TestPolicies_MatchTheirObjects(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"reschedule-adapter-tokens": "[] [v1] [serviceaccounts/token] [CREATE]",
		"reschedule-status":         "[sources.reschedule.dev] [*] [reschedulesources/status] [UPDATE]",
	} {
		rules := newGate(t, name).Spec.MatchConstraints.ResourceRules
		r := rules[0].RuleWithOperations
		if got := fmt.Sprint(r.APIGroups, r.APIVersions, r.Resources, r.Operations); len(rules) != 1 || got != want {
			t.Errorf("%s is about %s", name, got)
		}
	}
}
