//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// publicOperator deploys a public operator of test/operators as a ksvc of its name, which
// goes to zero quickly, behind a source with the spec. If there are resources, an
// ApiServerSource watches them with the ServiceAccount "watcher". It waits until the
// operator is at zero.
func publicOperator(n *namespace, name, image, spec, resources string) *source {
	n.t.Helper()
	annotations := map[string]string{"autoscaling.knative.dev/max-scale": "1"}
	maps.Copy(annotations, quickly)
	n.apply(ksvc(n, name, annotations, "serviceAccountName: "+name, fmt.Sprintf("{image: %q, securityContext: %s}", image, restricted)))
	n.ready(knativeService, name)
	s := n.source(name, toKsvc(name)+spec)
	if resources == "" {
		n.atZero(name)
		return s
	}
	n.apply(fmt.Sprintf(`
apiVersion: sources.knative.dev/v1
kind: ApiServerSource
metadata: {name: %s}
spec:
  serviceAccountName: watcher
  mode: Resource
  resources: %s
  sink: %s
`, name, resources, s.ref()))
	n.ready(apiServerSource, name)
	n.atZero(name)
	return s
}

// ownerText is owner in YAML.
func ownerText(n *namespace) string {
	n.t.Helper()
	o := ownerReference(n)
	return fmt.Sprintf("{apiVersion: %s, kind: %s, name: %s, uid: %s}", o.APIVersion, o.Kind, o.Name, o.UID)
}

// chaosPodCRD is of the types in controller-runtime's examples/crd/pkg.
const chaosPodCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: chaospods.chaosapps.metamagical.io, ownerReferences: [OWNER]}
spec:
  group: chaosapps.metamagical.io
  scope: Namespaced
  names: {kind: ChaosPod, listKind: ChaosPodList, plural: chaospods, singular: chaospod}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

// chaosPod is one of a test: it has a pod of its name, which must be stopped, and
// made anew, when its time has come.
type chaosPod struct {
	*namespace
	name string
}

// chaosPodState is what the tests look at.
type chaosPodState struct {
	Spec   struct{ NextStop metav1.Time }
	Status struct{ LastRun metav1.Time }
}

var chaosPods = schema.GroupVersionResource{Group: "chaosapps.metamagical.io", Version: "v1", Resource: "chaospods"}

func (c chaosPod) state() (chaosPodState, error) {
	var s chaosPodState
	o, err := c.Dynamic.Resource(chaosPods).Namespace(c.namespace.name).Get(c.t.Context(), c.name, metav1.GetOptions{})
	if err != nil {
		return s, err
	}
	text, err := o.MarshalJSON()
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(text, &s)
}

func (c chaosPod) key() string { return "ChaosPod/" + c.namespace.name + "/" + c.name }

