package kube

import (
	"context"
	"fmt"

	authv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// Cluster is an API server, ours or another, as its administrator sees it.
// Its clients have no limit on their rate.
type Cluster struct {
	Config    *rest.Config
	Client    kubernetes.Interface
	Dynamic   dynamic.Interface
	Discovery discovery.DiscoveryInterface
	// Mapper knows the kinds that there were when it was asked first.
	Mapper *restmapper.DeferredDiscoveryRESTMapper
}

// Connect makes the clients. Nothing is called yet.
func Connect(config *rest.Config) (*Cluster, error) {
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Cluster{
		Config: config, Client: client, Dynamic: dyn, Discovery: client.Discovery(),
		Mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery())),
	}, nil
}

// Resource is the client of a kind of objects, in a namespace if they have one.
func (c *Cluster) Resource(gvk schema.GroupVersionKind, namespace string) (dynamic.ResourceInterface, error) {
	m, err := c.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, fmt.Errorf("kube: %w", err)
	}
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		return c.Dynamic.Resource(m.Resource).Namespace(namespace), nil
	}
	return c.Dynamic.Resource(m.Resource), nil
}

// Token has the API server mint a token for a ServiceAccount, of an hour; for
// the API server itself if no audience is given.
func (c *Cluster) Token(ctx context.Context, namespace, account string, audiences ...string) (string, error) {
	hour := int64(3600)
	t, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, &authv1.TokenRequest{
		Spec: authv1.TokenRequestSpec{Audiences: audiences, ExpirationSeconds: &hour},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("kube: a token for %s/%s: %w", namespace, account, err)
	}
	return t.Status.Token, nil
}
