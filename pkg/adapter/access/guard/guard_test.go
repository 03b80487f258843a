package guard

import (
	"crypto/tls"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authn "k8s.io/api/authentication/v1"
	authz "k8s.io/api/authorization/v1"
	"knative.dev/eventing/pkg/apis/feature"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The dimensions of the matrix, each value with what makes it so.
var (
	verbs = []access.Verb{access.VerbGet, access.VerbList, access.VerbCreate, access.VerbDelete, access.VerbIngest}
	users = []string{insider, outsider, person}

	tokenKinds = map[string]func(w *env, user string) string{
		"none":   func(*env, string) string { return "" },
		"no JWT": func(*env, string) string { return "c2VjcmV0" },
		"other audience": func(w *env, u string) string {
			return w.issue(u, claim("aud", []string{"https://kubernetes.default.svc"}))
		},
		"expired": func(w *env, u string) string {
			return w.issue(u, claim("exp", time.Now().Add(-2*time.Minute).Unix()))
		},
		"forged": func(_ *env, u string) string { return newToken(u) },
		"reviewed for another audience": func(w *env, u string) string {
			token := w.issue(u)
			w.tokens[token] = accepted(u, "https://kubernetes.default.svc")
			return token
		},
		"reviewed for no audience": func(w *env, u string) string {
			token := w.issue(u)
			w.tokens[token] = accepted(u)
			return token
		},
		"of a stranger": func(w *env, u string) string {
			token := w.issue(u)
			w.tokens[token] = accepted("", audience(ns, name))
			return token
		},
		"good": func(w *env, u string) string { return w.issue(u) },
	}

	policyKinds = map[string]func(user string) []*theirPolicy{
		"none":           func(string) []*theirPolicy { return nil },
		"names":          func(u string) []*theirPolicy { return one(toName(newPolicy("p", u), name)) },
		"names prefix":   func(u string) []*theirPolicy { return one(newPolicy("p", u[:len(u)-2]+"*")) },
		"filters":        func(u string) []*theirPolicy { return one(filtered(newPolicy("p", u), typeIs("t"))) },
		"not ready":      func(u string) []*theirPolicy { return one(notReady(newPolicy("p", u))) },
		"others":         func(string) []*theirPolicy { return one(newPolicy("p", "another user")) },
		"another source": func(u string) []*theirPolicy { return one(toName(newPolicy("p", u), "another")) },
		"not ready, and others": func(u string) []*theirPolicy {
			return []*theirPolicy{notReady(newPolicy("p", u)), newPolicy("q", "another user")}
		},
		"not ready, and names": func(u string) []*theirPolicy {
			return []*theirPolicy{notReady(newPolicy("p", u)), newPolicy("q", u)}
		},
	}

	modes = map[string]feature.Flags{
		"off":            {feature.AuthorizationDefaultMode: feature.AuthorizationDenyAll},
		"default":        {feature.OIDCAuthentication: feature.Enabled},
		"same namespace": {feature.OIDCAuthentication: feature.Enabled, feature.AuthorizationDefaultMode: feature.AuthorizationAllowSameNamespace},
		"allow all":      {feature.OIDCAuthentication: feature.Enabled, feature.AuthorizationDefaultMode: feature.AuthorizationAllowAll},
		"deny all":       {feature.OIDCAuthentication: feature.Enabled, feature.AuthorizationDefaultMode: feature.AuthorizationDenyAll},
		"misspelt":       {feature.OIDCAuthentication: feature.Enabled, feature.AuthorizationDefaultMode: "alow-all"},
	}
)

func one(p *theirPolicy) []*theirPolicy { return []*theirPolicy{p} }

func typeIs(t string) theirFilter {
	return theirFilter{Exact: map[string]string{"type": t}}
}

// situation is one cell of the matrix.
type situation struct {
	verb                      access.Verb
	user, token, policy, mode string
	missing                   bool
	rbac                      string
}

// want is the rules of docs/security.md, written down once more: the code,
// and whether events are judged one by one.
func (s situation) want() (code schedule.Code, judged bool) {
	same := s.user == insider
	switch {
	case s.verb == access.VerbIngest && s.mode == "off":
		return "", false
	case s.token != "good":
		return schedule.CodeUnauthenticated, false
	case s.verb == access.VerbIngest:
		switch s.policy {
		case "names", "names prefix", "not ready, and names":
			return "", false
		case "filters":
			return "", true
		case "not ready", "others", "not ready, and others":
			return schedule.CodeDenied, false
		}
		switch {
		case s.mode == "allow all", same && (s.mode == "default" || s.mode == "same namespace"):
			return "", false
		}
		return schedule.CodeDenied, false
	case same, s.rbac == "granted":
		return "", false
	case !s.missing && s.verb == access.VerbCreate && (s.policy == "names" || s.policy == "names prefix" || s.policy == "not ready, and names"):
		return "", false
	}
	return schedule.CodeDenied, false
}

// The product of tokens, policies, flags and roles, of which a run takes a seventh: seven divides no dimension, so that
// each value of each one occurs.
func TestGuard_DecidesWhoMayDoWhat(t *testing.T) {
	t.Parallel()
	const every = 7
	first := rand.IntN(every)
	t.Logf("from cell %d", first)
	for _, token := range sorted(tokenKinds) {
		t.Run(token, func(t *testing.T) {
			t.Parallel()
			n := 0
			for _, policy := range sorted(policyKinds) {
				for _, mode := range sorted(modes) {
					for _, user := range users {
						for _, verb := range verbs {
							for _, rbac := range []string{"nothing", "another verb", "granted"} {
								for _, missing := range []bool{false, true} {
									if n++; n%every == first {
										check(t, situation{verb, user, token, policy, mode, missing, rbac})
									}
								}
							}
						}
					}
				}
			}
		})
	}
}

func check(t *testing.T, s situation) {
	t.Helper()
	w := newEnv(t)
	w.setFlags(modes[s.mode])
	w.setPolicies(policyKinds[s.policy](s.user)...)
	if s.missing {
		_ = w.sources.Replace(nil, "")
	}
	switch s.rbac {
	case "another verb":
		for _, v := range verbs {
			w.grants[s.user+" "+string(v)] = v != s.verb
		}
	case "granted":
		w.grants[s.user+" "+string(s.verb)] = true
	}
	token := tokenKinds[s.token](w, s.user)
	wantCode, wantJudged := s.want()
	for range 2 { // the second time from memory
		judge, err := w.admit(t, token, s.verb)
		if got := code(t, err); got != wantCode || (judge != nil) != wantJudged {
			t.Fatalf("%+v: %q, judged %t, want %q, %t: %v", s, got, judge != nil, wantCode, wantJudged, err)
		}
	}
	most := int64(2)
	if slices.Contains([]string{"none", "no JWT", "other audience", "expired"}, s.token) {
		most = 0 // it cannot be accepted, and costs the API server nothing
	}
	if n := w.tokenReviews.Load() + w.accessReviews.Load(); n > most {
		t.Fatalf("%+v: %d reviews", s, n)
	}
	if s.token == "good" && strings.Contains(w.log.String(), token) {
		t.Fatalf("%+v: the token is in the log", s)
	}
}

// A path that the API does not have is left to the API.
func TestGuard_LeavesAnUnknownPathToTheAPI(t *testing.T) {
	t.Parallel()
	if _, err := newEnv(t).guard.Admit(request(t.Context(), ""), access.Request{}); err != nil {
		t.Error(err)
	}
}

// Under strict transport encryption a request without TLS learns nothing but that.
func TestGuard_RequiresTLSWhereItIsStrict(t *testing.T) {
	t.Parallel()
	w := newEnv(t)
	w.setFlags(feature.Flags{feature.TransportEncryption: feature.Strict})
	token := w.issue(insider)
	for _, a := range []access.Request{{}, requestTo(access.VerbGet), requestTo(access.VerbIngest)} {
		r := request(t.Context(), token)
		if _, err := w.guard.Admit(r, a); code(t, err) != schedule.CodeNotFound {
			t.Errorf("%+v without TLS: %v", a, err)
		}
		r.TLS = new(tls.ConnectionState)
		if _, err := w.guard.Admit(r, a); err != nil {
			t.Errorf("%+v with TLS: %v", a, err)
		}
	}
}

// An unknown verb is refused.
func TestGuard_RefusesAnUnknownVerb(t *testing.T) {
	t.Parallel()
	w := newEnv(t)
	if _, err := w.admit(t, w.issue(insider), "own"); code(t, err) != schedule.CodeDenied {
		t.Error(err)
	}
}

// A refusal says what is wrong and what to do.
func TestGuard_RefusalSaysWhatToDo(t *testing.T) {
	t.Parallel()
	want := audience(ns, name)
	for text, token := range map[string]func(w *env) string{
		"a bearer token is required":                                   func(*env) string { return "" },
		"no JSON Web Token":                                            func(*env) string { return "x.y.z" },
		`for the audience "a" and 1 more;`:                             func(*env) string { return newToken(insider, claim("aud", []string{"a", "b"})) },
		`for the audience "b";`:                                        func(*env) string { return newToken(insider, claim("aud", "b")) },
		"names no audience":                                            func(*env) string { return newToken(insider, claim("aud", nil)) },
		"expired at 2001-09-09T01:46:40Z":                              func(*env) string { return newToken(insider, claim("exp", 1e9)) },
		"the API server does not accept":                               func(*env) string { return newToken(insider) },
		"may not create schedules of \"ops/git-repos\"":                func(w *env) string { return w.issue(outsider) },
		"create reschedulesources/schedules in the API group sources.": func(w *env) string { return w.issue(outsider) },
		`"` + outsider + `" may not`:                                   func(w *env) string { return w.issue(outsider) },
	} {
		w := newEnv(t)
		_, err := w.admit(t, token(w), access.VerbCreate)
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v does not say %q", err, text)
		} else if code(t, err) == schedule.CodeUnauthenticated && !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name the audience", err)
		}
	}
}

