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

// A bad value of spec.watch is refused, and the error names the field.
func TestWatch_NamesTheField(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, spec, field string }{
		{"too many resources", watching(strings.Split(strings.Repeat(secrets+";", 33), ";")[:33]...), "spec.watch.resources"},
		{"a selector of namespaces that is none", sink + "watch: {namespaceSelector: {matchLabels: {a: 'b c'}}, resources: [" + secrets + "]}", "spec.watch.namespaceSelector"},
		{"the second kind", watching(secrets, "{apiVersion: v1, kind: ''}"), "spec.watch.resources[1].kind"},
		{"a long selector", watching(with("selector: {matchExpressions: [{key: a, operator: In, values: [" + longValues() + "]}]}")), "spec.watch.resources[0].selector"},
		{"an owner without a kind", watching(with("owner: {apiVersion: v1}")), "spec.watch.resources[0].owner.kind"},
		{"an owner and a key", watching(with("owner: {apiVersion: v1, kind: A}, key: x")), "spec.watch.resources[0].key"},
		{"a kind twice, by two versions", watching("{apiVersion: a/v1, kind: A}", "{apiVersion: a/v2, kind: A}"), "spec.watch.resources[1]"},
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
