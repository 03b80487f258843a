//go:build !race

package cluster

// What is Knative's own, which needs all of Kubernetes' client set: with the race detector that would be compiled for
// these tests alone, and they have no second goroutine.

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/eventing/pkg/auth"
	"knative.dev/eventing/pkg/eventingtls"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// The account has the name that Knative's controllers give it.
func TestAccountOf_IsKnativesName(t *testing.T) {
	t.Parallel()
	gvk := v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.Kind)
	for n := range 253 {
		name := strings.Repeat("a-b.c", 51)[:n+1]
		if got, want := accountOf(name), auth.GetOIDCServiceAccountNameForResource(gvk, metav1.ObjectMeta{Name: name}); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	expect(t, "account", accountOfA, accountOf("a"))
}

// The label of a bundle is Knative's.
func TestTrust_ReadsKnativesLabel(t *testing.T) {
	t.Parallel()
	if bundleLabel != eventingtls.TrustBundleLabelKey || bundleValue != eventingtls.TrustBundleLabelValue {
		t.Errorf("%s=%s, want %s", bundleLabel, bundleValue, eventingtls.TrustBundleLabelSelector)
	}
}
