package knative

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/singleflight"
)

const (
	// keysEvery is how often the cluster's keys are read again at most, however
	// many tokens name a key that is not known.
	keysEvery = 10 * time.Second
	// keysFor is how long a caller waits for them.
	keysFor = 2 * time.Second
)

// algorithms are those with a public key. A token that says none of them is not
// signed with a key of the cluster.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// verdict is what a signature says of a token.
type verdict int

const (
	unjudged verdict = iota // the cluster's keys cannot be read
	signed                  // with a key of the cluster
	forged                  // it says that it is of the cluster, and is not
	foreign                 // of an issuer or a key that is not known
)

// keySet is what the cluster signs service accounts' tokens with.
type keySet struct {
	issuer string
	jose.JSONWebKeySet
}

// keys find out what is forged without asking the API server about each token.
// They admit no caller: whether a token still counts only the API server knows.
type keys struct {
	fetch func(context.Context) (*keySet, error)
	log   *slog.Logger
	now   func() time.Time

	set     atomic.Pointer[keySet]
	flights singleflight.Group

	mu      sync.Mutex
	next    time.Time // not read again before
	failing bool      // which the log was told
}

// judge says what can be told of the token without the API server. A key that
// is not known is looked for first, as after a change of keys.
func (k *keys) judge(ctx context.Context, token string, c claims) verdict {
	set := k.set.Load()
	if set == nil || set.issuer != c.Issuer || len(set.Key(c.key)) == 0 {
		set = k.refresh(ctx)
	}
	if set == nil {
		return unjudged
	}
	candidates := set.Key(c.key)
	if t, err := jose.ParseSignedCompact(token, algorithms); err == nil {
		for i := range candidates {
			if _, err := t.Verify(&candidates[i]); err == nil {
				return signed
			}
		}
	}
	if set.issuer == c.Issuer && len(candidates) > 0 {
		return forged
	}
	return foreign
}

// refresh reads the keys, unless that was only just done, and returns the keys
// that are known then.
func (k *keys) refresh(ctx context.Context) *keySet {
	if k.fetch == nil || !k.mayRead() {
		return k.set.Load()
	}
	read := k.flights.DoChan("", func() (any, error) {
		if k.mayRead() { // since the caller looked, another flight may have landed
			k.read(context.WithoutCancel(ctx))
		}
		return nil, nil
	})
	select {
	case <-read:
	case <-ctx.Done():
	}
	return k.set.Load()
}

func (k *keys) mayRead() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.now().Before(k.next)
}

func (k *keys) read(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, keysFor)
	defer cancel()
	set, err := k.fetch(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next = k.now().Add(keysEvery)
	switch {
	case err == nil:
		k.set.Store(set)
		k.failing = false
	case !k.failing:
		k.failing = true
		k.log.Warn("the keys of the cluster cannot be read: each token that is not known costs a TokenReview until they can", "error", err)
	}
}
