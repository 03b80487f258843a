package knative

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	authn "k8s.io/api/authentication/v1"
	authz "k8s.io/api/authorization/v1"

	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// What RBAC calls the schedules of a source.
const (
	rbacSubresource = "schedules"
)

const (
	// yesFor and noFor are how long answers count. Both are also how long a
	// change in the cluster may take to be felt here: what is revoked a
	// minute, what is granted after a refusal ten seconds.
	yesFor = time.Minute
	noFor  = 10 * time.Second
)

// caller is who bears a token, as the API server says.
type caller struct {
	authn.UserInfo
	id        digest // of all of the above
	namespace string // of the service account, "" for whoever is none
}

// newCaller reads the namespace out of the name, which nobody but a service
// account can have: system: is the API server's own.
func newCaller(u authn.UserInfo) *caller {
	c := &caller{UserInfo: u}
	if rest, ok := strings.CutPrefix(u.Username, "system:serviceaccount:"); ok {
		namespace, name, _ := strings.Cut(rest, ":")
		if name != "" && !strings.Contains(name, ":") {
			c.namespace = namespace
		}
	}
	// Each list is a digest of its own, so that none runs over into the next.
	groups := digestOf(u.Groups...)
	parts := []string{u.Username, u.UID, string(groups[:])}
	for _, name := range slices.Sorted(maps.Keys(u.Extra)) {
		values := digestOf(u.Extra[name]...)
		parts = append(parts, name, string(values[:]))
	}
	c.id = digestOf(parts...)
	return c
}

// reviews are the questions to the API server, and the answers that still
// count. No token is kept, only digests.
type reviews struct {
	tokens  tokenReview
	access  accessReview
	callers *answers[caller]
	grants  *answers[struct{}]
	log     *slog.Logger
	now     func() time.Time
}

func newReviews(cfg guardConfig) *reviews {
	l := newLine(cfg.Log, cfg.Now)
	return &reviews{
		tokens:  cfg.ReviewToken,
		access:  cfg.ReviewAccess,
		callers: newAnswers[caller](l, cfg.Now),
		grants:  newAnswers[struct{}](l, cfg.Now),
		log:     cfg.Log, now: cfg.Now,
	}
}

// caller says who bears the token, if it is valid for the audience.
func (r *reviews) caller(ctx context.Context, token, want string) (*caller, error) {
	key := digestOf(want, token)
	c, known := r.callers.known(key)
	if !known {
		expiry, err := look(token, want, r.now())
		if err != nil {
			return nil, err
		}
		c, err = r.callers.ask(ctx, key, func(ctx context.Context) (*caller, time.Duration, error) {
			return r.reviewToken(ctx, token, want, expiry)
		})
		if err != nil {
			return nil, err
		}
	}
	if c == nil {
		return nil, unauthenticated(want, "the API server does not accept the bearer token: it is not of this cluster, or it or what it is bound to is revoked or deleted")
	}
	return c, nil
}

// reviewToken asks the API server. An answer that does not name the audience
// is that of an authenticator that never looked at it.
func (r *reviews) reviewToken(ctx context.Context, token, want string, expiry time.Time) (*caller, time.Duration, error) {
	answer, err := r.tokens(ctx, &authn.TokenReview{
		Spec: authn.TokenReviewSpec{Token: token, Audiences: []string{want}},
	})
	if err != nil {
		return nil, 0, err
	}
	s := &answer.Status
	if !s.Authenticated || s.User.Username == "" || !slices.Contains(s.Audiences, want) {
		r.log.DebugContext(ctx, "the API server did not accept a token", "audience", want, "authenticated", s.Authenticated,
			"audiences", s.Audiences, "reason", strings.ReplaceAll(s.Error, token, "TOKEN"))
		return nil, noFor, nil
	}
	ttl := yesFor
	if !expiry.IsZero() {
		ttl = min(ttl, expiry.Sub(r.now()))
	}
	return newCaller(s.User), ttl, nil
}

// allowed asks RBAC, or whatever else authorises in the cluster.
func (r *reviews) allowed(ctx context.Context, who *caller, a api.Access) (bool, error) {
	key := digestOf(string(who.id[:]), string(a.Verb), a.Namespace, a.Name)
	granted, known := r.grants.known(key)
	if !known {
		var err error
		granted, err = r.grants.ask(ctx, key, func(ctx context.Context) (*struct{}, time.Duration, error) {
			return r.reviewAccess(ctx, who, a)
		})
		if err != nil {
			return false, err
		}
	}
	return granted != nil, nil
}

func (r *reviews) reviewAccess(ctx context.Context, who *caller, a api.Access) (*struct{}, time.Duration, error) {
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
	case !answer.Status.Allowed || answer.Status.Denied: // both at once is no answer, so it is no
		r.log.DebugContext(ctx, "the API server did not grant access", "namespace", a.Namespace, "name", a.Name, "verb", a.Verb,
			"user", who.Username, "reason", answer.Status.Reason, "error", answer.Status.EvaluationError)
		return nil, noFor, nil
	}
	return &struct{}{}, yesFor, nil
}
