package v1alpha1

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const secrets = "{apiVersion: v1, kind: Secret}"

// watching is a spec that watches these resources.
func watching(resources ...string) string {
	return sink + "watch: {resources: [" + strings.Join(resources, ", ") + "]}"
}

// with is a resource with more fields.
func with(more string) string { return strings.Replace(secrets, "}", ", "+more+"}", 1) }

// Good values of spec.watch are accepted.
func TestWatch_AcceptsGoodSpecs(t *testing.T) {
	t.Parallel()
	most := make([]string, 32)
	for i := range most {
		most[i] = fmt.Sprintf("{apiVersion: v1, kind: K%d}", i)
	}
	for name, spec := range map[string]string{
		"the least":               watching(secrets),
		"the most resources":      watching(most...),
		"a group":                 watching("{apiVersion: apps/v1, kind: Deployment}"),
		"a group with dots":       watching("{apiVersion: a.b-c.example.com/v1alpha1, kind: Website}"),
		"an account":              sink + "watch: {serviceAccountName: a.b, resources: [" + secrets + "]}",
		"all namespaces":          sink + "watch: {namespaceSelector: {}, resources: [" + secrets + "]}",
		"namespaces":              sink + "watch: {namespaceSelector: {matchLabels: {a: b}}, resources: [" + secrets + "]}",
		"a selector":              watching(with("selector: {matchLabels: {a.b/c: d}, matchExpressions: [{key: a, operator: In, values: [b, '']}, {key: c, operator: Exists}]}")),
		"a key":                   watching(with("key: object.metadata.name")),
		"a long key":              watching(with("key: " + strings.Repeat("ü", 4096))),
		"an owner":                watching(with("owner: {apiVersion: example.com/v1, kind: Website}")),
		"an owner and no key":     watching(with("owner: {apiVersion: example.com/v1, kind: Website}, key: ''")),
		"changes":                 watching(with("changes: Spec")),
		"a kind with two owners":  watching(with("owner: {apiVersion: a/v1, kind: A}"), with("owner: {apiVersion: b/v1, kind: A}"), secrets),
		"a kind with two changes": watching(with("changes: Spec"), with("changes: Any")),
		"a kind of two groups":    watching("{apiVersion: a/v1, kind: Service}", "{apiVersion: b/v1, kind: Service}"),
		"resync":                  sink + "watch: {resources: [" + secrets + "], resync: {onRevision: false, over: 0s}}",
	} {
		if err := object(t, spec).Validate(t.Context()); err != nil {
			t.Errorf("%s: refused: %v", name, err)
		}
	}
}

// A bad value of spec.watch is refused, and the error names the field.
func TestWatch_NamesTheField(t *testing.T) {
	t.Parallel()
	wide := strings.Repeat("a", 63)
	for _, c := range []struct{ name, spec, field string }{
		{"no resources", sink + "watch: {}", "spec.watch.resources"},
		{"too many resources", watching(strings.Split(strings.Repeat(secrets+";", 33), ";")[:33]...), "spec.watch.resources"},
		{"an account that is none", sink + "watch: {serviceAccountName: A, resources: [" + secrets + "]}", "spec.watch.serviceAccountName"},
		{"a selector of namespaces that is none", sink + "watch: {namespaceSelector: {matchLabels: {a: 'b c'}}, resources: [" + secrets + "]}", "spec.watch.namespaceSelector"},
		{"no apiVersion", watching("{kind: Secret}"), "spec.watch.resources[0].apiVersion"},
		{"two slashes", watching("{apiVersion: a/b/c, kind: Secret}"), "spec.watch.resources[0].apiVersion"},
		{"a group in capitals", watching("{apiVersion: Apps/v1, kind: Secret}"), "spec.watch.resources[0].apiVersion"},
		{"a long group", watching("{apiVersion: " + strings.Repeat("a", 318) + "/v1, kind: Secret}"), "spec.watch.resources[0].apiVersion"},
		{"no kind", watching("{apiVersion: v1}"), "spec.watch.resources[0].kind"},
		{"a kind with a slash", watching("{apiVersion: v1, kind: a/b}"), "spec.watch.resources[0].kind"},
		{"a long kind", watching("{apiVersion: v1, kind: " + wide + "a}"), "spec.watch.resources[0].kind"},
		{"the second kind", watching(secrets, "{apiVersion: v1, kind: ''}"), "spec.watch.resources[1].kind"},
		{"a selector without an operator", watching(with("selector: {matchExpressions: [{key: a}]}")), "spec.watch.resources[0].selector"},
		{"a selector In nothing", watching(with("selector: {matchExpressions: [{key: a, operator: In}]}")), "spec.watch.resources[0].selector"},
		{"a long selector", watching(with("selector: {matchExpressions: [{key: a, operator: In, values: [" + longValues() + "]}]}")), "spec.watch.resources[0].selector"},
		{"an owner without a kind", watching(with("owner: {apiVersion: v1}")), "spec.watch.resources[0].owner.kind"},
		{"an owner without an apiVersion", watching(with("owner: {kind: A}")), "spec.watch.resources[0].owner.apiVersion"},
		{"an owner and a key", watching(with("owner: {apiVersion: v1, kind: A}, key: x")), "spec.watch.resources[0].key"},
		{"a key that is too long", watching(with("key: " + strings.Repeat("a", 4097))), "spec.watch.resources[0].key"},
		{"unknown changes", watching(with("changes: Status")), "spec.watch.resources[0].changes"},
		{"a kind twice", watching(secrets, secrets), "spec.watch.resources[1]"},
		{"a kind twice, once with the default", watching(secrets, with("changes: Metadata")), "spec.watch.resources[1]"},
		{"a kind twice, by two selectors", watching(with("selector: {matchLabels: {a: b}}"), secrets), "spec.watch.resources[1]"},
		{"a kind twice, by two versions", watching("{apiVersion: a/v1, kind: A}", "{apiVersion: a/v2, kind: A}"), "spec.watch.resources[1]"},
		{"an owner twice, by two versions", watching(with("owner: {apiVersion: a/v1, kind: A}"), with("owner: {apiVersion: a/v2, kind: A}")), "spec.watch.resources[1]"},
		{"a time that is none", sink + "watch: {resources: [" + secrets + "], resync: {over: soon}}", "spec.watch.resync.over"},
	} {
		err := object(t, c.spec).Validate(t.Context())
		if err == nil {
			t.Errorf("%s: accepted", c.name)
			continue
		}
		found := false
		for _, e := range err.WrappedErrors() {
			found = found || strings.Join(e.Paths, ", ") == c.field
		}
		if !found || len(err.Error()) > 4096 {
			t.Errorf("%s: %.1024v, want %s", c.name, err, c.field)
		}
	}
}

