package cluster

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// A source becomes ready, and its schedules reach its sink.
func TestSource_FromReadyToItsSink(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	s := p.create(t, namespace(t, "deliver"), "git-repos", to(sink, "in")+"ceOverrides: {extensions: {team: platform}}")
	o := s.ready()
	if o.Status.SinkURI.String() != sink.URL+"/in" {
		t.Errorf("status.sinkUri is %s", o.Status.SinkURI)
	}
	for _, c := range []string{"Ready", "SinkProvided", "DeadLetterSinkResolved", "Deployed", "Addressable", "OIDCIdentityCreated"} {
		found := false
		for _, got := range o.Status.Conditions {
			found = found || string(got.Type) == c && got.Status == corev1.ConditionTrue
		}
		if !found {
			t.Errorf("%s is not True", c)
		}
	}
	if len(o.Status.Conditions) != 6 {
		t.Errorf("%d conditions", len(o.Status.Conditions))
	}
	if len(o.Finalizers) > 0 { // a deletion waits for nothing
		t.Errorf("finalizers: %v", o.Finalizers)
	}
	s.served()
	s.put("GitRepo/team-a/site", `{"delay":"100ms","event":{"data":{"a":1}}}`)
	d := sink.Next(t, "in", "GitRepo/team-a/site")
	for name, want := range map[string]string{
		"type": "dev.reschedule.due", "subject": "GitRepo/team-a/site", "team": "platform", "rescheduleattempt": "0",
		"source": "/apis/sources.reschedule.dev/v1alpha1/namespaces/" + s.namespace + "/reschedulesources/git-repos",
	} {
		if got := d.Attr(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := d.Header.Get("Kn-Namespace"); got != s.namespace {
		t.Errorf("Kn-Namespace is %q", got)
	}
	if ce := o.Status.CloudEventAttributes; len(ce) != 1 || ce[0].Type != d.Attr("type") || ce[0].Source != d.Attr("source") {
		t.Errorf("status.ceAttributes are %v", ce)
	}
}

// A Warning on the source says what became of an event that could not be delivered.
func TestWarning_EventNotDelivered(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	ns := namespace(t, "warn")
	sink.Answer("in", "", harness.Status(http.StatusTeapot))
	dropping := p.create(t, ns, "dropping", to(sink, "in"))
	dead := p.create(t, ns, "dead", to(sink, "in")+"delivery: {deadLetterSink: {uri: '"+sink.URL+"/dead'}}")
	dropping.served()
	dead.served()
	dropping.put("a", `{}`)
	dead.put("b", `{}`)
	if d := sink.Next(t, "dead", "b"); d.Attr("knativeerrorcode") != "418" || d.Attr("knativeerrordest") == "" {
		t.Errorf("the dead letter is %v", d.Attributes)
	}
	for _, s := range []*source{dropping, dead} {
		s.warned("418")
	}
}

// warned waits for a Warning on the source whose message has the words.
func (s *source) warned(words string) {
	s.t.Helper()
	uid := s.uid()
	settle(s.t, func() bool {
		events, err := server.Client.CoreV1().Events(s.namespace).List(s.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + uid + ",type=Warning"})
		return err == nil && slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, words) })
	}, "no warning of %q on %s", words, s.name)
}
