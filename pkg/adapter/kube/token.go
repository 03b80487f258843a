package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	authn "k8s.io/api/authentication/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const (
	tokenLife = time.Hour
	// tokenMargin is how long before its expiry a token is no longer used: it must
	// outlive its way to the sink, and the difference of the clocks.
	tokenMargin = 5 * time.Minute
	// tokenErrorLife caches an error, so that a source which gets no token does not
	// request one with every delivery.
	tokenErrorLife = 5 * time.Second
	// tokenLeastLife is how long a token is kept that a sink refuses: a sink that refuses
	// every token must not cause a request with every delivery.
	tokenLeastLife = 10 * time.Second
)

// Tokens requests tokens of service accounts and caches them while they can be
// used.
type Tokens struct {
	request   TokenRequester
	forbidden APIAudiences
	kept      *tokenCache
}

// NewTokens returns an empty cache. It never requests a token for one of the
// forbidden audiences.
func NewTokens(request TokenRequester, forbidden APIAudiences) *Tokens {
	return &Tokens{request: request, forbidden: forbidden, kept: newTokenCache(tokenErrorLife)}
}

// Get returns a token of the source's service account for an audience. The error
// names the account and the audience.
func (t *Tokens) Get(ctx context.Context, src *schedule.Spec, audience string) (string, error) {
	account := src.Namespace + "/" + src.ServiceAccount
	if t.forbidden.has(audience) {
		return "", fmt.Errorf("kube: token of service account %s for audience %q: refused, because the API server would accept it: "+
			"set spec.sink.audience to the audience of the sink", account, audience)
	}
	token, err := t.kept.get(ctx, tokenKey(src, audience), src.Namespace, func(ctx context.Context) (string, time.Duration, error) {
		return t.fetch(ctx, src, audience)
	})
	if err != nil {
		return "", fmt.Errorf("kube: token of service account %s for audience %q: %w", account, audience, err)
	}
	return token, nil
}

// Refused drops a token that its sink refused: the account may have been deleted and
// made again, and the tokens of the old one are invalid.
func (t *Tokens) Refused(src *schedule.Spec, audience string) {
	t.kept.dropOld(tokenKey(src, audience), tokenLeastLife)
}

// tokenKey includes the source's uid: a source that was recreated under its name has
// a new service account, and the tokens of the old one are invalid.
func tokenKey(src *schedule.Spec, audience string) string {
	return src.UID + "\n" + src.Namespace + "/" + src.ServiceAccount + "\n" + audience
}

// fetch requests a token, and returns how long it can be used.
func (t *Tokens) fetch(ctx context.Context, src *schedule.Spec, audience string) (string, time.Duration, error) {
	seconds := int64(tokenLife / time.Second)
	answer, err := t.request(ctx, cache.ObjectName{Namespace: src.Namespace, Name: src.ServiceAccount}, &authn.TokenRequest{
		Spec: authn.TokenRequestSpec{Audiences: []string{audience}, ExpirationSeconds: &seconds},
	})
	if err != nil {
		return "", 0, err
	}
	if answer.Status.Token == "" {
		return "", 0, errors.New("the answer of the API server has no token")
	}
	return answer.Status.Token, time.Until(answer.Status.ExpirationTimestamp.Time) - tokenMargin, nil
}
