package kube

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	authn "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		})
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
