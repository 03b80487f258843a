package guard

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/kube"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const clusterIssuer = "https://kubernetes.default.svc"

// signingKey is a key of a cluster, or of an attacker.
type signingKey struct {
	id      string
	private crypto.Signer
}

var signingKeys = sync.OnceValue(func() map[string]signingKey {
	made := map[string]signingKey{}
	for _, id := range []string{"a", "b", "c"} {
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			panic(err)
		}
		made[id] = signingKey{id, private}
	}
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	made["rsa"] = signingKey{"rsa", private}
	return made
})

// publish makes these the keys that the cluster shows.
func (w *env) publish(ids ...string) {
	set := &kube.KeySet{Issuer: clusterIssuer}
	for _, id := range ids {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: signingKeys()[id].private.Public(), KeyID: id, Use: "sig"})
	}
	w.set(func() { w.keySet = set })
}

// sign makes a token that claims the key named says, and is signed with the key
// named with.
func sign(user, says, with string, change ...func(map[string]any)) string {
	parts := strings.Split(newToken(user, append([]func(map[string]any){claim("iss", clusterIssuer)}, change...)...), ".")
	k := signingKeys()[with]
	algorithm := jose.ES256
	if with == "rsa" {
		algorithm = jose.RS256
	}
	payload := decoded(parts[1])
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: k.private, KeyID: says}}, nil)
	if err != nil {
		panic(err)
	}
	signature, err := signer.Sign(payload)
	if err != nil {
		panic(err)
	}
	token, err := signature.CompactSerialize()
	if err != nil {
		panic(err)
	}
	return token
}

func decoded(segment string) []byte {
	b, err := base64.RawURLEncoding.DecodeString(segment)
	if err != nil {
		panic(err)
	}
	return b
}

// signed makes a token of the cluster's that the API server accepts.
func (w *env) signed(user, with string, change ...func(map[string]any)) string {
	token := sign(user, with, with, change...)
	w.set(func() { w.tokens[token] = accepted(user, audience(ns, name)) })
	return token
}

// A forged token costs no review.
func TestKeys_ForgedTokenCostsNoReview(t *testing.T) {
	t.Parallel()
	w := newEnv(t)
	w.publish("a", "rsa")
	for name, token := range map[string]string{
		"signed with another key": sign(insider, "a", "b"),
		"of another algorithm":    sign(insider, "a", "rsa"),
		"with a key swapped":      sign(insider, "rsa", "a"),
		"with garbage":            sign(insider, "a", "a") + "A",
		"not signed":              segment(`{"alg":"none","kid":"a"}`) + "." + strings.Split(sign(insider, "a", "a"), ".")[1] + ".x",
		"signed with the public key": segment(`{"alg":"HS256","kid":"a"}`) + "." + strings.Split(sign(insider, "a", "a"), ".")[1] +
			"." + segment("x"),
		"with claims of its own": func() string {
			p, q := strings.Split(sign(insider, "a", "a"), "."), strings.Split(sign(outsider, "a", "a"), ".")
			return p[0] + "." + q[1] + "." + p[2]
		}(),
	} {
		if _, err := w.admit(t, token, access.VerbGet); code(t, err) != schedule.CodeUnauthenticated || !strings.Contains(err.Error(), "not signed with this cluster's key") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := w.tokenReviews.Load(); n != 0 {
		t.Errorf("%d reviews", n)
	}
	for _, with := range []string{"a", "rsa"} {
		if _, err := w.admit(t, w.signed(insider, with), access.VerbGet); err != nil {
			t.Errorf("a good token of key %s: %v", with, err)
		}
	}
	// What is signed is still judged by the API server: it may be revoked.
	if _, err := w.admit(t, sign(insider, "a", "a", claim("jti", "revoked")), access.VerbGet); code(t, err) != schedule.CodeUnauthenticated {
		t.Errorf("a revoked token: %v", err)
	}
	if n := w.keyReads.Load(); n != 1 {
		t.Errorf("the keys were read %d times", n)
	}
}

// An API server accepts other tokens too, beside the tokens of its service accounts.
func TestKeys_ForeignTokenIsReviewed(t *testing.T) {
	t.Parallel()
	for name, token := range map[string]string{
		"a key that is not shown":              sign(insider, "c", "c"),
		"another issuer":                       sign(insider, "c", "c", claim("iss", "https://accounts.example.com")),
		"another issuer, with a key's name":    sign(insider, "a", "c", claim("iss", "https://accounts.example.com")),
		"an issuer that the cluster had once":  sign(insider, "a", "a", claim("iss", "https://before")),
		"no issuer, no key and no such method": newToken(insider),
	} {
		w := newEnv(t)
		w.publish("a")
		w.set(func() { w.tokens[token] = accepted(insider, audience(ns, "git-repos")) })
		if _, err := w.admit(t, token, access.VerbGet); err != nil || w.tokenReviews.Load() != 1 {
			t.Errorf("%s: %v after %d reviews", name, err, w.tokenReviews.Load())
		}
	}
}

// A flood of tokens of unknown keys does not delay others.
func TestFlood_StrangersHaveTheirOwnSlots(t *testing.T) {
	timed(t, func(t *testing.T, w *env) {
		w.publish("a")
		w.hook = func(context.Context) error { time.Sleep(5 * time.Second); return nil }
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				r := request(t.Context(), sign(insider, "c", "c", claim("jti", i)))
				r.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", i)
				_, _ = w.guard.Admit(r, requestTo(access.VerbGet))
			})
		}
		synctest.Wait()
		if n := w.tokenReviews.Load(); n != strangerCalls {
			t.Errorf("%d reviews of strangers at once", n)
		}
		w.set(func() { w.hook = nil })
		start := time.Now()
		if _, err := w.admit(t, w.signed(insider, "a"), access.VerbGet); err != nil || time.Since(start) > 0 {
			t.Errorf("a token of the cluster: %v after %s", err, time.Since(start))
		}
		wg.Wait()
	})
}

