package sink

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// receiver is the SDK's own server side with a function as people write it.
func receiver(t *testing.T, f func(context.Context, cloudevents.Event) (*cloudevents.Event, error)) string {
	t.Helper()
	p, err := cloudevents.NewHTTP()
	must(t, err)
	h, err := cloudevents.NewHTTPReceiveHandler(context.Background(), p, f)
	must(t, err)
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

// A function on the SDK receives an event and replies.
func TestSDK_FunctionReceivesAndReplies(t *testing.T) {
	t.Parallel()
	for name, structured := range map[string]bool{"binary": false, "structured": true} {
		got := make(chan cloudevents.Event, 1)
		url := receiver(t, func(ctx context.Context, e cloudevents.Event) (*cloudevents.Event, error) {
			got <- e
			reply := cloudevents.NewEvent()
			reply.SetID("reply")
			reply.SetSource("/operator")
			reply.SetType("dev.example.resync")
			reply.SetExtension("rescheduleafter", "5m")
			reply.SetExtension("team", "platform")
			return &reply, reply.SetData(cloudevents.ApplicationJSON, map[string]int{"step": 2})
		})
		s, l := newSender(t)
		a := attempt(url, withEvent(&schedule.Event{Type: "dev.example.sync", Data: []byte(`{"step":1}`)}))
		a.Source.Delivery.Structured = structured
		o := s.Send(context.Background(), a)
		want := schedule.Outcome{Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{After: 5 * time.Minute, Reply: &schedule.Event{
			Source: "/operator", Type: "dev.example.resync", DataContentType: "application/json", Data: []byte(`{"step":2}`),
			Extensions: map[string]any{"team": "platform"},
		}}}
		if d := cmp.Diff(want, o, butStatus); d != "" || l.warnings() != 0 {
			t.Errorf("%s: %s", name, d)
		}
		e := <-got
		if err := e.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if e.ID() != a.ID || e.Source() != a.Source.EventSource() || e.Type() != "dev.example.sync" || e.Subject() != a.Key ||
			!e.Time().Equal(dueAt) || string(e.Data()) != `{"step":1}` || e.DataContentType() != "application/json" {
			t.Errorf("%s: %s", name, e)
		}
		for name, want := range map[string]any{"reschedulekey": a.Key, "reschedulerevision": "9", "rescheduledueat": "2026-11-21T09:00:00.123Z"} {
			if e.Extensions()[name] != want {
				t.Errorf("%s: %v, want %v", name, e.Extensions()[name], want)
			}
		}
	}
}
