//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

var website = schema.GroupVersionKind{Group: "watch.test", Version: "v1", Kind: "Website"}

const websiteKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: websites.watch.test}
spec:
  group: watch.test
  scope: Namespaced
  names: {kind: Website, plural: websites, singular: website}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// resident makes the operator of test/operators/resident, with more of its environment.
func resident(n *namespace, env string) {
	n.t.Helper()
	n.apply(websiteKind)
	n.account("operator", `[{apiGroups: [watch.test], resources: [websites], verbs: [get, list, watch, patch]},
  {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}, {apiGroups: ["", events.k8s.io], resources: [events], verbs: [create, patch]},
  {apiGroups: [apps], resources: [deployments/scale], resourceNames: [operator], verbs: [get, patch]}, {apiGroups: [""], resources: [pods], verbs: [list]}]`)
	n.apply(strings.NewReplacer("IMAGE", images.resident, "ENV", env, "SPACED", n.name).Replace(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: operator}
spec:
  selector: {matchLabels: {app: operator}}
  template:
    metadata: {labels: {app: operator}}
    spec:
      serviceAccountName: operator
      terminationGracePeriodSeconds: 2
      containers:
      - name: operator
        image: IMAGE
        env: [{name: NAMESPACE, value: SPACED}ENV]
`))
}

// metricsRight lets the operator judge tokens, and its account get the metrics.
const metricsRight = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: SPACE-metrics}
rules: [{nonResourceURLs: [/metrics], verbs: [get]}, {apiGroups: [authentication.k8s.io], resources: [tokenreviews], verbs: [create]},
  {apiGroups: [authorization.k8s.io], resources: [subjectaccessreviews], verbs: [create]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: SPACE-metrics}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: SPACE-metrics}
subjects: [{kind: ServiceAccount, name: operator, namespace: SPACE}]
`

// sleeper is a source that puts the operator to sleep.
type sleeper struct{ *source }

// sleeping is the spec of a source without a sink that puts the operator to sleep.
func sleeping(more string) string {
	return "scale: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: operator}, serviceAccountName: operator" + more + "}\n" +
		"watch: {serviceAccountName: operator, resources: [{apiVersion: watch.test/v1, kind: Website, changes: Any}]}\ndelivery: {backoffDelay: PT1S}\n"
}

// change makes or changes a Website, and returns its generation.
func (s sleeper) change(name string, to int) int64 {
	s.t.Helper()
	r, err := s.Resource(website, s.namespace.name)
	if err != nil {
		s.t.Fatal(err)
	}
	body, err := json.Marshal(map[string]any{"apiVersion": "watch.test/v1", "kind": "Website", "metadata": map[string]any{"name": name}, "spec": map[string]any{"n": to}})
	if err != nil {
		s.t.Fatal(err)
	}
	o, err := r.Patch(s.t.Context(), name, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: "test"})
	if err != nil {
		s.t.Fatal(err)
	}
	return o.GetGeneration()
}

// seen waits until the operator has seen a generation of a Website.
func (s sleeper) seen(name string, generation int64) {
	s.t.Helper()
	r, err := s.Resource(website, s.namespace.name)
	if err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, patience, fmt.Sprintf("the operator has seen %s at generation %d", name, generation), func() error {
		o, err := r.Get(s.t.Context(), name, metav1.GetOptions{})
		if err == nil && o.GetAnnotations()["seen"] != strconv.FormatInt(generation, 10) {
			err = fmt.Errorf("it has seen %q", o.GetAnnotations()["seen"])
		}
		return err
	})
}

// starts is how often the source has woken its operator.
func (s sleeper) starts() int64 {
	s.t.Helper()
	r, err := s.try("GET", "", "")
	if err != nil {
		s.t.Fatal(err)
	}
	var counts struct{ Scale struct{ Starts int64 } }
	if err := json.Unmarshal([]byte(r.Body), &counts); err != nil {
		s.t.Fatalf("%v: %s", err, r.Body)
	}
	return counts.Scale.Starts
}