func longValues() string {
	values := make([]string, 64)
	for i := range values {
		values[i] = fmt.Sprintf("%s%02d", strings.Repeat("a", 61), i)
	}
	return strings.Join(values, ", ")
}

// The default of changes depends on owner and key.
func TestEffectiveChanges_Default(t *testing.T) {
	t.Parallel()
	spec := ChangesSpec
	for _, c := range []struct {
		resource WatchResource
		want     Changes
	}{
		{WatchResource{}, ChangesMetadata},
		{WatchResource{Key: "x"}, ChangesAny},
		{WatchResource{Owner: &WatchOwner{}}, ChangesAny},
		{WatchResource{Owner: &WatchOwner{}, Changes: &spec}, ChangesSpec},
	} {
		if got := c.resource.EffectiveChanges(); got != c.want {
			t.Errorf("%+v: %s, want %s", c.resource, got, c.want)
		}
	}
}

// A selector that is nil or empty selects everything.
func TestSelectorText_EmptyIsAll(t *testing.T) {
	t.Parallel()
	for _, s := range []*metav1.LabelSelector{nil, {}} {
		if text, err := SelectorText(s); text != "" || err != nil {
			t.Errorf("%v: %q %v", s, text, err)
		}
	}
	s := &metav1.LabelSelector{MatchLabels: map[string]string{"b": "c"}, MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpExists}}}
	if text, err := SelectorText(s); text != "a,b=c" || err != nil {
		t.Errorf("%q %v", text, err)
	}
}

// Watching is the adapter's report about this generation, and a part of Ready, unless
// the API server is unreachable, or a quota used up, after the condition was True.
func TestWatching_FromTheReport(t *testing.T) {
	t.Parallel()
	report := func(generation int64, status, reason string, wasTrue bool) *WatchStatus {
		return &WatchStatus{ObservedGeneration: generation, Status: status, Reason: reason, Message: "m", WasTrue: wasTrue}
	}
	for _, c := range []struct {
		name            string
		report          *WatchStatus
		status          corev1.ConditionStatus
		reason, message string
		ready           corev1.ConditionStatus
	}{
		{"no report", nil, "Unknown", "NotReported", "The adapter has not reported on this generation yet.", "Unknown"},
		{"of an older generation", report(6, "True", "", true), "Unknown", "NotReported", "The adapter has not reported on this generation yet.", "Unknown"},
		{"true", report(7, "True", "", true), "True", "", "m", "True"},
		{"false", report(7, "False", "Forbidden", true), "False", "Forbidden", "m", "False"},
		{"unknown", report(7, "Unknown", "Listing", false), "Unknown", "Listing", "m", "Unknown"},
		{"no status", report(7, "", "Listing", false), "Unknown", "Listing", "m", "Unknown"},
		{"unreachable from the start", report(7, "False", "Unreachable", false), "False", "Unreachable", "m", "False"},
		{"unreachable after it was true", report(7, "False", "Unreachable", true), "False", "Unreachable", "m", "True"},
		{"a quota from the start", report(7, "False", "QuotaExceeded", false), "False", "QuotaExceeded", "m", "False"},
		{"a quota after it was true", report(7, "False", "QuotaExceeded", true), "False", "QuotaExceeded", "m", "True"},
	} {
		s := &RescheduleSourceStatus{Watch: c.report}
		for _, part := range parts {
			conditions.Manage(s).MarkTrue(part)
		}
		s.MarkWatching(7)
		s.Summarize()
		got, ready := s.GetCondition(ConditionWatching), s.GetCondition(ConditionReady)
		if got == nil || got.Status != c.status || got.Reason != c.reason || got.Message != c.message || (got.Severity != "") != (c.status != c.ready) {
			t.Errorf("%s: %+v", c.name, got)
		}
		if ready.Status != c.ready || c.ready != corev1.ConditionTrue && ready.Reason != c.reason {
			t.Errorf("%s: ready is %+v", c.name, ready)
		}
		s.ClearWatching()
		s.Summarize()
		if s.GetCondition(ConditionWatching) != nil || !s.IsReady() {
			t.Errorf("%s: without watch: %+v", c.name, s.Conditions)
		}
	}
	s := &RescheduleSourceStatus{}
	s.MarkNotWatching("InvalidKey", "m")
	before := s.DeepCopy()
	s.MarkNotWatching("InvalidKey", "m")
	if diff := cmp.Diff(before, s); diff != "" {
		t.Errorf("marked again:\n%s", diff)
	}
}
