package controller

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// The tests of this file are about senders that are not admitted: the answers that they
// get, what they cost, and what they cannot change.

const (
	doorAudience = "operator"
	sourceOfNs   = "system:serviceaccount:ns:configs-oidc-sources.reschedule.dev-reschedulesource"
)

// authority is the part of an API server that signs tokens.
type authority struct {
	url  string
	key  *ecdsa.PrivateKey
	down atomic.Bool
	read atomic.Int64 // requests
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{key: newKey(t)}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.read.Add(1)
		switch {
		case a.down.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/.well-known/openid-configuration":
			fmt.Fprint(w, `{"issuer":"https://cluster"}`)
		case r.URL.Path == "/openid/v1/jwks":
			_ = json.NewEncoder(w).Encode(keysOf("one", a.key).JSONWebKeySet)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(s.Close)
	a.url = s.URL
	return a
}

// keysOf are the keys of an API server that has one.
func keysOf(id string, k *ecdsa.PrivateKey) *keyring {
	return &keyring{issuer: "https://cluster", JSONWebKeySet: jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: k.Public(), KeyID: id, Algorithm: string(jose.ES256)}}}}
}

// claims are the claims of a good token, after a change.
func claims(change func(*jwt.Claims)) jwt.Claims {
	c := jwt.Claims{
		Issuer: "https://cluster", Subject: sourceOfNs, Audience: jwt.Audience{doorAudience},
		IssuedAt: jwt.NewNumericDate(time.Now()), NotBefore: jwt.NewNumericDate(time.Now()), Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	}
	if change != nil {
		change(&c)
	}
	return c
}

// mint signs claims.
func mint(t *testing.T, algorithm jose.SignatureAlgorithm, id string, key any, c jwt.Claims) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(c).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func (a *authority) token(t *testing.T, change func(*jwt.Claims)) string {
	t.Helper()
	return mint(t, jose.ES256, "one", a.key, claims(change))
}

// startGuarded starts the operator of the tests with an audience.
func startGuarded(t *testing.T, a *authority, c *configs, opts ...Option) *operator {
	t.Helper()
	c.busy = map[reconcile.Request]bool{}
	return startManagerOf(t, a.url, cluster(configMap("a", 1)), func(mgr ctrl.Manager) error {
		c.Client = mgr.GetClient()
		return c.SetupWithManager(mgr)
	}, append([]Option{WithAudience(doorAudience, sourceOfNs)}, opts...)...)
}

// TestAudience_AdmitsTheSourceOnly says that an event without a good token is neither
// run nor scheduled with the operator's own token, and that its answer says nothing
// about runs.
func TestAudience_AdmitsTheSourceOnly(t *testing.T) {
	t.Parallel()
	f := newFakeSource(t, time.Second)
	f.suspended = true
	defer f.close()
	a, c := newAuthority(t), &configs{results: func(reconcile.Request) (reconcile.Result, error) { return reconcile.Result{}, errBoom }}
	op := startGuarded(t, a, c, WithClient(f.client()))
	good := a.token(t, nil)
	header, body, _ := strings.Cut(good, ".")
	public, err := a.key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	strangers := func(change func(*jwt.Claims)) []string { return []string{"Bearer " + a.token(t, change)} }
	for name, row := range map[string]struct {
		tokens []string
		want   int
	}{
		"no token":                      {nil, 401},
		"an empty one":                  {[]string{"Bearer "}, 401},
		"no JWT":                        {[]string{"Bearer x.y.z"}, 401},
		"a password":                    {[]string{"Basic " + good}, 401},
		"two tokens":                    {[]string{"Bearer " + good, "Bearer " + good}, 401},
		"a signature that is cut off":   {[]string{"Bearer " + header + "." + body[:strings.Index(body, ".")+1]}, 401},
		"no signature at all":           {[]string{"Bearer eyJhbGciOiJub25lIiwia2lkIjoib25lIn0." + body[:strings.Index(body, ".")+1]}, 401},
		"the public key as a secret":    {[]string{"Bearer " + mint(t, jose.HS256, "one", public, claims(nil))}, 401},
		"another cluster's key":         {[]string{"Bearer " + mint(t, jose.ES256, "one", newKey(t), claims(nil))}, 401},
		"the audience of the API":       {strangers(func(c *jwt.Claims) { c.Audience = jwt.Audience{"https://kubernetes.default.svc"} }), 401},
		"no audience":                   {strangers(func(c *jwt.Claims) { c.Audience = nil }), 401},
		"no end":                        {strangers(func(c *jwt.Claims) { c.Expiry = nil }), 401},
		"expired":                       {strangers(func(c *jwt.Claims) { c.Expiry = jwt.NewNumericDate(time.Now().Add(-2 * leeway)) }), 401},
		"not good yet":                  {strangers(func(c *jwt.Claims) { c.NotBefore = jwt.NewNumericDate(time.Now().Add(2 * leeway)) }), 401},
		"another account":               {strangers(func(c *jwt.Claims) { c.Subject = "system:serviceaccount:ns:default" }), 403},
		"a source of another namespace": {strangers(func(c *jwt.Claims) { c.Subject = strings.Replace(sourceOfNs, ":ns:", ":other:", 1) }), 403},
	} {
		op.tokens = row.tokens
		for _, e := range []map[string]string{dueEvent("ConfigMap/ns/a"), dueEvent("ConfigMap/kube-system/a"), changed("resource.update", "")} {
			got := op.send(e, toJSON(configMap("a", 2)))
			if got.code != row.want || strings.Contains(got.body, "boom") || strings.Contains(got.body, "ConfigMap") || (got.Get("WWW-Authenticate") == "Bearer") != (row.want == 401) {
				t.Errorf("%s: answered with %s %s %v", name, got, got.body, got.Header)
			}
		}
		if runs, calls := c.ran(), f.called(); len(runs) > 0 || calls != "" {
			t.Errorf("%s: ran %q, called %q", name, runs, calls)
		}
	}
	op.tokens = []string{"bearer " + good}
	if got := op.send(dueEvent("ConfigMap/ns/a"), ""); got.code != 503 || !strings.Contains(got.body, "boom") || len(c.ran()) != 1 {
		t.Errorf("the source is answered with %s %s", got, got.body)
	}
}

