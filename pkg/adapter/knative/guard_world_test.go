package knative

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authn "k8s.io/api/authentication/v1"
	authz "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	authnclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authzclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/tools/cache"
	eventingv1 "knative.dev/eventing/pkg/apis/eventing/v1"
	eventing "knative.dev/eventing/pkg/apis/eventing/v1alpha1"
	"knative.dev/eventing/pkg/apis/feature"
	eventinglisters "knative.dev/eventing/pkg/client/listers/eventing/v1alpha1"

	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	listers "github.com/reschedule-dev/reschedule/pkg/client/listers/sources/v1alpha1"
)

// The source that all is about, and who calls.
const (
	ns, name = "ops", "git-repos"
	insider  = "system:serviceaccount:ops:operator"
	outsider = "system:serviceaccount:elsewhere:operator"
	person   = "jane@example.com"
)

// world is a cluster: its objects, and an API server that answers reviews.
type world struct {
	kubernetes.Interface // nil: nothing but reviews may be asked for

	sources, policies cache.Indexer
	flags             atomic.Pointer[feature.Flags]
	guard             *Guard
	log               safeBuffer

	mu     sync.Mutex
	tokens map[string]authn.TokenReviewStatus
	grants map[string]bool // user + " " + verb
	down   error
	hook   func(context.Context) error // runs in every review

	tokenReviews, accessReviews atomic.Int64
	lastAccess                  atomic.Pointer[authz.SubjectAccessReviewSpec]
}

// newWorld is one whose clock stands still, so that no answer is forgotten
// however slow the machine.
func newWorld(tb testing.TB) *world {
	tb.Helper()
	now := time.Now()
	return newWorldAt(tb, func() time.Time { return now })
}

func newWorldAt(tb testing.TB, now func() time.Time) *world {
	tb.Helper()
	index := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	w := &world{
		sources:  cache.NewIndexer(cache.MetaNamespaceKeyFunc, index),
		policies: cache.NewIndexer(cache.MetaNamespaceKeyFunc, index),
		tokens:   map[string]authn.TokenReviewStatus{},
		grants:   map[string]bool{},
	}
	w.setFlags(nil)
	w.addSource(name, nil)
	w.guard = newGuard(guardConfig{
		Client:   w,
		Sources:  listers.NewRescheduleSourceLister(w.sources),
		Policies: eventinglisters.NewEventPolicyLister(w.policies),
		Flags:    func() feature.Flags { return *w.flags.Load() },
		Log:      slog.New(slog.NewJSONHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Now:      now,
	})
	return w
}

// set changes what the API server knows.
func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// setFlags are config-features: those given over Knative's defaults.
func (w *world) setFlags(with feature.Flags) {
	f, err := feature.NewFlagsConfigFromMap(nil)
	if err != nil {
		panic(err)
	}
	maps.Copy(f, with)
	w.flags.Store(&f)
}

func (w *world) addSource(name string, labels map[string]string) {
	_ = w.sources.Add(&v1alpha1.RescheduleSource{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels}})
}

// issue makes a token that the API server accepts.
func (w *world) issue(user string, change ...func(map[string]any)) string {
	token := newToken(user, change...)
	w.set(func() { w.tokens[token] = accepted(user, audience(ns, name)) })
	return token
}

func accepted(user string, audiences ...string) authn.TokenReviewStatus {
	return authn.TokenReviewStatus{Authenticated: true, Audiences: audiences, User: authn.UserInfo{
		Username: user, UID: "uid of " + user, Groups: []string{"system:authenticated"}, Extra: map[string]authn.ExtraValue{"pod": {"p"}},
	}}
}

// newToken is one for the source and an hour, unless changed. Nothing verifies signatures here.
func newToken(user string, change ...func(map[string]any)) string {
	c := map[string]any{"sub": user, "aud": []string{audience(ns, name)}, "exp": time.Now().Add(time.Hour).Unix()}
	for _, f := range change {
		f(c)
	}
	payload, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256","kid":"x"}`)) + "." + encode(payload) + "." + encode([]byte("signature of "+user))
}

func claim(key string, value any) func(map[string]any) {
	return func(c map[string]any) { c[key] = value }
}

// The reviews.

func (w *world) AuthenticationV1() authnclient.AuthenticationV1Interface {
	return authentication{w: w}
}

func (w *world) AuthorizationV1() authzclient.AuthorizationV1Interface { return authorization{w: w} }

type authentication struct {
	authnclient.AuthenticationV1Interface
	w *world
}

type authorization struct {
	authzclient.AuthorizationV1Interface
	w *world
}

type tokenReviews struct {
	authnclient.TokenReviewInterface
	w *world
}

