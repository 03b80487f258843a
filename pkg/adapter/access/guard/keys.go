package guard

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/singleflight"

	"github.com/reschedule-dev/reschedule/pkg/adapter/kube"
)

const (
	// keysInterval is the shortest time between two reads of the cluster's keys,
	// however many tokens name an unknown key.
	keysInterval = 10 * time.Second
	// keysTimeout is how long a caller waits for them.
	keysTimeout = 2 * time.Second
)

// algorithms are the algorithms with a public key. A token with another algorithm is
// not signed with a key of the cluster.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// signature is what the cluster's keys prove about a token.
type signature int

const (
	signatureUnknown signature = iota // the cluster's keys cannot be read
	signatureValid                    // made with a key of the cluster
	signatureForged                   // names a key of the cluster, and is not made with it
	signatureForeign                  // of an unknown issuer or an unknown key
)

// keys verify tokens without a call to the API server. They only refuse: only the
// API server can check whether a token is still valid.
type keys struct {
	fetch kube.KeyFetcher // nil: there are none
	log   *slog.Logger
	now   func() time.Time

	set     atomic.Pointer[kube.KeySet]
	flights singleflight.Group

	mu      sync.Mutex
	next    time.Time // not fetched again before
	failing bool      // the failure is in the log
}

// verify checks the signature of a token. It fetches the keys first when the token
// names an unknown one, as after a rotation.
func (k *keys) verify(ctx context.Context, token string, c kube.Claims) signature {
	set := k.set.Load()
	if set == nil || set.Issuer != c.Issuer || len(set.Key(c.KeyID)) == 0 {
		set = k.refresh(ctx)
	}
	if set == nil {
		return signatureUnknown
	}
	candidates := set.Key(c.KeyID)
	if t, err := jose.ParseSignedCompact(token, algorithms); err == nil {
		for i := range candidates {
			if _, err := t.Verify(&candidates[i]); err == nil {
				return signatureValid
			}
		}
	}
	if set.Issuer == c.Issuer && len(candidates) > 0 {
		return signatureForged
	}
	return signatureForeign
}

// refresh fetches the keys, unless they were fetched just before, and returns the
// keys in force.
func (k *keys) refresh(ctx context.Context) *kube.KeySet {
	if k.fetch == nil || !k.mayFetch() {
		return k.set.Load()
	}
	read := k.flights.DoChan("", func() (any, error) {
		if k.mayFetch() { // another flight may have ended since the first look
			k.fetchNow(context.WithoutCancel(ctx))
		}
		return nil, nil
	})
	select {
	case <-read:
	case <-ctx.Done():
	}
	return k.set.Load()
}

func (k *keys) mayFetch() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.now().Before(k.next)
}

func (k *keys) fetchNow(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	set, err := k.fetch(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next = k.now().Add(keysInterval)
	switch {
	case err == nil:
		k.set.Store(set)
		k.failing = false
	case !k.failing:
		k.failing = true
		k.log.Warn("the keys of the cluster cannot be read: until they can, each unknown token costs a TokenReview", "error", err)
	}
}