// TestAudience_ReadsNoRefusedBody says that the body of a refused event is not read,
// and that its connection is closed.
func TestAudience_ReadsNoRefusedBody(t *testing.T) {
	t.Parallel()
	for _, err := range []error{errNoToken, errNotAllowed, errNoKeys} {
		s := newHandler(t.Context(), &play{}, func(o *options) { o.verify = func(*http.Request) error { return err } })
		r := httptest.NewRequest(http.MethodPost, "/", unread{t})
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Header().Get("Connection") != "close" || w.Code < 400 {
			t.Errorf("%v: answered with %d %v", err, w.Code, w.Header())
		}
	}
}

// unread is a body that must not be read.
type unread struct{ t *testing.T }

// Read implements io.Reader.
func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body is read")
	return 0, io.EOF
}

// TestAudience_WithoutKeysEventsWait says that no event is lost while the API server
// is away: it gets a 503, and comes again.
func TestAudience_WithoutKeysEventsWait(t *testing.T) {
	t.Parallel()
	a, c := newAuthority(t), &configs{}
	a.down.Store(true)
	op := startGuarded(t, a, c)
	op.tokens = []string{"Bearer " + a.token(t, nil)}
	for range 3 {
		if got := op.send(dueEvent("ConfigMap/ns/a"), ""); got.code != 503 || got.Get("Retry-After") != "5" || len(c.ran()) > 0 {
			t.Errorf("answered with %s %s %v", got, got.body, got.Header)
		}
	}
	a.down.Store(false)
	op = startGuarded(t, a, c)
	op.tokens = []string{"Bearer " + a.token(t, nil)}
	before := a.read.Load()
	for range 3 {
		if got := op.send(dueEvent("ConfigMap/ns/a"), ""); got.code != 204 || len(c.ran()) != 1 {
			t.Errorf("answered with %s %s", got, got.body)
		}
	}
	if n := a.read.Load() - before; n != 2 {
		t.Errorf("%d requests for keys, want one for the issuer and one for its keys", n)
	}
}

