package knative

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"knative.dev/eventing/pkg/apis/feature"

	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
	"github.com/reschedule-dev/reschedule/pkg/adapter/cloudevent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	listers "github.com/reschedule-dev/reschedule/pkg/client/listers/sources/v1alpha1"
)

// guardConfig is what a Guard is made of. All but FetchKeys, Log and Now is required. The
// caches must be in step and Flags loaded before the first request.
type guardConfig struct {
	ReviewToken tokenReview
	// ReviewStranger is for tokens that the cluster's keys say nothing of.
	ReviewStranger tokenReview
	ReviewAccess   accessReview
	// FetchKeys reads the cluster's keys; nil: there are none.
	FetchKeys func(context.Context) (*keySet, error)
	Sources   listers.RescheduleSourceLister
	Policies  cache.Indexer // of *eventPolicy, by namespace
	// Flags are those of config-features that are in force now.
	Flags func() feature.Flags
	Log   *slog.Logger     // default slog.Default()
	Now   func() time.Time // default time.Now
}

// Guard is the cluster's say in who may call. The schedule API wants a service
// account's token for the source's audience and then one of: a service account
// of the source's namespace, unless the source's spec.access is rbac; RBAC; and
// for create, which is what sending an event comes to, an EventPolicy. CloudEvents
// follow Knative's flags, as at a Broker, and where the source requires tokens
// they need one whatever the flags say.
//
// What it cannot tell it refuses: with unavailable when the API server is at
// fault, so that no caller throws away a good token.
type Guard struct {
	sources  listers.RescheduleSourceLister
	policies *policies
	reviews  *reviews
	flags    func() feature.Flags
	log      *slog.Logger
}

var _ api.Guard = (*Guard)(nil)

func newGuard(cfg guardConfig) *Guard {
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Guard{
		sources:  cfg.Sources,
		policies: newPolicies(cfg.Policies, cfg.Log),
		reviews:  newReviews(cfg),
		flags:    cfg.Flags,
		log:      cfg.Log,
	}
}

// audience is whom a token for the source is for: the same text as eventing's
// auth.GetAudience, which brings a whole OIDC client along.
func audience(namespace, name string) string {
	return strings.ToLower(sources.GroupName + "/" + v1alpha1.Kind + "/" + namespace + "/" + name)
}

// Admit implements [api.Guard].
func (g *Guard) Admit(r *http.Request, a api.Access) (api.Caller, error) {
	if a == (api.Access{}) {
		return api.Caller{}, nil // the API answers 404: there is nothing to guard
	}
	flags := g.flags()
	of, err := g.find(a)
	if err != nil {
		return api.Caller{}, err
	}
	if a.Verb == api.VerbIngest && !flags.IsOIDCAuthentication() && !of.eventsNeedToken {
		return api.Caller{}, nil
	}
	who, err := g.authenticate(r, a)
	if err != nil {
		g.refused(r.Context(), a, nil, err)
		return api.Caller{}, err
	}
	var judge api.Judge
	switch a.Verb {
	case api.VerbIngest:
		judge, err = g.mayIngest(r.Context(), who, a, of, flags)
	case api.VerbGet, api.VerbList, api.VerbCreate, api.VerbDelete:
		err = g.maySchedule(r.Context(), who, a, of)
	default:
		err = schedule.Refuse(schedule.CodeDenied, "nobody may %.32q", a.Verb)
	}
	if err != nil {
		g.refused(r.Context(), a, who, err)
		return api.Caller{}, err
	}
	return api.Caller{User: who.Username, Judge: judge}, nil
}

// refused tells the log what the caller was told. Whoever turns debug on looks
// for one caller; on a busy day these lines are too many for any other level.
func (g *Guard) refused(ctx context.Context, a api.Access, who *caller, err error) {
	user := ""
	if who != nil {
		user = who.Username
	}
	g.log.DebugContext(ctx, "a request was refused", "namespace", a.Namespace, "name", a.Name,
		"verb", a.Verb, "user", user, "reason", err)
}

// authenticate finds out who bears the token.
func (g *Guard) authenticate(r *http.Request, a api.Access) (*caller, error) {
	want := audience(a.Namespace, a.Name)
	token, ok := api.Bearer(r.Header)
	if !ok {
		return nil, unauthenticated(want, "a bearer token is required (Authorization: Bearer TOKEN)")
	}
	peer, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		peer = r.RemoteAddr
	}
	return g.reviews.caller(r.Context(), token, want, peer)
}

// unauthenticated says what is wrong and what would be right. An audience is
// no secret: it follows from the address.
func unauthenticated(want, wrong string) error {
	return schedule.Refuse(schedule.CodeUnauthenticated,
		"%s; wanted is a service account's token for the audience %.400q (kubectl create token SERVICEACCOUNT --audience=..., or a projected volume)", wrong, want)
}