// stopAt is what its owner does who wants another time.
func (c chaosPod) stopAt(next time.Time) error {
	patch := fmt.Appendf(nil, `{"spec":{"nextStop":%q}}`, next.UTC().Format(time.RFC3339))
	_, err := c.Dynamic.Resource(chaosPods).Namespace(c.namespace.name).Patch(c.t.Context(), c.name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// awaitPod waits until there is a new pod, whose time to stop is in the future,
// and returns it.
func (c chaosPod) awaitPod(deadline time.Duration, before *corev1.Pod) *corev1.Pod {
	c.t.Helper()
	var pod *corev1.Pod
	eventually(c.t, deadline, "there is a new pod "+c.name, func() error {
		var err error
		if pod, err = c.Client.CoreV1().Pods(c.namespace.name).Get(c.t.Context(), c.name, metav1.GetOptions{}); err != nil {
			return err
		}
		if before != nil && pod.UID == before.UID {
			return fmt.Errorf("it was made at %s, and is deleted at %v", pod.CreationTimestamp, pod.DeletionTimestamp)
		}
		is, err := c.state()
		if err == nil && is.Spec.NextStop.Before(&pod.CreationTimestamp) {
			err = fmt.Errorf("its nextStop is %s", is.Spec.NextStop)
		}
		return err
	})
	return pod
}

// postpone has its pod stopped at a time, and waits until its key is due then, and a
// second later, as the operator asks for, and the operator is at zero. It returns
// the pod.
func (c chaosPod) postpone(s *source, next time.Time) *corev1.Pod {
	c.t.Helper()
	var pod *corev1.Pod
	eventually(c.t, patience, fmt.Sprintf("%s is due after %s", c.key(), next), func() error {
		is, err := c.state()
		if err == nil && !is.Spec.NextStop.Time.Equal(next) { // by us, or by the operator for the next pod
			err = errors.Join(fmt.Errorf("its nextStop is %s", is.Spec.NextStop), c.stopAt(next))
		}
		if err != nil {
			return err
		}
		if pod, err = c.Client.CoreV1().Pods(c.namespace.name).Get(c.t.Context(), c.name, metav1.GetOptions{}); err != nil {
			return err
		}
		due := s.scheduled(c.key())
		if due == nil || pod.DeletionTimestamp != nil || due.State != "waiting" || due.DueAt.Before(next) || due.DueAt.After(next.Add(30*time.Second)) {
			return fmt.Errorf("the pod goes at %v, and of its key is known %+v", pod.DeletionTimestamp, due)
		}
		return nil
	})
	c.atZero("chaospod")
	return pod
}

// The ChaosPod of controller-runtime's examples runs from zero with only its main program changed.
func TestPublicOperator_ChaosPod(t *testing.T) {
	beside(t)
	const stop = pastZero
	n := newNamespace(t, "chaospod")
	n.apply(strings.ReplaceAll(chaosPodCRD, "OWNER", ownerText(n)))
	n.account("chaospod", `
- {apiGroups: [chaosapps.metamagical.io], resources: [chaospods, chaospods/finalizers], verbs: [get, update]}
- {apiGroups: [""], resources: [pods], verbs: [get, create, delete]}`)
	n.account("watcher", `
- {apiGroups: [chaosapps.metamagical.io], resources: [chaospods], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch]}`)
	c := chaosPod{n, "victim"}
	s := publicOperator(n, "chaospod", images.chaospod, `
delivery: {backoffDelay: PT1S}
watch:
  serviceAccountName: watcher
  resources:
  - {apiVersion: chaosapps.metamagical.io/v1, kind: ChaosPod}
  - {apiVersion: v1, kind: Pod, owner: {apiVersion: chaosapps.metamagical.io/v1, kind: ChaosPod}} # not its own pods
`, "")

	began := time.Now()
	n.apply(fmt.Sprintf(`
apiVersion: chaosapps.metamagical.io/v1
kind: ChaosPod
metadata: {name: victim}
spec:
  template:
    metadata: {labels: {app: victim}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: victim, image: %q, securityContext: %s}]
`, images.recorder, restricted))
	first := c.awaitPod(patience, nil)
	t.Logf("cold: the pod was there %s after its ChaosPod", time.Since(began).Round(time.Millisecond))
	if owner := metav1.GetControllerOf(first); owner == nil || owner.Kind != "ChaosPod" || owner.Name != "victim" {
		t.Errorf("the controller of the pod is %+v", owner)
	}

	// A timer: it comes when the operator is at zero.
	next := time.Now().Add(stop).Truncate(time.Second)
	pod := c.postpone(s, next)
	left := time.Until(next)
	if left < 0 {
		t.Fatalf("Serving took longer than %s to zero: make pastZero longer", stop)
	}
	t.Logf("at zero %s before the pod must be stopped", left.Round(time.Second))
	second := c.awaitPod(left+patience, pod)
	operators, err := n.replicas("chaospod")
	if err != nil || len(operators) != 1 || operators[0].CreationTimestamp.Time.Before(next) {
		t.Errorf("the operator's pods are %v, want one that was woken after %s: %v", operators, next, err)
	}
	if second.CreationTimestamp.Time.Before(next) {
		t.Errorf("the pod of %s was replaced before its time, %s, at %s", pod.CreationTimestamp, next, second.CreationTimestamp)
	}
	t.Logf("cold: the pod was replaced %s after its time", second.CreationTimestamp.Sub(next))

	// A change: it comes when the operator is at zero, and long before the timer.
	pod = c.postpone(s, time.Now().Add(time.Hour).Truncate(time.Second))
	began = time.Now()
	if err := c.stopAt(began.Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	c.awaitPod(patience, pod)
	t.Logf("cold: the pod was replaced %s after the change", time.Since(began).Round(time.Millisecond))

	// The example returns an error for a ChaosPod that is gone. Anywhere else that is
	// tried again as well.
	if err := n.Dynamic.Resource(chaosPods).Namespace(n.name).Delete(t.Context(), "victim", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "what fails is tried again", func() error {
		if is := s.scheduled(c.key()); is == nil || is.Attempt == nil || *is.Attempt < 2 {
			return fmt.Errorf("it is %+v", is)
		}
		return nil
	})
}

// cainjectorRoles let the cainjector read what it has in its cache, and write the
// webhook of the test; and have such watched.
const cainjectorRoles = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: cainjector}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: NAME-operator, ownerReferences: [OWNER]}
rules:
- {apiGroups: [""], resources: [secrets], verbs: [get, list, watch]}
- {apiGroups: [admissionregistration.k8s.io], resources: [mutatingwebhookconfigurations, validatingwebhookconfigurations], verbs: [get, list, watch]}
- {apiGroups: [apiregistration.k8s.io], resources: [apiservices], verbs: [get, list, watch]}
- {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [get, list, watch]}
- {apiGroups: [admissionregistration.k8s.io], resources: [validatingwebhookconfigurations], resourceNames: [NAME], verbs: [update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NAME-operator, ownerReferences: [OWNER]}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NAME-operator}
subjects: [{kind: ServiceAccount, name: cainjector, namespace: NAME}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: NAME-watcher, ownerReferences: [OWNER]}
rules:
- {apiGroups: [admissionregistration.k8s.io], resources: [validatingwebhookconfigurations], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NAME-watcher, ownerReferences: [OWNER]}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NAME-watcher}
subjects: [{kind: ServiceAccount, name: watcher, namespace: NAME}]
`

// webhookWithoutCA is one for objects that there are not, and wants the CA of a
// Secret.
const webhookWithoutCA = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: NAME
  ownerReferences: [OWNER]
  annotations: {cert-manager.io/inject-ca-from-secret: NAME/ca}
webhooks:
- name: absent.e2e.reschedule.dev
  clientConfig: {service: {namespace: NAME, name: absent}}
  rules: [{apiGroups: [e2e.reschedule.dev], apiVersions: [v1], operations: [CREATE], resources: [nothings]}]
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Ignore
`

