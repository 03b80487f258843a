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
	// keysLife is after how long the cluster's keys are fetched again, so that a key
	// that was withdrawn goes out of use.
	keysLife = time.Hour
	// fetchEvery bounds how often keys are fetched, whatever tokens come: each time
	// is two requests to the API server.
	fetchEvery   = 5 * time.Second
	fetchTimeout = 5 * time.Second
	// leeway is how far the clocks of the API server and of this process may differ.
	leeway = time.Minute
)

// The three ways in which an event is turned away.
var (
	errNoToken     = errors.New("the event has no token that is good here")
	errStranger    = errors.New("the sender of the event is not one of those that this operator hears")
	errUncheckable = errors.New("the token cannot be checked now")
)

// ownNamespace is where the kubelet puts the name of a pod's namespace.
const ownNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// algorithms are those with which an API server signs.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA}

// door says who may send events: those whose token is of the cluster's API server,
// for the audience, and of an account that is let in. It asks the API server for its
// keys only, which every service account may read.
type tokenVerifier struct {
	audience string
	allowed  func(subject string) bool
	fetch    func(context.Context) (*keyring, error)
	log      func() logr.Logger

	current atomic.Pointer[keyring]
	mu      sync.Mutex // of those who fetch
	tried   time.Time
}

// keyring is who signs tokens, and with which keys.
type keyring struct {
	issuer string
	jose.JSONWebKeySet
	at time.Time // when it was asked for
}

func (k *keyring) signs(issuer, id string) bool {
	return k != nil && k.issuer == issuer && len(k.Key(id)) > 0
}

// guard sets the server's door. Without one nothing is remembered: what anyone can
// send must not decide what counts as seen.
func (s *server) setVerify(config func() (*rest.Config, error)) error {
	if s.audience == nil {
		if s.verify == nil {
			s.answers.byKey = nil
		}
		return nil
	}
	if *s.audience == "" {
		return errors.New("controller: WithAudience needs an audience: that of sink.audience of the RescheduleSource")
	}
	cfg, err := config()
	if err != nil {
		return fmt.Errorf("controller: WithAudience needs the API server, whose keys tokens are checked with: %w", err)
	}
	d := &tokenVerifier{audience: *s.audience, log: func() logr.Logger { return s.log }}
	if d.fetch, err = fetcher(cfg); err != nil {
		return fmt.Errorf("controller: WithAudience: %w", err)
	}
	d.allowed = func(subject string) bool { return slices.Contains(s.subjects, subject) }
	if len(s.subjects) == 0 {
		namespace, err := os.ReadFile(ownNamespace)
		if err != nil {
			return fmt.Errorf("controller: WithAudience: the namespace of this process is not known, so that the subjects have to be named: %w", err)
		}
		d.allowed = sourcesOf(strings.TrimSpace(string(namespace)))
	}
	s.verify = d.verify
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

// verify is nil for an event that may come in, else one of the three errors.
func (d *tokenVerifier) verify(r *http.Request) error {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || len(r.Header["Authorization"]) != 1 {
		return fmt.Errorf("%w: there is none", errNoToken)
	}
	signed, err := jwt.ParseSigned(strings.TrimSpace(token), algorithms)
	if err != nil || len(signed.Headers) != 1 {
		return fmt.Errorf("%w: it is no signed JWT", errNoToken)
	}
	// What is for others costs no keys. Nothing of it is believed before its
	// signature was checked.
	var claims jwt.Claims
	if err := signed.UnsafeClaimsWithoutVerification(&claims); err != nil {
		return fmt.Errorf("%w: it has no claims", errNoToken)
	}
	switch err := claims.ValidateWithLeeway(jwt.Expected{AnyAudience: jwt.Audience{d.audience}, Time: time.Now()}, leeway); {
	case claims.Expiry == nil:
		return fmt.Errorf("%w: it never expires", errNoToken)
	case errors.Is(err, jwt.ErrInvalidAudience):
		return fmt.Errorf("%w: it is for another audience than %q", errNoToken, d.audience)
	case err != nil:
		return fmt.Errorf("%w: it is not good at this time", errNoToken)
	}
	id := signed.Headers[0].KeyID
	keys, err := d.keys(r.Context(), claims.Issuer, id)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(keys.Key(id), func(k jose.JSONWebKey) bool { return signed.Claims(k, &claims) == nil }) {
		return fmt.Errorf("%w: its signature is not this cluster's", errNoToken)
	}
	if !d.allowed(claims.Subject) {
		return fmt.Errorf("%w: %s", errStranger, claims.Subject)
	}
	return nil
}

// keys are those with which such a token can be checked. That there are none is
// certain only when they were asked for after the token came: until then it may be
// the key that has been new since.
func (d *tokenVerifier) keys(ctx context.Context, issuer, id string) (*keyring, error) {
	good := func(k *keyring) bool { return k.signs(issuer, id) && time.Since(k.at) < keysLife }
	have := d.current.Load()
	if good(have) {
		return have, nil
	}
	came := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	have = d.current.Load()
	if !good(have) && (d.tried.IsZero() || time.Since(d.tried) >= fetchEvery) {
		d.tried = time.Now()
		// The sender may go away: others wait for the keys too.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
		defer cancel()
		next, err := d.fetch(ctx)
		if err != nil {
			d.log().Error(err, "The keys that tokens of events are checked with cannot be read; events wait")
		} else {
			next.at = d.tried
			d.current.Store(next)
			have = next
		}
	}
	switch {
	case have.signs(issuer, id):
		return have, nil
	case have == nil || have.at.Before(came):
		return nil, errUncheckable
	}
	return nil, fmt.Errorf("%w: its key is not this cluster's", errNoToken)
}

// fetcher reads what the API server publishes for those who check its tokens.
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

// turnAway answers an event that may not come in. Nothing was read of it, nor is it.
func (s *server) refuse(w http.ResponseWriter, err error) {
	w.Header().Set("Connection", "close")
	switch {
	case errors.Is(err, errNoToken):
		s.once("An event without a good token is turned away", "reason", err.Error())
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, err.Error(), http.StatusUnauthorized)
	case errors.Is(err, errStranger):
		s.once("An event of another sender is turned away: WithAudience says whose events are taken", "reason", err.Error())
		http.Error(w, err.Error(), http.StatusForbidden)
	default:
		retryLater(w, err, fetchEvery)
	}
}
