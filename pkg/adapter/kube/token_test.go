package kube

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authn "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// issuer is an API server that issues tokens.
type issuer struct {
	*Tokens
	mu     sync.Mutex
	issued int
	life   time.Duration // default what is asked for
	takes  time.Duration
	err    error
}

// answer takes its time, or ends with ctx.
func (i *issuer) answer(ctx context.Context, account cache.ObjectName, request *authn.TokenRequest) (*authn.TokenRequest, error) {
	select {
	case <-time.After(i.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	life := i.life
	if life == 0 {
		life = time.Duration(*request.Spec.ExpirationSeconds) * time.Second
	}
	i.issued++
	return &authn.TokenRequest{Status: authn.TokenRequestStatus{
		Token:               fmt.Sprintf("%s for %v no %d", account, request.Spec.Audiences, i.issued),
		ExpirationTimestamp: metav1.NewTime(time.Now().Add(life)),
	}}, i.err
}

var someSource = &schedule.Spec{UID: "a-1", Namespace: "ops", Name: "a", Targets: schedule.Targets{ServiceAccount: "a-oidc"}}

// token is an unsigned token with these claims.
func token(claims string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256","kid":"x"}`)) + "." + encode([]byte(claims)) + "." + encode([]byte("signature"))
}

// issuing runs a test in fake time with an API server that issues tokens.
func issuing(t *testing.T, test func(*testing.T, *issuer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{}
		i.Tokens = NewTokens(i.answer, func() Claims { return Claims{Audiences: Audiences{"own"}} })
		test(t, i)
	})
}

// A token is kept until five minutes before its expiry.
func TestTokens_AreKeptUntilTheyExpire(t *testing.T) {
	t.Parallel()
	issuing(t, func(t *testing.T, i *issuer) {
		get := func() string {
			t.Helper()
			token, err := i.Get(t.Context(), someSource, "sink")
			if err != nil {
				t.Fatal(err)
			}
			return token
		}
		first := get()
		expect(t, "token", "ops/a-oidc for [sink] no 1", first)
		time.Sleep(55*time.Minute - time.Millisecond)
		expect(t, "token", first, get())
		time.Sleep(2 * time.Millisecond)
		expect(t, "token", "ops/a-oidc for [sink] no 2", get())
	})
}

// The API server is away when a token expires. Deliveries waited for it then. They get the old token at
// once, and one of them in a minute asks for another, until one is there or the old one expires.
func TestTokens_APIServerAwayDelaysNothing(t *testing.T) {
	t.Parallel()
	for _, back := range []bool{true, false} {
		issuing(t, func(t *testing.T, i *issuer) {
			first, _ := i.Get(t.Context(), someSource, "sink")
			get := func() (string, error) {
				before := time.Now()
				token, err := i.Get(t.Context(), someSource, "sink")
				if err == nil && time.Since(before) > 0 {
					t.Errorf("a token after %s", time.Since(before))
				}
				return token, err
			}
			start := time.Now()
			i.err, i.takes = errors.New("away"), CallTimeout-1
			for time.Since(start) < 54*time.Minute {
				if token, err := get(); token != first || err != nil {
					t.Fatalf("after %s: %q, %v", time.Since(start), token, err)
				}
				time.Sleep(time.Second)
			}
			i.mu.Lock()
			expect(t, "requests", 1+10, i.issued)
			if back {
				i.err = nil
			}
			i.mu.Unlock()
			for time.Since(start) < 55*time.Minute {
				_, _ = get()
				time.Sleep(time.Second)
			}
			time.Sleep(time.Second)
			if token, err := get(); (err == nil) != back || token == first {
				t.Errorf("after its expiry: %q, %v", token, err)
			}
		})
	}
}

// A token with a very short life is used once.
func TestTokens_ShortLivedIsUsedOnce(t *testing.T) {
	t.Parallel()
	issuing(t, func(t *testing.T, i *issuer) {
		i.life = time.Minute
		for range 3 {
			if _, err := i.Get(t.Context(), someSource, "sink"); err != nil {
				t.Fatal(err)
			}
		}
		expect(t, "issued", 3, i.issued)
	})
}

// The account of a source was deleted and made again. Its sink got the token of the old one for
// up to 55 minutes. A sink that refuses every token causes one request in ten seconds.
func TestTokens_RefusedIsRequestedAgain(t *testing.T) {
	t.Parallel()
	issuing(t, func(t *testing.T, i *issuer) {
		i.Refused(someSource, "sink") // there is none
		for n := range 40 {
			token, err := i.Get(t.Context(), someSource, "sink")
			if err != nil || token != fmt.Sprintf("ops/a-oidc for [sink] no %d", n/10+1) {
				t.Errorf("after %d s: %q, %v", n, token, err)
			}
			i.Refused(someSource, "other")
			time.Sleep(time.Second)
			for range 10 {
				i.Refused(someSource, "sink")
			}
		}
	})
}

// Each source and audience has a token of its own.
func TestTokens_BySourceAndAudience(t *testing.T) {
	t.Parallel()
	issuing(t, func(t *testing.T, i *issuer) {
		other := &schedule.Spec{UID: "a-2", Namespace: "ops", Name: "a", Targets: schedule.Targets{ServiceAccount: "a-oidc"}}
		for range 2 {
			for _, src := range []*schedule.Spec{someSource, other} {
				for _, audience := range []string{"sink", "dead"} {
					if _, err := i.Get(t.Context(), src, audience); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		expect(t, "issued, the source made anew having its own", 4, i.issued)
	})
}

// Many deliveries at once request one token.
func TestTokens_AreSharedByDeliveries(t *testing.T) {
	t.Parallel()
	issuing(t, func(t *testing.T, i *issuer) {
		i.takes = time.Second
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if token, err := i.Get(t.Context(), someSource, "sink"); err != nil || !strings.HasSuffix(token, "no 1") {
					t.Errorf("got %q, %v", token, err)
				}
			})
		}
		all.Wait()
		expect(t, "issued", 1, i.issued)
	})
}

// A delivery that ends stops waiting, and the others get their token.
func TestTokens_CancelledDeliveryStopsWaiting(t *testing.T) {
	t.Parallel()
	issuing(t, func(t *testing.T, i *issuer) {
		i.takes = 5 * time.Second
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start, done := time.Now(), make(chan error)
		go func() {
			_, err := i.Get(ctx, someSource, "sink")
			done <- err
		}()
		synctest.Wait()
		go func() {
			_, err := i.Get(t.Context(), someSource, "sink")
			done <- err
		}()
		if err := <-done; !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		if err := <-done; err != nil || time.Since(start) != 5*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// An error names account and audience, and is cached.
func TestTokens_ErrorIsNamedAndCached(t *testing.T) {
	t.Parallel()
	issuing(t, func(t *testing.T, i *issuer) {
		i.err = apierrors.NewNotFound(corev1.Resource("serviceaccounts"), "a-oidc")
		for range 10 {
			_, err := i.Get(t.Context(), someSource, "sink")
			if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `service account ops/a-oidc for audience "sink"`) {
				t.Fatal(err)
			}
		}
		expect(t, "asked", 1, i.issued)
		i.err = nil
		time.Sleep(tokenErrorLife + 1)
		if _, err := i.Get(t.Context(), someSource, "sink"); err != nil {
			t.Error(err)
		}
	})
}

// A request that is not answered ends.
func TestTokens_RequestIsBounded(t *testing.T) {
	t.Parallel()
	issuing(t, func(t *testing.T, i *issuer) {
		i.takes = time.Hour
		start := time.Now()
		if _, err := i.Get(t.Context(), someSource, "sink"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != CallTimeout {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// A token for the API server would open whatever the account may do.
func TestTokens_NoneIsForTheAPIServer(t *testing.T) {
	t.Parallel()
	issuing(t, func(t *testing.T, i *issuer) {
		i.forbidden = audiencesOf(&rest.Config{BearerToken: token(`{"aud":["api","https://10.0.0.1"],"iss":"https://oidc.example.com/id"}`)})
		for _, audience := range []string{
			"", "https://kubernetes.default.svc", "https://kubernetes.default.svc.cluster.local", "HTTPS://Kubernetes.default.svc",
			"api", "https://10.0.0.1", "https://oidc.example.com/id",
		} {
			_, err := i.Get(t.Context(), someSource, audience)
			if err == nil || !strings.Contains(err.Error(), "set spec.sink.audience") {
				t.Errorf("%q: %v", audience, err)
			}
		}
		expect(t, "issued", 0, i.issued)
		if _, err := i.Get(t.Context(), someSource, "apis"); err != nil {
			t.Error(err)
		}
	})
}

// A namespace that wants thousands of tokens waits for itself.
func TestTokens_NamespaceWaitsForItself(t *testing.T) {
	t.Parallel()
	issuing(t, func(t *testing.T, i *issuer) {
		i.takes = time.Second
		var all sync.WaitGroup
		for n := range 1000 {
			all.Go(func() { _, _ = i.Get(t.Context(), someSource, fmt.Sprint("audience ", n)) })
		}
		synctest.Wait()
		other := &schedule.Spec{UID: "b-1", Namespace: "other", Name: "b", Targets: schedule.Targets{ServiceAccount: "b-oidc"}}
		start := time.Now()
		if _, err := i.Get(t.Context(), other, "sink"); err != nil || time.Since(start) != i.takes {
			t.Errorf("another namespace: %v after %v", err, time.Since(start))
		}
		all.Wait()
		// A request that does not get its turn ends.
		if n := int(CallTimeout / i.takes * maxTokenShare); i.issued > n+maxTokenShare+1 || i.issued < n-maxTokenShare {
			t.Errorf("%d tokens in %v", i.issued, time.Since(start))
		}
	})
}