type accessReviews struct {
	authzclient.SubjectAccessReviewInterface
	w *world
}

func (a authentication) TokenReviews() authnclient.TokenReviewInterface { return tokenReviews{w: a.w} }

func (a authorization) SubjectAccessReviews() authzclient.SubjectAccessReviewInterface {
	return accessReviews{w: a.w}
}

// answer runs what the test put in the way of a review.
func (w *world) answer(ctx context.Context) error {
	w.mu.Lock()
	hook, down := w.hook, w.down
	w.mu.Unlock()
	if hook != nil {
		if err := hook(ctx); err != nil {
			return err
		}
	}
	return down
}

func (t tokenReviews) Create(ctx context.Context, r *authn.TokenReview, _ metav1.CreateOptions) (*authn.TokenReview, error) {
	t.w.tokenReviews.Add(1)
	if err := t.w.answer(ctx); err != nil {
		return nil, err
	}
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	s, ok := t.w.tokens[r.Spec.Token]
	if !ok {
		s.Error = "invalid bearer token " + r.Spec.Token
	}
	// An authenticator answers for the audiences it was asked about.
	if s.Authenticated && len(r.Spec.Audiences) != 1 {
		return nil, errors.New("one audience is to be asked about")
	}
	return &authn.TokenReview{Status: s}, nil
}

func (t accessReviews) Create(ctx context.Context, r *authz.SubjectAccessReview, _ metav1.CreateOptions) (*authz.SubjectAccessReview, error) {
	t.w.accessReviews.Add(1)
	t.w.lastAccess.Store(&r.Spec)
	if err := t.w.answer(ctx); err != nil {
		return nil, err
	}
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	return &authz.SubjectAccessReview{Status: authz.SubjectAccessReviewStatus{Allowed: t.w.grants[r.Spec.User+" "+r.Spec.ResourceAttributes.Verb]}}, nil
}

// Calls.

func request(ctx context.Context, token string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody).WithContext(ctx)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r
}

func access(v api.Verb) api.Access { return api.Access{Namespace: ns, Name: name, Verb: v} }

// admit is a call to the source.
func (w *world) admit(tb testing.TB, token string, v api.Verb) (api.Judge, error) {
	tb.Helper()
	return w.guard.Admit(request(tb.Context(), token), access(v))
}

// code is what a refusal says, "" for none.
func code(tb testing.TB, err error) schedule.Code {
	tb.Helper()
	if err == nil {
		return ""
	}
	var e *schedule.Error
	if !errors.As(err, &e) {
		tb.Fatalf("the error %v is no refusal", err)
	}
	if len(e.Detail) > 2000 {
		tb.Errorf("the detail has %d bytes", len(e.Detail))
	}
	if (e.Code == schedule.CodeUnavailable) != (e.RetryAfter > 0) {
		tb.Errorf("%s says to try again after %s", e.Code, e.RetryAfter)
	}
	return e.Code
}

// Policies.

func newPolicy(name string, from ...string) *eventing.EventPolicy {
	p := &eventing.EventPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	p.Status.MarkOIDCAuthenticationEnabled()
	p.Status.MarkSubjectsResolvedSucceeded()
	p.Status.From = from
	return p
}

func notReady(p *eventing.EventPolicy) *eventing.EventPolicy {
	p.Status.MarkSubjectsResolvedFailed("Gone", "a reference is gone")
	return p
}

func filtered(p *eventing.EventPolicy, filters ...eventingv1.SubscriptionsAPIFilter) *eventing.EventPolicy {
	p.Spec.Filters = filters
	return p
}

func toName(p *eventing.EventPolicy, name string) *eventing.EventPolicy {
	p.Spec.To = append(p.Spec.To, eventing.EventPolicySpecTo{Ref: &eventing.EventPolicyToReference{
		APIVersion: "sources.reschedule.dev/v1alpha1", Kind: "RescheduleSource", Name: name,
	}})
	return p
}

func toLabels(p *eventing.EventPolicy, apiVersion, kind string, s *metav1.LabelSelector) *eventing.EventPolicy {
	p.Spec.To = append(p.Spec.To, eventing.EventPolicySpecTo{Selector: &eventing.EventPolicySelector{
		LabelSelector: s, TypeMeta: &metav1.TypeMeta{APIVersion: apiVersion, Kind: kind},
	}})
	return p
}

func (w *world) setPolicies(ps ...*eventing.EventPolicy) {
	objects := make([]any, 0, len(ps))
	for _, p := range ps {
		objects = append(objects, p)
	}
	_ = w.policies.Replace(objects, "")
}

// safeBuffer is a log that many write.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// sorted are the keys of a table, so that a failing run fails alike again.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
