package cluster

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"knative.dev/pkg/apis"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// A deleted source loses its schedules, and another of its name starts empty.
func TestSource_RecreatedStartsEmpty(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	s := p.create(t, namespace(t, "deleted"), "x", to(sink, "in"))
	s.served()
	s.put("far", `{"delay":"1h"}`)
	s.put("soon", `{"delay":"2s"}`)
	s.delete()
	settle(t, func() bool { return s.status("far") == 404 }, "the schedule of a deleted source is not gone")
	if r := s.call(s.token, "PUT", "/schedules/late", `{}`); r.Status != 404 {
		t.Errorf("a schedule for a deleted source: %d %s", r.Status, r.Body)
	}
	s.make(to(sink, "in"))
	s.ready()
	s.served()
	for _, key := range []string{"far", "soon"} {
		if got := s.status(key); got != 404 {
			t.Errorf("%s of the source before: %d", key, got)
		}
	}
	s.put("new", `{"delay":"3s"}`) // after soon
	sink.Next(t, "in", "new")
	if all := sink.Of("in", ""); len(all) != 1 {
		t.Errorf("%d deliveries, one of them of the source before", len(all))
	}
}

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

// A dead letter sink is resolved and followed.
func TestSource_FollowsItsDeadLetterSink(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	ns := namespace(t, "dead")
	s := &source{programs: p, t: t, namespace: ns, name: "x", client: typedSourcesIn(t, ns)}
	s.make(to(sink, "in") + "delivery: {deadLetterSink: {ref: {apiVersion: eventing.knative.dev/v1, kind: Broker, name: b}}}")
	s.until("without a dead letter sink", func(o *v1alpha1.RescheduleSource) bool {
		return condition(o, v1alpha1.ConditionDeadLetterSinkResolved) == corev1.ConditionFalse && condition(o, apis.ConditionReady) == corev1.ConditionFalse
	})
	broker(t, ns, "b", sink.URL+"/dead")
	if o := s.ready(); o.Status.DeadLetterSinkURI.String() != sink.URL+"/dead" {
		t.Errorf("status.deadLetterSinkUri is %s", o.Status.DeadLetterSinkURI)
	}
	s.patch(`{"delivery":{"deadLetterSink":null}}`)
	if o := s.ready(); o.Status.DeadLetterSinkURI != nil {
		t.Errorf("status.deadLetterSinkUri of a source without one is %s", o.Status.DeadLetterSinkURI)
	}
}

// A deletion waits for nothing: there is no finalizer.
func TestSource_DeletionWaitsForNothing(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	s := p.create(t, namespace(t, "gone"), "x", to(sink, "in"))
	if o := s.ready(); len(o.Finalizers) > 0 {
		t.Errorf("finalizers: %v", o.Finalizers)
	}
	s.delete()
	if _, err := s.client.Get(t.Context(), s.name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after a delete: %v", err)
	}
}
