package guard

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
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authn "k8s.io/api/authentication/v1"
	authz "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"
	"knative.dev/eventing/pkg/apis/feature"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/kube"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	listers "github.com/reschedule-dev/reschedule/pkg/client/listers/sources/v1alpha1"
)

// The source, and its callers.
const (
	ns, name = "ops", "git-repos"
	insider  = "system:serviceaccount:ops:operator"
	outsider = "system:serviceaccount:elsewhere:operator"
	person   = "jane@example.com"
)

// env is a cluster: its objects, and an API server that answers reviews.
type env struct {
	sources, policies cache.Indexer
	theirs            cache.Indexer // the policies as Knative reads them
	flags             atomic.Pointer[feature.Flags]
	guard             *Guard
	log               logBuffer

	mu     sync.Mutex
	tokens map[string]authn.TokenReviewStatus
	grants map[string]bool // user + " " + verb
	down   error
	keySet *kube.KeySet                // nil: the API server does not tell
	hook   func(context.Context) error // runs in every review

	tokenReviews, accessReviews, keyReads atomic.Int64
	lastAccess                            atomic.Pointer[authz.SubjectAccessReviewSpec]
}

// newEnv is one whose clock stands still, so that no answer is forgotten
// however slow the machine.
func newEnv(tb testing.TB) *env {
	tb.Helper()
	now := time.Now()
	return newEnvAt(tb, func() time.Time { return now })
}

func newEnvAt(tb testing.TB, now func() time.Time) *env {
	tb.Helper()
	index := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	w := &env{
		sources:  cache.NewIndexer(cache.MetaNamespaceKeyFunc, index),
		policies: cache.NewIndexer(cache.MetaNamespaceKeyFunc, index),
		theirs:   cache.NewIndexer(cache.MetaNamespaceKeyFunc, index),
		tokens:   map[string]authn.TokenReviewStatus{},
		grants:   map[string]bool{},
	}
	w.setFlags(nil)
	w.addSource(name, nil)
	w.guard = New(Config{
		ReviewToken: w.reviewToken, ReviewStranger: w.reviewToken, ReviewAccess: w.reviewAccess, FetchKeys: w.fetchKeys,
		Sources:  listers.NewRescheduleSourceLister(w.sources),
		Policies: w.policies,
		Flags:    func() feature.Flags { return *w.flags.Load() },
		Log:      slog.New(slog.NewJSONHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Now:      now,
	})
	return w
}

// set changes what the API server knows.
func (w *env) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// setFlags sets config-features: the given flags over Knative's defaults.
func (w *env) setFlags(with feature.Flags) {
	f, err := feature.NewFlagsConfigFromMap(nil)
	if err != nil {
		panic(err)
	}
	maps.Copy(f, with)
	w.flags.Store(&f)
}

func (w *env) addSource(name string, labels map[string]string) {
	_ = w.sources.Add(&v1alpha1.RescheduleSource{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels}})
}

