package guard

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

const apiVersion = "sources.reschedule.dev/v1alpha1"

func matchLabels(kv ...string) *metav1.LabelSelector {
	s := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := 0; i < len(kv); i += 2 {
		s.MatchLabels[kv[i]] = kv[i+1]
	}
	return s
}

// targets are policies by what they are to, all of which Knative can read.
var targets = map[string]struct {
	change  func(p *theirPolicy) *theirPolicy
	applies bool
}{
	"everything": {func(p *theirPolicy) *theirPolicy { return p }, true},
	"an empty list": {func(p *theirPolicy) *theirPolicy {
		p.Spec.To = []theirTo{}
		return p
	}, true},
	"the source":           {func(p *theirPolicy) *theirPolicy { return toName(p, name) }, true},
	"the source, capitals": {func(p *theirPolicy) *theirPolicy { return toName(p, strings.ToUpper(name)) }, true},
	"another source":       {func(p *theirPolicy) *theirPolicy { return toName(p, "another") }, false},
	"two sources":          {func(p *theirPolicy) *theirPolicy { return toName(toName(p, "another"), name) }, true},
	"its labels": {func(p *theirPolicy) *theirPolicy {
		return toLabels(p, apiVersion, "RescheduleSource", matchLabels("tier", "gold"))
	}, true},
	"its labels, version": {func(p *theirPolicy) *theirPolicy {
		return toLabels(p, "sources.reschedule.dev/v2", "reschedulesource", matchLabels("tier", "gold"))
	}, true},
	"other labels": {func(p *theirPolicy) *theirPolicy {
		return toLabels(p, apiVersion, "RescheduleSource", matchLabels("tier", "tin"))
	}, false},
	"labels of Brokers": {func(p *theirPolicy) *theirPolicy {
		return toLabels(p, "eventing.knative.dev/v1", "Broker", matchLabels("tier", "gold"))
	}, false},
	"labels of another group": {func(p *theirPolicy) *theirPolicy {
		return toLabels(p, "sources.knative.dev/v1", "RescheduleSource", matchLabels("tier", "gold"))
	}, false},
	"no labels at all": {func(p *theirPolicy) *theirPolicy {
		return toLabels(p, apiVersion, "RescheduleSource", nil)
	}, false},
	"any labels": {func(p *theirPolicy) *theirPolicy {
		return toLabels(p, apiVersion, "RescheduleSource", &metav1.LabelSelector{})
	}, true},
	"an expression": {func(p *theirPolicy) *theirPolicy {
		return toLabels(p, apiVersion, "RescheduleSource", &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "tier", Operator: metav1.LabelSelectorOpIn, Values: []string{"silver", "gold"}},
		}})
	}, true},
}

// A policy applies to the sources that Knative applies it to: TestPolicyTargets_AreKnatives compares the table.
func TestPolicy_AppliesWhereKnativeSaysSo(t *testing.T) {
	t.Parallel()
	for _, what := range sorted(targets) {
		w := newEnv(t)
		w.setFlags(modes["default"])
		w.addSource(name, map[string]string{"tier": "gold"})
		w.setPolicies(targets[what].change(newPolicy("p", outsider)))
		token := w.issue(outsider)
		for _, verb := range []access.Verb{access.VerbCreate, access.VerbIngest} {
			if _, err := w.admit(t, token, verb); (err == nil) != targets[what].applies {
				t.Errorf("%s, %s: %v", what, verb, err)
			}
		}
	}
}

