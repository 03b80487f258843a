package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	lru "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/busy"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

const (
	// pageLimit is how many objects a page of a list has.
	pageLimit = 500
	// A watch ends after 5 to 10 minutes; watchGrace later it is cut off.
	watchLeast, watchSpread = 5 * time.Minute, 5 * time.Minute
	watchGrace              = 30 * time.Second
	// pageTimeout is how long a page may take: other lists wait meanwhile.
	pageTimeout = 30 * time.Second
	// answerTimeout is how long the first byte of an answer may take.
	answerTimeout = 30 * time.Second
	// watchUnread bounds what has arrived of a watch and was not read yet: there are many. listUnread
	// bounds it of lists: one is as fast as this much for each way to the API server and back.
	watchUnread, listUnread = 16 << 10, 256 << 10
	// pingAfter and pingTimeout find a connection that is dead.
	pingAfter, pingTimeout = 30 * time.Second, 15 * time.Second
	// objectsPerSecond bounds the calls of all watching sources, objectsPerNamespace the calls for
	// sources of one namespace, each with bursts of two seconds' worth.
	objectsPerSecond, objectsPerNamespace = 100, 20
	maxNamespaces                         = 4096
	// A kind that was found is remembered for kindLife, one that was not for noKindLife.
	kindLife, noKindLife = 5 * time.Minute, 5 * time.Second
	maxKinds             = 1024
	maxDiscovery         = 4 << 20
	// maxVersions is how many versions of a group are asked for a kind.
	maxVersions = 32
	maxStatus   = 64 << 10
)

// The forms of lists and of watches: metadata only.
const (
	asJSON       = "application/json"
	acceptList   = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	acceptObject = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
)

// Objects makes the calls of watching sources: [objects.API]. All lists share one
// transport, and all other calls; each has the token of its account in its header. A token
// that expires does not end a watch.
type Objects struct {
	base    url.URL
	clients *trustedClients
	tokens  *accountTokens
	agent   string

	all        flowcontrol.RateLimiter
	turns      *budget.Budget      // to wait for all: it is a queue, and one namespace could fill it
	namespaces *lru.LRUExpireCache // namespace → flowcontrol.RateLimiter
	discovery  *budget.Budget
	scales     *budget.Budget // calls for workloads
	podLists   *budget.Budget // lists of the pods of workloads
	metrics    *budget.Budget // reads of their metrics
	busy       *busy.Reader
	kinds      *lru.LRUExpireCache // path of a group or group version#kind → objects.Resource, nil: there is none
}

var _ objects.API = (*Objects)(nil)

// NewObjects returns the client of an API server with these audiences. request makes the tokens.
func NewObjects(config *rest.Config, request TokenRequester, audiences APIAudiences) (*Objects, error) {
	anonymous := rest.AnonymousClientConfig(config)
	base, _, err := rest.DefaultServerUrlFor(anonymous)
	if err != nil {
		return nil, fmt.Errorf("kube: the address of the API server: %w", err)
	}
	trusted := &trustedClients{config: anonymous}
	if err := trusted.renew(); err != nil {
		return nil, err
	}
	agent := config.UserAgent
	if agent == "" {
		agent = Component
	}
	return &Objects{
		base: *base, clients: trusted, tokens: newAccountTokens(request, audiences), agent: agent,
		turns:      budget.NewTurns(1, 1, 0),
		discovery:  budget.NewTurns(16, 4, CallTimeout),
		scales:     budget.NewTurns(scaleCalls, scaleCallsOfOne, CallTimeout),
		podLists:   budget.NewTurns(podLists, podListsOfOne, CallTimeout),
		metrics:    budget.NewTurns(metricReads, metricReadsOfOne, CallTimeout),
		busy:       busy.NewReader(),
		all:        flowcontrol.NewTokenBucketRateLimiter(objectsPerSecond, 2*objectsPerSecond),
		namespaces: lru.NewLRUExpireCache(maxNamespaces), kinds: lru.NewLRUExpireCache(maxKinds),
	}, nil
}

