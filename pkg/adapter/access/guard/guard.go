package guard

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

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/cloudevent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/kube"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	listers "github.com/reschedule-dev/reschedule/pkg/client/listers/sources/v1alpha1"
)

// Config is what a Guard needs. All fields except FetchKeys, Log and Now are
// required. The caches must be synced and Flags loaded before the first request.
type Config struct {
	ReviewToken kube.TokenReviewer
	// ReviewStranger is for tokens that the cluster's keys can neither confirm nor
	// refute.
	ReviewStranger kube.TokenReviewer
	ReviewAccess   kube.AccessReviewer
	// FetchKeys reads the cluster's public keys; nil: there are none.
	FetchKeys kube.KeyFetcher
	Sources   listers.RescheduleSourceLister
	Policies  cache.Indexer // of what ReadPolicy returns, by namespace
	// Flags returns the flags of config-features that are in force.
	Flags func() feature.Flags
	Log   *slog.Logger     // default slog.Default()
	Now   func() time.Time // default time.Now
}

// Guard decides who may call in a cluster. The schedule API requires a service
// account's token for the source's audience, and one of: a service account of the
// source's namespace, unless the source's spec.access is rbac; a grant by RBAC; or,
// for create only, an EventPolicy, because sending an event creates too.
// CloudEvents follow Knative's flags, as at a Broker. Where the source requires
// tokens they need one, whatever the flags say. Under strict transport encryption
// every request needs TLS.
type Guard struct {
	sources  listers.RescheduleSourceLister
	policies *policies
	reviews  *reviews
	flags    func() feature.Flags
	log      *slog.Logger
}

var _ access.Guard = (*Guard)(nil)

// New returns a guard. It is safe for concurrent use.
func New(cfg Config) *Guard {
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

// audience is the audience of a source: the same text as eventing's
// auth.GetAudience, which links a whole OIDC client.
func audience(namespace, name string) string {
	return strings.ToLower(sources.GroupName + "/" + v1alpha1.Kind + "/" + namespace + "/" + name)
}

// Admit implements [access.Guard].
func (g *Guard) Admit(r *http.Request, a access.Request) (access.Caller, error) {
	flags := g.flags()
	if r.TLS == nil && flags.IsStrictTransportEncryption() {
		return access.Caller{}, schedule.Refuse(schedule.CodeNotFound, "transport-encryption is strict in this cluster: use https, as status.address says")
	}
	if a == (access.Request{}) {
		return access.Caller{}, nil // the API answers 404: there is nothing to protect
	}
	src, err := g.find(a)
	if err != nil {
		return access.Caller{}, err
	}
	if a.Verb == access.VerbIngest && !flags.IsOIDCAuthentication() && !src.eventsNeedToken {
		return access.Caller{}, nil
	}
	who, err := g.authenticate(r, a)
	if err == nil && len(src.labels) > v1alpha1.MaxLabels { // which EventPolicies select it is not known
		err = schedule.Refuse(schedule.CodeDenied, "the source has more than %d labels: remove some", v1alpha1.MaxLabels)
	}
	if err != nil {
		g.logRefusal(r.Context(), a, nil, err)
		return access.Caller{}, err
	}
	var judge access.Judge
	switch a.Verb {
	case access.VerbIngest:
		judge, err = g.mayIngest(r.Context(), who, a, src, flags)
	case access.VerbGet, access.VerbList, access.VerbCreate, access.VerbDelete:
		err = g.maySchedule(r.Context(), who, a, src)
	default:
		err = schedule.Refuse(schedule.CodeDenied, "%.32q is not a verb of the schedule API", a.Verb)
	}
	if err != nil {
		g.logRefusal(r.Context(), a, who, err)
		return access.Caller{}, err
	}
	return access.Caller{User: who.Username, Judge: judge}, nil
}

// logRefusal logs what the caller was answered. It logs at debug: an operator who
// searches for one caller turns that on, and for any other level there are too many.
func (g *Guard) logRefusal(ctx context.Context, a access.Request, who *caller, err error) {
	user := ""
	if who != nil {
		user = who.Username
	}
	g.log.DebugContext(ctx, "a request was refused", "namespace", a.Namespace, "name", a.Name,
		"verb", a.Verb, "user", user, "reason", err)
}

// authenticate returns the caller who bears the token.
func (g *Guard) authenticate(r *http.Request, a access.Request) (*caller, error) {
	want := audience(a.Namespace, a.Name)
	token, ok := access.Bearer(r.Header)
	if !ok {
		return nil, unauthenticated(want, "a bearer token is required (Authorization: Bearer TOKEN)")
	}
	peer, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		peer = r.RemoteAddr
	}
	return g.reviews.caller(r.Context(), token, want, peer)
}

// unauthenticated says what is wrong and what to do. An audience is no secret: it
// follows from the address.
func unauthenticated(want, wrong string) error {
	return schedule.Refuse(schedule.CodeUnauthenticated,
		"%s; send a service account's token for the audience %.400q (kubectl create token SERVICEACCOUNT --audience=..., or a projected volume)", wrong, want)
}

