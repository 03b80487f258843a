package ingest

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// source is a server whose POST does what the edge does with a message.
func source(t *testing.T, r *Rules) (*httptest.Server, <-chan []queue.Item) {
	t.Helper()
	got := make(chan []queue.Item, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		items, err := r.Read(req.Context(), req.Header, body, now, nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		got <- items
		w.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(srv.Close)
	return srv, got
}

func sdkEvent(t *testing.T, version string) cloudevents.Event {
	t.Helper()
	e := cloudevents.NewEvent(version)
	e.SetID("id-1")
	e.SetSource("http://example.com/source?a=b")
	e.SetType("dev.example.changed")
	e.SetSubject("GitRepo/team-a/site")
	e.SetTime(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC))
	e.SetDataSchema("http://example.com/schema")
	e.SetExtension("team", "platform")
	e.SetExtension("namespace", "")
	must(t, e.SetData(cloudevents.ApplicationJSON, map[string]any{"a": "<é>"}))
	return e
}

// Events of the CloudEvents SDK's client arrive whole.
func TestCloudEventsSDK_EventsArriveWhole(t *testing.T) {
	t.Parallel()
	server, got := source(t, rules(t, "", ""))
	client, err := cloudevents.NewClientHTTP(cloudevents.WithTarget(server.URL), cloudevents.WithRoundTripper(server.Client().Transport))
	must(t, err)
	want := &schedule.Event{
		ID: "id-1", Source: "http://example.com/source?a=b", Type: "dev.example.changed", Subject: "GitRepo/team-a/site",
		Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), DataSchema: "http://example.com/schema", DataContentType: "application/json",
		Extensions: map[string]any{"team": "platform", "namespace": ""},
	}
	for _, version := range []string{"1.0", "0.3"} {
		for mode, ctx := range map[string]context.Context{
			"binary":     binding.WithForceBinary(context.Background()),
			"structured": binding.WithForceStructured(context.Background()),
		} {
			sent := sdkEvent(t, version)
			want.Data = sent.Data()
			if result := client.Send(ctx, sent); !cloudevents.IsACK(result) {
				t.Errorf("%s %s: %v", version, mode, result)
				continue
			}
			items := <-got
			if items[0].Key != "GitRepo/team-a/site" {
				t.Errorf("%s %s: key %q", version, mode, items[0].Key)
			}
			e := *items[0].Request.Event
			e.DataBase64 = false // the SDK's structured mode may say so
			if d := cmp.Diff(want, &e); d != "" {
				t.Errorf("%s %s: %s", version, mode, d)
			}
		}
	}
}

// A batch of the CloudEvents SDK arrives.
func TestCloudEventsSDK_BatchArrives(t *testing.T) {
	t.Parallel()
	server, got := source(t, rules(t, "event.id", ""))
	req, err := cehttp.NewHTTPRequestFromEvents(context.Background(), server.URL, []cloudevents.Event{sdkEvent(t, "1.0"), sdkEvent(t, "0.3")})
	must(t, err)
	resp, err := server.Client().Do(req)
	if err != nil || resp.StatusCode != http.StatusAccepted {
		t.Fatal(err, resp)
	}
	resp.Body.Close()
	if items := <-got; len(items) != 2 || items[0].Key != "id-1" || items[1].Key != "id-1" {
		t.Errorf("%+v", items)
	}
}
