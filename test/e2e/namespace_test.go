//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// namespace is the namespace of one test, with a recorder in it.
type namespace struct {
	*cluster
	t         *testing.T
	name      string
	authority string // the directory of the members' authority, once there is a group
}

// newNamespace makes a namespace whose name begins with e2e- and the given
// one. It goes at the end of the test, and when that failed, all that is in it
// is written to the logs first.
func newNamespace(t *testing.T, name string) *namespace {
	t.Helper()
	if imagesBuilt() != nil {
		t.Fatal("there are no images of the tests; the reason is at the top")
	}
	// Not of the seed: a namespace of the run before may still be going.
	n := &namespace{cluster: world, t: t, name: "e2e-" + name + "-" + strconv.FormatUint(rand.Uint64N(36*36*36*36*36), 36)}
	_, err := n.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // the test's own is over
		defer cancel()
		if t.Failed() {
			n.dump(ctx)
		}
		if err := n.Client.CoreV1().Namespaces().Delete(ctx, n.name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	startRecorder(n)
	return n
}

// apply applies manifests, into this namespace where they name none.
func (n *namespace) apply(manifests string) {
	n.t.Helper()
	if err := n.ApplyIn(n.t.Context(), n.name, []byte(manifests)); err != nil {
		n.t.Fatal(err)
	}
}

// account makes a ServiceAccount that may do in the namespace what the rules of
// a Role, in YAML, let it.
func (n *namespace) account(name, rules string) {
	n.t.Helper()
	n.apply(strings.NewReplacer("NAME", name, "RULES", rules).Replace(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: NAME}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: NAME}
rules: RULES
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: NAME}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: NAME}
subjects: [{kind: ServiceAccount, name: NAME}]
`))
}

// Kinds that are waited for.
var (
	knativeService  = schema.GroupVersionKind{Group: "serving.knative.dev", Version: "v1", Kind: "Service"}
	apiServerSource = schema.GroupVersionKind{Group: "sources.knative.dev", Version: "v1", Kind: "ApiServerSource"}
	broker          = schema.GroupVersionKind{Group: "eventing.knative.dev", Version: "v1", Kind: "Broker"}
	trigger         = schema.GroupVersionKind{Group: "eventing.knative.dev", Version: "v1", Kind: "Trigger"}
	deployment      = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	rescheduling    = schema.GroupVersionKind{Group: "sources.reschedule.dev", Version: "v1alpha1", Kind: "RescheduleSource"}
)

// ready waits until an object has the condition Ready, or a Deployment
// Available, at its newest generation, and returns it. The text of a failure
// has the conditions.
func (n *namespace) ready(kind schema.GroupVersionKind, name string) *unstructured.Unstructured {
	n.t.Helper()
	resource, err := n.Resource(kind, n.name)
	if err != nil {
		n.t.Fatal(err)
	}
	wanted := "Ready"
	if kind == deployment {
		wanted = "Available"
	}
	var o *unstructured.Unstructured
	eventually(n.t, patience, kind.Kind+" "+name+" is "+wanted, func() error {
		if o, err = resource.Get(n.t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		observed, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == wanted && c["status"] == "True" && observed == o.GetGeneration() {
				return nil
			}
		}
		return fmt.Errorf("at generation %d of %d its conditions are %v", observed, o.GetGeneration(), conditions)
	})
	return o
}
