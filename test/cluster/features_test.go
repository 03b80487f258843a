package cluster

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	authv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// feature turns a flag of Knative Eventing on for one test, which must not be
// parallel.
func feature(t *testing.T, name, value string) {
	t.Helper()
	set := func(ctx context.Context, value string) {
		_, err := server.Client.CoreV1().ConfigMaps(kube.SystemNamespace).Patch(ctx, "config-features", "application/merge-patch+json",
			fmt.Appendf(nil, `{"data":{%q:%s}}`, name, value), metav1.PatchOptions{})
		if err != nil {
			t.Error(err)
		}
	}
	before, err := server.Client.CoreV1().ConfigMaps(kube.SystemNamespace).Get(t.Context(), "config-features", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set(context.Background(), fmt.Sprintf("%q", before.Data[name])) })
	set(t.Context(), fmt.Sprintf("%q", value))
}

const event = `{}`

var eventHeaders = []string{"Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "/tests", "Ce-Type", "test", "Ce-Subject", "a"}

// send sends a CloudEvent to the source's address.
func (s *source) send(token string) *harness.Reply {
	s.t.Helper()
	headers := eventHeaders
	if token != "" {
		headers = append(slices.Clip(headers), "Authorization", "Bearer "+token)
	}
	r, err := harness.Do(s.t.Context(), "POST", s.address(), event, headers...)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// With OIDC a source has an identity and requires one.
func TestOIDC_SourceHasAnIdentity(t *testing.T) {
	p, sink := running(t), newSink(t)
	feature(t, "authentication-oidc", "enabled")
	s := p.create(t, namespace(t, "oidc"), "x", fmt.Sprintf("sink: {uri: %q, audience: the-sink}\n", sink.URL+"/in"))
	o := s.until("given an identity", func(o *v1alpha1.RescheduleSource) bool {
		return o.Status.Auth != nil && o.Status.Auth.ServiceAccountName != nil && o.Status.Address != nil && o.Status.Address.Audience != nil
	})
	if got := *o.Status.Address.Audience; got != s.audience() {
		t.Errorf("status.address.audience is %s", got)
	}
	account, err := server.Client.CoreV1().ServiceAccounts(s.namespace).Get(t.Context(), *o.Status.Auth.ServiceAccountName, metav1.GetOptions{})
	if err != nil || !metav1.IsControlledBy(account, o) {
		t.Errorf("the identity: %v: %v", account, err)
	}
	s.served()

	// Events come with a token from now on.
	settle(t, func() bool { return s.send("").Status == http.StatusUnauthorized }, "an event without a token is not refused")
	for token, want := range map[string]int{
		s.token:                          http.StatusAccepted,
		s.tokenOf(s.namespace, "caller"): http.StatusUnauthorized,
		s.tokenOf(namespace(t, "stranger"), "stranger", s.audience()): http.StatusForbidden,
	} {
		if r := s.send(token); r.Status != want {
			t.Errorf("an event: %d %s, want %d", r.Status, r.Body, want)
		}
	}

	// So do deliveries.
	d := sink.Next(t, "in", "a")
	token, ok := strings.CutPrefix(d.Header.Get("Authorization"), "Bearer ")
	if !ok {
		t.Fatalf("the delivery has the headers %v", d.Header)
	}
	review, err := server.Client.AuthenticationV1().TokenReviews().Create(t.Context(),
		&authv1.TokenReview{Spec: authv1.TokenReviewSpec{Token: token, Audiences: []string{"the-sink"}}}, metav1.CreateOptions{})
	user, _ := serviceAccount(s.namespace, account.Name)
	if err != nil || !review.Status.Authenticated || review.Status.User.Username != user {
		t.Errorf("the delivery's token is of %+v: %v", review.Status, err)
	}
	s.put("b", `{}`)
	sink.Next(t, "in", "b")
}
