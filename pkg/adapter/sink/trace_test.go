package sink

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// A span has the names of OpenTelemetry's and Knative's conventions, and neither path nor query of the sink. After a
// short wait it continues the trace of the call; from five minutes on it begins one of its own, with a link.
func TestSpan_ConventionsParentAndLink(t *testing.T) {
	t.Parallel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("")
	now := dueAt.Add(time.Hour)
	url, seen := sinkOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Ce-Reschedulekey") == "refused" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	s, _ := newSender(t, func(c *Config) { c.Tracer, c.Now = tracer, func() time.Time { return now } })
	for _, tt := range []struct {
		wait   time.Duration
		linked bool
	}{{0, false}, {linkAfter - 1, false}, {linkAfter, true}, {24 * time.Hour, true}} {
		send(t, s, attempt(url+"/secret?token=secret", func(a *schedule.Attempt) {
			a.Entry.TraceParent, a.Entry.ScheduledAt = parent, now.Add(-tt.wait)
		}))
		ended := spans.Ended()
		span := ended[len(ended)-1]
		if got := (<-seen).Header.Get("Traceparent"); len(got) != 55 || got[3:35] != span.SpanContext().TraceID().String() || got[36:52] != span.SpanContext().SpanID().String() {
			t.Errorf("after %s the sink got the context %q", tt.wait, got)
		}
		links := span.Links()
		continued := span.Parent().SpanID().String() == parent[36:52] && span.SpanContext().TraceID().String() == parent[3:35]
		if continued == tt.linked || (len(links) == 1 && links[0].SpanContext.SpanID().String() == parent[36:52]) != tt.linked {
			t.Errorf("after %s: parent %v, links %v", tt.wait, span.Parent(), links)
		}
		if span.SpanKind() != trace.SpanKindClient || span.Name() != "send "+url[len("http://"):] {
			t.Errorf("span %q of kind %s", span.Name(), span.SpanKind())
		}
	}
	send(t, s, attempt(url, func(a *schedule.Attempt) { a.Key = "refused" }))
	<-seen
	ended := spans.Ended()
	got := map[string]string{}
	for _, a := range ended[len(ended)-1].Attributes() {
		got[string(a.Key)] = a.Value.String()
	}
	for _, name := range []string{"messaging.destination.name", "server.port"} { // the test's server has any port
		if got[name] == "" {
			t.Errorf("no attribute %s", name)
		}
		delete(got, name)
	}
	want := map[string]string{
		"messaging.system": "knative", "messaging.operation.name": "send", "messaging.operation.type": "send",
		"messaging.message.id": "store-7", "server.address": "127.0.0.1",
		"cloudevents.event_id": "store-7", "cloudevents.event_source": "/apis/sources.reschedule.dev/v1alpha1/namespaces/ops/reschedulesources/git-repos",
		"cloudevents.event_type": schedule.DefaultEventType, "cloudevents.event_subject": "refused", "cloudevents.event_spec_version": "1.0",
		"kn.source.namespace": "ops", "kn.source.name": "git-repos", "reschedule.attempt": "2",
		"http.response.status_code": "503", "error.type": "503",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
