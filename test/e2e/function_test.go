//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// rule is what a function does with keys that begin so; see images/function.
type rule struct {
	Prefix string `json:"prefix"`
	behaviour
}

// behaviour is what a function does with a delivery. An event says it itself
// in its data: {"do": …}.
type behaviour struct {
	Read     string            `json:"read,omitempty"`
	Work     string            `json:"work,omitempty"`
	Status   int               `json:"status,omitempty"`
	Failures int               `json:"failures,omitempty"`
	Headers  map[string]string `json:"headers,omitempty"`
	Reply    *reply            `json:"reply,omitempty"`
}

// reply is an event that a function answers with.
type reply struct {
	Attributes map[string]string `json:"attributes"`
	Data       any               `json:"data,omitempty"`
}

// containerOf is the container of a function.
func containerOf(n *namespace, rules []rule) string {
	n.t.Helper()
	text, err := json.Marshal(rules)
	if err != nil {
		n.t.Fatal(err)
	}
	return fmt.Sprintf("{name: function, image: %q, env: [{name: RULES, value: %q}, {name: RECORDER, value: %q}], ports: [{containerPort: 8080}], securityContext: %s}",
		images.function, text, recorderURL(n), restricted)
}

// restricted is the securityContext of what needs nothing, as clusters ask for
// that enforce the restricted Pod Security Standard.
const restricted = "{allowPrivilegeEscalation: false, runAsNonRoot: true, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}"

// quickly has an idle ksvc go to zero as soon as Serving can.
var quickly = map[string]string{
	"autoscaling.knative.dev/window":                             "10s",
	"autoscaling.knative.dev/scale-to-zero-pod-retention-period": "0s",
}

// pastZero is longer than a ksvc with a window of 10 s takes to zero after a run: some 15 s, and at
// most 45 s, when the activator was not in its path before.
const pastZero = time.Minute

// serve makes a function a ksvc, with annotations of its revision such as
// [quickly], and waits until it is ready. It begins with a pod.
func (n *namespace) serve(name string, annotations map[string]string, rules ...rule) {
	n.t.Helper()
	serveWith(n, name, annotations, "", rules...)
}

// serveWith is serve with fields for the spec of the revision.
func serveWith(n *namespace, name string, annotations map[string]string, fields string, rules ...rule) {
	n.t.Helper()
	n.apply(ksvc(n, name, annotations, fields, containerOf(n, rules)))
	n.ready(knativeService, name)
}

// ksvc is a ksvc in YAML, with annotations of its revision, fields of its spec, as
// in {}, and a container.
func ksvc(n *namespace, name string, annotations map[string]string, fields, container string) string {
	n.t.Helper()
	text, err := json.Marshal(annotations)
	if err != nil {
		n.t.Fatal(err)
	}
	if fields != "" {
		fields += ", "
	}
	return fmt.Sprintf(`
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: %s, labels: {networking.knative.dev/visibility: cluster-local}}
spec:
  template:
    metadata: {annotations: %s}
    spec: {%scontainers: [%s]}
`, name, text, fields, container)
}

// toKsvc is the spec of a source whose sink is a ksvc.
func toKsvc(name string) string {
	return "sink: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: " + name + "}}\n"
}

// deploy makes a function a Deployment with a Service, and waits until it is
// ready.
func (n *namespace) deploy(name string, replicas int, rules ...rule) {
	n.t.Helper()
	n.apply(strings.NewReplacer("NAME", name, "REPLICAS", fmt.Sprint(replicas), "CONTAINER", containerOf(n, rules)).Replace(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME}
spec:
  replicas: REPLICAS
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      containers: [CONTAINER]
---
apiVersion: v1
kind: Service
metadata: {name: NAME}
spec:
  selector: {app: NAME}
  ports: [{port: 80, targetPort: 8080}]
`))
	n.ready(deployment, name)
}

// toService is the spec of a source whose sink is a Service.
func toService(name string) string {
	return "sink: {ref: {apiVersion: v1, kind: Service, name: " + name + "}}\n"
}

// replicas are the pods of a ksvc that serve: not the pods that are
// on their way out.
func (n *namespace) replicas(name string) ([]corev1.Pod, error) {
	list, err := n.Client.CoreV1().Pods(n.name).List(n.t.Context(), metav1.ListOptions{LabelSelector: "serving.knative.dev/service=" + name})
	if err != nil {
		return nil, err
	}
	var serving []corev1.Pod
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			serving = append(serving, p)
		}
	}
	return serving, nil
}

// atZero waits until a ksvc has no replica.
func (n *namespace) atZero(name string) {
	n.t.Helper()
	eventually(n.t, patience, "ksvc "+name+" is at zero", func() error {
		pods, err := n.replicas(name)
		if err != nil || len(pods) == 0 {
			return err
		}
		return fmt.Errorf("it has %d pods: %s is %s", len(pods), pods[0].Name, pods[0].Status.Phase)
	})
}
