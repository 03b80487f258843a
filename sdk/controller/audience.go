package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/go-logr/logr"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

const (
	// keysLife is the time after which the cluster's keys are fetched again, so that a
	// withdrawn key goes out of use.
	keysLife = time.Hour
	// fetchEvery is the least time between two fetches of keys, whatever tokens come:
	// each fetch is two requests to the API server.
	fetchEvery   = 5 * time.Second
	fetchTimeout = 5 * time.Second
	// leeway is how far the clocks of the API server and of this process may differ.
	leeway = time.Minute
)

// The three reasons to refuse an event.
var (
	errNoToken    = errors.New("the event has no valid token")
	errNotAllowed = errors.New("the account in the token may not send events to this operator: name it in WithAudience")
	errNoKeys     = errors.New("the token cannot be checked now")
)

// ownNamespace is the file with the name of a pod's namespace. Tests that run an operator
// without a pod set it (-ldflags=-X=…).
var ownNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// algorithms are the algorithms with which an API server signs.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA}

// tokenVerifier admits events with a token of the cluster's API server, for the audience,
// and of an account that is allowed. It reads the API server's keys only, which every
// service account may do.
type tokenVerifier struct {
	audience string
	allowed  func(subject string) bool
	fetch    func(context.Context) (*keyring, error)
	log      func() logr.Logger

	current atomic.Pointer[keyring]
	mu      sync.Mutex // held by a fetch
	tried   time.Time
}

// keyring is the issuer of tokens and its keys.
type keyring struct {
	issuer string
	jose.JSONWebKeySet
	at time.Time // when the fetch began
}

func (k *keyring) signs(issuer, id string) bool {
	return k != nil && k.issuer == issuer && len(k.Key(id)) > 0
}

// setVerify sets the verifier of WithAudience. Without one nothing is remembered: an
// event of an unknown sender must not decide what counts as seen.
func (s *server) setVerify(config func() (*rest.Config, error)) error {
	if s.audience == nil {
		if s.verify == nil {
			s.answers.byKey = nil
		}
		return nil
	}
	if *s.audience == "" {
		return errors.New("controller: WithAudience needs an audience: the sink.audience of the RescheduleSource")
	}
	cfg, err := config()
	if err != nil {
		return fmt.Errorf("controller: WithAudience needs the API server, whose keys it checks tokens with: %w", err)
	}
	v := &tokenVerifier{audience: *s.audience, log: func() logr.Logger { return s.log }}
	if v.fetch, err = fetcher(cfg); err != nil {
		return fmt.Errorf("controller: WithAudience: %w", err)
	}
	v.allowed = func(subject string) bool { return slices.Contains(s.subjects, subject) }
	if len(s.subjects) == 0 {
		namespace, err := os.ReadFile(ownNamespace)
		if err != nil {
			return fmt.Errorf("controller: WithAudience: the namespace of this process is not known: name the subjects: %w", err)
		}
		v.allowed = sourcesOf(strings.TrimSpace(string(namespace)))
	}
	s.verify = v.verify
	return nil
}

// identity is the account of a RescheduleSource. Knative cuts a name that would be
// longer than 63 characters, and puts a digest into it.
var identity = regexp.MustCompile(`^([-.a-z0-9]{1,18}-oidc-sources\.reschedule\.dev-reschedulesource|[-.a-z0-9]{19,31}[0-9a-f]{32}[-a-z]{0,12})$`)

// sourcesOf are the identities of all RescheduleSources of a namespace.
func sourcesOf(namespace string) func(string) bool {
	return func(subject string) bool {
		account, ok := strings.CutPrefix(subject, "system:serviceaccount:"+namespace+":")
		return ok && identity.MatchString(account)
	}
}