// A selector follows the labels of the source.
func TestPolicy_FollowsLabels(t *testing.T) {
	t.Parallel()
	w := newEnv(t)
	w.setPolicies(targets["its labels"].change(newPolicy("p", outsider)))
	token := w.issue(outsider)
	for _, tier := range []string{"gold", "tin", "gold"} {
		w.addSource(name, map[string]string{"tier": tier})
		if _, err := w.guard.policies.grant(&caller{}, requestTo(access.VerbCreate), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := w.admit(t, token, access.VerbCreate); (err == nil) != (tier == "gold") {
			t.Errorf("%s: %v", tier, err)
		}
	}
}

// Of more labels than are kept it is not known which policies select the source: no caller is admitted.
func TestPolicy_TooManyLabels(t *testing.T) {
	t.Parallel()
	w := newEnv(t)
	w.setPolicies(targets["its labels"].change(newPolicy("p", outsider)))
	token, many := w.issue(outsider), map[string]string{"tier": "gold"}
	for i := range v1alpha1.MaxLabels {
		many[fmt.Sprint("label-", i)] = ""
	}
	w.addSource(name, many)
	if _, err := w.admit(t, token, access.VerbCreate); err == nil || !strings.Contains(err.Error(), "labels") {
		t.Errorf("admitted: %v", err)
	}
}

// A policy of another namespace does not count.
func TestPolicy_OfAnotherNamespaceIsIgnored(t *testing.T) {
	t.Parallel()
	w := newEnv(t)
	p := newPolicy("p", outsider)
	p.Namespace = "elsewhere"
	w.setPolicies(p)
	if _, err := w.admit(t, w.issue(outsider), access.VerbCreate); code(t, err) != schedule.CodeDenied {
		t.Error(err)
	}
}

// Some shapes the API server lets through, others a newer Knative may have.
func TestPolicy_OfAnotherShapeAdmitsNone(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		value any
		path  []string
	}{
		"a text for targets":       {"all", []string{"spec", "to"}},
		"a target that is none":    {[]any{int64(1)}, []string{"spec", "to"}},
		"a number for a label":     {[]any{map[string]any{"selector": map[string]any{"apiVersion": apiVersion, "kind": "RescheduleSource", "matchLabels": map[string]any{"tier": int64(1)}}}}, []string{"spec", "to"}},
		"a filter that is none":    {[]any{"TRUE"}, []string{"spec", "filters"}},
		"filters that are one":     {map[string]any{"cesql": "TRUE"}, []string{"spec", "filters"}},
		"a number for a value":     {[]any{map[string]any{"exact": map[string]any{"size": int64(12)}}}, []string{"spec", "filters"}},
		"an unknown dialect":       {[]any{map[string]any{"cesql": "TRUE", "regex": map[string]any{"type": "x"}}}, []string{"spec", "filters"}},
		"an unknown one, within":   {[]any{map[string]any{"not": map[string]any{"cesql": "FALSE", "regex": "x"}}}, []string{"spec", "filters"}},
		"subjects that are none":   {[]any{int64(1)}, []string{"status", "from"}},
		"conditions that are none": {"Ready", []string{"status", "conditions"}},
		"no spec":                  {"", []string{"spec"}},
	} {
		w := newEnv(t)
		w.setFlags(modes["allow all"])
		o := asUnstructured(toName(newPolicy("p", insider), name))
		if err := unstructured.SetNestedField(o.Object, c.value, c.path...); err != nil {
			t.Fatal(err)
		}
		w.setObjects(o)
		token := w.issue(insider)
		if judge, err := w.admit(t, token, access.VerbIngest); code(t, err) != schedule.CodeDenied || judge != nil {
			t.Errorf("%s: %v", what, err)
		}
		if n := strings.Count(w.log.String(), "admits no sender"); n != 1 {
			t.Errorf("%s: %d lines in the log", what, n)
		}
	}
}

// What Knative's webhook would not let in is there all the same while the
// webhook is down. It must not open anything.
func TestPolicy_UnreadableAdmitsNone(t *testing.T) {
	t.Parallel()
	for what, p := range map[string]*theirPolicy{
		"a version of three parts":    {Spec: theirSpec{To: []theirTo{{Ref: &theirRef{APIVersion: "a/b/c"}}}}},
		"a selector without a kind":   {Spec: theirSpec{To: []theirTo{{Selector: &theirSelector{}}}}},
		"a selector's version":        toLabels(&theirPolicy{}, "a/b/c", "RescheduleSource", matchLabels()),
		"a selector that is none":     toLabels(&theirPolicy{}, apiVersion, "RescheduleSource", matchLabels("-", "-")),
		"an empty filter":             filtered(&theirPolicy{}, theirFilter{}),
		"an empty filter within":      filtered(&theirPolicy{}, theirFilter{All: []theirFilter{{}}}),
		"not an empty filter":         filtered(&theirPolicy{}, theirFilter{Not: &theirFilter{}}),
		"two dialects":                filtered(&theirPolicy{}, theirFilter{CESQL: "TRUE", Exact: map[string]string{"type": "t"}}),
		"an expression that is none":  filtered(&theirPolicy{}, cesql("type = ")),
		"an attribute without a name": filtered(&theirPolicy{}, theirFilter{Prefix: map[string]string{"": "t"}}),
		"a prefix of nothing":         filtered(&theirPolicy{}, theirFilter{Prefix: map[string]string{"type": ""}}),
		"one that passes, one broken": filtered(&theirPolicy{}, cesql("TRUE"), theirFilter{}),
	} {
		w := newEnv(t)
		w.setFlags(modes["allow all"])
		good := newPolicy("p", insider)
		p.ObjectMeta, p.Status = good.ObjectMeta, good.Status
		w.setPolicies(p)
		token := w.issue(insider)
		for range 2 {
			if judge, err := w.admit(t, token, access.VerbIngest); code(t, err) != schedule.CodeDenied || judge != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if n := strings.Count(w.log.String(), "admits no sender"); n != 1 {
			t.Errorf("%s: %d lines in the log", what, n)
		}
	}
}

// A refusal mentions that a policy is not ready.
func TestPolicy_RefusalNamesNotReady(t *testing.T) {
	t.Parallel()
	w := newEnv(t)
	w.setFlags(modes["default"])
	w.setPolicies(notReady(newPolicy("p", insider)))
	if _, err := w.admit(t, w.issue(insider), access.VerbIngest); err == nil || !strings.Contains(err.Error(), "not ready") {
		t.Error(err)
	}
}

func cesql(x string) theirFilter {
	return theirFilter{CESQL: x}
}

// A policy names a subject, or a prefix of subjects.
func TestPolicy_NamesSubjectOrPrefix(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]bool{
		insider: true, "*": true, "system:serviceaccount:ops:*": true, insider + "*": true, "system:*": true,
		"": false, "system:serviceaccount:ops": false, "system:serviceaccount:ops:operator-2": false, strings.ToUpper(insider): false,
		"system:serviceaccount:op:*": false, "*:operator": false, "system:serviceaccount:*:operator": false, "operator": false,
	} {
		p := &policy{subjects: []string{"one user", pattern}}
		if got := p.namesSubject(insider); got != want {
			t.Errorf("%q: %t", pattern, got)
		}
	}
}

