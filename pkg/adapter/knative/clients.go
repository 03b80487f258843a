package knative

import (
	"fmt"
	"net/http"
	"runtime"
	"time"

	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	eventing "knative.dev/eventing/pkg/client/clientset/versioned"

	"github.com/reschedule-dev/reschedule/pkg/client/clientset/versioned"
)

// clients talk to the API server. Each has a limit of its own, so that what one
// has to say a lot of does not hold up the others.
type clients struct {
	kube     kubernetes.Interface        // ConfigMaps, and reviews of callers
	tokens   typedcorev1.CoreV1Interface // service accounts' tokens
	events   typedcorev1.CoreV1Interface // Events
	sources  versioned.Interface         // RescheduleSources and their status
	policies eventing.Interface          // EventPolicies
}

// The limits: requests a second, and as many at once. A fraction of what one
// API server serves, and above what a busy adapter needs once tokens and reviews are cached.
const (
	reviewsPerSecond = 100
	tokensPerSecond  = 50
	eventsPerSecond  = 10
	// Watches, and the status patches, which are held to statusPerSecond before.
	sourcesPerSecond = 2 * statusPerSecond
)

// callTimeout bounds every call to the API server but watches and lists.
const callTimeout = 10 * time.Second

func newClients(base *rest.Config) (clients, error) {
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
	limited := func(perSecond int, contentType string) *rest.Config {
		c := rest.CopyConfig(base)
		c.QPS, c.Burst = float32(perSecond), 2*perSecond
		c.ContentType = contentType
		if contentType == k8sruntime.ContentTypeProtobuf {
			c.AcceptContentTypes = contentType + "," + k8sruntime.ContentTypeJSON
		}
		return c
	}
	const protobuf, json = k8sruntime.ContentTypeProtobuf, k8sruntime.ContentTypeJSON
	var made clients
	if made.kube, err = kubernetes.NewForConfigAndClient(limited(reviewsPerSecond, protobuf), client); err != nil {
		return clients{}, fmt.Errorf("knative: making the client: %w", err)
	}
	if made.tokens, err = typedcorev1.NewForConfigAndClient(limited(tokensPerSecond, protobuf), short); err != nil {
		return clients{}, fmt.Errorf("knative: making the client of tokens: %w", err)
	}
	if made.events, err = typedcorev1.NewForConfigAndClient(limited(eventsPerSecond, protobuf), short); err != nil {
		return clients{}, fmt.Errorf("knative: making the client of Events: %w", err)
	}
	if made.sources, err = versioned.NewForConfigAndClient(limited(sourcesPerSecond, json), client); err != nil {
		return clients{}, fmt.Errorf("knative: making the client of RescheduleSources: %w", err)
	}
	if made.policies, err = eventing.NewForConfigAndClient(limited(reviewsPerSecond, json), client); err != nil {
		return clients{}, fmt.Errorf("knative: making the client of EventPolicies: %w", err)
	}
	return made, nil
}
