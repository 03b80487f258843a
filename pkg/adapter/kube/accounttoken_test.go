package kube

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	authn "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// A refused token is requested again a second later: the controller may have allowed
// the account meanwhile.
func TestAccountTokens_RefusalIsShort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		tokens := newAccountTokens(func(context.Context, cache.ObjectName, *authn.TokenRequest) (*authn.TokenRequest, error) {
			requests++
			if requests == 1 {
				return nil, apierrors.NewForbidden(corev1.Resource("serviceaccounts"), "watcher", nil)
			}
			return &authn.TokenRequest{Status: authn.TokenRequestStatus{
				Token: "a token", ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour)),
			}}, nil
		}, nil)
		for range 2 {
			if _, err := tokens.get(t.Context(), watcher); !apierrors.IsForbidden(err) || requests != 1 {
				t.Fatalf("%d requests: %v", requests, err)
			}
		}
		time.Sleep(time.Second + 1)
		if token, err := tokens.get(t.Context(), watcher); token != "a token" || err != nil {
			t.Errorf("%q, %v", token, err)
		}
	})
}

// A token to watch with is for one audience of the API server: k3s has two, and others have none that begins
// with its usual address. The API server's audiences are the audiences of the adapter's own token, which is
// renewed in its file.
func TestAccountTokens_ForOneAudience(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "token")
		var asked []string
		tokens := newAccountTokens(func(_ context.Context, _ cache.ObjectName, r *authn.TokenRequest) (*authn.TokenRequest, error) {
			asked = r.Spec.Audiences
			return &authn.TokenRequest{Status: authn.TokenRequestStatus{Token: "a token", ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour))}}, nil
		}, audiencesOf(&rest.Config{BearerToken: "old", BearerTokenFile: file}))
		for _, c := range []struct {
			own  string
			want []string
		}{
			{token(`{"aud":["https://kubernetes.default.svc.cluster.local","k3s"]}`), []string{"https://kubernetes.default.svc.cluster.local"}},
			{token(`{"aud":["k3s","https://kubernetes.default.svc.cluster.local"]}`), []string{"https://kubernetes.default.svc.cluster.local"}},
			{token(`{"aud":["https://container.googleapis.com/v1/projects/p"]}`), []string{"https://container.googleapis.com/v1/projects/p"}},
			{token(`{"aud":"https://kubernetes.default.svc"}`), []string{"https://kubernetes.default.svc"}},
			{"opaque", nil},
		} {
			if err := os.WriteFile(file, []byte(c.own), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			if _, err := tokens.get(t.Context(), watcher); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(asked, c.want) {
				t.Errorf("%s: asked for %q, want %q", c.own, asked, c.want)
			}
		}
	})
}