// TestAudience_FetchesKeysAtABoundedRate rotates the cluster's keys under fake time,
// while forged tokens come all the time.
func TestAudience_FetchesKeysAtABoundedRate(t *testing.T) {
	keys := map[string]*ecdsa.PrivateKey{"one": newKey(t), "two": newKey(t), "forged": newKey(t)}
	synctest.Test(t, func(t *testing.T) {
		fetched, current, issuer, fails := 0, "one", "https://cluster", error(nil)
		v := &tokenVerifier{audience: doorAudience, allowed: func(string) bool { return true }, log: logr.Discard}
		v.fetch = func(context.Context) (*keyring, error) {
			fetched++
			k := keysOf(current, keys[current])
			k.issuer = issuer
			return k, fails
		}
		come := func(about, id string, want error, fetches int) {
			t.Helper()
			r := httptest.NewRequest(http.MethodPost, "/", nil)
			r.Header.Set("Authorization", "Bearer "+mint(t, jose.ES256, id, keys[id], claims(nil)))
			if err := v.verify(r); !errors.Is(err, want) || fetched != fetches {
				t.Errorf("%s: %v after %d fetches, want %v and %d", about, err, fetched, want, fetches)
			}
		}
		fails = errBoom
		come("the API server is away", "one", errNoKeys, 1)
		fails = nil
		come("too soon to ask again", "one", errNoKeys, 1)
		time.Sleep(fetchEvery)
		come("it is back", "one", nil, 2)
		time.Sleep(fetchEvery)
		come("forged", "forged", errNoToken, 3)
		for range 100 {
			time.Sleep(time.Millisecond)
			come("forged again", "forged", errNoKeys, 3)
			come("the source meanwhile", "one", nil, 3)
		}
		current = "two" // the forged tokens have used up the turn
		come("a new key", "two", errNoKeys, 3)
		time.Sleep(fetchEvery)
		come("a new key, a while later", "two", nil, 4)
		time.Sleep(fetchEvery)
		come("the old key", "one", errNoToken, 5)
		time.Sleep(keysLife - fetchEvery)
		fails = errBoom
		come("keys of old, and the API server is away", "two", nil, 5)
		time.Sleep(fetchEvery)
		come("keys of old, and the API server is still away", "two", nil, 6)
		current, fails = "one", nil
		time.Sleep(fetchEvery)
		come("a key that was withdrawn", "two", errNoToken, 7)
		come("a key that is there again", "one", nil, 7)
		issuer = "https://elsewhere"
		time.Sleep(keysLife)
		come("an issuer of old", "one", errNoToken, 8)
	})
}

// TestAudience_AccountsOfSources has the accounts that the controller makes, as
// eventing names them. A long name has a digest.
func TestAudience_AccountsOfSources(t *testing.T) {
	t.Parallel()
	allowed := sourcesOf("ns")
	for account, want := range map[string]bool{
		"a-oidc-sources.reschedule.dev-reschedulesource":                  true,
		"a.b-c-oidc-sources.reschedule.dev-reschedulesource":              true,
		"ssssssssssssssssss-oidc-sources.reschedule.dev-reschedulesource": true,
		"sssssssssssssssssss70045ce7de9b72abf94611e69eea186f-oidc-source": true,
		"ssssssssssssssssssss588eaedfedc569265dad8a58551b3495-oidc-sourc": true,
		"ssssssssssssssssssssssssss7200e7dc25aade7023a52b7f6b2cd143-oidc": true,
		"ssssssssssssssssssssssssssssss4a04ef341e6223066ebca9a5e5bc9d7b":  true,
		"sssssssssssssssssssssssssssssssf76d49dcff283c3a257b182161cd8cf5": true,
		"":                                false,
		"default":                         false,
		"a-oidc-sources.reschedule.dev-x": false,
		"-oidc-sources.reschedule.dev-reschedulesource":                       false,
		"a-oidc-sources.reschedule.dev-reschedulesource-x":                    false,
		"x:a-oidc-sources.reschedule.dev-reschedulesource":                    false,
		"api-oidc-sources.knative.dev-apiserversource":                        false,
		"sssssssssssssssssss70045ce7de9b72abf94611e69eea186f-oidc-source-two": false,
	} {
		if got := allowed("system:serviceaccount:ns:" + account); got != want {
			t.Errorf("%s: %t", account, got)
		}
		if allowed("system:serviceaccount:other:"+account) || allowed(account) {
			t.Errorf("%s of another namespace is let in", account)
		}
	}
}

