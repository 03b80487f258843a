//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/yaml"
)

// dump writes all objects of the namespace, the logs of its pods, what its
// recorder kept, and the end of the logs of the programs that served it. The
// test has failed already: what cannot be read is only logged.
func (n *namespace) dump(ctx context.Context) {
	dir := filepath.Join(logs, regexp.MustCompile(`[^\w.-]+`).ReplaceAllString(n.t.Name(), "_"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		n.t.Log(err)
		return
	}
	write := func(name string, text []byte, err error) {
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err != nil {
			n.t.Logf("%s: %v", name, err)
		}
	}
	dumpObjects(ctx, n, write)
	dumpLogs(ctx, n, n.name, "", write)
	for namespace, selector := range map[string]string{
		system:            "app.kubernetes.io/name=reschedule",
		"knative-serving": "app in (activator, autoscaler)",
	} {
		dumpLogs(ctx, n, namespace, selector, write)
	}
	if records, err := n.proxied(ctx, proxyCall{method: "GET", namespace: n.name, service: "recorder", path: "records"}); !apierrors.IsNotFound(err) { // a namespace may have none
		write("records.json", records, err)
	}
	n.t.Logf("namespace %s is written to %s", n.name, dir)
}

// dumpObjects writes a file for each kind that there is of, without secrets,
// and without what is in EndpointSlices too.
func dumpObjects(ctx context.Context, n *namespace, write func(string, []byte, error)) {
	// What of the lists could be read is returned beside an error.
	lists, err := discovery.ServerPreferredNamespacedResources(n.Discovery)
	if err != nil {
		n.t.Log(err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			n.t.Log(err)
			continue
		}
		for _, kind := range list.APIResources {
			if kind.Name == "secrets" || kind.Name == "endpoints" || !slices.Contains(kind.Verbs, "list") {
				continue
			}
			objects, err := n.Dynamic.Resource(gv.WithResource(kind.Name)).Namespace(n.name).List(ctx, metav1.ListOptions{})
			if err != nil || len(objects.Items) == 0 {
				continue // metrics of pods and the like cannot always be had
			}
			for _, o := range objects.Items {
				o.SetManagedFields(nil)
			}
			text, err := yaml.Marshal(objects.UnstructuredContent())
			write(kind.Name+"."+gv.Group+".yaml", text, err)
		}
	}
}

// dumpLogs writes the logs of pods, a file for each container.
func dumpLogs(ctx context.Context, n *namespace, namespace, selector string, write func(string, []byte, error)) {
	pods, err := n.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		n.t.Log(err)
		return
	}
	for _, pod := range pods.Items {
		for _, c := range pod.Status.ContainerStatuses {
			for _, previous := range []bool{false, true} {
				name := fmt.Sprintf("%s.%s.log", pod.Name, c.Name)
				if previous {
					if c.RestartCount == 0 {
						continue
					}
					name += ".previous"
				}
				most := int64(5000)
				text, err := n.Client.CoreV1().Pods(namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: c.Name, Previous: previous, TailLines: &most}).DoRaw(ctx)
				write(name, text, err)
			}
		}
	}
}
