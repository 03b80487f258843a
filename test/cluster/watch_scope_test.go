package cluster

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// label sets or, with null, removes the label team of a namespace.
func (o objects) label(team string) {
	o.t.Helper()
	if _, err := server.Client.CoreV1().Namespaces().Patch(o.t.Context(), o.namespace, "application/merge-patch+json",
		fmt.Appendf(nil, `{"metadata":{"labels":{"team":%s}}}`, team), metav1.PatchOptions{}); err != nil {
		o.t.Fatal(err)
	}
}

// The labels of namespaces are followed, with one watch for all or with one for each.
// A namespace that is not selected any more schedules nothing.
func TestWatch_NamespacesFollowTheirLabels(t *testing.T) {
	t.Parallel()
	for name, everywhere := range map[string]bool{"one watch": true, "one for each": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, sink := running(t), newSink(t)
			o := watched(t, "home")
			in, out := objects{t, namespace(t, "in")}, objects{t, namespace(t, "out")}
			team := fmt.Sprintf("%q", o.namespace)
			if in.label(team); everywhere {
				o.permitEverywhere("namespaces", "websites")
			} else {
				o.permitEverywhere("namespaces")
				in.permit(o.namespace, "websites")
				out.permit(o.namespace, "websites")
			}
			in.apply(website, "early", "1")
			out.apply(website, "early", "1")
			s := o.source(p, "x", watching(sink, "in", "namespaceSelector: {matchLabels: {team: "+o.namespace+"}}, "+websites))
			s.watches("True", "")
			want := map[string]int{}
			next := func(o objects, name string) {
				t.Helper()
				key := "Website/" + o.namespace + "/" + name
				sink.Next(t, "in", key)
				want[key]++
			}
			next(in, "early")
			in.apply(website, "a", "1")
			next(in, "a")
			out.apply(website, "b", "1")
			out.label(team)
			next(out, "early")
			next(out, "b")
			out.apply(website, "b", "2")
			next(out, "b")
			in.apply(website, "a", "2")
			next(in, "a")
			in.label("null") // its objects are not deleted
			watches := func(n int) {
				t.Helper()
				settle(t, func() bool {
					r := s.call(s.token, "GET", "", "")
					var c struct{ Watched int }
					r.Into(t, &c)
					return c.Watched == n
				}, "%d objects are not watched", n)
			}
			watches(2)
			in.apply(website, "a", "3")
			out.apply(website, "c", "1")
			next(out, "c")
			s.quiet(sink, "in", want)
			// All namespaces: the objects that come into view are new.
			if everywhere {
				s.patch(`{"watch":{"namespaceSelector":null}}`) // the source's own, which has none
				s.watches("True", "")
				watches(0)
				out.apply(website, "c", "2")
				o.apply(website, "own", "1")
				next(o, "own")
				s.quiet(sink, "in", want)
				s.patch(`{"watch":{"namespaceSelector":{"matchLabels":{"team":` + team + `}}}}`)
				next(out, "early")
				next(out, "b")
				next(out, "c")
			}
			// Nothing is watched any more.
			s.patch(`{"watch":null}`)
			s.until("not watching", func(o *v1alpha1.RescheduleSource) bool { return o.Status.GetCondition("Watching") == nil })
			s.quiet(sink, "in", want)
		})
	}
}

// A call schedules the objects with a prefix once more.
func TestWatch_ResyncOnRequest(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	o := watched(t, "resync")
	o.permit(o.namespace, "websites")
	s := o.source(p, "x", watching(sink, "in", websites))
	s.watches("True", "")
	key := func(name string) string { return "Website/" + o.namespace + "/" + name }
	for _, name := range []string{"a", "b", "c"} {
		o.apply(website, name, "1")
		sink.Next(t, "in", key(name))
	}
	resync := func(body string, status int, want string) {
		t.Helper()
		if r := s.call(s.token, "POST", "/resync", body); r.Status != status || status == http.StatusOK && string(r.Body) != want+"\n" {
			t.Fatalf("%s: %d %s", body, r.Status, r.Body)
		}
	}
	resync(`{"prefix":"Website/`+o.namespace+`/a"}`, 200, `{"scheduled":1}`)
	if d := sink.Next(t, "in", key("a")); d.Attr("type") != "dev.reschedule.due" || d.Attr("subject") != key("a") {
		t.Errorf("%v", d.Attributes)
	}
	resync("", 200, `{"scheduled":3}`)
	for _, name := range []string{"a", "b", "c"} {
		sink.Next(t, "in", key(name))
	}
	s.quiet(sink, "in", map[string]int{key("a"): 3, key("b"): 2, key("c"): 2})
	resync(`{"over":"soon"}`, 400, "")
	none := p.create(t, o.namespace, "none", to(sink, "none"))
	none.served()
	if r := none.call(none.token, "POST", "/resync", ""); r.Status/100 != 4 {
		t.Errorf("a source that watches nothing: %d %s", r.Status, r.Body)
	}
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

// A burst of ten thousand changes loses none, and the timers of a neighbour go on.
func TestWatch_BurstLosesNothing(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	o := watched(t, "burst")
	o.permit(o.namespace, "configmaps")
	s := o.source(p, "x", watching(sink, "in", "resources: [{apiVersion: v1, kind: ConfigMap}]"))
	s.watches("True", "")
	other := p.create(t, namespace(t, "neighbour"), "x", to(sink, "timers"))
	other.served()
	// Each delivery of the timer schedules the next one, while the burst lasts.
	sink.Answer("timers", "tick", func(w http.ResponseWriter, _ *http.Request, _ *harness.Delivery) {
		w.Header().Set("Reschedule-After", "100ms")
	})
	other.put("tick", `{}`)
	changes := 10 * many
	maps := server.Client.CoreV1().ConfigMaps(o.namespace)
	t.Cleanup(func() { deleteAll(t, maps) })
	each(t, func(i int) error {
		for j := range 10 {
			if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c-", 10*i+j)}}, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
	made := len(sink.Of("timers", "tick"))
	sink.Find(t, "every object of the burst", func([]*harness.Delivery) bool {
		keys := map[string]bool{}
		for _, d := range sink.Of("in", "") {
			keys[d.Key] = true
		}
		return len(keys) == changes
	})
	if made < 3 {
		t.Errorf("%d timers of the neighbour during the burst", made)
	}
	all := len(sink.Of("timers", "tick"))
	sink.Find(t, "the next timer", func([]*harness.Delivery) bool { return len(sink.Of("timers", "tick")) > all })
	if d := sink.Of("in", ""); len(d) != changes {
		t.Errorf("%d deliveries of %d objects", len(d), changes)
	}
}
