package kube

import (
	"context"
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

	"github.com/reschedule-dev/reschedule/pkg/adapter/scale"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/relist"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// Clients are the calls that the adapter makes to the API server. Each has a
// rate limit of its own, so that many calls of one kind do not delay the others.
type Clients struct {
	Sources    cache.ListerWatcher // RescheduleSources
	Policies   cache.ListerWatcher // EventPolicies, as unstructured objects
	ConfigMaps cache.ListerWatcher // ConfigMaps of the system namespace

	ReviewToken TokenReviewer
	// ReviewStranger is for tokens that the cluster's keys can neither confirm nor
	// refute. It is the same call as ReviewToken, with a lower limit.
	ReviewStranger TokenReviewer
	ReviewAccess   AccessReviewer
	FetchKeys      KeyFetcher
	RequestToken   TokenRequester
	PatchStatus    StatusPatcher
	GetSource      SourceGetter
	Events         record.EventSink
	// Objects are the calls of watching sources, as the accounts that they name.
	Objects objects.API
	// Workloads are the calls of sources that scale workloads, as the accounts that they name.
	Workloads    scale.API
	OwnAudiences APIAudiences
}

// TokenReviewer asks the API server whose token it is.
type TokenReviewer func(context.Context, *authn.TokenReview) (*authn.TokenReview, error)

// AccessReviewer asks the API server whether a user may do something.
type AccessReviewer func(context.Context, *authz.SubjectAccessReview) (*authz.SubjectAccessReview, error)

// KeyFetcher reads the public keys that the cluster signs tokens with.
type KeyFetcher func(context.Context) (*KeySet, error)

// TokenRequester requests a token of a service account.
type TokenRequester func(ctx context.Context, account cache.ObjectName, r *authn.TokenRequest) (*authn.TokenRequest, error)

// StatusPatcher makes a merge patch of a RescheduleSource's status.
type StatusPatcher func(ctx context.Context, source cache.ObjectName, patch []byte) error

// SourceGetter reads a RescheduleSource.
type SourceGetter func(ctx context.Context, source cache.ObjectName) (*v1alpha1.RescheduleSource, error)

// The limits, in requests per second, with bursts of two seconds' worth. They
// are a fraction of what one API server serves, and more than a busy adapter
// needs once tokens and reviews are cached.
const (
	reviewsPerSecond   = 300
	strangersPerSecond = 50
	accessesPerSecond  = 300
	configsPerSecond   = 50
	tokensPerSecond    = 50
	eventsPerSecond    = 10
	// Watches, and the status patches, which the reporter limits to StatusPerSecond.
	sourcesPerSecond = 2 * StatusPerSecond
)

// StatusPerSecond bounds the status patches. With more than 1,500 busy sources
// each source is reported less often.
const StatusPerSecond = 50

// CallTimeout bounds every call to the API server except watches and lists.
const CallTimeout = 10 * time.Second

// Component is the adapter's name in Events and in its user agent.
const Component = "reschedule-adapter"

var sourcesResource = sources.RescheduleSourcesResource.Resource

const eventsResource = "events"

// EventPolicies are read as unstructured objects: the types of that API link
// all of Knative's clients, which made most of the process.
var EventPolicies = schema.GroupVersionResource{Group: "eventing.knative.dev", Version: "v1alpha1", Resource: "eventpolicies"}

// NewClients makes the clients. Namespace is the system namespace, whose
// ConfigMaps are read.
func NewClients(base *rest.Config, namespace string) (Clients, error) {
	base = rest.CopyConfig(base)
	if base.UserAgent == "" {
		base.UserAgent = fmt.Sprintf("%s (%s/%s)", Component, runtime.GOOS, runtime.GOARCH)
	}
	base.Wrap(relist.Transport)
	// One transport, and so one HTTP/2 connection, for all.
	long, err := rest.HTTPClientFor(base)
	if err != nil {
		return Clients{}, fmt.Errorf("kube: reaching the API server: %w", err)
	}
	short := &http.Client{Transport: long.Transport, Timeout: CallTimeout}
	const protobuf, asJSON = k8sruntime.ContentTypeProtobuf, k8sruntime.ContentTypeJSON
	var problems []error
	client := func(what string, group schema.GroupVersion, perSecond int, contentType string, h *http.Client) *rest.RESTClient {
		c, err := clientFor(group, limited(base, perSecond, contentType), h)
		if err != nil {
			problems = append(problems, fmt.Errorf("kube: making the client of %s: %w", what, err))
		}
		return c
	}
	core := corev1.SchemeGroupVersion
	configMaps := client("ConfigMaps", core, configsPerSecond, protobuf, long)
	tokenReviews := client("TokenReviews", authn.SchemeGroupVersion, reviewsPerSecond, protobuf, long)
	strangers := client("TokenReviews of strangers", authn.SchemeGroupVersion, strangersPerSecond, protobuf, long)
	accessReviews := client("SubjectAccessReviews", authz.SchemeGroupVersion, accessesPerSecond, protobuf, long)
	tokens := client("tokens", core, tokensPerSecond, protobuf, short)
	events := client("Events", core, eventsPerSecond, protobuf, short)
	sources := client("RescheduleSources", v1alpha1.SchemeGroupVersion, sourcesPerSecond, asJSON, long)
	policies, err := dynamic.NewForConfigAndClient(limited(base, configsPerSecond, asJSON), long)
	if err != nil {
		problems = append(problems, fmt.Errorf("kube: making the client of EventPolicies: %w", err))
	}
	request := func(ctx context.Context, account cache.ObjectName, r *authn.TokenRequest) (*authn.TokenRequest, error) {
		made := new(authn.TokenRequest)
		return made, tokens.Post().Namespace(account.Namespace).Resource("serviceaccounts").Name(account.Name).
			SubResource("token").Body(r).Do(ctx).Into(made)
	}
	audiences := audiencesOf(base)
	watching, err := NewObjects(base, request, audiences)
	if err != nil {
		problems = append(problems, err)
	}
	if problems != nil {
		return Clients{}, errors.Join(problems...)
	}
	return Clients{
		Objects:        watching,
		Workloads:      watching,
		Sources:        cache.NewFilteredListWatchFromClient(sources, sourcesResource, metav1.NamespaceAll, newest),
		Policies:       ListWatch(policies.Resource(EventPolicies)),
		ConfigMaps:     cache.NewListWatchFromClient(configMaps, "configmaps", namespace, fields.Everything()),
		ReviewToken:    creating[authn.TokenReview](tokenReviews, "tokenreviews"),
		ReviewStranger: creating[authn.TokenReview](strangers, "tokenreviews"),
		FetchKeys:      func(ctx context.Context) (*KeySet, error) { return fetchKeys(ctx, configMaps) },
		OwnAudiences:   audiences,
		ReviewAccess:   creating[authz.SubjectAccessReview](accessReviews, "subjectaccessreviews"),
		RequestToken:   request,
		PatchStatus: func(ctx context.Context, source cache.ObjectName, patch []byte) error {
			return sources.Patch(types.MergePatchType).Namespace(source.Namespace).Resource(sourcesResource).Name(source.Name).
				SubResource("status").Body(patch).Do(ctx).Error()
		},
		GetSource: func(ctx context.Context, source cache.ObjectName) (*v1alpha1.RescheduleSource, error) {
			o := new(v1alpha1.RescheduleSource)
			return o, sources.Get().Namespace(source.Namespace).Resource(sourcesResource).Name(source.Name).Do(ctx).Into(o)
		},
		Events: eventClient{events},
	}, nil
}

// newest makes a list of any version one of the newest: schedules of sources that the first list does not have are
// purged, and the API server's cache may be older than what the adapter before this one has accepted.
func newest(o *metav1.ListOptions) {
	if o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
}

// limited returns a configuration whose clients share one rate limit.
func limited(base *rest.Config, perSecond int, contentType string) *rest.Config {
	c := rest.CopyConfig(base)
	c.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(float32(perSecond), 2*perSecond)
	c.ContentType = contentType
	if contentType == k8sruntime.ContentTypeProtobuf {
		c.AcceptContentTypes = contentType + "," + k8sruntime.ContentTypeJSON
	}
	return c
}

// clientFor makes a client of one API group.
func clientFor(group schema.GroupVersion, config *rest.Config, client *http.Client) (*rest.RESTClient, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion, config.NegotiatedSerializer, config.APIPath = &group, codecs(), "/apis"
	if group.Group == "" {
		config.APIPath = "/api"
	}
	return rest.RESTClientForConfigAndClient(config, client)
}

// creating returns a call that creates an object and returns the answer.
func creating[T any, P interface {
	*T
	k8sruntime.Object
}](client rest.Interface, resource string) func(context.Context, P) (P, error) {
	return func(ctx context.Context, o P) (P, error) {
		made := P(new(T))
		return made, client.Post().Resource(resource).Body(o).Do(ctx).Into(made)
	}
}

// ListWatch lists and watches unstructured objects.
func ListWatch(r dynamic.ResourceInterface) *cache.ListWatch {
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
