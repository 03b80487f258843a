package knative

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	eventingv1 "knative.dev/eventing/pkg/apis/eventing/v1"
	eventing "knative.dev/eventing/pkg/apis/eventing/v1alpha1"
	"knative.dev/eventing/pkg/auth"
	"knative.dev/eventing/pkg/eventfilter"
	"knative.dev/eventing/pkg/eventfilter/subscriptionsapi"

	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
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
	change  func(p *eventing.EventPolicy) *eventing.EventPolicy
	applies bool
}{
	"everything": {func(p *eventing.EventPolicy) *eventing.EventPolicy { return p }, true},
	"an empty list": {func(p *eventing.EventPolicy) *eventing.EventPolicy {
		p.Spec.To = []eventing.EventPolicySpecTo{}
		return p
	}, true},
	"the source":           {func(p *eventing.EventPolicy) *eventing.EventPolicy { return toName(p, name) }, true},
	"the source, capitals": {func(p *eventing.EventPolicy) *eventing.EventPolicy { return toName(p, strings.ToUpper(name)) }, true},
	"another source":       {func(p *eventing.EventPolicy) *eventing.EventPolicy { return toName(p, "another") }, false},
	"two sources":          {func(p *eventing.EventPolicy) *eventing.EventPolicy { return toName(toName(p, "another"), name) }, true},
	"its labels": {func(p *eventing.EventPolicy) *eventing.EventPolicy {
		return toLabels(p, apiVersion, "RescheduleSource", matchLabels("tier", "gold"))
	}, true},
	"its labels, version": {func(p *eventing.EventPolicy) *eventing.EventPolicy {
		return toLabels(p, "sources.reschedule.dev/v2", "reschedulesource", matchLabels("tier", "gold"))
	}, true},
	"other labels": {func(p *eventing.EventPolicy) *eventing.EventPolicy {
		return toLabels(p, apiVersion, "RescheduleSource", matchLabels("tier", "tin"))
	}, false},
	"labels of Brokers": {func(p *eventing.EventPolicy) *eventing.EventPolicy {
		return toLabels(p, "eventing.knative.dev/v1", "Broker", matchLabels("tier", "gold"))
	}, false},
	"labels of another group": {func(p *eventing.EventPolicy) *eventing.EventPolicy {
		return toLabels(p, "sources.knative.dev/v1", "RescheduleSource", matchLabels("tier", "gold"))
	}, false},
	"no labels at all": {func(p *eventing.EventPolicy) *eventing.EventPolicy {
		return toLabels(p, apiVersion, "RescheduleSource", nil)
	}, false},
	"any labels": {func(p *eventing.EventPolicy) *eventing.EventPolicy {
		return toLabels(p, apiVersion, "RescheduleSource", &metav1.LabelSelector{})
	}, true},
	"an expression": {func(p *eventing.EventPolicy) *eventing.EventPolicy {
		return toLabels(p, apiVersion, "RescheduleSource", &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "tier", Operator: metav1.LabelSelectorOpIn, Values: []string{"silver", "gold"}},
		}})
	}, true},
}

func TestAPolicyAppliesWhereKnativeSaysSo(t *testing.T) {
	t.Parallel()
	for _, what := range sorted(targets) {
		w := newWorld(t)
		w.setFlags(modes["default"])
		w.addSource(name, map[string]string{"tier": "gold"})
		w.setPolicies(targets[what].change(newPolicy("p", outsider)))
		src, err := w.guard.sources.RescheduleSources(ns).Get(name)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := auth.GetEventPoliciesForResource(w.guard.policies.lister, v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.Kind), src.ObjectMeta)
		if err != nil || (len(theirs) > 0) != targets[what].applies {
			t.Errorf("%s: the table says %t, Knative %d, %v", what, targets[what].applies, len(theirs), err)
		}
		token := w.issue(outsider)
		for _, verb := range []api.Verb{api.VerbCreate, api.VerbIngest} {
			if _, err := w.admit(t, token, verb); (err == nil) != targets[what].applies {
				t.Errorf("%s, %s: %v", what, verb, err)
			}
		}
	}
}

func TestLabelsAreThoseOfTheMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setPolicies(targets["its labels"].change(newPolicy("p", outsider)))
	token := w.issue(outsider)
	for _, tier := range []string{"gold", "tin", "gold"} {
		w.addSource(name, map[string]string{"tier": tier})
		if _, err := w.guard.policies.grant(&caller{}, access(api.VerbGet), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := w.admit(t, token, api.VerbGet); (err == nil) != (tier == "gold") {
			t.Errorf("%s: %v", tier, err)
		}
	}
}

func TestAPolicyOfAnotherNamespaceDoesNotCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := newPolicy("p", outsider)
	p.Namespace = "elsewhere"
	w.setPolicies(p)
	if _, err := w.admit(t, w.issue(outsider), api.VerbGet); code(t, err) != schedule.CodeDenied {
		t.Error(err)
	}
}

// What Knative's webhook would not let in is there all the same while the
// webhook is down. It must not open anything.
func TestAPolicyThatCannotBeReadAdmitsNobody(t *testing.T) {
	t.Parallel()
	for what, p := range map[string]*eventing.EventPolicy{
		"a version of three parts":    {Spec: eventing.EventPolicySpec{To: []eventing.EventPolicySpecTo{{Ref: &eventing.EventPolicyToReference{APIVersion: "a/b/c"}}}}},
		"a selector without a kind":   {Spec: eventing.EventPolicySpec{To: []eventing.EventPolicySpecTo{{Selector: &eventing.EventPolicySelector{}}}}},
		"a selector's version":        toLabels(&eventing.EventPolicy{}, "a/b/c", "RescheduleSource", matchLabels()),
		"a selector that is none":     toLabels(&eventing.EventPolicy{}, apiVersion, "RescheduleSource", matchLabels("-", "-")),
		"an empty filter":             filtered(&eventing.EventPolicy{}, eventingv1.SubscriptionsAPIFilter{}),
		"an empty filter within":      filtered(&eventing.EventPolicy{}, eventingv1.SubscriptionsAPIFilter{All: []eventingv1.SubscriptionsAPIFilter{{}}}),
		"not an empty filter":         filtered(&eventing.EventPolicy{}, eventingv1.SubscriptionsAPIFilter{Not: &eventingv1.SubscriptionsAPIFilter{}}),
		"two dialects":                filtered(&eventing.EventPolicy{}, eventingv1.SubscriptionsAPIFilter{CESQL: "TRUE", Exact: map[string]string{"type": "t"}}),
		"an expression that is none":  filtered(&eventing.EventPolicy{}, cesql("type = ")),
		"an attribute without a name": filtered(&eventing.EventPolicy{}, eventingv1.SubscriptionsAPIFilter{Prefix: map[string]string{"": "t"}}),
		"a prefix of nothing":         filtered(&eventing.EventPolicy{}, eventingv1.SubscriptionsAPIFilter{Prefix: map[string]string{"type": ""}}),
		"one that passes, one broken": filtered(&eventing.EventPolicy{}, cesql("TRUE"), eventingv1.SubscriptionsAPIFilter{}),
	} {
		w := newWorld(t)
		w.setFlags(modes["allow all"])
		good := newPolicy("p", insider)
		p.ObjectMeta, p.Status = good.ObjectMeta, good.Status
		w.setPolicies(p)
		token := w.issue(insider)
		for range 2 {
			if judge, err := w.admit(t, token, api.VerbIngest); code(t, err) != schedule.CodeDenied || judge != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if n := strings.Count(w.log.String(), "admits nobody"); n != 1 {
			t.Errorf("%s: %d lines in the log", what, n)
		}
	}
}

func TestARefusalTellsOfAPolicyThatIsNotReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setFlags(modes["default"])
	w.setPolicies(notReady(newPolicy("p", insider)))
	if _, err := w.admit(t, w.issue(insider), api.VerbIngest); err == nil || !strings.Contains(err.Error(), "not ready") {
		t.Error(err)
	}
}

