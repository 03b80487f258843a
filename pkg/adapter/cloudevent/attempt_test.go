package cloudevent

import (
	"bytes"
	"maps"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// FromSDK converts other types to their canonical string.
func TestFromSDK_CanonicalStrings(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	in := event.New()
	in.SetID("i")
	in.SetSource("/s")
	in.SetType("t")
	in.SetTime(at)
	for name, v := range map[string]any{"s": "x", "b": true, "n": 7, "at": at, "bin": []byte("hi"), "uri": types.ParseURI("http://x/")} {
		in.SetExtension(name, v)
	}
	if err := in.SetData("text/plain", []byte("data")); err != nil {
		t.Fatal(err)
	}
	got, err := FromSDK(in)
	want := &schedule.Event{ID: "i", Source: "/s", Type: "t", Time: at, DataContentType: "text/plain", Data: []byte("data"), DataBase64: true, // the SDK's mark for bytes
		Extensions: ext("s", "x", "b", true, "n", int32(7), "at", "2026-01-02T03:04:05Z", "bin", "aGk=", "uri", "http://x/")}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	if _, err := FromSDK(event.Event{}); err == nil {
		t.Error("an event without a context is accepted")
	}
}

// A structured event reads back the same.
func TestStructured_ReadsBackTheSame(t *testing.T) {
	t.Parallel()
	due := time.Date(2026, 11, 21, 9, 0, 0, 5, time.UTC)
	for name, e := range map[string]*schedule.Event{
		"json":     {Type: "t", DataContentType: "application/json", Data: []byte(`{ "a":"<\u00e9" }`)},
		"text":     {Type: "t", DataContentType: "text/plain", Data: []byte("a\"\\\n\u2028é")},
		"no text":  {Type: "t", DataContentType: "text/plain", Data: []byte{0xff}, DataBase64: true},
		"no JSON":  {Type: "t", DataContentType: "application/json", Data: []byte(`{`), DataBase64: true},
		"suffix":   {Type: "t", DataContentType: "application/x+json", Data: []byte(`{}`), DataBase64: true},
		"verbatim": {ID: "id", Source: "HTTP://X/~?#", Type: " t ", Subject: " é ", Time: due, DataSchema: "HTTP://s?#", Extensions: ext("b", true, "n", int32(3), "s", "é\n")},
	} {
		asScheduled := *e
		asScheduled.DataBase64 = false // it must see for itself what needs base64
		a := schedule.Attempt{
			Source: &schedule.Spec{Namespace: "ns", Name: "n", Extensions: map[string]string{"team": "x"}},
			Key:    "k", ID: "id", Entry: &schedule.Entry{Revision: 1 << 60, DueAt: due, Attempt: 4, Event: &asScheduled},
		}
		sdk := ToSDK(&a)
		var b bytes.Buffer
		if err := event.WriteJson(&sdk, &b); err != nil {
			t.Fatal(err)
		}
		events, err := Read(jsonHeader(), b.Bytes())
		if err != nil {
			t.Fatalf("%s: %v in %s", name, err, &b)
		}
		want := *e
		want.ID, want.Time = "id", due
		if want.Source == "" {
			want.Source, want.Subject = a.Source.EventSource(), "k"
		}
		want.Extensions = ext("team", "x", "reschedulekey", "k", "reschedulerevision", "1152921504606846976",
			"rescheduledueat", "2026-11-21T09:00:00.000000005Z", "rescheduleattempt", int32(4))
		maps.Copy(want.Extensions, e.Extensions)
		if d := cmp.Diff(&want, events[0]); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}