// awaitCA waits until the webhook has just these certificates.
func awaitCA(n *namespace, what, want string) {
	n.t.Helper()
	eventually(n.t, patience, what, func() error {
		o, err := n.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(n.t.Context(), n.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := string(o.Webhooks[0].ClientConfig.CABundle); got != want {
			return fmt.Errorf("it has %q, want %q", got, want)
		}
		return nil
	})
}

// This one has what the ChaosPod has not: several controllers, a cache with an index,
// an object that is watched by its metadata and leads to others by a map function,
// predicates, and objects without a namespace.
func TestPublicOperator_CAInjector(t *testing.T) {
	beside(t)
	n := newNamespace(t, "cainjector")
	in := strings.NewReplacer("NAME", n.name, "OWNER", ownerText(n))
	n.account("watcher", `[{apiGroups: [""], resources: [secrets], verbs: [get, list, watch]}]`)
	n.apply(in.Replace(cainjectorRoles))
	s := publicOperator(n, "cainjector", images.cainjector, `
delivery: {backoffDelay: PT1S}
ingest: {key: "event.kind + '/' + event.namespace + '/' + event.name"}
`, "[{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration}, {apiVersion: v1, kind: Secret}]")

	// There is no such Secret yet.
	n.apply(in.Replace(webhookWithoutCA))
	eventually(t, patience, "the operator is woken", func() error {
		pods, err := n.replicas("cainjector")
		if err == nil && len(pods) == 0 {
			err = errors.New("it is at zero")
		}
		return err
	})
	n.atZero("cainjector")
	s.awaitCounts("nothing is left to be done", 0)

	first, second := newAuthority(t), newAuthority(t)
	secret := func(ca *authority) {
		n.apply("apiVersion: v1\nkind: Secret\nmetadata: {name: ca, annotations: {cert-manager.io/allow-direct-injection: \"true\"}}\n" +
			fmt.Sprintf("stringData: {ca.crt: %q}\n", ca.pem))
	}
	began := time.Now()
	secret(first)
	awaitCA(n, "the webhook has the CA of the Secret", first.pem)
	t.Logf("cold: the webhook had the CA %s after there was the Secret", time.Since(began).Round(time.Millisecond))

	n.atZero("cainjector")
	began = time.Now()
	secret(second)
	awaitCA(n, "the webhook has the new CA beside the old", first.pem+second.pem)
	t.Logf("cold: the webhook had the new CA %s after the Secret", time.Since(began).Round(time.Millisecond))

	// A user takes it away.
	_, err := n.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Patch(t.Context(), n.name, types.JSONPatchType,
		[]byte(`[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	awaitCA(n, "the webhook has the CA again", second.pem)
	s.awaitCounts("nothing is left to be done", 0)
}
