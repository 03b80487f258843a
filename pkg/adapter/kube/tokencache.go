package kube

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	lru "k8s.io/apimachinery/pkg/util/cache"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
)

const (
	// maxTokenRequests are under way at once, maxTokenShare of them for the
	// sources of one namespace.
	maxTokenRequests = 32
	maxTokenShare    = 4
	// maxTokens bounds a cache, at some 1.5 KiB each.
	maxTokens = 16_384
	// renewalPause is the least time between two renewals of a token, of which the first failed.
	renewalPause = time.Minute
)

// heldToken is a token in a cache.
type heldToken struct {
	text    string
	since   time.Time
	renewAt atomic.Int64 // in Unix nanoseconds
}

// due reports whether the caller must renew the token now. Others must after renewalPause.
func (h *heldToken) due() bool {
	now, at := time.Now(), h.renewAt.Load()
	return now.UnixNano() >= at && h.renewAt.CompareAndSwap(at, now.Add(renewalPause).UnixNano())
}

// tokenCache keeps tokens while they can be used, and errors for errorLife. Callers of
// one key share a request. When 80 % of its life has passed, a token is renewed while it is
// used: an API server that is away when it expires delays nothing.
type tokenCache struct {
	errorLife time.Duration
	cache     *lru.LRUExpireCache
	flights   singleflight.Group
	calls     *budget.Budget
}

func newTokenCache(errorLife time.Duration) *tokenCache {
	return &tokenCache{
		errorLife: errorLife, cache: lru.NewLRUExpireCache(maxTokens),
		// A namespace with thousands of audiences waits behind itself.
		calls: budget.NewTurns(maxTokenRequests, maxTokenShare, CallTimeout),
	}
}

// get returns the token of the key. fetch requests it, and returns how long it can be used.
func (t *tokenCache) get(ctx context.Context, key, namespace string, fetch func(context.Context) (string, time.Duration, error)) (string, error) {
	request := func() (any, error) { return t.request(context.WithoutCancel(ctx), key, namespace, fetch) }
	switch held, err := t.cached(key); {
	case err != nil:
		return "", err
	case held != nil:
		if held.due() {
			t.flights.DoChan(key, request)
		}
		return held.text, nil
	}
	result := t.flights.DoChan(key, func() (any, error) {
		switch held, err := t.cached(key); { // of the flight before this one
		case err != nil:
			return "", err
		case held != nil:
			return held.text, nil
		}
		return request() // the first caller may give up, but others wait for the same token
	})
	select {
	case r := <-result:
		return r.Val.(string), r.Err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// request caches what fetch returns. An error does not replace a token that can be used.
func (t *tokenCache) request(ctx context.Context, key, namespace string, fetch func(context.Context) (string, time.Duration, error)) (token string, err error) {
	var life time.Duration
	turn, err := t.calls.Take(ctx, namespace, "")
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, CallTimeout)
		token, life, err = fetch(ctx)
		cancel()
		turn.Release()
	}
	if err != nil {
		if held, _ := t.cached(key); held == nil {
			t.cache.Add(key, err, t.errorLife)
		}
		return "", err
	}
	if life > 0 {
		held := &heldToken{text: token, since: time.Now()}
		held.renewAt.Store(held.since.Add(life * 4 / 5).UnixNano())
		t.cache.Add(key, held, life)
	}
	return token, nil
}

// cached is the token of the key, or the error of the last request; nil and nil if there is neither.
func (t *tokenCache) cached(key string) (*heldToken, error) {
	switch v, _ := t.cache.Get(key); v := v.(type) {
	case *heldToken:
		return v, nil
	case error:
		return nil, v
	}
	return nil, nil
}

// drop forgets the token of the key.
func (t *tokenCache) drop(key string) { t.cache.Remove(key) }

// dropOld forgets the token of the key, if it is kept for least or longer.
func (t *tokenCache) dropOld(key string, least time.Duration) {
	if held, _ := t.cached(key); held != nil && time.Since(held.since) >= least {
		t.cache.Remove(key)
	}
}