// An operator in its usual form sleeps between changes. It writes into its objects each time, and is started once for
// each change, also for a change while it is awake: SOAK says how often; CI has three.
func TestSinkless_StartsOnceForEachChange(t *testing.T) {
	beside(t)
	n := newNamespace(t, "sinkless")
	resident(n, `, {name: METRICS, value: ":8080"}, {name: WORK, value: 300ms}`)
	s := sleeper{n.source("sleeper", sleeping(", cooldown: 2s, busy: {port: 8080}"))}
	for _, c := range s.get().Status.Conditions {
		if c.Type == v1alpha1.ConditionSinkProvided {
			t.Errorf("a source without a sink has %+v", c)
		}
	}
	n.asleep()
	began := s.starts()
	soak, _ := strconv.Atoi(os.Getenv("SOAK"))
	soak = max(soak, 3)
	for i := range soak {
		generation := s.change("a", i)
		s.seen("a", generation)
		if i == 1 { // while it is awake
			s.seen("a", s.change("a", -1))
		}
		n.asleep()
	}
	if got := s.starts() - began; got != int64(soak) {
		t.Errorf("%d starts for %d changes while it slept", got, soak)
	}
	// Not all changes are seen by a schedule: a call wakes it too.
	s.put("by-hand", `{"delay": 0}`)
	eventually(t, patience, "it is woken by a call", func() error {
		if len(n.podsOf(n.name, "app=operator")) == 0 {
			return errors.New("it has no pod that runs")
		}
		return nil
	})
	n.asleep()
}

// Work that takes longer than cooldown is not cut off, and an operator that waits for its Lease has not begun. Its metrics
// are https and ask for a token, as kubebuilder's do: without the right to get them the condition says so.
func TestSinkless_WorksAndWaitsForItsLease(t *testing.T) {
	beside(t)
	n := newNamespace(t, "sinkless-lease")
	resident(n, `, {name: METRICS, value: ":8443"}, {name: SECURE, value: "yes"}, {name: WORK, value: 8s}, {name: LEASE, value: resident}`)
	s := sleeper{n.source("sleeper", sleeping(", cooldown: 2s, startTimeout: 30s, busy: {port: 8443}"))}
	eventually(t, patience, "Scaled is NoMetrics", func() error {
		c := s.get().Status.GetCondition(v1alpha1.ConditionScaled)
		if s.put("right", `{"delay": 0}`); c == nil || c.Reason != "NoMetrics" || !strings.Contains(c.Message, "/metrics answered") {
			return fmt.Errorf("it is %+v", c)
		}
		return nil
	})
	t.Cleanup(func() {
		if err := kubectl(context.Background(), "delete", "clusterrole,clusterrolebinding", n.name+"-metrics"); err != nil {
			t.Error(err)
		}
	})
	n.apply(strings.ReplaceAll(metricsRight, "SPACE", n.name))
	n.asleep()
	began := time.Now()
	generation := s.change("a", 1)
	s.seen("a", generation)
	t.Logf("with a Lease that was not released the work was done after %s", time.Since(began).Round(100*time.Millisecond))
	n.asleep()
	if got := s.get().Status.Scale; got.Reason != "" {
		t.Errorf("%+v", got)
	}
}

// An operator that crashes at its start, has no image or serves no metrics says so in the condition, and is tried
// again: no change is lost.
func TestSinkless_FailuresAreRetried(t *testing.T) {
	beside(t)
	n := newNamespace(t, "sinkless-fails")
	resident(n, `, {name: WORK, value: soon}`) // it ends at once
	s := sleeper{n.source("sleeper", sleeping(", cooldown: 2s, startTimeout: 10s"))}
	generation := s.change("a", 1)
	s.isScaled("Crashed")
	set := func(env, image string) {
		n.patched(fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{name: operator, image: %q, env: [{name: NAMESPACE, value: %s}%s]}]}}}}`, image, n.name, env))
	}
	set("", images.resident)
	s.seen("a", generation)
	s.isScaled("Scaled")
	n.asleep()
	set("", "example.invalid/none")
	generation = s.change("a", 2)
	s.isScaled("StartTimeout")
	// On a busy node the first start may end before the kubelet has tried to pull it.
	eventually(t, patience, "the message says that there is no image", func() error {
		if m := s.get().Status.Scale.Message; !strings.Contains(m, "Image") {
			return errors.New(m)
		}
		return nil
	})
	set("", images.resident)
	s.seen("a", generation)
	s.isScaled("Scaled")
	n.asleep()
	n.apply(manifestOf("sleeper", sleeping(", cooldown: 2s, startTimeout: 10s, busy: {port: 8080}")))
	s.change("a", 3)
	s.isScaled("NoMetrics")
}
