//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// residentHelm is the operator as a Deployment.
const residentHelm = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: helm}
spec:
  selector: {matchLabels: {app: helm}}
  template:
    metadata: {labels: {app: helm}}
    spec:
      serviceAccountName: helm
      terminationGracePeriodSeconds: 1
      containers:
      - name: helm
        image: IMAGE
        env: [{name: RESIDENT, value: "true"}, {name: NAMESPACE, value: NAMESPACED}]
        securityContext: RESTRICTED
`

// helmSpec is of the source; docs/helm.md has the same lines.
const helmSpec = `
delivery: {timeout: PT1M, backoffDelay: PT1S}
watch:
  serviceAccountName: watcher
  resources:
  - {apiVersion: example.com/v1, kind: Greeting, changes: Spec}
  - {apiVersion: v1, kind: Secret, owner: {apiVersion: example.com/v1, kind: Greeting}} # Helm's own, of releases
  - {apiVersion: v1, kind: ConfigMap, owner: {apiVersion: example.com/v1, kind: Greeting}} # of the chart
  - {apiVersion: v1, kind: Service, owner: {apiVersion: example.com/v1, kind: Greeting}}
`

var greetings = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "greetings"}

// helmRelease is a Greeting, whose chart has a ConfigMap and a Service of its name.
type helmRelease struct {
	*namespace
	name string
}

func (r helmRelease) key() string { return "Greeting/" + r.namespace.name + "/" + r.name }

// uninstalled reports what is left of the release.
func (r helmRelease) uninstalled() error {
	if _, err := r.Client.CoreV1().ConfigMaps(r.namespace.name).Get(r.t.Context(), r.name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return errors.Join(errors.New("its ConfigMap is there"), err)
	}
	secrets, err := r.Client.CoreV1().Secrets(r.namespace.name).List(r.t.Context(), metav1.ListOptions{LabelSelector: "owner=helm"})
	if err == nil && len(secrets.Items) > 0 {
		err = fmt.Errorf("%d of Helm's Secrets are there", len(secrets.Items))
	}
	if _, gone := r.condition("Deployed"); err == nil && !apierrors.IsNotFound(gone) {
		err = errors.Join(errors.New("the Greeting is there"), gone)
	}
	return err
}

// is waits until a condition of the Greeting has a status.
func (r helmRelease) is(condition string, want metav1.ConditionStatus) {
	r.t.Helper()
	eventually(r.t, patience, condition+" is "+string(want), func() error {
		got, err := r.condition(condition)
		if err == nil && got != want {
			err = fmt.Errorf("it is %q", got)
		}
		return err
	})
}

// condition is the status of a condition of the Greeting.
func (r helmRelease) condition(of string) (metav1.ConditionStatus, error) {
	o, err := r.Dynamic.Resource(greetings).Namespace(r.namespace.name).Get(r.t.Context(), r.name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	text, err := o.MarshalJSON()
	if err != nil {
		return "", err
	}
	var is struct {
		Status struct{ Conditions []metav1.Condition }
	}
	if err := json.Unmarshal(text, &is); err != nil {
		return "", err
	}
	if c := meta.FindStatusCondition(is.Status.Conditions, of); c != nil {
		return c.Status, nil
	}
	return "", fmt.Errorf("it has no condition %s: %s", of, text)
}

func (r helmRelease) greet(greeting string) {
	r.t.Helper()
	_, err := r.Dynamic.Resource(greetings).Namespace(r.namespace.name).Patch(r.t.Context(), r.name, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"greeting":%q}}`, greeting), metav1.PatchOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
}

// says waits until the chart's ConfigMap has a greeting, and logs how long that took.
func (r helmRelease) says(what, greeting string) {
	r.t.Helper()
	began := time.Now()
	eventually(r.t, patience, what, func() error {
		c, err := r.Client.CoreV1().ConfigMaps(r.namespace.name).Get(r.t.Context(), r.name, metav1.GetOptions{})
		if err == nil && c.Data["greeting"] != greeting {
			err = fmt.Errorf("it says %q", c.Data["greeting"])
		}
		return err
	})
	r.t.Logf("%s after %s", what, time.Since(began).Round(time.Millisecond))
}

// The reconciler of the Operator SDK's Helm kind does the same resident and from zero, with
// only its main program changed. It begins to watch the objects of a chart while it runs; at
// zero the source watches them.
func TestHelm_WorksFromZero(t *testing.T) {
	beside(t)
	defineAny(t, greetings.Group, "Greeting") // of test/operators/helm/kodata/watches.yaml
	for _, form := range []string{"resident", "serverless"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			chartInForm(t, form == "resident")
		})
	}
}

func chartInForm(t *testing.T, resident bool) {
	n := newNamespace(t, "helm")
	n.account("helm", `
- {apiGroups: [example.com], resources: [greetings, greetings/status, greetings/finalizers], verbs: [get, list, watch, update, patch]}
- {apiGroups: [""], resources: [configmaps, services, secrets], verbs: [get, list, watch, create, update, patch, delete]}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}`)
	idle := func() {}
	var s *source
	if resident {
		n.apply(strings.NewReplacer("IMAGE", images.helm, "NAMESPACED", n.name, "RESTRICTED", restricted).Replace(residentHelm))
		n.ready(deployment, "helm")
	} else {
		n.account("watcher", `
- {apiGroups: [example.com], resources: [greetings], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [configmaps, services, secrets], verbs: [get, list, watch]}`)
		s = publicOperator(n, "helm", images.helm, helmSpec, "")
		idle = func() { n.atZero("helm") }
	}
	r := helmRelease{n, "hello"}

	n.apply("{apiVersion: example.com/v1, kind: Greeting, metadata: {name: hello}, spec: {greeting: Hello}}")
	r.says("the chart is installed", "Hello")
	r.is("Deployed", metav1.ConditionTrue)

	idle()
	r.greet("Good morning")
	r.says("the release is upgraded", "Good morning")

	// A user changes an object of the chart, which no process knows at that time.
	idle()
	_, err := n.Client.CoreV1().ConfigMaps(n.name).Patch(t.Context(), r.name, types.MergePatchType, []byte(`{"data":{"greeting":"Go away"}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.says("the change is taken back", "Good morning")
	idle()
	if err := n.Client.CoreV1().Services(n.name).Delete(t.Context(), r.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "the Service is there again", func() error {
		_, err := n.Client.CoreV1().Services(n.name).Get(t.Context(), r.name, metav1.GetOptions{})
		return err
	})

	// The chart refuses this value. It is tried again until the value is right.
	r.greet("")
	r.is("Irreconcilable", metav1.ConditionTrue)
	if s != nil {
		eventually(t, patience, "the upgrade is tried again", func() error {
			if is := s.scheduled(r.key()); is == nil || is.Attempt == nil || *is.Attempt < 2 {
				return fmt.Errorf("its key is %+v", is)
			}
			return nil
		})
	}
	r.greet("Good night")
	r.says("the release is upgraded after failures", "Good night")

	// A finalizer uninstalls it.
	idle()
	if err := n.Dynamic.Resource(greetings).Namespace(n.name).Delete(t.Context(), r.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "the release is uninstalled", r.uninstalled)
	if s != nil {
		s.awaitCounts("nothing is left to be done", 0)
	}
}
