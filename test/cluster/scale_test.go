package cluster

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// sleeper is a source with a Deployment. There is no kubelet: its sink accepts connections at any time.
type sleeper struct {
	*source
	sink *harness.Sink
}

// scaleRights are what the account of a sleeper needs.
const scaleRights = `{apiGroups: [apps], resources: [deployments/scale], verbs: [get, patch]}`

func deployment(t *testing.T, namespace, name string) {
	t.Helper()
	applied(t, namespace, `apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {containers: [{name: a, image: example.com/a}]}
`, name)
}

func scaleSpec(sink *harness.Sink, more string) string {
	return to(sink, "in") + "scale: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, cooldown: 1s, serviceAccountName: scaler" + more + "}\n"
}

func newSleeper(t *testing.T, p *programs, prefix string) *sleeper {
	t.Helper()
	ns := namespace(t, prefix)
	accounts(t, ns, "scaler")
	allow(t, ns, "Role", scaleRights, "ServiceAccount, name: scaler, namespace: "+ns)
	deployment(t, ns, "web")
	s := &sleeper{sink: newSink(t)}
	s.source = p.create(t, ns, "web", scaleSpec(s.sink, ""))
	return s
}

// has waits until a Deployment has so many replicas.
func (s *sleeper) has(name string, n int32) {
	s.t.Helper()
	var got int32
	settle(s.t, func() bool {
		d, err := server.Client.AppsV1().Deployments(s.namespace).Get(s.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		got = *d.Spec.Replicas
		return got == n
	}, "%s/%s does not get %d replicas", s.namespace, name, n)
}

// The workload sleeps once the source has its finalizer and its status names it, and a due key wakes it. Without
// scale it is awake, and the source has no finalizer any more.
func TestScale_WakesAndSleeps(t *testing.T) {
	t.Parallel()
	s := newSleeper(t, running(t), "scale")
	s.has("web", 0)
	o := s.until("asleep", func(o *v1alpha1.RescheduleSource) bool {
		return o.Status.Scale != nil && o.Status.Scale.State == "Asleep" && condition(o, v1alpha1.ConditionScaled) == "True"
	})
	if len(o.Finalizers) != 1 || o.Status.Scale.Held == nil || o.Status.Scale.Held.Name != "web" {
		t.Errorf("finalizers %v, held %+v", o.Finalizers, o.Status.Scale.Held)
	}
	s.put("a", `{"delay": 0}`)
	s.sink.Next(t, "in", "a")
	s.has("web", 0)
	if reply := s.call(s.token, "GET", "", ""); !strings.Contains(string(reply.Body), `"scale":{"starts":1,`) {
		t.Errorf("%s", reply.Body)
	}
	s.patch(`{"scale": null}`)
	s.has("web", 1)
	s.until("without a finalizer", func(o *v1alpha1.RescheduleSource) bool { return len(o.Finalizers) == 0 && o.Status.Scale == nil })
}

// A source that is deleted, or that names another workload, leaves its workload awake.
func TestScale_GivesWorkloadBack(t *testing.T) {
	t.Parallel()
	s := newSleeper(t, running(t), "given")
	deployment(t, s.namespace, "other")
	s.has("web", 0)
	s.patch(`{"scale": {"targetRef": {"name": "other"}}}`)
	s.has("web", 1)
	s.has("other", 0)
	s.delete()
	s.has("other", 1)
	settle(t, func() bool { return s.status("a") == 404 }, "it is still served")
}

// The account needs the rights: without one the condition names it, and with it all is well.
func TestScale_Forbidden(t *testing.T) {
	t.Parallel()
	p := running(t)
	ns := namespace(t, "noright")
	accounts(t, ns, "scaler")
	deployment(t, ns, "web")
	s := &sleeper{sink: newSink(t)}
	s.source = p.create(t, ns, "web", scaleSpec(s.sink, ""))
	s.until("Forbidden", func(o *v1alpha1.RescheduleSource) bool {
		c := o.Status.GetCondition(v1alpha1.ConditionScaled)
		return c != nil && c.IsFalse() && c.Reason == "Forbidden" && strings.Contains(c.Message,
			"kubectl auth can-i get deployments.apps --subresource=scale -n "+ns+" --as=system:serviceaccount:"+ns+":scaler")
	})
	s.put("a", `{"delay": 0}`)
	s.sink.Next(t, "in", "a") // its workload is awake
	allow(t, ns, "Role", scaleRights, "ServiceAccount, name: scaler, namespace: "+ns)
	s.has("web", 0)
	s.until("True", func(o *v1alpha1.RescheduleSource) bool { return condition(o, v1alpha1.ConditionScaled) == "True" })
}

// Any kind with the scale subresource can sleep.
func TestScale_CustomKind(t *testing.T) {
	t.Parallel()
	p := running(t)
	if err := server.Apply(t.Context(), []byte(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: fleets.scale.test}
spec:
  group: scale.test
  names: {kind: Fleet, listKind: FleetList, plural: fleets, singular: fleet}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {type: integer}}}
          status: {type: object, properties: {size: {type: integer}}}
`)); err != nil {
		t.Fatal(err)
	}
	ns := namespace(t, "fleet")
	accounts(t, ns, "scaler")
	allow(t, ns, "Role", `{apiGroups: [scale.test], resources: [fleets/scale], verbs: [get, patch]}`, "ServiceAccount, name: scaler, namespace: "+ns)
	settle(t, func() bool {
		return server.ApplyIn(t.Context(), ns, []byte("{apiVersion: scale.test/v1, kind: Fleet, metadata: {name: web}, spec: {size: 3}}")) == nil
	}, "the kind is not served")
	sink := newSink(t)
	s := p.create(t, ns, "web", to(sink, "in")+"scale: {targetRef: {apiVersion: scale.test/v1, kind: Fleet, name: web}, replicas: 2, cooldown: 1s, serviceAccountName: scaler}\n")
	size := func() int64 {
		o, err := server.Dynamic.Resource(schema.GroupVersionResource{Group: "scale.test", Version: "v1", Resource: "fleets"}).Namespace(ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n, _, _ := unstructured.NestedInt64(o.Object, "spec", "size")
		return n
	}
	settle(t, func() bool { return size() == 0 }, "it does not sleep")
	s.put("a", `{"delay": 0}`)
	sink.Next(t, "in", "a")
	settle(t, func() bool { return size() == 2 || size() == 0 }, "it has not been woken")
}

// What changes while there is no adapter is put right by the next one: a workload that another hand scaled up sleeps,
// and one whose source was deleted or lost its scale is awake.
func TestRestart_WorkloadIsGivenBack(t *testing.T) {
	p := running(t)
	kept, removed, deleted := newSleeper(t, p, "kept"), newSleeper(t, p, "removed"), newSleeper(t, p, "deleted")
	for _, s := range []*sleeper{kept, removed, deleted} {
		s.has("web", 0)
	}
	p.adapter.Kill()
	removed.patch(`{"scale": null}`)
	if err := deleted.client.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Client.AppsV1().Deployments(kept.namespace).Patch(t.Context(), "web", "application/merge-patch+json", []byte(`{"spec":{"replicas":2}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := p.startAdapter(); err != nil {
		t.Fatal(err)
	}
	kept.has("web", 0)
	removed.has("web", 1)
	deleted.has("web", 1)
	t.Logf("all right %v after the start", time.Since(began))
}