// Resolve implements [objects.API].
func (c *Objects) Resolve(ctx context.Context, a objects.Account, group, version, kind string) (objects.Resource, error) {
	path := "/apis/" + url.PathEscape(group)
	if group == "" {
		path, version = "/api", "v1"
	}
	if version != "" {
		return c.find(ctx, a, path, group, version, kind)
	}
	return c.remember(path, kind, func() (objects.Resource, error) {
		// The preferred version comes first. Not every version has every kind.
		var versions []string
		err := c.discover(ctx, a, path, []string{"preferredVersion", "versions"}, func(member string, entry map[string]any) bool {
			version, _ := entry["version"].(string)
			if member == "preferredVersion" {
				versions = slices.Insert(versions, 0, version)
			} else {
				versions = append(versions, version)
			}
			return len(versions) < maxVersions
		})
		if err != nil {
			return objects.Resource{}, err
		}
		for _, version := range versions {
			if r, err := c.find(ctx, a, path, group, version, kind); !errors.Is(err, objects.ErrNoSuchKind) {
				return r, err
			}
		}
		return objects.Resource{}, objects.ErrNoSuchKind
	})
}

// remember returns what find found for a kind of a group or a group version, also that
// there is none, which is asked again sooner.
func (c *Objects) remember(path, kind string, find func() (objects.Resource, error)) (objects.Resource, error) {
	key := path + "#" + kind
	if found, ok := c.kinds.Get(key); ok {
		if r, ok := found.(objects.Resource); ok {
			return r, nil
		}
		return objects.Resource{}, objects.ErrNoSuchKind
	}
	r, err := find()
	switch {
	case err == nil:
		c.kinds.Add(key, r, kindLife)
	case errors.Is(err, objects.ErrNoSuchKind):
		c.kinds.Add(key, nil, noKindLife)
	}
	return r, err
}

// find finds a kind of a group version that can be listed and watched.
func (c *Objects) find(ctx context.Context, a objects.Account, path, group, version, kind string) (objects.Resource, error) {
	path += "/" + url.PathEscape(version)
	return c.remember(path, kind, func() (objects.Resource, error) {
		var found objects.Resource
		err := c.discover(ctx, a, path, []string{"resources"}, func(_ string, entry map[string]any) bool {
			name, _ := entry["name"].(string)
			namespaced, _ := entry["namespaced"].(bool)
			verbs, _ := entry["verbs"].([]any)
			if entry["kind"] == kind && !strings.Contains(name, "/") && slices.Contains(verbs, any("list")) && slices.Contains(verbs, any("watch")) {
				found = objects.Resource{Group: group, Version: version, Kind: kind, Plural: name, Namespaced: namespaced}
			}
			return found.Plural == ""
		})
		if err == nil && found.Plural == "" {
			err = objects.ErrNoSuchKind
		}
		return found, err
	})
}

