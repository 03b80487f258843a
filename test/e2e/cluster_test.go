//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/reschedule-dev/reschedule/pkg/client/clientset/versioned"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// Where the product is installed, and what of it runs there.
const (
	system     = kube.SystemNamespace
	adapter    = "reschedule-adapter"
	controller = "reschedule-controller"
)

// cluster is that of KUBECONFIG.
type cluster struct {
	config    *rest.Config
	client    kubernetes.Interface
	dynamic   dynamic.Interface
	sources   versioned.Interface
	discovery discovery.DiscoveryInterface
	mapper    *restmapper.DeferredDiscoveryRESTMapper
}

// connect makes the clients. It takes no default for the two variables: tests
// belong into a cluster that was meant.
func connect() (*cluster, error) {
	var missing []error
	for name, what := range map[string]string{
		"KUBECONFIG":     "the cluster to test in",
		"KO_DOCKER_REPO": "a registry that its nodes pull from",
	} {
		if os.Getenv(name) == "" {
			missing = append(missing, fmt.Errorf("%s is not set: it names %s; make cluster-up says what to set it to", name, what))
		}
	}
	if len(missing) > 0 {
		return nil, errors.Join(missing...)
	}
	c := &cluster{}
	var err error
	if c.config, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig(); err != nil {
		return nil, fmt.Errorf("KUBECONFIG=%s cannot be used: %w", os.Getenv("KUBECONFIG"), err)
	}
	c.config.QPS = -1
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		return nil, err
	}
	if c.dynamic, err = dynamic.NewForConfig(c.config); err != nil {
		return nil, err
	}
	if c.sources, err = versioned.NewForConfig(c.config); err != nil {
		return nil, err
	}
	c.discovery = c.client.Discovery()
	c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.discovery))
	return c, nil
}

// missing says, a sentence for each thing, what the tests need and the cluster
// does not have, and what to do.
func (c *cluster) missing(ctx context.Context) []error {
	if _, err := c.client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{}); err != nil {
		return []error{fmt.Errorf("the cluster of KUBECONFIG=%s does not answer: make cluster-up starts one: %w", os.Getenv("KUBECONFIG"), err)}
	}
	const (
		knative = "make cluster-up installs it, or use a cluster that has it"
		ours    = "make deploy installs it"
	)
	var missing []error
	for _, k := range []struct{ group, kind, of, cure string }{
		{"serving.knative.dev", "Service", "Knative Serving", knative},
		{"sources.knative.dev", "ApiServerSource", "Knative Eventing", knative},
		{"eventing.knative.dev", "Broker", "Knative Eventing", knative},
		{"eventing.knative.dev", "Trigger", "Knative Eventing", knative},
		{"sources.reschedule.dev", "RescheduleSource", "RescheduleSource", ours},
	} {
		if _, err := c.mapper.RESTMapping(schema.GroupKind{Group: k.group, Kind: k.kind}); err != nil {
			missing = append(missing, fmt.Errorf("there is no kind %s.%s: %s is not installed; %s", k.kind, k.group, k.of, k.cure))
		}
	}
	for _, d := range []struct{ namespace, name, of, cure string }{
		{system, "eventing-controller", "Knative Eventing", knative},
		{"knative-serving", "activator", "Knative Serving", knative},
		{"knative-serving", "controller", "Knative Serving", knative},
		{system, controller, "RescheduleSource", ours},
	} {
		if err := c.available(ctx, d.namespace, d.name); err != nil {
			missing = append(missing, fmt.Errorf("deployment %s in %s is not available: %s does not run; %s: %w", d.name, d.namespace, d.of, d.cure, err))
		}
	}
	if _, err := c.client.AppsV1().StatefulSets(system).Get(ctx, adapter, metav1.GetOptions{}); err != nil {
		missing = append(missing, fmt.Errorf("there is no statefulset %s in %s: RescheduleSource is not installed; %s: %w", adapter, system, ours, err))
	}
	return missing
}

// available waits a while for a deployment that was just applied.
func (c *cluster) available(ctx context.Context, namespace, name string) error {
	return poll(ctx, patience, func() error {
		d, err := c.client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return final{err}
		}
		for _, condition := range d.Status.Conditions {
			if condition.Type == appsv1.DeploymentAvailable && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("%d of %d replicas are available", d.Status.AvailableReplicas, d.Status.Replicas)
	})
}

// apply applies manifests on the server's side. Those without a namespace that
// are of a kind that has one go into the given one.
func (c *cluster) apply(ctx context.Context, namespace, manifests string) error {
	objects, err := kube.Objects([]byte(manifests))
	if err != nil {
		return err
	}
	for _, o := range objects {
		if o.GetNamespace() == "" {
			o.SetNamespace(namespace)
		}
		resource, err := c.resource(o.GroupVersionKind(), o.GetNamespace())
		if err != nil {
			return err
		}
		data, err := o.MarshalJSON()
		if err != nil {
			return err
		}
		force := true
		_, err = resource.Patch(ctx, o.GetName(), "application/apply-patch+yaml", data, metav1.PatchOptions{
			FieldManager: "e2e", Force: &force, FieldValidation: metav1.FieldValidationStrict,
		})
		if err != nil {
			return fmt.Errorf("applying %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// resource is the client of a kind, in a namespace if its objects have one.
func (c *cluster) resource(gvk schema.GroupVersionKind, namespace string) (dynamic.ResourceInterface, error) {
	m, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, err
	}
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		return c.dynamic.Resource(m.Resource).Namespace(namespace), nil
	}
	return c.dynamic.Resource(m.Resource), nil
}

// proxied calls a port of a service's pods by way of the API server.
func (c *cluster) proxied(ctx context.Context, method, namespace, service, path string, query map[string]string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	request := c.client.CoreV1().RESTClient().Verb(method).Namespace(namespace).Resource("services").
		Name("http:" + service + ":80").SubResource("proxy").Suffix(path).Body(body)
	for name, value := range query {
		request = request.Param(name, value)
	}
	text, err := request.DoRaw(ctx)
	if err != nil && len(text) > 0 {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return text, err
}
