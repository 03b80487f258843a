package kube

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/singleflight"
	authn "k8s.io/api/authentication/v1"
	lru "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/cache"

	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// accountErrorLife is shorter than tokenErrorLife: the token of a new source's account
// may be refused for a moment, until the controller has written the account into the
// ClusterRole of the accounts to watch with and the API server has read it.
const accountErrorLife = time.Second

// accountTokens are tokens for the API server itself, of the accounts that watching
// sources name. [Tokens] refuses that audience, because it gives tokens to sinks:
// these tokens never leave this package.
type accountTokens struct {
	request TokenRequester
	cache   *lru.LRUExpireCache
	flights singleflight.Group
	calls   *CallQueue
}

func newAccountTokens(request TokenRequester) *accountTokens {
	return &accountTokens{
		request: request, cache: lru.NewLRUExpireCache(maxTokens),
		calls: NewCallQueue(CallLimit{Slots: maxTokenRequests, Share: maxTokenShare, Wait: CallTimeout, Take: CallTimeout}),
	}
}

// get returns a token of the account.
func (t *accountTokens) get(ctx context.Context, a objects.Account) (string, error) {
	if token, err, ok := t.cached(a); ok {
		return token, err
	}
	result := t.flights.DoChan(a.User(), func() (any, error) {
		if token, err, ok := t.cached(a); ok {
			return token, err
		}
		var token string
		err := t.calls.Do(context.WithoutCancel(ctx), a.Namespace, func(ctx context.Context) (err error) {
			token, err = t.fetch(ctx, a)
			return err
		})
		if err != nil {
			t.cache.Add(a, err, accountErrorLife)
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

func (t *accountTokens) cached(a objects.Account) (token string, err error, ok bool) {
	switch v, _ := t.cache.Get(a); v := v.(type) {
	case string:
		return v, nil, true
	case error:
		return "", v, true
	}
	return "", nil, false
}

// fetch requests a token for the API server's own audience, and keeps it for 80 % of
// its life.
func (t *accountTokens) fetch(ctx context.Context, a objects.Account) (string, error) {
	seconds := int64(tokenLife / time.Second)
	answer, err := t.request(ctx, cache.ObjectName{Namespace: a.Namespace, Name: a.Name}, &authn.TokenRequest{
		Spec: authn.TokenRequestSpec{ExpirationSeconds: &seconds},
	})
	if err != nil {
		return "", err
	}
	if answer.Status.Token == "" {
		return "", errors.New("the answer of the API server has no token")
	}
	t.cache.Add(a, answer.Status.Token, time.Until(answer.Status.ExpirationTimestamp.Time)*4/5)
	return answer.Status.Token, nil
}

// drop forgets a token that the API server did not take: its account was made again.
func (t *accountTokens) drop(a objects.Account) { t.cache.Remove(a) }
