package cluster

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
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

// A CloudEvent sent to a source is delivered to its sink.
func TestSource_DeliversCloudEvents(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	s := p.create(t, namespace(t, "ingest"), "x", to(sink, "in")+`ingest: {key: "event.kind + '/' + event.name"}`)
	s.served()
	r, err := harness.Do(t.Context(), "POST", s.address(), `{}`,
		"Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "/api", "Ce-Type", "dev.knative.apiserver.ref.update", "Ce-Kind", "GitRepo", "Ce-Name", "site")
	if err != nil || r.Status != http.StatusAccepted {
		t.Fatalf("%+v: %v", r, err)
	}
	if d := sink.Next(t, "in", "GitRepo/site"); d.Attr("id") != "1" || d.Attr("type") != "dev.knative.apiserver.ref.update" {
		t.Errorf("delivered is %v", d.Attributes)
	}
}

// An operator that rests on CEL must not lose its address by surprise.
func TestSource_BadExpressionQuotesTheCompiler(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	s := &source{programs: p, t: t, namespace: namespace(t, "cel"), name: "x"}
	s.client = typedSourcesIn(t, s.namespace)
	s.make(to(sink, "in") + "ingest: {key: 'event.kind +'}")
	o := s.until("refused", func(o *v1alpha1.RescheduleSource) bool {
		return condition(o, v1alpha1.ConditionAddressable) == corev1.ConditionFalse
	})
	c := o.Status.GetCondition(v1alpha1.ConditionAddressable)
	if c.Reason != "IngestInvalid" || !strings.Contains(c.Message, "key") || !strings.Contains(c.Message, "Syntax error") {
		t.Errorf("%s: %s", c.Reason, c.Message)
	}
	s.patch(`{"ingest":{"key":"event.kind"}}`)
	s.ready()
}

// A new sink gets the next delivery.
func TestSource_NewSinkGetsTheNext(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	s := p.create(t, namespace(t, "changed"), "x", to(sink, "old"))
	s.served()
	s.put("a", `{}`)
	sink.Next(t, "old", "a")
	// It waits while the sink changes.
	s.put("b", `{"delay":"2s"}`)
	s.patch(`{"sink":{"uri":"` + sink.URL + `/new"}}`)
	s.until("at the new sink", func(o *v1alpha1.RescheduleSource) bool {
		return strings.HasSuffix(o.Status.SinkURI.String(), "/new")
	})
	sink.Next(t, "new", "b")
	if old := sink.Of("old", "b"); len(old) > 0 {
		t.Errorf("%d deliveries to the old sink", len(old))
	}
}

// The status says how many wait and when the next is due.
func TestStatus_PendingAndNextDueAt(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	s := p.create(t, namespace(t, "counts"), "x", to(sink, "in"))
	s.served()
	due := time.Now().Add(time.Hour).UTC()
	s.put("a", `{"dueAt":"`+due.Format(time.RFC3339Nano)+`"}`)
	s.put("b", `{"delay":"2h"}`)
	o := s.until("counted", func(o *v1alpha1.RescheduleSource) bool {
		return o.Status.Pending != nil && *o.Status.Pending == 2 && o.Status.NextDueAt != nil
	})
	if early := due.Sub(o.Status.NextDueAt.Time); early > 0 || early < -time.Second {
		t.Errorf("status.nextDueAt is %s, want %s rounded up", o.Status.NextDueAt, due)
	}
	if condition(o, "Ready") != corev1.ConditionTrue || o.Status.Address == nil {
		t.Error("the adapter's part of the status took the controller's away")
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

// The Event is ours: what the sender wrote is in the answer to the sender only.
func TestWarning_EventRefused(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	s := p.create(t, namespace(t, "refused"), "x", to(sink, "in")+"ingest: {authentication: required}")
	s.served()
	o := s.until("shown its audience", func(o *v1alpha1.RescheduleSource) bool {
		return o.Status.Address != nil && o.Status.Address.Audience != nil
	})
	if got := *o.Status.Address.Audience; got != s.audience() {
		t.Errorf("status.address.audience is %s", got)
	}
	for _, event := range []struct {
		token, data, after string
		status             int
	}{
		{"", `{}`, "soon", http.StatusUnauthorized},
		{s.token, `{}`, "1h", http.StatusAccepted},
		{s.token, `{"big":"` + strings.Repeat("x", 256<<10) + `"}`, "1h", http.StatusRequestEntityTooLarge},
		{s.token, `{}`, "billboard", http.StatusBadRequest},
	} {
		headers := append([]string{"Content-Type", "application/json", "Ce-Rescheduleafter", event.after, "Authorization", "Bearer " + event.token}, eventHeaders...)
		r, err := harness.Do(t.Context(), http.MethodPost, s.address(), event.data, headers...)
		if err != nil {
			t.Fatal(err)
		}
		if r.Status != event.status {
			t.Errorf("%d %s, want %d", r.Status, r.Body, event.status)
		}
	}
	s.warned("because it is too large")
	events, err := server.Client.CoreV1().Events(s.namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "type=Warning"})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events.Items {
		if e.Reason == "EventRefused" && (strings.Contains(e.Message, "billboard") || e.Count > 1) {
			t.Errorf("%d of %q", e.Count, e.Message)
		}
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