// verify is nil for an event that is admitted, else one of the three errors.
func (v *tokenVerifier) verify(r *http.Request) error {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || len(r.Header["Authorization"]) != 1 {
		return fmt.Errorf("%w: there is none", errNoToken)
	}
	signed, err := jwt.ParseSigned(strings.TrimSpace(token), algorithms)
	if err != nil || len(signed.Headers) != 1 {
		return fmt.Errorf("%w: it is not a signed JWT", errNoToken)
	}
	// A token for another audience costs no keys. None of its claims is believed before
	// its signature is checked.
	var claims jwt.Claims
	if err := signed.UnsafeClaimsWithoutVerification(&claims); err != nil {
		return fmt.Errorf("%w: it has no claims", errNoToken)
	}
	switch err := claims.ValidateWithLeeway(jwt.Expected{AnyAudience: jwt.Audience{v.audience}, Time: time.Now()}, leeway); {
	case claims.Expiry == nil:
		return fmt.Errorf("%w: it never expires", errNoToken)
	case errors.Is(err, jwt.ErrInvalidAudience):
		return fmt.Errorf("%w: it is for another audience than %q", errNoToken, v.audience)
	case err != nil:
		return fmt.Errorf("%w: it is not valid at this time", errNoToken)
	}
	id := signed.Headers[0].KeyID
	keys, err := v.keys(r.Context(), claims.Issuer, id)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(keys.Key(id), func(k jose.JSONWebKey) bool { return signed.Claims(k, &claims) == nil }) {
		return fmt.Errorf("%w: its signature is not from this cluster", errNoToken)
	}
	if !v.allowed(claims.Subject) {
		return fmt.Errorf("%w: %s", errNotAllowed, claims.Subject)
	}
	return nil
}

// keys are the keys with which the signature of a token can be checked. It is certain
// that there are none only when they were fetched after the token came: until then its
// key may be a new one.
func (v *tokenVerifier) keys(ctx context.Context, issuer, id string) (*keyring, error) {
	good := func(k *keyring) bool { return k.signs(issuer, id) && time.Since(k.at) < keysLife }
	have := v.current.Load()
	if good(have) {
		return have, nil
	}
	came := time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	have = v.current.Load()
	if !good(have) && (v.tried.IsZero() || time.Since(v.tried) >= fetchEvery) {
		v.tried = time.Now()
		// Other events wait for the keys too, so the end of this request does not count.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
		defer cancel()
		next, err := v.fetch(ctx)
		if err != nil {
			v.log().Error(err, "The keys to check the tokens of events cannot be read; events wait")
		} else {
			next.at = v.tried
			v.current.Store(next)
			have = next
		}
	}
	switch {
	case have.signs(issuer, id):
		return have, nil
	case have == nil || have.at.Before(came):
		return nil, errNoKeys
	}
	return nil, fmt.Errorf("%w: its key is not from this cluster", errNoToken)
}

// fetcher reads the issuer and the keys that the API server publishes.
func fetcher(cfg *rest.Config) (func(context.Context) (*keyring, error), error) {
	c, err := discovery.NewDiscoveryClientForConfig(rest.CopyConfig(cfg))
	if err != nil {
		return nil, err
	}
	get := func(ctx context.Context, path string, into any) error {
		text, err := c.RESTClient().Get().AbsPath(path).DoRaw(ctx)
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			return fmt.Errorf("reading %s of the API server: %w", path, err)
		}
		return nil
	}
	return func(ctx context.Context) (*keyring, error) {
		var about struct {
			Issuer string `json:"issuer"`
		}
		k := &keyring{}
		err := get(ctx, "/.well-known/openid-configuration", &about)
		if err == nil {
			err = get(ctx, "/openid/v1/jwks", &k.JSONWebKeySet)
		}
		if err == nil && (about.Issuer == "" || len(k.Keys) == 0) {
			err = errors.New("the API server names no issuer of tokens, or has no keys")
		}
		k.issuer = about.Issuer
		return k, err
	}, nil
}

// refuse answers an event that is not admitted. Its body is not read.
func (s *server) refuse(w http.ResponseWriter, err error) {
	w.Header().Set("Connection", "close")
	switch {
	case errors.Is(err, errNoToken):
		s.once("An event without a valid token is refused", "reason", err.Error())
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, err.Error(), http.StatusUnauthorized)
	case errors.Is(err, errNotAllowed):
		s.once("An event of another account is refused: WithAudience names the accounts", "reason", err.Error())
		http.Error(w, err.Error(), http.StatusForbidden)
	default:
		retryLater(w, err, fetchEvery)
	}
}