// TestAudience_MissingConfigurationIsAnError of NewManager, not of the first event.
func TestAudience_MissingConfigurationIsAnError(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]Option{"needs an audience": WithAudience(""), "name the subjects": WithAudience("operator")} {
		if _, err := NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, cluster(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestNoAudience_LogsHowToSetOne when the operator starts.
func TestNoAudience_LogsHowToSetOne(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		option Option
		want   int
	}{"open": {open, 1}, "closed": {trusting, 0}} {
		var n atomic.Int32 // a manager still logs after it has returned
		o := cluster()
		o.Logger = funcr.New(func(_, line string) {
			if strings.Contains(line, "WithAudience") && strings.Contains(line, "sink.audience") {
				n.Add(1)
			}
		}, funcr.Options{})
		op := startManager(t, o, (&configs{}).SetupWithManager, row.option)
		op.send(nil, "") // so that it has started
		if err := op.stop(); err != nil {
			t.Fatal(err)
		}
		if n := int(n.Load()); n != row.want {
			t.Errorf("%s: %d lines say so, want %d", name, n, row.want)
		}
	}
}

// TestNamespaces_OthersAreNotRun says that objects outside the namespaces of the
// manager's cache are not run, whatever asks for it.
func TestNamespaces_OthersAreNotRun(t *testing.T) {
	t.Parallel()
	l := &log{}
	siblings := func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: o.GetNamespace(), Name: "mapped"}}}
	}
	setup := func(mgr ctrl.Manager) error {
		return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Watches(&corev1.ServiceAccount{}, handler.EnqueueRequestsFromMapFunc(siblings)).Complete(l.as("ran"))
	}
	o := cluster()
	o.Cache.DefaultNamespaces = map[string]cache.Config{"ns": {}, "ns2": {}}
	op := startManager(t, o, setup)
	elsewhere := strings.ReplaceAll(toJSON(configMap("a", 1)), `"ns"`, `"kube-system"`)
	for i, e := range []struct {
		attributes map[string]string
		data       string
		code       int
		runs       string
	}{
		{dueEvent("ConfigMap/ns/a"), "", 200, "ran ns/a"},
		{dueEvent("ConfigMap/ns2/a"), "", 200, "ran ns2/a"},
		{dueEvent("ConfigMap/kube-system/a"), "", 400, ""},
		{dueEvent("any"), `{"requests":[{"controller":"configmap","namespace":"kube-system","name":"a"},{"controller":"configmap","namespace":"ns","name":"b"}]}`, 200, "ran ns/b"},
		{changed("resource.add", "ConfigMap/kube-system/a"), elsewhere, 204, ""},
		{changed("resource.add", "Pod/ns/p"), elsewhere, 204, ""},
		{changed("resource.add", "Pod/ns/p"), strings.ReplaceAll(account("x"), `"ns"`, `"kube-system"`), 204, ""},
		{changed("resource.add", "Pod/ns/p"), account("x"), 200, "ran ns/mapped"},
	} {
		a := op.send(e.attributes, e.data)
		if runs := l.take(); a.code != e.code || runs != e.runs {
			t.Errorf("%d: answered with %s %s, ran %q, want %d and %q", i, a, a.body, runs, e.code, e.runs)
		}
	}
	// All namespaces are named by "".
	o = cluster()
	o.Cache.DefaultNamespaces = map[string]cache.Config{"": {}}
	if a := startManager(t, o, setup).send(dueEvent("ConfigMap/kube-system/a"), ""); a.code != 200 || l.take() != "ran kube-system/a" {
		t.Errorf("with all namespaces: answered with %s", a)
	}
}

// TestInFlight_HasABudget says that an event over the limits must come again: before any of it is read, or when its
// bytes are more than those under way leave. What is counted of it goes with it.
func TestInFlight_HasABudget(t *testing.T) {
	t.Parallel()
	s := newHandler(t.Context(), &play{}, trusting)
	size := int64(len(playEvent.Data))
	for _, row := range []struct {
		events, bytes int64 // under way
		want          int
	}{{maxEvents - 1, 0, 204}, {maxEvents, 0, 503}, {0, maxBodies - size, 204}, {0, maxBodies - size + 1, 503}} {
		s.inFlight.events.Store(row.events)
		s.inFlight.bytes.Store(row.bytes)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, request("ConfigMap/ns/a", playEvent))
		if w.Code != row.want || s.inFlight.events.Load() != row.events || s.inFlight.bytes.Load() != row.bytes || (w.Header().Get("Retry-After") == "1") != (row.want == 503) {
			t.Errorf("beside %d events of %d bytes: answered with %d %s %v", row.events, row.bytes, w.Code, w.Body, w.Header())
		}
	}
}

// TestMemory_OfEventsOfOthers says that nothing is remembered where others have a part in it: another replica may have seen an
// object since, and at an open port anyone may send a forged change, from the far future, or a forged run.
func TestMemory_OfEventsOfOthers(t *testing.T) {
	t.Parallel()
	const key = "ConfigMap/ns/a"
	for name, option := range map[string]Option{"replicas": WithReplicas(), "an open port": open} {
		c := &configs{results: func(reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{RequeueAfter: time.Minute}, nil
		}}
		op := start(t, c, []client.Object{configMap("a", 1)}, option)
		o := configMap("a", 2)
		o.ResourceVersion = "999999999999"
		op.send(changed("resource.update", ""), toJSON(o))
		op.send(changed("resource.update", key), toJSON(o))
		op.send(dueEvent(key), "")
		c.ran()
		o.ResourceVersion = "100"
		for range 2 {
			if a := op.send(changed("resource.update", key), toJSON(o)); a.String() != "200 1m0s" || len(c.ran()) != 1 {
				t.Errorf("%s: the change is answered with %s, or not run", name, a)
			}
		}
		if op.manager.server.answers.byKey != nil {
			t.Errorf("%s: answers are remembered", name)
		}
	}
}
