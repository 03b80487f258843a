package cluster

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// The labels of namespaces are followed. A namespace that is not selected any more schedules nothing.
func TestWatch_NamespacesFollowTheirLabels(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	o := watched(t, "home")
	o.permitEverywhere("namespaces", "websites")
	other := objects{t, namespace(t, "other")}
	label := func(team string) {
		t.Helper()
		if _, err := server.Client.CoreV1().Namespaces().Patch(t.Context(), other.namespace, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"labels":{"team":%s}}}`, team), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	other.apply(website, "a", "1")
	s := o.source(p, "x", watching(sink, "in", "namespaceSelector: {matchLabels: {team: "+o.namespace+"}}, "+websites))
	s.watches("True", "")
	key := "Website/" + other.namespace + "/a"
	label(fmt.Sprintf("%q", o.namespace))
	sink.Next(t, "in", key)
	other.apply(website, "a", "2")
	sink.Next(t, "in", key)
	label("null") // its objects are not deleted
	s.until("watching no object", func(o *v1alpha1.RescheduleSource) bool { return o.Status.Watched != nil && *o.Status.Watched == 0 })
	other.apply(website, "a", "3")
	s.patch(`{"watch":null}`)
	s.until("not watching", func(o *v1alpha1.RescheduleSource) bool { return o.Status.GetCondition("Watching") == nil })
	s.quiet(sink, "in", map[string]int{key: 2})
}

// A new ready revision of a Knative Service schedules every object once.
func TestWatch_ResyncAtANewRevision(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	o := watched(t, "revision")
	o.permit(o.namespace, "websites")
	service := o.apply(`{"apiVersion":"serving.knative.dev/v1","kind":"Service","metadata":{"name":"sink"}}`)
	ready := func(revision string) {
		t.Helper()
		o.status(service, fmt.Sprintf(`{"address":{"url":"%s/in"},"latestReadyRevisionName":%q}`, sink.URL, revision))
	}
	ready("sink-00001")
	o.apply(website, "a", "1")
	s := o.source(p, "x", `sink: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: sink}}
watch: {serviceAccountName: watcher, resync: {over: 0s}, `+websites+`}`)
	s.watches("True", "")
	key := "Website/" + o.namespace + "/a"
	sink.Next(t, "in", key) // the first start
	s.until("aware of the revision", func(o *v1alpha1.RescheduleSource) bool {
		return strings.HasPrefix(o.Status.SinkRevision, "sink-00001/")
	})
	ready("sink-00002")
	if d := sink.Next(t, "in", key); d.Attr("type") != "dev.reschedule.due" {
		t.Errorf("%v", d.Attributes)
	}
	o.status(service, `{"observedGeneration":7}`)
	s.quiet(sink, "in", map[string]int{key: 2})
}
