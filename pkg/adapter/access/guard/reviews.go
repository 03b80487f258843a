package guard

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	authn "k8s.io/api/authentication/v1"
	authz "k8s.io/api/authorization/v1"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/kube"
	"github.com/reschedule-dev/reschedule/pkg/adapter/loglimit"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// What RBAC calls the schedules of a source.
var sourcesResource = sources.RescheduleSourcesResource.Resource

const rbacSubresource = "schedules"

const (
	// positiveTTL and negativeTTL are how long answers are cached, and so how long a
	// change in the cluster takes to have an effect here: a revocation a minute, a
	// grant after a refusal ten seconds.
	positiveTTL = time.Minute
	negativeTTL = 10 * time.Second
	// renewRetry is when a failed renewal is tried again.
	renewRetry = 5 * time.Second
	// reviewWait is how long a review waits for a slot, reviewTimeout how long it may
	// take then.
	reviewWait    = 2 * time.Second
	reviewTimeout = 10 * time.Second
)

// The calls of each kind to the API server at one time. A review takes some milliseconds, so
// these are thousands a second; the share of one namespace, user or peer, a quarter, leaves
// slots for the others.
const (
	// reviewCalls are for tokens that the cluster signed, and for all tokens while its
	// keys cannot be read.
	reviewCalls = 32
	// strangerCalls are for tokens of unknown keys, which may be valid. Any caller can
	// make as many of them as it likes.
	strangerCalls = 8
	// accessCalls are for access reviews of callers whose tokens were accepted.
	accessCalls = 32
	// renewalCalls are for the renewal of cached answers: no caller waits for them.
	renewalCalls = 16
)

// newCalls are n calls at one time, which are waited for.
func newCalls(n int64) *budget.Budget { return budget.NewTurns(n, n/4, reviewWait) }

// caller is the user who bears a token, according to the API server.
type caller struct {
	authn.UserInfo
	id        digest // of all of the above
	namespace string // of the service account, "" for any other user
}

// namespaceOf returns the namespace of a service account, from its user name. No
// other user can have such a name: the prefix system: is reserved for the API
// server. It is "" for other users.
func namespaceOf(username string) string {
	rest, ok := strings.CutPrefix(username, "system:serviceaccount:")
	if namespace, name, _ := strings.Cut(rest, ":"); ok && name != "" && !strings.Contains(name, ":") {
		return namespace
	}
	return ""
}

func newCaller(u authn.UserInfo) *caller {
	c := &caller{UserInfo: u, namespace: namespaceOf(u.Username)}
	// Each list has a digest of its own, so that two lists cannot be split differently.
	groups := digestOf(u.Groups...)
	parts := []string{u.Username, u.UID, string(groups[:])}
	for _, name := range slices.Sorted(maps.Keys(u.Extra)) {
		values := digestOf(u.Extra[name]...)
		parts = append(parts, name, string(values[:]))
	}
	c.id = digestOf(parts...)
	return c
}

// owner is what a call is counted for: the namespace of the
// service account, else the user.
func (c *caller) owner() string {
	if c.namespace != "" {
		return "namespace " + c.namespace
	}
	return "user " + c.Username
}

// reviews asks the API server and caches its answers. It keeps no token, only
// digests.
type reviews struct {
	tokens, strangers kube.TokenReviewer
	access            kube.AccessReviewer
	keys              *keys
	callers           *answers[caller]
	grants            *answers[struct{}]

	reviewCalls, strangerCalls, accessCalls *budget.Budget

	log *slog.Logger
	now func() time.Time
}

func newReviews(cfg Config) *reviews {
	f := &failures{log: cfg.Log, now: cfg.Now, lines: loglimit.Limit{Lines: 1, Per: logInterval}}
	return &reviews{
		tokens:        cfg.ReviewToken,
		strangers:     cfg.ReviewStranger,
		access:        cfg.ReviewAccess,
		keys:          &keys{fetch: cfg.FetchKeys, log: cfg.Log, now: cfg.Now},
		callers:       newAnswers[caller](f, newCalls(renewalCalls)),
		grants:        newAnswers[struct{}](f, newCalls(renewalCalls)),
		reviewCalls:   newCalls(reviewCalls),
		strangerCalls: newCalls(strangerCalls),
		accessCalls:   newCalls(accessCalls),
		log:           cfg.Log, now: cfg.Now,
	}
}

