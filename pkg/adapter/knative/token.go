package knative

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	authn "k8s.io/api/authentication/v1"
	lru "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/cache"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const (
	tokenLife = time.Hour
	// tokenMargin is how long before its end a token is not used any more: it
	// has to outlive its way to the sink, and the clocks' differences.
	tokenMargin = 5 * time.Minute
	// tokenErrorLife keeps one source that gets no token from asking for one
	// with every delivery.
	tokenErrorLife = 5 * time.Second
	// maxTokenRequests are under way at once, and so many of them for the sources
	// of one namespace.
	maxTokenRequests = 32
	maxTokenShare    = 4
	// maxTokens bounds the cache, at some 1.5 KiB each.
	maxTokens = 16_384
)

// tokens gets service accounts' tokens from the API server and keeps them
// while they are good.
type tokens struct {
	call    tokenRequest
	never   apiAudiences
	cache   *lru.LRUExpireCache
	flights singleflight.Group
	line    *line
}

func newTokens(call tokenRequest, never apiAudiences) *tokens {
	return &tokens{
		call: call, never: never, cache: lru.NewLRUExpireCache(maxTokens),
		// A namespace with thousands of audiences waits behind itself.
		line: newLine(lane{slots: maxTokenRequests, share: maxTokenShare, wait: callTimeout, take: callTimeout}),
	}
}

// apiAudiences are those of the API server. A token for one of them opens
// whatever the account may do in the cluster, and a sink would only have to ask
// for it: none is ever requested.
type apiAudiences []string

// apiServer is where every API server is found in its cluster, and what most
// say that their tokens are for.
const apiServer = "https://kubernetes.default.svc"

// audiencesOf are the audiences that the adapter's own token shows: without a choice
// the API server issues a token for all audiences that it takes. Its issuer
// is one of them by default.
func audiencesOf(own string) apiAudiences {
	c, _ := readClaims(own)
	return append(apiAudiences(c.Audiences), c.Issuer)
}

// has says whether the audience is the API server's.
func (a apiAudiences) has(audience string) bool {
	return audience == "" || strings.HasPrefix(strings.ToLower(audience), apiServer) || slices.Contains(a, audience)
}

// get is the token of the source for an audience. A source that was made anew
// under its name has a service account made anew, for which the tokens of the
// one before are no good; so its uid is part of what a token is found by.
func (t *tokens) get(ctx context.Context, src *schedule.Source, audience string) (string, error) {
	account := src.Namespace + "/" + src.ServiceAccount
	if t.never.has(audience) {
		return "", fmt.Errorf("knative: token of service account %s for audience %q: refused, because the API server would accept it: "+
			"set spec.sink.audience to the audience of the sink", account, audience)
	}
	key := src.UID + "\n" + account + "\n" + audience
	if token, err, ok := t.cached(key); ok {
		return token, err
	}
	result := t.flights.DoChan(key, func() (any, error) {
		if token, err, ok := t.cached(key); ok { // of the flight just before
			return token, err
		}
		var token string
		var life time.Duration
		// Whoever asked first may give up: others wait for it too.
		err := t.line.do(context.WithoutCancel(ctx), src.Namespace, func(ctx context.Context) (err error) {
			token, life, err = t.request(ctx, src, audience)
			return err
		})
		switch {
		case err != nil:
			err = fmt.Errorf("knative: token of service account %s for audience %q: %w", account, audience, err)
			t.cache.Add(key, err, tokenErrorLife)
		case life > 0:
			t.cache.Add(key, token, life)
		}
		return token, err
	})
	select {
	case r := <-result:
		return r.Val.(string), r.Err
	case <-ctx.Done():
		return "", fmt.Errorf("knative: token of service account %s for audience %q: %w", account, audience, context.Cause(ctx))
	}
}

func (t *tokens) cached(key string) (token string, err error, ok bool) {
	switch v, _ := t.cache.Get(key); v := v.(type) {
	case string:
		return v, nil, true
	case error:
		return "", v, true
	}
	return "", nil, false
}

// request asks the API server for a token, and says how long it can be used.
func (t *tokens) request(ctx context.Context, src *schedule.Source, audience string) (string, time.Duration, error) {
	seconds := int64(tokenLife / time.Second)
	answer, err := t.call(ctx, cache.ObjectName{Namespace: src.Namespace, Name: src.ServiceAccount}, &authn.TokenRequest{
		Spec: authn.TokenRequestSpec{Audiences: []string{audience}, ExpirationSeconds: &seconds},
	})
	if err != nil {
		return "", 0, err
	}
	if answer.Status.Token == "" {
		return "", 0, errors.New("the API server's answer has none")
	}
	return answer.Status.Token, time.Until(answer.Status.ExpirationTimestamp.Time) - tokenMargin, nil
}