// One namespace can have as many good tokens as it likes.
func TestFlood_ValidTokensDelayTheirNamespace(t *testing.T) {
	timed(t, func(t *testing.T, w *env) {
		w.publish("a")
		w.hook = func(context.Context) error { time.Sleep(5 * time.Second); return nil }
		var wg sync.WaitGroup
		for i := range 100 {
			token := w.signed(outsider, "a", claim("jti", i))
			wg.Go(func() {
				r := request(t.Context(), token)
				r.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", i)
				_, _ = w.guard.Admit(r, requestTo(access.VerbGet))
			})
		}
		synctest.Wait()
		if n := w.tokenReviews.Load(); n != reviewCalls/4 {
			t.Errorf("%d reviews of one namespace at once", n)
		}
		w.set(func() { w.hook = nil })
		start := time.Now()
		if _, err := w.admit(t, w.signed(insider, "a"), access.VerbGet); err != nil || time.Since(start) > 0 {
			t.Errorf("another namespace: %v after %s", err, time.Since(start))
		}
		wg.Wait()
	})
}

// A new key is found, at a bounded rate.
func TestKeys_AreFetchedAtABoundedRate(t *testing.T) {
	timed(t, func(t *testing.T, w *env) {
		w.publish("a")
		if _, err := w.admit(t, w.signed(insider, "a"), access.VerbGet); err != nil {
			t.Fatal(err)
		}
		w.publish("a", "b")
		for i := range 100 { // so soon after they were read, strangers
			_, _ = w.admit(t, sign(insider, "c", "c", claim("jti", i)), access.VerbGet)
		}
		if n := w.keyReads.Load(); n != 1 {
			t.Errorf("the keys were read %d times", n)
		}
		time.Sleep(keysInterval)
		for i := range 3 {
			if _, err := w.admit(t, sign(insider, "b", "c", claim("jti", i)), access.VerbGet); code(t, err) != schedule.CodeUnauthenticated {
				t.Error(err)
			}
		}
		if n, m := w.keyReads.Load(), w.tokenReviews.Load(); n != 2 || m != 101 {
			t.Errorf("the keys were read %d times, and there were %d reviews", n, m)
		}
	})
}

// Without the cluster's keys every token is reviewed.
func TestKeys_WithoutThemEachTokenIsReviewed(t *testing.T) {
	timed(t, func(t *testing.T, w *env) {
		for i := range 5 {
			if _, err := w.admit(t, w.signed(insider, "a", claim("jti", i)), access.VerbGet); err != nil {
				t.Error(err)
			}
			time.Sleep(keysInterval)
		}
		if _, err := w.admit(t, sign(insider, "a", "b"), access.VerbGet); code(t, err) != schedule.CodeUnauthenticated || w.tokenReviews.Load() != 6 {
			t.Errorf("a forged one: %v after %d reviews", err, w.tokenReviews.Load())
		}
		if n := w.log.count("the keys of the cluster cannot be read"); n != 1 {
			t.Errorf("%d lines in the log", n)
		}
	})
}

// A caller does not wait long for the keys.
func TestKeys_WaitIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := &keys{now: time.Now, log: newEnv(t).guard.log, fetch: func(ctx context.Context) (*kube.KeySet, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		start := time.Now()
		if v := k.verify(t.Context(), "a.b.c", kube.Claims{}); v != signatureUnknown || time.Since(start) != keysTimeout {
			t.Errorf("%v after %s", v, time.Since(start))
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.Sleep(keysInterval)
		cancel()
		start = time.Now()
		if v := k.verify(ctx, "a.b.c", kube.Claims{}); v != signatureUnknown || time.Since(start) != 0 {
			t.Errorf("%v after %s", v, time.Since(start))
		}
		time.Sleep(keysTimeout)
	})
}
