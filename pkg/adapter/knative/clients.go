package knative

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"time"

	authn "k8s.io/api/authentication/v1"
	authz "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// clients are all that is said to the API server. Each has a limit of its own,
// so that what one has to say a lot of does not hold up the others.
type clients struct {
	sources  cache.ListerWatcher // RescheduleSources
	policies cache.ListerWatcher // EventPolicies, as unstructured objects
	configs  cache.ListerWatcher // ConfigMaps of the system namespace

	reviewToken    tokenReview
	reviewStranger tokenReview
	reviewAccess   accessReview
	fetchKeys      func(context.Context) (*keySet, error)
	requestToken   tokenRequest
	patchStatus    statusPatcher
	events         record.EventSink
	own            apiAudiences
}

// tokenReview asks who bears a token.
type tokenReview func(context.Context, *authn.TokenReview) (*authn.TokenReview, error)

// accessReview asks whether somebody may do something.
type accessReview func(context.Context, *authz.SubjectAccessReview) (*authz.SubjectAccessReview, error)

// tokenRequest asks for a token of a service account.
type tokenRequest func(ctx context.Context, account cache.ObjectName, r *authn.TokenRequest) (*authn.TokenRequest, error)

// statusPatcher makes a merge patch of a RescheduleSource's status.
type statusPatcher func(ctx context.Context, source cache.ObjectName, patch []byte) error

// The limits: requests a second, and as many at once. A fraction of what one
// API server serves, and above what a busy adapter needs once tokens and reviews are cached.
const (
	reviewsPerSecond   = 300
	strangersPerSecond = 50
	accessesPerSecond  = 300
	configsPerSecond   = 50
	tokensPerSecond    = 50
	eventsPerSecond    = 10
	// Watches, and the status patches, which are held to statusPerSecond before.
	sourcesPerSecond = 2 * statusPerSecond
)

// callTimeout bounds every call to the API server but watches and lists.
const callTimeout = 10 * time.Second

// The resources that are called.
var sourcesResource = sources.RescheduleSourcesResource.Resource

const eventsResource = "events"

// eventPolicies is read as it comes: the types of the API bring along Knative's
// clients of everything, which made most of the process.
var eventPolicies = schema.GroupVersionResource{Group: "eventing.knative.dev", Version: "v1alpha1", Resource: "eventpolicies"}

func newClients(base *rest.Config, namespace string) (clients, error) {
	base = rest.CopyConfig(base)
	if base.UserAgent == "" {
		base.UserAgent = fmt.Sprintf("%s (%s/%s)", component, runtime.GOOS, runtime.GOARCH)
	}
	// One transport, and so one HTTP/2 connection, for all.
	client, err := rest.HTTPClientFor(base)
	if err != nil {
		return clients{}, fmt.Errorf("knative: reaching the API server: %w", err)
	}
	short := &http.Client{Transport: client.Transport, Timeout: callTimeout}
	const protobuf, asJSON = k8sruntime.ContentTypeProtobuf, k8sruntime.ContentTypeJSON
	core := corev1.SchemeGroupVersion

	var configs, tokenReviews, strangers, accessReviews, tokens, events, sources *rest.RESTClient
	for _, c := range []struct {
		made   **rest.RESTClient
		of     string
		group  schema.GroupVersion
		config *rest.Config
		client *http.Client
	}{
		{&configs, "ConfigMaps", core, limited(base, configsPerSecond, protobuf), client},
		{&tokenReviews, "TokenReviews", authn.SchemeGroupVersion, limited(base, reviewsPerSecond, protobuf), client},
		{&strangers, "TokenReviews of strangers", authn.SchemeGroupVersion, limited(base, strangersPerSecond, protobuf), client},
		{&accessReviews, "SubjectAccessReviews", authz.SchemeGroupVersion, limited(base, accessesPerSecond, protobuf), client},
		{&tokens, "tokens", core, limited(base, tokensPerSecond, protobuf), short},
		{&events, "Events", core, limited(base, eventsPerSecond, protobuf), short},
		{&sources, "RescheduleSources", v1alpha1.SchemeGroupVersion, limited(base, sourcesPerSecond, asJSON), client},
	} {
		if *c.made, err = clientOf(c.group, c.config, c.client); err != nil {
			return clients{}, fmt.Errorf("knative: making the client of %s: %w", c.of, err)
		}
	}
	policies, err := dynamic.NewForConfigAndClient(limited(base, configsPerSecond, asJSON), client)
	if err != nil {
		return clients{}, fmt.Errorf("knative: making the client of EventPolicies: %w", err)
	}
	return clients{
		sources:        cache.NewListWatchFromClient(sources, sourcesResource, metav1.NamespaceAll, fields.Everything()),
		policies:       listWatch(policies.Resource(eventPolicies)),
		configs:        cache.NewListWatchFromClient(configs, "configmaps", namespace, fields.Everything()),
		reviewToken:    creating[authn.TokenReview](tokenReviews, "tokenreviews"),
		reviewStranger: creating[authn.TokenReview](strangers, "tokenreviews"),
		fetchKeys:      func(ctx context.Context) (*keySet, error) { return fetchKeys(ctx, configs) },
		own:            audiencesOf(base.BearerToken),
		reviewAccess:   creating[authz.SubjectAccessReview](accessReviews, "subjectaccessreviews"),
		requestToken: func(ctx context.Context, account cache.ObjectName, r *authn.TokenRequest) (*authn.TokenRequest, error) {
			made := new(authn.TokenRequest)
			return made, tokens.Post().Namespace(account.Namespace).Resource("serviceaccounts").Name(account.Name).
				SubResource("token").Body(r).Do(ctx).Into(made)
		},
		patchStatus: func(ctx context.Context, source cache.ObjectName, patch []byte) error {
			return sources.Patch(types.MergePatchType).Namespace(source.Namespace).Resource(sourcesResource).Name(source.Name).
				SubResource("status").Body(patch).Do(ctx).Error()
		},
		events: eventClient{events},
	}, nil
}

