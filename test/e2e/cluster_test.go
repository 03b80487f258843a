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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// cluster is the cluster of KUBECONFIG.
type cluster struct {
	*kube.Cluster
	sources versioned.Interface
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
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("KUBECONFIG=%s cannot be used: %w", os.Getenv("KUBECONFIG"), err)
	}
	c := &cluster{}
	if c.Cluster, err = kube.Connect(config); err != nil {
		return nil, err
	}
	if c.sources, err = versioned.NewForConfig(config); err != nil {
		return nil, err
	}
	return c, nil
}

// missing says, a sentence for each thing, what the tests need and the cluster
// does not have, and what to do.
func (c *cluster) missing(ctx context.Context) []error {
	if _, err := c.Client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{}); err != nil {
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
		if _, err := c.Mapper.RESTMapping(schema.GroupKind{Group: k.group, Kind: k.kind}); err != nil {
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
	if _, err := c.Client.AppsV1().StatefulSets(system).Get(ctx, adapter, metav1.GetOptions{}); err != nil {
		missing = append(missing, fmt.Errorf("there is no statefulset %s in %s: RescheduleSource is not installed; %s: %w", adapter, system, ours, err))
	}
	return missing
}

// available waits a while for a deployment that was just applied.
func (c *cluster) available(ctx context.Context, namespace, name string) error {
	return poll(ctx, patience, func() error {
		d, err := c.Client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
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

// proxyCall is a call of a service's pods through the API server.
type proxyCall struct {
	method, namespace, service, path string
	query                            map[string]string
	body                             []byte
}

// proxied makes a call, and returns the body of the answer.
func (c *cluster) proxied(ctx context.Context, p proxyCall) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	request := c.Client.CoreV1().RESTClient().Verb(p.method).Namespace(p.namespace).Resource("services").
		Name("http:" + p.service + ":80").SubResource("proxy").Suffix(p.path).Body(p.body)
	for name, value := range p.query {
		request = request.Param(name, value)
	}
	text, err := request.DoRaw(ctx)
	if err != nil && len(text) > 0 {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return text, err
}