// discover reads a document of the discovery, entry by entry: forty of 4 MiB took 169 MB.
func (c *Objects) discover(ctx context.Context, a objects.Account, path string, members []string, each func(member string, entry map[string]any) bool) error {
	limits, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	if err := c.wait(limits, a.Namespace); err != nil { // before it has a slot that others wait for
		return err
	}
	turn, err := c.discovery.Take(ctx, a.Namespace, "")
	if err != nil {
		return err
	}
	defer turn.Release()
	ctx, cancel = context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	answer, err := c.call(ctx, caller{a, nil}, &request{path: path, accept: asJSON}, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if err := newReader(io.LimitReader(answer.Body, maxDiscovery), nil, nil).served(members, each); err != nil {
		return fmt.Errorf("kube: reading %s: %w", path, err)
	}
	return nil
}

// List implements [objects.API].
func (c *Objects) List(ctx context.Context, a objects.Account, q objects.Query, turn objects.Turn, each func(*objects.Object) error) (objects.Page, error) {
	if _, err := c.token(ctx, caller{a, turn}); err != nil { // the turn may come late again
		return objects.Page{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	params := query(q)
	params.Set("limit", strconv.Itoa(pageLimit))
	if q.Continue != "" {
		params.Set("continue", q.Continue)
	}
	// The caller lists one page at a time, for all namespaces. A page that waited behind the
	// other calls of its namespace would make the lists of all others wait: lists wait as a
	// namespace of their own.
	if err := c.waitForAll(ctx, ""); err != nil {
		return objects.Page{}, err
	}
	answer, err := c.call(ctx, caller{a, turn}, &request{path: pathOf(q), params: params, accept: acceptList}, forbidden(a, "list", q))
	if err != nil {
		return objects.Page{}, c.missing(q, err)
	}
	defer answer.Body.Close()
	page, err := newReader(answer.Body, nil, nil).list(each)
	if err == nil && page.Version == "" {
		err = errors.New("the list has no resourceVersion")
	}
	if err != nil {
		return objects.Page{}, fmt.Errorf("kube: listing %s: %w", q.Resource.Name(), err)
	}
	return page, nil
}

// Newest implements [objects.API]. The metadata of a list comes before its items, of which none is kept.
func (c *Objects) Newest(ctx context.Context, a objects.Account, q objects.Query) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	params := url.Values{"limit": {"1"}} // with a selector the API server might read many objects to find one
	answer, err := c.get(ctx, a, pathOf(q), params, acceptList, forbidden(a, "list", q))
	if err != nil {
		return "", c.missing(q, err)
	}
	defer answer.Body.Close()
	page, err := newReader(answer.Body, nil, nil).list(nil)
	if err == nil && page.Version == "" {
		err = errors.New("the list has no resourceVersion")
	}
	if err != nil {
		return "", fmt.Errorf("kube: listing %s: %w", q.Resource.Name(), err)
	}
	return page.Version, nil
}

// Watch implements [objects.API].
func (c *Objects) Watch(ctx context.Context, a objects.Account, q objects.Query, h objects.Handler) error {
	life := watchLeast + rand.N(watchSpread)
	ctx, cancel := context.WithTimeout(ctx, life+watchGrace)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	params := query(q)
	params.Set("watch", "true")
	params.Set("allowWatchBookmarks", "true")
	params.Set("resourceVersion", q.Version)
	params.Set("timeoutSeconds", strconv.Itoa(int(life/time.Second)))
	answer, err := c.get(ctx, a, pathOf(q), params, acceptObject, forbidden(a, "watch", q))
	if err != nil {
		return c.missing(q, err)
	}
	defer answer.Body.Close()
	in := newReader(answer.Body, h.Begin, h.Idle)
	in.in.late = time.AfterFunc(time.Hour, func() { end(errSlow) })
	defer in.in.late.Stop()
	in.in.late.Stop() // there is no event yet
	if err := in.watch(h.Each); err != nil {
		if errors.Is(context.Cause(ctx), errSlow) {
			err = errSlow
		}
		return fmt.Errorf("kube: watching %s: %w", q.Resource.Name(), err)
	}
	return nil
}

// missing forgets a kind that is not served any more.
func (c *Objects) missing(q objects.Query, err error) error {
	if errors.Is(err, objects.ErrNoSuchKind) {
		c.kinds.Remove(root(q.Resource) + "#" + q.Resource.Kind)
	}
	return err
}

func query(q objects.Query) url.Values {
	params := url.Values{}
	if q.Selector != "" {
		params.Set("labelSelector", q.Selector)
	}
	return params
}

func root(r objects.Resource) string {
	if r.Group == "" {
		return "/api/" + r.Version
	}
	return "/apis/" + r.Group + "/" + r.Version
}

func pathOf(q objects.Query) string {
	if q.Namespace == "" {
		return root(q.Resource) + "/" + q.Resource.Plural
	}
	return root(q.Resource) + "/namespaces/" + q.Namespace + "/" + q.Resource.Plural
}

func forbidden(a objects.Account, verb string, q objects.Query) *objects.Forbidden {
	return &objects.Forbidden{Account: a, Verb: verb, Resource: q.Resource.Name(), Namespace: q.Namespace}
}

// get makes one call. What a 403 means is in denied; nil: an error like any other.
func (c *Objects) get(ctx context.Context, a objects.Account, path string, params url.Values, accept string, denied *objects.Forbidden) (*http.Response, error) {
	if err := c.wait(ctx, a.Namespace); err != nil {
		return nil, err
	}
	return c.call(ctx, caller{a, nil}, &request{path: path, params: params, accept: accept}, denied)
}

// caller is who makes a call.
type caller struct {
	objects.Account
	turn objects.Turn // nil: none
}

// token returns the token of the account. One that must be requested is waited for without the turn, if
// there is one: the requests of a namespace wait for each other.
func (c *Objects) token(ctx context.Context, a caller) (string, error) {
	var token string
	request := func() (err error) {
		token, err = c.tokens.get(ctx, a.Account)
		return err
	}
	held, err := c.tokens.kept.cached(a.User())
	if held != nil || err != nil || a.turn == nil {
		err = request()
	} else {
		err = a.turn.Without(ctx, request)
	}
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		return "", &objects.Forbidden{Account: a.Account, Detail: shortened(err.Error())}
	case err != nil:
		return "", fmt.Errorf("kube: token of service account %s/%s: %w", a.Namespace, a.Name, err)
	}
	return token, nil
}

// request is a GET, or with a patch a merge patch.
type request struct {
	path   string
	params url.Values
	accept string
	patch  []byte
}

// call is get, after its wait.
func (c *Objects) call(ctx context.Context, a caller, q *request, denied *objects.Forbidden) (*http.Response, error) {
	for again := false; ; again = true {
		token, err := c.token(ctx, a)
		if err != nil {
			return nil, err
		}
		answer, err := c.send(ctx, token, q)
		if err != nil {
			return nil, err
		}
		if answer.StatusCode == http.StatusOK {
			return answer, nil
		}
		failure := status{Code: answer.StatusCode}
		_ = json.NewDecoder(io.LimitReader(answer.Body, maxStatus)).Decode(&failure) // an answer without a message has its status
		_ = answer.Body.Close()
		failure.Code = answer.StatusCode
		switch {
		case failure.Code == http.StatusUnauthorized && !again:
			c.tokens.drop(a.Account)
		case failure.Code == http.StatusForbidden && denied != nil:
			denied.Detail = shortened(failure.Message)
			return nil, denied
		default:
			return nil, failure.err()
		}
	}
}

func (c *Objects) send(ctx context.Context, token string, q *request) (*http.Response, error) {
	u := c.base
	u.Path = strings.TrimSuffix(u.Path, "/") + q.path
	u.RawQuery = q.params.Encode()
	method := http.MethodGet
	if q.patch != nil {
		method = http.MethodPatch
	}
	r, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(q.patch))
	if err != nil {
		return nil, fmt.Errorf("kube: %w", err)
	}
	if q.patch != nil {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	r.Header.Set("Accept", q.accept)
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("User-Agent", c.agent)
	answer, err := c.clients.of(q.params.Has("limit")).Do(r)
	if err != nil {
		c.clients.failed(err)
		return nil, fmt.Errorf("kube: %w", err)
	}
	return answer, nil
}

// wait keeps the limits: first of the namespace, then of all, where the namespaces take turns.
func (c *Objects) wait(ctx context.Context, namespace string) error {
	limit, ok := c.namespaces.Get(namespace)
	if !ok {
		limit = flowcontrol.NewTokenBucketRateLimiter(objectsPerNamespace, 2*objectsPerNamespace)
	}
	c.namespaces.Add(namespace, limit, time.Hour)
	if err := limit.(flowcontrol.RateLimiter).Wait(ctx); err != nil {
		return fmt.Errorf("kube: waiting for a call: %w", err)
	}
	return c.waitForAll(ctx, namespace)
}

// waitForAll keeps the limit of all.
func (c *Objects) waitForAll(ctx context.Context, namespace string) error {
	turn, err := c.turns.Take(ctx, namespace, "")
	if err != nil {
		return fmt.Errorf("kube: waiting for a call: %w", err)
	}
	defer turn.Release()
	if err := c.all.Wait(ctx); err != nil {
		return fmt.Errorf("kube: waiting for a call: %w", err)
	}
	return nil
}

// err is the error of an answer.
func (s status) err() error {
	switch s.Code {
	case http.StatusGone:
		return objects.ErrGone
	case http.StatusNotFound:
		return objects.ErrNoSuchKind
	case http.StatusConflict:
		return errConflict
	}
	return fmt.Errorf("kube: the API server answered %d: %s", s.Code, shortened(s.Message))
}

// shortened bounds a message of the API server.
func shortened(text string) string {
	const most = 256
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