// A token for one source is not accepted by another.
func TestGuard_TokenIsForOneSource(t *testing.T) {
	t.Parallel()
	w := newEnv(t)
	w.addSource("another", nil)
	token := w.issue(insider)
	for range 2 {
		if _, err := w.admit(t, token, access.VerbGet); err != nil {
			t.Fatal(err)
		}
		_, err := w.guard.Admit(request(t.Context(), token), access.Request{Namespace: ns, Name: "another", Verb: access.VerbGet})
		if code(t, err) != schedule.CodeUnauthenticated {
			t.Errorf("another: %v", err)
		}
	}
	// Also when the token itself is for both: the API server is asked about each.
	token = w.issue(insider, claim("aud", []string{audience(ns, name), audience(ns, "another")}))
	if _, err := w.admit(t, token, access.VerbGet); err != nil {
		t.Fatal(err)
	}
	_, err := w.guard.Admit(request(t.Context(), token), access.Request{Namespace: ns, Name: "another", Verb: access.VerbGet})
	if code(t, err) != schedule.CodeUnauthenticated {
		t.Errorf("another: %v", err)
	}
}

// Two Authorization headers are as good as none.
func TestGuard_TwoHeadersAreNone(t *testing.T) {
	t.Parallel()
	w := newEnv(t)
	r := request(t.Context(), w.issue(insider))
	r.Header.Add("Authorization", "Bearer "+w.issue(outsider))
	if _, err := w.guard.Admit(r, requestTo(access.VerbGet)); code(t, err) != schedule.CodeUnauthenticated {
		t.Error(err)
	}
}