// issue makes a token that the API server accepts.
func (w *env) issue(user string, change ...func(map[string]any)) string {
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

// answer runs what the test put in the way of a review.
func (w *env) answer(ctx context.Context) error {
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

func (w *env) reviewToken(ctx context.Context, r *authn.TokenReview) (*authn.TokenReview, error) {
	w.tokenReviews.Add(1)
	if err := w.answer(ctx); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.tokens[r.Spec.Token]
	if !ok {
		s.Error = "invalid bearer token " + r.Spec.Token
	}
	// An authenticator answers for the audiences it was asked about.
	if s.Authenticated && len(r.Spec.Audiences) != 1 {
		return nil, errors.New("the review must name one audience")
	}
	return &authn.TokenReview{Status: s}, nil
}

func (w *env) fetchKeys(context.Context) (*kube.KeySet, error) {
	w.keyReads.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.keySet == nil {
		return nil, errors.New("the server could not find the requested resource")
	}
	return w.keySet, nil
}

func (w *env) reviewAccess(ctx context.Context, r *authz.SubjectAccessReview) (*authz.SubjectAccessReview, error) {
	w.accessReviews.Add(1)
	w.lastAccess.Store(&r.Spec)
	if err := w.answer(ctx); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return &authz.SubjectAccessReview{Status: authz.SubjectAccessReviewStatus{Allowed: w.grants[r.Spec.User+" "+r.Spec.ResourceAttributes.Verb]}}, nil
}

// Calls.

func request(ctx context.Context, token string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody).WithContext(ctx)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r
}

func requestTo(v access.Verb) access.Request {
	return access.Request{Namespace: ns, Name: name, Verb: v}
}

// admit is a call to the source.
func (w *env) admit(tb testing.TB, token string, v access.Verb) (access.Judge, error) {
	tb.Helper()
	who, err := w.guard.Admit(request(tb.Context(), token), requestTo(v))
	return who.Judge, err
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

func newPolicy(name string, from ...string) *theirPolicy {
	p := &theirPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	markReady(p)
	p.Status.From = from
	return p
}

func notReady(p *theirPolicy) *theirPolicy {
	markUnresolved(p, "Gone", "a reference is gone")
	return p
}

func filtered(p *theirPolicy, filters ...theirFilter) *theirPolicy {
	p.Spec.Filters = filters
	return p
}

func toName(p *theirPolicy, name string) *theirPolicy {
	p.Spec.To = append(p.Spec.To, theirTo{Ref: &theirRef{
		APIVersion: "sources.reschedule.dev/v1alpha1", Kind: "RescheduleSource", Name: name,
	}})
	return p
}

func toLabels(p *theirPolicy, apiVersion, kind string, s *metav1.LabelSelector) *theirPolicy {
	p.Spec.To = append(p.Spec.To, theirTo{Selector: &theirSelector{
		LabelSelector: s, TypeMeta: &metav1.TypeMeta{APIVersion: apiVersion, Kind: kind},
	}})
	return p
}

func (w *env) setPolicies(ps ...*theirPolicy) {
	objects := make([]*unstructured.Unstructured, 0, len(ps))
	for _, p := range ps {
		objects = append(objects, asUnstructured(p))
	}
	w.setObjects(objects...)
}

// setObjects sets the policies as the API server sends them.
func (w *env) setObjects(objects ...*unstructured.Unstructured) {
	var ours, theirs []any
	for _, o := range objects {
		p, err := ReadPolicy(o)
		if err != nil {
			panic(err)
		}
		ours = append(ours, p)
		typed := new(theirPolicy)
		if raw, err := o.MarshalJSON(); err == nil && json.Unmarshal(raw, typed) == nil {
			theirs = append(theirs, typed)
		}
	}
	_ = w.policies.Replace(ours, "")
	_ = w.theirs.Replace(theirs, "")
}

// policy is one as the guard reads it.
func (w *env) policy(tb testing.TB, name string) *eventPolicy {
	tb.Helper()
	o, ok, err := w.policies.GetByKey(ns + "/" + name)
	if !ok || err != nil {
		tb.Fatal(ok, err)
	}
	return o.(*eventPolicy)
}

// asUnstructured is a policy as the API server sends it. A selector that exists,
// but that is empty, says so, as in a manifest; the type would leave it out.
func asUnstructured(p *theirPolicy) *unstructured.Unstructured {
	raw, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	o := new(unstructured.Unstructured)
	if err := json.Unmarshal(raw, &o.Object); err != nil {
		panic(err)
	}
	o.SetGroupVersionKind(kube.EventPolicies.GroupVersion().WithKind("EventPolicy"))
	to, _, _ := unstructured.NestedSlice(o.Object, "spec", "to")
	for i, t := range p.Spec.To {
		if t.Selector != nil && t.Selector.LabelSelector != nil && len(t.Selector.MatchLabels) == 0 {
			to[i].(map[string]any)["selector"].(map[string]any)["matchLabels"] = map[string]any{}
		}
	}
	if len(to) > 0 {
		o.Object["spec"].(map[string]any)["to"] = to
	}
	return o
}

// logBuffer keeps log lines.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) count(part string) (n int) {
	for line := range strings.Lines(b.String()) {
		if strings.Contains(line, part) {
			n++
		}
	}
	return n
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// sorted are the keys of a table, so that a failing run fails alike again.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
