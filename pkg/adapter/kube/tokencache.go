package kube

import (
	"context"
	"time"

	"golang.org/x/sync/singleflight"
	lru "k8s.io/apimachinery/pkg/util/cache"
)

const (
	// maxTokenRequests are under way at once, maxTokenShare of them for the
	// sources of one namespace.
	maxTokenRequests = 32
	maxTokenShare    = 4
	// maxTokens bounds a cache, at some 1.5 KiB each.
	maxTokens = 16_384
)

// heldToken is a token in a cache.
type heldToken struct {
	text  string
	since time.Time
}

// tokenCache keeps tokens while they can be used, and errors for errorLife. Callers of
// one key share a request.
type tokenCache struct {
	errorLife time.Duration
	cache     *lru.LRUExpireCache
	flights   singleflight.Group
	calls     *CallQueue
}

func newTokenCache(errorLife time.Duration) *tokenCache {
	return &tokenCache{
		errorLife: errorLife, cache: lru.NewLRUExpireCache(maxTokens),
		// A namespace with thousands of audiences waits behind itself.
		calls: NewCallQueue(CallLimit{Slots: maxTokenRequests, Share: maxTokenShare, Wait: CallTimeout, Take: CallTimeout}),
	}
}

// get returns the token of the key. fetch requests it, and returns how long it can be used.
func (t *tokenCache) get(ctx context.Context, key, namespace string, fetch func(context.Context) (string, time.Duration, error)) (string, error) {
	if token, err, ok := t.cached(key); ok {
		return token, err
	}
	result := t.flights.DoChan(key, func() (any, error) {
		if token, err, ok := t.cached(key); ok { // of the flight before this one
			return token, err
		}
		var token string
		var life time.Duration
		// The first caller may give up, but others wait for the same token.
		err := t.calls.Do(context.WithoutCancel(ctx), namespace, func(ctx context.Context) (err error) {
			token, life, err = fetch(ctx)
			return err
		})
		switch {
		case err != nil:
			t.cache.Add(key, err, t.errorLife)
		case life > 0:
			t.cache.Add(key, &heldToken{text: token, since: time.Now()}, life)
		}
		return token, err
	})
	select {
	case r := <-result:
		return r.Val.(string), r.Err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

func (t *tokenCache) cached(key string) (token string, err error, ok bool) {
	switch v, _ := t.cache.Get(key); v := v.(type) {
	case *heldToken:
		return v.text, nil, true
	case error:
		return "", v, true
	}
	return "", nil, false
}

// drop forgets the token of the key.
func (t *tokenCache) drop(key string) { t.cache.Remove(key) }

// dropOld forgets the token of the key, if it is kept for least or longer.
func (t *tokenCache) dropOld(key string, least time.Duration) {
	v, _ := t.cache.Get(key)
	if held, ok := v.(*heldToken); ok && time.Since(held.since) >= least {
		t.cache.Remove(key)
	}
}