func cesql(x string) eventingv1.SubscriptionsAPIFilter {
	return eventingv1.SubscriptionsAPIFilter{CESQL: x}
}

func TestASubjectIsNamedWholeOrByItsPrefix(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]bool{
		insider: true, "*": true, "system:serviceaccount:ops:*": true, insider + "*": true, "system:*": true,
		"": false, "system:serviceaccount:ops": false, "system:serviceaccount:ops:operator-2": false, strings.ToUpper(insider): false,
		"system:serviceaccount:op:*": false, "*:operator": false, "system:serviceaccount:*:operator": false, "operator": false,
	} {
		p := &policy{subjects: []string{"somebody", pattern}}
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

func TestAnExpressionDecidesByEvent(t *testing.T) {
	t.Parallel()
	for x, want := range filters {
		w := newWorld(t)
		w.setFlags(modes["default"])
		w.setPolicies(filtered(newPolicy("p", outsider), cesql(x)))
		judge, err := w.admit(t, w.issue(outsider), api.VerbIngest)
		if err != nil || judge == nil {
			t.Errorf("%s: %v", x, err)
			continue
		}
		if err := judge(commit); (err == nil) != want || !want && code(t, err) != schedule.CodeDenied {
			t.Errorf("%s: %v", x, err)
		}
	}
}

func TestAnyPolicyThatAdmitsTheEventIsEnough(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setFlags(modes["deny all"])
	w.setPolicies(
		filtered(newPolicy("a", outsider), typeIs("another")),
		filtered(newPolicy("b", "somebody else"), typeIs("a stranger's")),
		filtered(newPolicy("c", "system:*"), eventingv1.SubscriptionsAPIFilter{Prefix: map[string]string{"type": "com.example."}}, cesql("branch = 'main'")),
		filtered(notReady(newPolicy("d", outsider)), typeIs("not ready")),
	)
	token := w.issue(outsider)
	judge, err := w.admit(t, token, api.VerbIngest)
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
	w.setPolicies(append([]*eventing.EventPolicy{newPolicy("z", outsider)}, filtered(newPolicy("a", outsider), typeIs("another")))...)
	if judge, err := w.admit(t, token, api.VerbIngest); judge != nil || err != nil {
		t.Errorf("a policy without filters leaves nothing to judge: %v", err)
	}
}

func TestAPolicyIsCompiledOncePerVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := newPolicy("p", outsider)
	w.setPolicies(p)
	first := w.guard.policies.compile(p)
	if w.guard.policies.compile(p) != first {
		t.Error("compiled twice")
	}
	token := w.issue(outsider)
	if _, err := w.admit(t, token, api.VerbGet); err != nil {
		t.Error(err)
	}
	w.setPolicies(newPolicy("p", "somebody else"))
	if _, err := w.admit(t, token, api.VerbGet); code(t, err) != schedule.CodeDenied {
		t.Errorf("the old version counts: %v", err)
	}
}

