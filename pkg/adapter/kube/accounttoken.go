package kube

import (
	"context"
	"errors"
	"time"

	authn "k8s.io/api/authentication/v1"
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
	request   TokenRequester
	audiences APIAudiences
	kept      *tokenCache
}

func newAccountTokens(request TokenRequester, audiences APIAudiences) *accountTokens {
	return &accountTokens{request: request, audiences: audiences, kept: newTokenCache(accountErrorLife)}
}

// get returns a token of the account.
func (t *accountTokens) get(ctx context.Context, a objects.Account) (string, error) {
	return t.kept.get(ctx, a.User(), a.Namespace, func(ctx context.Context) (string, time.Duration, error) {
		return t.fetch(ctx, a)
	})
}

// fetch requests a token for an audience of the API server, which is used for 80 % of its life.
func (t *accountTokens) fetch(ctx context.Context, a objects.Account) (string, time.Duration, error) {
	seconds := int64(tokenLife / time.Second)
	answer, err := t.request(ctx, cache.ObjectName{Namespace: a.Namespace, Name: a.Name}, &authn.TokenRequest{
		Spec: authn.TokenRequestSpec{Audiences: t.audiences.one(), ExpirationSeconds: &seconds},
	})
	if err != nil {
		return "", 0, err
	}
	if answer.Status.Token == "" {
		return "", 0, errors.New("the answer of the API server has no token")
	}
	return answer.Status.Token, time.Until(answer.Status.ExpirationTimestamp.Time) * 4 / 5, nil
}

// drop forgets a token that the API server did not take: its account was made again.
func (t *accountTokens) drop(a objects.Account) { t.kept.drop(a.User()) }
