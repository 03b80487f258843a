package cluster

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"knative.dev/pkg/apis"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// broker is one whose address is an inbox of a sink.
func broker(t *testing.T, namespace, name, url string) dynamic.ResourceInterface {
	t.Helper()
	err := server.Apply(t.Context(), fmt.Appendf(nil, "apiVersion: eventing.knative.dev/v1\nkind: Broker\nmetadata: {name: %s, namespace: %s}\nspec: {}\n", name, namespace))
	if err != nil {
		t.Fatal(err)
	}
	brokers, err := server.Resource(schema.GroupVersionKind{Group: "eventing.knative.dev", Version: "v1", Kind: "Broker"}, namespace)
	if err != nil {
		t.Fatal(err)
	}
	_, err = brokers.Patch(t.Context(), name, "application/merge-patch+json", fmt.Appendf(nil, `{"status":{"address":{"url":%q}}}`, url), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	return brokers
}

const toBroker = "sink: {ref: {apiVersion: eventing.knative.dev/v1, kind: Broker, name: b}}\n"

// A sink that cannot be resolved any more is still delivered to.
func TestSource_LastKnownSinkIsUsed(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	ns := namespace(t, "unresolvable")
	brokers := broker(t, ns, "b", sink.URL+"/one")
	s := p.create(t, ns, "x", toBroker)
	s.served()
	s.put("before", `{"delay":"2s"}`)
	if err := brokers.Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	o := s.until("without a sink", func(o *v1alpha1.RescheduleSource) bool {
		return condition(o, v1alpha1.ConditionSinkProvided) == corev1.ConditionFalse
	})
	if condition(o, apis.ConditionReady) != corev1.ConditionFalse || o.Status.SinkURI.String() != sink.URL+"/one" {
		t.Errorf("Ready is %s, status.sinkUri %s", condition(o, apis.ConditionReady), o.Status.SinkURI)
	}
	sink.Next(t, "one", "before")
	s.put("meanwhile", `{}`)
	sink.Next(t, "one", "meanwhile")

	broker(t, ns, "b", sink.URL+"/two")
	s.ready()
	s.until("at the new address", func(o *v1alpha1.RescheduleSource) bool { return o.Status.SinkURI.String() == sink.URL+"/two" })
	settle(t, func() bool {
		s.put("after", `{}`)
		return len(sink.Of("two", "after")) > 0
	}, "nothing is delivered to the new address")
}