// fetchKeys reads who issues the cluster's tokens and with which keys, which
// every service account may (system:service-account-issuer-discovery).
func fetchKeys(ctx context.Context, client rest.Interface) (*keySet, error) {
	set := new(keySet)
	var discovery struct {
		Issuer string `json:"issuer"`
	}
	for path, into := range map[string]any{"/.well-known/openid-configuration": &discovery, "/openid/v1/jwks": &set.JSONWebKeySet} {
		raw, err := client.Get().AbsPath(path).SetHeader("Accept", "application/json, */*").DoRaw(ctx)
		if err == nil {
			err = json.Unmarshal(raw, into)
		}
		if err != nil {
			return nil, fmt.Errorf("knative: %s: %w", path, err)
		}
	}
	if set.issuer = discovery.Issuer; set.issuer == "" || len(set.Keys) == 0 {
		return nil, errors.New("knative: the API server names no issuer or no keys")
	}
	return set, nil
}

// limited is a configuration whose clients share one limit.
func limited(base *rest.Config, perSecond int, contentType string) *rest.Config {
	c := rest.CopyConfig(base)
	c.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(float32(perSecond), 2*perSecond)
	c.ContentType = contentType
	if contentType == k8sruntime.ContentTypeProtobuf {
		c.AcceptContentTypes = contentType + "," + k8sruntime.ContentTypeJSON
	}
	return c
}

// clientOf is a client of one API group.
func clientOf(group schema.GroupVersion, config *rest.Config, client *http.Client) (*rest.RESTClient, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion, config.NegotiatedSerializer, config.APIPath = &group, codecs(), "/apis"
	if group.Group == "" {
		config.APIPath = "/api"
	}
	return rest.RESTClientForConfigAndClient(config, client)
}

// creating is a call that creates an object and returns it as it was created.
func creating[T any, P interface {
	*T
	k8sruntime.Object
}](client rest.Interface, resource string) func(context.Context, P) (P, error) {
	return func(ctx context.Context, o P) (P, error) {
		made := P(new(T))
		return made, client.Post().Resource(resource).Body(o).Do(ctx).Into(made)
	}
}

// listWatch lists and watches objects as they come.
func listWatch(r dynamic.ResourceInterface) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (k8sruntime.Object, error) { return r.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return r.Watch(ctx, o)
		},
	}
}

// eventClient writes Events, for the recorder. Its calls end with the
// timeout of its client.
type eventClient struct{ rest.Interface }

// Create implements record.EventSink.
func (c eventClient) Create(e *corev1.Event) (*corev1.Event, error) {
	return recorded(c.Post().Namespace(e.Namespace).Resource(eventsResource).Body(e))
}

// Update implements record.EventSink.
func (c eventClient) Update(e *corev1.Event) (*corev1.Event, error) {
	return recorded(c.Put().Namespace(e.Namespace).Resource(eventsResource).Name(e.Name).Body(e))
}

// Patch implements record.EventSink.
func (c eventClient) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	return recorded(c.Interface.Patch(types.StrategicMergePatchType).Namespace(e.Namespace).Resource(eventsResource).Name(e.Name).Body(patch))
}

func recorded(r *rest.Request) (*corev1.Event, error) {
	e := new(corev1.Event)
	return e, r.Do(context.Background()).Into(e)
}
