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
	// renewAgain is when a renewal that came to nothing is tried again.
	renewAgain = 5 * time.Second
	// waitFor is how long a review waits for its turn, takeFor how long it may take.
	waitFor = 2 * time.Second
	takeFor = 10 * time.Second
)

// The lines that reviews wait in. A review takes an API server some
// milliseconds, so these are thousands a second; what one namespace or peer has
// under way leaves room for the others.
var (
	// reviewLane is for tokens that the cluster signed, and for all of them where
	// its keys cannot be read.
	reviewLane = lane{slots: 32, share: 8, wait: waitFor, take: takeFor}
	// strangerLane is for tokens that may be good, of keys that are not known
	// here. Anybody can make as many of them as they like.
	strangerLane = lane{slots: 8, share: 2, wait: waitFor, take: takeFor}
	// accessLane is for what callers may do, whose tokens were accepted.
	accessLane = lane{slots: 32, share: 8, wait: waitFor, take: takeFor}
	// renewalLane is for answers that count still: no caller waits for them.
	renewalLane = lane{slots: 16, share: 4, take: takeFor}
)

// caller is who bears a token, as the API server says.
type caller struct {
	authn.UserInfo
	id        digest // of all of the above
	namespace string // of the service account, "" for whoever is none
}

// namespaceOf reads the namespace out of the name of a service account, which
// no other user can have: system: is the API server's own. It is "" for others.
func namespaceOf(username string) string {
	rest, ok := strings.CutPrefix(username, "system:serviceaccount:")
	if namespace, name, _ := strings.Cut(rest, ":"); ok && name != "" && !strings.Contains(name, ":") {
		return namespace
	}
	return ""
}

func newCaller(u authn.UserInfo) *caller {
	c := &caller{UserInfo: u, namespace: namespaceOf(u.Username)}
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

// share is whose calls one call is counted with: those of its namespace, or of
// the same user.
func (c *caller) share() string {
	if c.namespace != "" {
		return "namespace " + c.namespace
	}
	return "user " + c.Username
}

// reviews are the questions to the API server, and the answers that still
// count. No token is kept, only digests.
type reviews struct {
	tokens, strangers tokenReview
	access            accessReview
	keys              *keys
	callers           *answers[caller]
	grants            *answers[struct{}]

	reviewLine, strangerLine, accessLine *line

	log *slog.Logger
	now func() time.Time
}

func newReviews(cfg guardConfig) *reviews {
	f := &failures{log: cfg.Log, now: cfg.Now}
	return &reviews{
		tokens:       cfg.ReviewToken,
		strangers:    cfg.ReviewStranger,
		access:       cfg.ReviewAccess,
		keys:         &keys{fetch: cfg.FetchKeys, log: cfg.Log, now: cfg.Now},
		callers:      newAnswers[caller](f, newLine(renewalLane)),
		grants:       newAnswers[struct{}](f, newLine(renewalLane)),
		reviewLine:   newLine(reviewLane),
		strangerLine: newLine(strangerLane),
		accessLine:   newLine(accessLane),
		log:          cfg.Log, now: cfg.Now,
	}
}

// caller says who bears the token, if it is valid for the audience. Peer is
// where the call comes from.
func (r *reviews) caller(ctx context.Context, token, want, peer string) (*caller, error) {
	key := digestOf(want, token)
	c, known := r.callers.known(key)
	switch {
	case known && c != nil:
		r.callers.renew(ctx, key, c.share(), func(ctx context.Context) (*caller, time.Duration, error) {
			said, err := look(token, want, r.now())
			if err != nil {
				return nil, noFor, nil //nolint:nilerr // it expired meanwhile: the answer is no
			}
			return r.reviewToken(ctx, r.tokens, token, want, said.expiry)
		})
		return c, nil
	case !known:
		said, err := look(token, want, r.now())
		if err != nil {
			return nil, err
		}
		q := question[caller]{line: r.reviewLine, share: "peer " + peer}
		review := r.tokens
		switch r.keys.judge(ctx, token, said) {
		case signed:
			// Only a signature makes the claims true, and so the namespace a share.
			if ns := namespaceOf(said.Subject); ns != "" {
				q.share = "namespace " + ns
			}
		case forged:
			return nil, unauthenticated(want, "the bearer token is not signed with this cluster's key")
		case foreign:
			q.line, review = r.strangerLine, r.strangers
		case unjudged:
		}
		q.ask = func(ctx context.Context) (*caller, time.Duration, error) {
			return r.reviewToken(ctx, review, token, want, said.expiry)
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

// reviewToken asks the API server. An answer that does not name the audience
// is that of an authenticator that never looked at it.
func (r *reviews) reviewToken(ctx context.Context, review tokenReview, token, want string, expiry time.Time) (*caller, time.Duration, error) {
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
	review := func(ctx context.Context) (*struct{}, time.Duration, error) { return r.reviewAccess(ctx, who, a) }
	granted, known := r.grants.known(key)
	switch {
	case known && granted != nil:
		r.grants.renew(ctx, key, who.share(), review)
	case !known:
		var err error
		if granted, err = r.grants.get(ctx, key, question[struct{}]{r.accessLine, who.share(), review}); err != nil {
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
