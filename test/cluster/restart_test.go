package cluster

import (
	"context"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// The tests of this file stop what all tests use, so none of them is parallel:
// go test runs them before the parallel ones.

// The adapter runs while there is a source, and a change by hand is corrected.
func TestScaler_RunsWhileThereIsASource(t *testing.T) {
	p, sink := running(t), newSink(t)
	scaled(t, 0)
	s := p.create(t, namespace(t, "scale"), "x", to(sink, "in"))
	scaled(t, 1)
	other := p.create(t, s.namespace, "y", to(sink, "in"))
	s.delete()
	if _, err := statefulSets().UpdateScale(t.Context(), adapterName, &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Name: adapterName, Namespace: kube.SystemNamespace}, Spec: autoscalingv1.ScaleSpec{Replicas: 3},
	}, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	scaled(t, 1)
	other.delete()
	scaled(t, 0)
}

// Sources that are deleted while the adapter is down are gone when it is up.
func TestRestart_SourcesDeletedMeanwhileGo(t *testing.T) {
	p, sink := running(t), newSink(t)
	ns := namespace(t, "down")
	gone, again, stays := p.create(t, ns, "gone", to(sink, "in")), p.create(t, ns, "again", to(sink, "in")), p.create(t, ns, "stays", to(sink, "in"))
	for _, s := range []*source{gone, again, stays} {
		s.served()
	}
	for _, s := range []*source{gone, again, stays} {
		s.put(s.name, `{"delay":"3s"}`) // after the end of the adapter, on a busy machine too
	}
	ctx, cancel := context.WithTimeout(t.Context(), kube.Patience)
	defer cancel()
	if status, took, err := p.adapter.Terminate(ctx); err != nil || status != 0 || took > 15*time.Second {
		t.Errorf("SIGTERM: status %d after %s: %v", status, took, err)
	}
	gone.delete()
	again.delete()
	again.make(to(sink, "in"))
	again.ready()
	if err := p.startAdapter(); err != nil {
		t.Fatal(err)
	}
	sink.Next(t, "in", "stays")
	again.served()
	if got := again.status("again"); got != 404 {
		t.Errorf("a schedule of the source before: %d", got)
	}
	if got := gone.status("gone"); got != 404 {
		t.Errorf("a schedule of a source that is gone: %d", got)
	}
	again.put("later", `{"delay":"1s"}`)
	sink.Next(t, "in", "later")
	if all := sink.Of("in", ""); len(all) != 2 {
		t.Errorf("%d deliveries, want the deliveries of stays and later", len(all))
	}
}

// Deliveries go on without an API server.
func TestOutage_DeliveriesGoOn(t *testing.T) {
	p, sink := running(t), newSink(t)
	s := p.create(t, namespace(t, "offline"), "x", to(sink, "in"))
	s.served()
	s.put("soon", `{"delay":"2s"}`)
	unseen := s.tokenOf(s.namespace, "unseen", s.audience())
	server.StopAPI()
	stopped := true
	t.Cleanup(func() {
		if stopped {
			t.Log(server.StartAPI(context.Background()))
		}
	})
	// Who called a moment ago can go on, too.
	s.put("meanwhile", `{}`)
	sink.Next(t, "in", "meanwhile")
	sink.Next(t, "in", "soon")
	// A token that was never seen is not called bad: it can be tried again.
	if r := s.call(unseen, "GET", "", ""); r.Status != 503 || r.Header.Get("Retry-After") == "" {
		t.Errorf("without an API server: %d %s %s", r.Status, r.Header, r.Body)
	}
	if err := server.StartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	stopped = false
	// Both follow again.
	later := p.create(t, s.namespace, "later", to(sink, "in"))
	later.served()
	later.put("later", `{}`)
	sink.Next(t, "in", "later")
	s.put("again", `{}`)
	sink.Next(t, "in", "again")
}

// After etcd was put back to an older state the informers of both programs list again, and so does spec.watch. An API
// server withholds from a watch each change below the version where the watch had come to: they missed all changes
// until they were restarted.
func TestOutage_EtcdIsPutBack(t *testing.T) {
	p, sink := running(t), newSink(t)
	o := watched(t, "putback")
	o.permit(o.namespace, "websites")
	s := o.source(p, "x", watching(sink, "in", websites))
	s.watches("True", "")
	kept := p.path("kept")
	if err := server.KeepState(kept); err != nil {
		t.Fatal(err)
	}
	if err := server.Advance(t.Context(), 1000); err != nil { // more than the programs and this test write afterwards
		t.Fatal(err)
	}
	o.apply(website, "before", "1")
	sink.Next(t, "in", "Website/"+o.namespace+"/before")
	s.patch(`{"delay":"1ms"}`)
	s.ready() // both programs have seen it
	if err := server.PutBack(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
	s.patch(`{"delay":"2ms"}`)
	s.patch(`{"delay":"3ms"}`) // the generation of the first one was there before
	s.until("known to the controller", func(o *v1alpha1.RescheduleSource) bool { return o.Status.ObservedGeneration == o.Generation })
	s.until("known to the adapter", func(o *v1alpha1.RescheduleSource) bool {
		return o.Status.Watch != nil && o.Status.Watch.ObservedGeneration == o.Generation
	})
	o.apply(website, "after", "1")
	sink.Next(t, "in", "Website/"+o.namespace+"/after")
}

// The adapter waits for the API server before it is ready.
func TestOutage_StartWaitsForTheAPIServer(t *testing.T) {
	p, sink := running(t), newSink(t)
	s := p.create(t, namespace(t, "waiting"), "x", to(sink, "in"))
	s.served()
	s.put("a", `{"delay":"1s"}`)
	p.adapter.Kill()
	server.StopAPI()
	adapter := make(chan error, 1)
	go func() { adapter <- p.startAdapter() }()
	select {
	case err := <-adapter:
		t.Errorf("ready without an API server: %v", err)
		adapter <- err
	case <-time.After(3 * time.Second):
	}
	if err := server.StartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-adapter; err != nil {
		t.Fatal(err)
	}
	sink.Next(t, "in", "a")
}