// caller returns who bears the token, if it is valid for the audience. Peer is the
// address that the call comes from.
func (r *reviews) caller(ctx context.Context, token, want, peer string) (*caller, error) {
	key := digestOf(want, token)
	c, cached := r.callers.cached(key)
	switch {
	case cached && c != nil:
		r.callers.renew(ctx, key, c.owner(), func(ctx context.Context) (*caller, time.Duration, error) {
			_, expiry, err := precheck(token, want, r.now())
			if err != nil {
				return nil, negativeTTL, nil //nolint:nilerr // it expired meanwhile: the answer is no
			}
			return r.reviewToken(ctx, r.tokens, token, want, expiry)
		})
		return c, nil
	case !cached:
		claims, expiry, err := precheck(token, want, r.now())
		if err != nil {
			return nil, err
		}
		q := question[caller]{calls: r.reviewCalls, owner: "peer " + peer}
		review := r.tokens
		switch r.keys.verify(ctx, token, claims) {
		case signatureValid:
			// Only a signature proves the claims, and so the namespace.
			if ns := namespaceOf(claims.Subject); ns != "" {
				q.owner = "namespace " + ns
			}
		case signatureForged:
			return nil, unauthenticated(want, "the bearer token is not signed with this cluster's key")
		case signatureForeign:
			q.calls, review = r.strangerCalls, r.strangers
		case signatureUnknown:
		}
		q.ask = func(ctx context.Context) (*caller, time.Duration, error) {
			return r.reviewToken(ctx, review, token, want, expiry)
		}
		if c, err = r.callers.get(ctx, key, q); err != nil {
			return nil, err
		}
	}
	if c == nil {
		return nil, unauthenticated(want, "the API server does not accept the bearer token: it is not of this cluster, or it or what it is bound to is revoked or deleted")
	}
	return c, nil
}

// reviewToken asks the API server. An answer that does not name the audience comes
// from an authenticator that did not check it.
func (r *reviews) reviewToken(ctx context.Context, review kube.TokenReviewer, token, want string, expiry time.Time) (*caller, time.Duration, error) {
	answer, err := review(ctx, &authn.TokenReview{
		Spec: authn.TokenReviewSpec{Token: token, Audiences: []string{want}},
	})
	if err != nil {
		return nil, 0, err
	}
	s := &answer.Status
	if !s.Authenticated || s.User.Username == "" || !slices.Contains(s.Audiences, want) {
		r.log.DebugContext(ctx, "the API server did not accept a token", "audience", want, "authenticated", s.Authenticated,
			"audiences", s.Audiences, "reason", strings.ReplaceAll(s.Error, token, "TOKEN"))
		return nil, negativeTTL, nil
	}
	ttl := positiveTTL
	if !expiry.IsZero() {
		ttl = min(ttl, expiry.Sub(r.now()))
	}
	return newCaller(s.User), ttl, nil
}

// allowed asks RBAC, or another authoriser of the cluster.
func (r *reviews) allowed(ctx context.Context, who *caller, a access.Request) (bool, error) {
	key := digestOf(string(who.id[:]), string(a.Verb), a.Namespace, a.Name)
	review := func(ctx context.Context) (*struct{}, time.Duration, error) { return r.reviewAccess(ctx, who, a) }
	granted, cached := r.grants.cached(key)
	switch {
	case cached && granted != nil:
		r.grants.renew(ctx, key, who.owner(), review)
	case !cached:
		var err error
		if granted, err = r.grants.get(ctx, key, question[struct{}]{r.accessCalls, who.owner(), review}); err != nil {
			return false, err
		}
	}
	return granted != nil, nil
}

func (r *reviews) reviewAccess(ctx context.Context, who *caller, a access.Request) (*struct{}, time.Duration, error) {
	extra := make(map[string]authz.ExtraValue, len(who.Extra))
	for name, values := range who.Extra {
		extra[name] = authz.ExtraValue(values)
	}
	answer, err := r.access(ctx, &authz.SubjectAccessReview{Spec: authz.SubjectAccessReviewSpec{
		User: who.Username, UID: who.UID, Groups: who.Groups, Extra: extra,
		ResourceAttributes: &authz.ResourceAttributes{
			Group: sources.GroupName, Version: v1alpha1.SchemeGroupVersion.Version,
			Resource: sourcesResource, Subresource: rbacSubresource,
			Verb: string(a.Verb), Namespace: a.Namespace, Name: a.Name,
		},
	}})
	switch {
	case err != nil:
		return nil, 0, err
	case !answer.Status.Allowed || answer.Status.Denied: // both at once contradict each other: refuse
		r.log.DebugContext(ctx, "the API server did not grant access", "namespace", a.Namespace, "name", a.Name, "verb", a.Verb,
			"user", who.Username, "reason", answer.Status.Reason, "error", answer.Status.EvaluationError)
		return nil, negativeTTL, nil
	}
	return &struct{}{}, positiveTTL, nil
}