// RBAC is asked for the verb, resource and subresource of the docs.
func TestGuard_AsksRBACInItsOwnWords(t *testing.T) {
	t.Parallel()
	w := newEnv(t)
	w.grants[person+" delete"] = true
	if _, err := w.admit(t, w.issue(person), access.VerbDelete); err != nil {
		t.Fatal(err)
	}
	want := &authz.SubjectAccessReviewSpec{
		User: person, UID: "uid of " + person, Groups: []string{"system:authenticated"}, Extra: map[string]authz.ExtraValue{"pod": {"p"}},
		ResourceAttributes: &authz.ResourceAttributes{
			Group: "sources.reschedule.dev", Version: "v1alpha1", Resource: "reschedulesources", Subresource: "schedules",
			Verb: "delete", Namespace: ns, Name: name,
		},
	}
	if d := cmp.Diff(want, w.lastAccess.Load()); d != "" {
		t.Error(d)
	}
}

// A source that does not exist looks like one that is forbidden.
func TestGuard_HidesWhetherASourceExists(t *testing.T) {
	t.Parallel()
	w := newEnv(t)
	_, there := w.admit(t, w.issue(outsider), access.VerbGet)
	_ = w.sources.Replace(nil, "")
	_, gone := w.admit(t, w.issue(outsider), access.VerbGet)
	if there == nil || gone == nil || there.Error() != gone.Error() {
		t.Errorf("there: %v\ngone: %v", there, gone)
	}
}