// TestFiltersMeanWhatKnativeMeans builds filters at random and lets Knative's
// own judge the same events.
func TestFiltersMeanWhatKnativeMeans(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	values := []string{"a", "ab", "b", "main", "12", "true"}
	pick := func(s ...string) string { return s[r.IntN(len(s))] }
	var build func(depth int) eventingv1.SubscriptionsAPIFilter
	build = func(depth int) eventingv1.SubscriptionsAPIFilter {
		attribute := map[string]string{pick("type", "subject", "branch", "size", "forced", "time", "dataschema", "missing"): pick(values...)}
		list := func() (fs []eventingv1.SubscriptionsAPIFilter) {
			for range 1 + r.IntN(3) {
				fs = append(fs, build(depth-1))
			}
			return fs
		}
		n := 7
		if depth == 0 {
			n = 4
		}
		switch r.IntN(n) {
		case 0:
			return eventingv1.SubscriptionsAPIFilter{Exact: attribute}
		case 1:
			return eventingv1.SubscriptionsAPIFilter{Prefix: attribute}
		case 2:
			return eventingv1.SubscriptionsAPIFilter{Suffix: attribute}
		case 3:
			return cesql(pick("type", "subject", "branch", "missing") + pick(" = ", " <> ", " LIKE ") + "'" + pick(values...) + "'")
		case 4:
			return eventingv1.SubscriptionsAPIFilter{All: list()}
		case 5:
			return eventingv1.SubscriptionsAPIFilter{Any: list()}
		}
		f := build(depth - 1)
		return eventingv1.SubscriptionsAPIFilter{Not: &f}
	}
	passed := 0
	for i := range 500 {
		fs := []eventingv1.SubscriptionsAPIFilter{build(2)}
		e := &schedule.Event{ID: "i", Source: "/s", Type: pick(values...), Extensions: map[string]any{}}
		if r.IntN(2) == 0 {
			e.Subject = pick(values...)
		}
		if r.IntN(2) == 0 {
			e.Extensions["branch"] = pick(values...)
			e.Extensions["size"] = int32(r.IntN(20))
			e.Extensions["forced"] = r.IntN(2) == 0
		}
		compiled, err := compileFilters(fs)
		if err != nil {
			t.Fatalf("seed %d, round %d: %v", seed, i, err)
		}
		sdk := asKnativeReads(t, e)
		got := (&policy{filters: compiled}).passes(forFilters(e))
		want := subscriptionsapi.CreateSubscriptionsAPIFilters(zap.NewNop(), fs).Filter(quiet, sdk) != eventfilter.FailFilter
		if got != want {
			t.Fatalf("seed %d, round %d: %+v of %+v: %t, Knative says %t", seed, i, fs, e, got, want)
		}
		if got {
			passed++
		}
	}
	if passed < 50 || passed > 450 {
		t.Errorf("seed %d: %d of 500 passed, so the test tells little", seed, passed)
	}
}

// asKnativeReads is the event out of the SDK.
func asKnativeReads(t *testing.T, e *schedule.Event) event.Event {
	t.Helper()
	sdk := event.New()
	sdk.SetID(e.ID)
	sdk.SetSource(e.Source)
	sdk.SetType(e.Type)
	if e.Subject != "" {
		sdk.SetSubject(e.Subject)
	}
	for name, v := range e.Extensions {
		sdk.SetExtension(name, v)
	}
	return sdk
}

func TestTheFiltersKnowEveryAttribute(t *testing.T) {
	t.Parallel()
	e := *commit
	e.DataSchema = "http://schemas.example.com/Push#1"
	got := forFilters(&e)
	have := fmt.Sprint(got.ID(), got.Source(), got.Type(), got.Subject(), got.Time(), got.DataContentType(), got.DataSchema(), got.Extensions())
	want := fmt.Sprint(e.ID, e.Source, e.Type, e.Subject, e.Time, e.DataContentType, e.DataSchema, e.Extensions)
	if have != want {
		t.Errorf("%s\nwant %s", have, want)
	}
	if bare := forFilters(&schedule.Event{}); bare.Time() != (time.Time{}) || bare.Subject() != "" || bare.DataSchema() != "" {
		t.Errorf("%v", bare)
	}
}

func BenchmarkAJudgedEvent(b *testing.B) {
	w := newWorld(b)
	w.setFlags(modes["default"])
	w.setPolicies(filtered(newPolicy("p", outsider), typeIs("com.example.push"), cesql("branch = 'main'")))
	judge, err := w.guard.Admit(request(context.Background(), w.issue(outsider)), access(api.VerbIngest))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := judge(commit); err != nil {
			b.Fatal(err)
		}
	}
}