// An event, and filters by whether they let it pass.
var (
	commit = &schedule.Event{
		ID: "7", Source: "https://git.example.com/Team/site?x=%20#y", Type: "com.example.push", Subject: "refs/heads/main",
		Time: time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC), DataContentType: "application/json",
		Extensions: map[string]any{"branch": "main", "size": int32(12), "forced": false},
	}
	filters = map[string]bool{
		"type = 'com.example.push'":               true,
		"type = 'com.example.pull'":               false,
		"branch = 'main' AND size > 10":           true,
		"branch = 'main' AND size > 20":           false,
		"forced":                                  false,
		"NOT forced":                              true,
		"EXISTS subject AND subject LIKE 'refs%'": true,
		"EXISTS missing":                          false,
		"missing = 'x'":                           false,
		"source = 'https://git.example.com/Team/site?x=%20#y'": true,
		"time = '2026-11-21T09:00:00Z'":                        true,
		"datacontenttype = 'application/json'":                 true,
		"EXISTS dataschema":                                    false,
		"specversion = '1.0'":                                  true,
		"TRUE":                                                 true,
		"'a text that is no condition'":                        false,
		"size":                                                 false,
	}
)

// An expression decides about each event.
func TestPolicy_ExpressionDecidesByEvent(t *testing.T) {
	t.Parallel()
	for x, want := range filters {
		w := newEnv(t)
		w.setFlags(modes["default"])
		w.setPolicies(filtered(newPolicy("p", outsider), cesql(x)))
		judge, err := w.admit(t, w.issue(outsider), access.VerbIngest)
		if err != nil || judge == nil {
			t.Errorf("%s: %v", x, err)
			continue
		}
		if err := judge(commit); (err == nil) != want || !want && code(t, err) != schedule.CodeDenied {
			t.Errorf("%s: %v", x, err)
		}
	}
}

// One policy that admits the event is enough.
func TestPolicy_OneIsEnough(t *testing.T) {
	t.Parallel()
	w := newEnv(t)
	w.setFlags(modes["deny all"])
	w.setPolicies(
		filtered(newPolicy("a", outsider), typeIs("another")),
		filtered(newPolicy("b", "another user"), typeIs("a stranger's")),
		filtered(newPolicy("c", "system:*"), theirFilter{Prefix: map[string]string{"type": "com.example."}}, cesql("branch = 'main'")),
		filtered(notReady(newPolicy("d", outsider)), typeIs("not ready")),
	)
	token := w.issue(outsider)
	judge, err := w.admit(t, token, access.VerbIngest)
	if err != nil || judge == nil {
		t.Fatal(err)
	}
	for typ, want := range map[string]bool{"another": true, "com.example.push": true, "a stranger's": false, "not ready": false, "": false} {
		e := *commit
		e.Type = typ
		if err := judge(&e); (err == nil) != want {
			t.Errorf("%q: %v", typ, err)
		}
	}
	if !strings.Contains(w.log.String(), "lets this event pass") {
		t.Error("the log does not tell of a refused event")
	}
	w.setPolicies(append([]*theirPolicy{newPolicy("z", outsider)}, filtered(newPolicy("a", outsider), typeIs("another")))...)
	if judge, err := w.admit(t, token, access.VerbIngest); judge != nil || err != nil {
		t.Errorf("a policy without filters leaves nothing to judge: %v", err)
	}
}

// A policy is compiled once per version.
func TestPolicy_IsCompiledOncePerVersion(t *testing.T) {
	t.Parallel()
	w := newEnv(t)
	w.setPolicies(newPolicy("p", outsider))
	p := w.policy(t, "p")
	first := w.guard.policies.compile(p)
	if w.guard.policies.compile(p) != first {
		t.Error("compiled twice")
	}
	token := w.issue(outsider)
	if _, err := w.admit(t, token, access.VerbCreate); err != nil {
		t.Error(err)
	}
	w.setPolicies(newPolicy("p", "another user"))
	if _, err := w.admit(t, token, access.VerbCreate); code(t, err) != schedule.CodeDenied {
		t.Errorf("the old version counts: %v", err)
	}
}