// Only the user name of a service account has a namespace.
func TestNamespaceOf_ServiceAccountsOnly(t *testing.T) {
	t.Parallel()
	for user, want := range map[string]string{
		insider:                                    "ops",
		"system:serviceaccount:ops":                "",
		"system:serviceaccount:ops:":               "",
		"system:serviceaccount:ops:a:b":            "",
		"system:serviceaccount::a":                 "",
		"system:serviceaccounts:ops:a":             "",
		"oidc:system:serviceaccount:ops:operator":  "",
		"System:ServiceAccount:ops:operator":       "",
		"system:serviceaccount:ops-2:operator":     "ops-2",
		"system:node:ops:operator":                 "",
		"system:serviceaccount:ops:operator ":      "ops",
		" system:serviceaccount:ops:operator":      "",
		"system:serviceaccount:elsewhere:operator": "elsewhere",
	} {
		if got := newCaller(authn.UserInfo{Username: user}).namespace; got != want {
			t.Errorf("%q is of namespace %q, want %q", user, got, want)
		}
	}
}

// Callers that differ in anything have different ids.
func TestCaller_IDCoversEverything(t *testing.T) {
	t.Parallel()
	seen := map[digest]int{}
	for i, u := range []authn.UserInfo{
		{Username: "u"},
		{Username: "u", UID: "1"},
		{Username: "u", Groups: []string{"a"}},
		{Username: "u", Groups: []string{"a", "b"}},
		{Username: "u", Groups: []string{"ab"}},
		{Username: "u", Extra: map[string]authn.ExtraValue{"a": {"b"}}},
		{Username: "u", Extra: map[string]authn.ExtraValue{"a": nil, "b": nil}},
		{Username: "u", Extra: map[string]authn.ExtraValue{"a": {"b", "c"}}},
		{Username: "u", Extra: map[string]authn.ExtraValue{"a": {"bc"}}},
	} {
		id := newCaller(u).id
		if j, ok := seen[id]; ok {
			t.Errorf("callers %d and %d are one", i, j)
		}
		seen[id] = i
	}
	x := authn.UserInfo{Extra: map[string]authn.ExtraValue{"a": {"1"}, "b": {"2"}, "c": {"3"}}}
	want := newCaller(x).id
	for range 20 {
		if newCaller(x).id != want {
			t.Fatal("one caller is two")
		}
	}
}

// The debug log says who was refused, and why.
func TestGuard_LogsRefusals(t *testing.T) {
	t.Parallel()
	w := newEnv(t)
	token := w.issue(outsider)
	forged := newToken("mallory")
	for _, tok := range []string{token, forged} {
		if _, err := w.admit(t, tok, access.VerbCreate); err == nil {
			t.Fatal("admitted")
		}
	}
	log := w.log.String()
	for _, want := range []string{`"user":"` + outsider + `"`, `"verb":"create"`, "no EventPolicy", "does not accept the bearer token", "invalid bearer token TOKEN"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not say %q:\n%s", want, log)
		}
	}
	for _, secret := range []string{token, forged, strings.Split(token, ".")[1]} {
		if strings.Contains(log, secret) {
			t.Error("there is a token in the log")
		}
	}
}