// maySchedule checks what is cheapest first. For a source that does not exist it
// answers as for one that grants nothing: a caller who may not see that a source
// exists does not see it here.
func (g *Guard) maySchedule(ctx context.Context, who *caller, a access.Request, src sourceFacts) error {
	if !src.rbacOnly && who.namespace != "" && who.namespace == a.Namespace {
		return nil
	}
	if src.found && a.Verb == access.VerbCreate {
		granted, err := g.policies.grant(who, a, src.labels)
		if granted || err != nil {
			return err
		}
	}
	allowed, err := g.reviews.allowed(ctx, who, a)
	if allowed || err != nil {
		return err
	}
	why := "it is no service account of that namespace"
	if who.namespace == a.Namespace { // others get the answer of a source that does not exist
		why = "spec.access is rbac"
	}
	if a.Verb == access.VerbCreate {
		why += ", no EventPolicy that is ready and has no filters names it"
	}
	return schedule.Refuse(schedule.CodeDenied,
		"%.200q may not %s schedules of %.400q: %s, and RBAC does not let it %s %s in the API group %s",
		who.Username, a.Verb, a.Namespace+"/"+a.Name, why, a.Verb, sourcesResource+"/"+rbacSubresource, sources.GroupName)
}

// mayIngest applies the EventPolicies that apply to the source, and the default
// mode only where none does; a policy that is not ready counts as applying. A
// source that is stricter than the cluster also accepts a grant by RBAC: without
// authentication-oidc there are no EventPolicies, and a caller who may schedule an
// event may send it.
func (g *Guard) mayIngest(ctx context.Context, who *caller, a access.Request, src sourceFacts, flags feature.Flags) (access.Judge, error) {
	v, err := g.policies.evaluate(who, a, src.labels)
	switch {
	case err != nil:
		return nil, err
	case v.admitted:
		return nil, nil
	}
	byMode := byDefault(who, a, flags)
	if !v.applies && !src.rbacOnly && byMode == nil {
		return nil, nil
	}
	if src.eventsNeedToken || src.rbacOnly {
		create := a
		create.Verb = access.VerbCreate
		if allowed, err := g.reviews.allowed(ctx, who, create); allowed || err != nil {
			return nil, err
		}
	}
	switch {
	case len(v.filtered) > 0:
		return g.judge(ctx, who, a, v.filtered), nil
	case v.unusable:
		return nil, denied(who, a, "no usable EventPolicy of the source names this sender, and some of its policies are not ready: see their conditions")
	case v.applies:
		return nil, denied(who, a, "EventPolicies apply to the source, and none of them names this sender")
	case byMode == nil:
		return nil, denied(who, a, "spec.access is rbac, no EventPolicy names it, and RBAC does not let it create "+
			sourcesResource+"/"+rbacSubresource+" in the API group "+sources.GroupName)
	}
	return nil, byMode
}

// byDefault applies Knative's default mode, for a source without an EventPolicy.
// An unknown mode admits no caller.
func byDefault(who *caller, a access.Request, flags feature.Flags) error {
	mode := flags[feature.AuthorizationDefaultMode]
	switch {
	case mode == feature.AuthorizationAllowAll:
		return nil
	case mode == feature.AuthorizationAllowSameNamespace && who.namespace != "" && who.namespace == a.Namespace:
		return nil
	}
	return denied(who, a, "no EventPolicy applies to it, and default-authorization-mode in config-features is "+strings.ToLower(string(mode)))
}

// judge applies the filters of the policies that name the sender. One policy that
// admits the event is enough.
func (g *Guard) judge(ctx context.Context, who *caller, a access.Request, filtered []*policy) access.Judge {
	return func(e *schedule.Event) error {
		sent := event.Event{Context: cloudevent.Context(e)} // filters see no data
		for _, p := range filtered {
			if p.passes(sent) {
				return nil
			}
		}
		err := denied(who, a, "no EventPolicy that names it lets this event pass its filters")
		g.logRefusal(ctx, a, who, err)
		return err
	}
}

func denied(who *caller, a access.Request, why string) error {
	return schedule.Refuse(schedule.CodeDenied, "%.200q may not send events to %.400q: %s", who.Username, a.Namespace+"/"+a.Name, why)
}

// sourceFacts are what the guard needs to know about a source; zero for one that
// does not exist.
type sourceFacts struct {
	found           bool
	labels          labels.Set
	eventsNeedToken bool
	rbacOnly        bool
}

// find looks the source up. Its requirements for callers count as soon as they are
// in the object, also while the rest of a new spec cannot be used.
func (g *Guard) find(a access.Request) (sourceFacts, error) {
	src, err := g.sources.RescheduleSources(a.Namespace).Get(a.Name)
	switch {
	case apierrors.IsNotFound(err):
		return sourceFacts{}, nil
	case err != nil:
		return sourceFacts{}, unavailable(retryLater, "the source cannot be looked up")
	}
	return sourceFacts{found: true, labels: src.Labels, eventsNeedToken: requiresTokens(src),
		rbacOnly: src.Spec.Access != nil && *src.Spec.Access == v1alpha1.AccessRBAC}, nil
}

func requiresTokens(src *v1alpha1.RescheduleSource) bool {
	in := src.Spec.Ingest
	return in != nil && in.Authentication != nil && *in.Authentication == v1alpha1.AuthenticationRequired
}