// maySchedule asks what is cheapest first. Of a source that is not there it
// says what it would say of one that is there and grants nothing: whoever must
// not know that it exists does not learn it here.
func (g *Guard) maySchedule(ctx context.Context, who *caller, a api.Access, of facts) error {
	if !of.rbacOnly && who.namespace != "" && who.namespace == a.Namespace {
		return nil
	}
	if of.found && a.Verb == api.VerbCreate {
		granted, err := g.policies.grant(who, a, of.labels)
		if granted || err != nil {
			return err
		}
	}
	allowed, err := g.reviews.allowed(ctx, who, a)
	if allowed || err != nil {
		return err
	}
	why := "it is no service account of that namespace"
	if who.namespace == a.Namespace { // to others it looks as if there were no source
		why = "spec.access is rbac"
	}
	if a.Verb == api.VerbCreate {
		why += ", no EventPolicy that is ready and has no filters names it"
	}
	return schedule.Refuse(schedule.CodeDenied,
		"%.200q may not %s schedules of %.400q: %s, and RBAC does not let it %s %s in the API group %s",
		who.Username, a.Verb, a.Namespace+"/"+a.Name, why, a.Verb, sourcesResource+"/"+rbacSubresource, sources.GroupName)
}

// mayIngest holds a sender to the EventPolicies that apply, and to the default
// mode only where none does: also those that are not ready count as applying. A
// source that asks for more than the cluster does also takes the word of RBAC:
// without authentication-oidc there are no EventPolicies, and who may schedule an
// event may send it.
func (g *Guard) mayIngest(ctx context.Context, who *caller, a api.Access, of facts, flags feature.Flags) (api.Judge, error) {
	v, err := g.policies.hear(who, a, of.labels)
	switch {
	case err != nil:
		return nil, err
	case v.admitted:
		return nil, nil
	}
	byMode := byDefault(who, a, flags)
	if !v.apply && !of.rbacOnly && byMode == nil {
		return nil, nil
	}
	if of.eventsNeedToken || of.rbacOnly {
		create := a
		create.Verb = api.VerbCreate
		if allowed, err := g.reviews.allowed(ctx, who, create); allowed || err != nil {
			return nil, err
		}
	}
	switch {
	case len(v.perhaps) > 0:
		return g.judge(ctx, who, a, v.perhaps), nil
	case v.unusable:
		return nil, denied(who, a, "of the EventPolicies that apply to it those that can be used do not name it, and there are some that are not ready")
	case v.apply:
		return nil, denied(who, a, "EventPolicies apply to it and none of them names it")
	case byMode == nil:
		return nil, denied(who, a, "spec.access is rbac, no EventPolicy names it, and RBAC does not let it create "+
			sourcesResource+"/"+rbacSubresource+" in the API group "+sources.GroupName)
	}
	return nil, byMode
}

// byDefault is what Knative says where no EventPolicy applies. A mode that it
// does not know admits nobody.
func byDefault(who *caller, a api.Access, flags feature.Flags) error {
	mode := flags[feature.AuthorizationDefaultMode]
	switch {
	case mode == feature.AuthorizationAllowAll:
		return nil
	case mode == feature.AuthorizationAllowSameNamespace && who.namespace != "" && who.namespace == a.Namespace:
		return nil
	}
	return denied(who, a, "no EventPolicy applies to it, and default-authorization-mode in config-features is "+strings.ToLower(string(mode)))
}

// judge asks the filters of the policies that name the sender. Any that admits
// the event is enough.
func (g *Guard) judge(ctx context.Context, who *caller, a api.Access, of []*policy) api.Judge {
	return func(e *schedule.Event) error {
		sdk := event.Event{Context: cloudevent.Context(e)} // filters see no data
		for _, p := range of {
			if p.passes(sdk) {
				return nil
			}
		}
		err := denied(who, a, "no EventPolicy that names it lets this event pass its filters")
		g.refused(ctx, a, who, err)
		return err
	}
}

func denied(who *caller, a api.Access, why string) error {
	return schedule.Refuse(schedule.CodeDenied, "%.200q may not send events to %.400q: %s", who.Username, a.Namespace+"/"+a.Name, why)
}

// facts are what the guard asks of a source; zero for one that is not there.
type facts struct {
	found           bool
	labels          labels.Set
	eventsNeedToken bool
	rbacOnly        bool
}

// find looks the source up. What it asks of callers counts as soon as its object
// says so, also while the rest of a new spec cannot be used.
func (g *Guard) find(a api.Access) (facts, error) {
	src, err := g.sources.RescheduleSources(a.Namespace).Get(a.Name)
	switch {
	case apierrors.IsNotFound(err):
		return facts{}, nil
	case err != nil:
		return facts{}, unavailable(retryLater, "the source cannot be looked up")
	}
	return facts{found: true, labels: src.Labels, eventsNeedToken: requiresTokens(src),
		rbacOnly: src.Spec.Access != nil && *src.Spec.Access == v1alpha1.AccessRBAC}, nil
}

func requiresTokens(src *v1alpha1.RescheduleSource) bool {
	in := src.Spec.Ingest
	return in != nil && in.Authentication != nil && *in.Authentication == v1alpha1.AuthenticationRequired
}
