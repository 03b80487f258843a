package blackbox

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

var (
	keyed = declare("keyed", `ingest:
  key: "event.kind + '/' + event.namespace + '/' + event.name"
  when: "event.data.metadata.generation != event.data.status.observedGeneration"
`)
	broken  = declare("broken", "ingest: {key: \"event.data.missing\"}")
	settled = declare("settled", "delay: 1h\ningest: {conflictPolicy: latest}")
	refuses = declare("refuses", "delay: 1h\ningest: {conflictPolicy: fail}")
	gone    = declare("gone", "maxInterval: 20ms")
)

// ingest sends a binary event that is accepted.
func (s *source) ingest(t testing.TB, headers ...string) {
	t.Helper()
	if r := s.send(t, headers...); r.Status != http.StatusAccepted || len(r.Body) != 0 {
		t.Errorf("%v: %d %s", headers, r.Status, r.Body)
	}
}

func (s *source) send(t testing.TB, headers ...string) *harness.Reply {
	t.Helper()
	return s.call(t, http.MethodPost, "", `{"x":1}`, append([]string{"Ce-Id", "1", "Ce-Type", "t", "Ce-Source", "/s", "Ce-Specversion", "1.0"}, headers...)...)
}

func sdkEvent(version, id string) cloudevents.Event {
	e := cloudevents.NewEvent(version)
	e.SetID(id)
	e.SetSource("/made/by/sdk")
	e.SetType("dev.example.made")
	e.SetTime(time.Date(2020, 1, 2, 3, 4, 5, 6000, time.UTC))
	e.SetExtension("team", "a€")
	_ = e.SetData("application/json", map[string]int{"a": 1})
	return e
}

// The CloudEvents SDK sends in every form, and the event is delivered as it came.
func TestIngest_CloudEventsSDKInEveryForm(t *testing.T) {
	t.Parallel()
	for _, version := range []string{cloudevents.VersionV1, cloudevents.VersionV03} {
		for _, mode := range []string{"binary", "structured", "batched"} {
			if mode == "batched" && version == cloudevents.VersionV03 {
				continue // the SDK's writer of batches is the same for both
			}
			id := "sdk " + version + mode
			key := "/made/by/sdk/" + id
			e := sdkEvent(version, id)
			var result error
			switch mode {
			case "batched":
				second := sdkEvent(version, id)
				second.SetSubject("sdk second " + version)
				req, err := cehttp.NewHTTPRequestFromEvents(t.Context(), plain.url(), []cloudevents.Event{e, second})
				if err != nil {
					t.Fatal(err)
				}
				resp, err := harness.Client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				result = cehttp.NewResult(resp.StatusCode, "")
				plain.next(t, "sdk second "+version)
			default:
				c, err := cloudevents.NewClientHTTP(cloudevents.WithTarget(plain.url()), cloudevents.WithRoundTripper(harness.Client.Transport))
				if err != nil {
					t.Fatal(err)
				}
				ctx := context.Context(t.Context())
				if mode == "structured" {
					ctx = binding.WithForceStructured(ctx)
				}
				result = c.Send(ctx, e)
			}
			var status *cehttp.Result
			if !cloudevents.ResultAs(result, &status) || status.StatusCode != http.StatusAccepted {
				t.Errorf("%s: %v", id, result)
				continue
			}
			d := plain.next(t, key)
			for name, want := range map[string]string{
				"specversion": "1.0", "id": id, "source": "/made/by/sdk", "type": "dev.example.made", "time": "2020-01-02T03:04:05.000006Z", "team": "a€", "reschedulekey": key,
			} {
				if d.Attr(name) != want {
					t.Errorf("%s: %s is %q, want %q", id, name, d.Attr(name), want)
				}
			}
			if string(d.Body) != `{"a":1}` || d.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%s: %s %s", id, d.Header.Get("Content-Type"), d.Body)
			}
		}
	}
}

// An event of version 0.3 leaves as 1.0.
func TestIngest_Version03LeavesAs10(t *testing.T) {
	t.Parallel()
	r := plain.call(t, http.MethodPost, "", `{"specversion":"0.3","id":"old","source":"/old","type":"dev.example.old","subject":"in/0.3","schemaurl":"https://example.com/s",
		"datacontenttype":"application/octet-stream","datacontentencoding":"base64","data":"AP8B","ext":"e"}`, "Content-Type", "application/cloudevents+json; charset=utf-8")
	if r.Status != http.StatusAccepted {
		t.Fatalf("%d %s", r.Status, r.Body)
	}
	d := plain.next(t, "in/0.3")
	for name, want := range map[string]string{"specversion": "1.0", "id": "old", "dataschema": "https://example.com/s", "schemaurl": "", "datacontentencoding": "", "ext": "e"} {
		if d.Attr(name) != want {
			t.Errorf("%s is %q, want %q", name, d.Attr(name), want)
		}
	}
	if string(d.Body) != "\x00\xff\x01" || d.Header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("%q as %q", d.Body, d.Header.Get("Content-Type"))
	}
}

// Steering attributes set key, time and policy.
func TestIngest_SteeringAttributes(t *testing.T) {
	t.Parallel()
	for headers, want := range map[[2]string]time.Duration{
		{"Ce-Rescheduleafter", "1h"}: time.Hour, {"Ce-Rescheduleafter", "PT1H"}: time.Hour,
		{"Ce-Rescheduleat", in(2 * time.Hour)}: 100 * time.Minute, {"Ce-Reschedulepolicy", "keep"}: 59 * time.Minute,
	} {
		key := "steer " + headers[0] + headers[1]
		settled.ingest(t, headers[0], headers[1], "Ce-Reschedulekey", strings.ReplaceAll(key, " ", "%20"))
		v := settled.get(t, key)
		if wait := time.Until(v.DueAt); wait > want+30*time.Minute || wait < want-time.Minute {
			t.Errorf("%v: due in %s", headers, wait)
		}
	}
	for _, headers := range [][]string{
		{"Ce-Rescheduleafter", "soon"}, {"Ce-Rescheduleafter", "5"}, {"Ce-Rescheduleat", "tomorrow"}, {"Ce-Reschedulepolicy", "newest"},
		{"Ce-Reschedulekey", "%00"}, {"Ce-Reschedulekey", strings.Repeat("k", 513)}, {"Ce-Rescheduleafter", "-1s"}, {"Ce-Rescheduleafter", "200000h9999999h"},
		{"Ce-Rescheduleafter", "1s", "Ce-Rescheduleat", in(time.Hour)}, {"Ce-Specversion", "2.0"}, {"Ce-Type", ""}, {"Ce-Id", ""},
	} {
		problem(t, plain.send(t, append(headers, "Ce-Subject", "steer/bad")...), http.StatusBadRequest, "invalid_argument")
	}
	if _, ok := plain.look(t, "steer/bad"); ok {
		t.Error("a refused event was taken")
	}
}

// The key of an event is its subject, or else its source and id.
func TestIngest_KeyIsSubjectElseSourceAndID(t *testing.T) {
	t.Parallel()
	plain.ingest(t, "Ce-Id", "in-7", "Ce-Source", "/in/source")
	if d := plain.next(t, "/in/source/in-7"); d.Attr("subject") != "/in/source/in-7" && d.Attr("subject") != "" {
		t.Errorf("%v", d.Attributes)
	}
	plain.ingest(t, "Ce-Subject", "in/subject")
	if d := plain.next(t, "in/subject"); d.Attr("id") != "1" || d.Attr("source") != "/s" {
		t.Errorf("%v", d.Attributes)
	}
}

// The ingest policy is earliest by default.
func TestIngest_PolicyIsEarliestByDefault(t *testing.T) {
	t.Parallel()
	v := plain.put(t, "in/merge", `{"delay":"1h","reason":"r"}`)
	plain.ingest(t, "Ce-Reschedulekey", "in/merge", "Ce-Rescheduleafter", "2h")
	g := plain.get(t, "in/merge")
	if !g.DueAt.Equal(v.DueAt) || g.Event["type"] != "t" || g.Revision <= v.Revision || g.Reason != "r" {
		t.Errorf("an event never postpones: %+v", g)
	}
	plain.ingest(t, "Ce-Reschedulekey", "in/merge", "Ce-Rescheduleafter", "30m")
	if g := plain.get(t, "in/merge"); !g.DueAt.Before(v.DueAt) {
		t.Errorf("it may bring it forward: %+v", g)
	}
	w := postponed.put(t, "in/merge", `{"delay":"1h"}`)
	postponed.ingest(t, "Ce-Reschedulekey", "in/merge", "Ce-Rescheduleafter", "3h", "Ce-Reschedulepolicy", "latest")
	if g := postponed.get(t, "in/merge"); !g.DueAt.After(w.DueAt) {
		t.Errorf("postpones with an explicit policy: %+v", g)
	}
	refuses.ingest(t, "Ce-Subject", "k")
	problem(t, refuses.send(t, "Ce-Subject", "k"), http.StatusConflict, "already_exists")
}

var postponed = declare("postponed", "ingest: {policies: [latest], maxDelay: 24h}")

// An event has only the policies and times that its source allows. A refused event does not change its key.
func TestEvent_AsksOnlyForWhatTheSourceAllows(t *testing.T) {
	t.Parallel()
	v := plain.put(t, "in/allowed", `{"delay":"1h","reason":"r"}`)
	for _, policy := range []string{"replace", "latest", "fail"} {
		problem(t, plain.send(t, "Ce-Reschedulekey", "in/allowed", "Ce-Rescheduleafter", "2h", "Ce-Reschedulepolicy", policy), http.StatusForbidden, "permission_denied")
	}
	problem(t, plain.send(t, "Ce-Reschedulekey", "in/allowed", "Ce-Rescheduleafter", "8761h"), http.StatusBadRequest, "invalid_argument")
	problem(t, postponed.send(t, "Ce-Reschedulekey", "in/allowed", "Ce-Reschedulepolicy", "earliest"), http.StatusForbidden, "permission_denied")
	problem(t, postponed.send(t, "Ce-Reschedulekey", "in/allowed", "Ce-Rescheduleat", in(25*time.Hour)), http.StatusBadRequest, "invalid_argument")
	if g := plain.get(t, "in/allowed"); !g.DueAt.Equal(v.DueAt) || g.Revision != v.Revision {
		t.Errorf("a refused event changed the key: %+v", g)
	}
	plain.ingest(t, "Ce-Reschedulekey", "in/allowed", "Ce-Rescheduleafter", "8760h", "Ce-Reschedulepolicy", "keep")
	postponed.ingest(t, "Ce-Reschedulekey", "in/allowed", "Ce-Rescheduleafter", "24h")
}

// An event with an impossible time, media type or subject is refused, because its record could not be read back.
func TestEvent_WithAnImpossibleOffsetIsRefused(t *testing.T) {
	t.Parallel()
	v := plain.put(t, "in/offset", `{"delay":"1h"}`)
	for _, headers := range [][]string{{"Ce-Time", "2026-01-01T00:00:00+24:30"}, {"Ce-Time", "2026-01-01T00:00:00+24:00"}, {"Content-Type", "text"}, {"Ce-Subject", "%20"}} {
		problem(t, plain.send(t, append(headers, "Ce-Reschedulekey", "in/offset")...), http.StatusBadRequest, "invalid_argument")
	}
	if g := plain.get(t, "in/offset"); g.Revision != v.Revision {
		t.Errorf("%+v", g)
	}
}

// A batch with one bad event is refused whole.
func TestIngest_BatchWithABadEventTakesNone(t *testing.T) {
	t.Parallel()
	batch := func(second string) *harness.Reply {
		return plain.call(t, http.MethodPost, "", `[{"specversion":"1.0","id":"1","source":"/b","type":"t","subject":"batch/good","rescheduleafter":"1h"},`+second+`]`,
			"Content-Type", "application/cloudevents-batch+json")
	}
	for _, bad := range []string{`{"specversion":"1.0","id":"2","source":"/b"}`, `{"specversion":"1.0","id":"2","source":"/b","type":"t","rescheduleafter":"soon"}`, `{}`, `1`} {
		problem(t, batch(bad), http.StatusBadRequest, "invalid_argument")
	}
	refuses.ingest(t, "Ce-Subject", "in batch")
	r := refuses.call(t, http.MethodPost, "", `[{"specversion":"1.0","id":"1","source":"/b","type":"t","subject":"batch/good"},{"specversion":"1.0","id":"1","source":"/b","type":"t","subject":"in batch"}]`,
		"Content-Type", "application/cloudevents-batch+json")
	problem(t, r, http.StatusConflict, "already_exists")
	for _, s := range []*source{plain, refuses} {
		if _, ok := s.look(t, "batch/good"); ok {
			t.Errorf("%s: a batch that was refused was taken in part", s.name)
		}
	}
	if r := batch(`{"specversion":"0.3","id":"2","source":"/b","type":"t","subject":"batch/old","rescheduleafter":"1h"}`); r.Status != http.StatusAccepted {
		t.Errorf("%d %s", r.Status, r.Body)
	}
	plain.get(t, "batch/good")
	plain.get(t, "batch/old")
	if r := plain.call(t, http.MethodPost, "", `[]`, "Content-Type", "application/cloudevents-batch+json"); r.Status != http.StatusAccepted {
		t.Errorf("an empty batch: %d %s", r.Status, r.Body)
	}
}

// A request that is no CloudEvent is refused.
func TestIngest_OtherThanCloudEventsIsRefused(t *testing.T) {
	t.Parallel()
	if r := plain.call(t, http.MethodPost, "", `{"a":1}`); r.Status != http.StatusBadRequest && r.Status != http.StatusUnsupportedMediaType {
		t.Errorf("%d %s", r.Status, r.Body)
	}
	problem(t, plain.call(t, http.MethodPost, "", `{`, "Content-Type", "application/cloudevents+json"), http.StatusBadRequest, "invalid_argument")
	r := plain.call(t, http.MethodPost, "", strings.Repeat("x", 256<<10+1), "Content-Type", "text/plain", "Ce-Id", "1", "Ce-Type", "t", "Ce-Source", "/s", "Ce-Specversion", "1.0")
	problem(t, r, http.StatusRequestEntityTooLarge, "too_large")
}

// The key and the condition in CEL.
func TestIngest_KeyAndWhenInCEL(t *testing.T) {
	t.Parallel()
	send := func(name, data string) {
		t.Helper()
		r := keyed.call(t, http.MethodPost, "", data, "Ce-Id", "1", "Ce-Type", "dev.knative.apiserver.resource.update", "Ce-Source", "/s", "Ce-Specversion", "1.0",
			"Ce-Kind", "GitRepo", "Ce-Name", name, "Ce-Subject", "not this", "Ce-Rescheduleafter", "1h")
		if r.Status != http.StatusAccepted || len(r.Body) != 0 {
			t.Errorf("%s: %d %s", name, r.Status, r.Body)
		}
	}
	send("changed", `{"metadata":{"generation":2},"status":{"observedGeneration":1}}`)
	send("unchanged", `{"metadata":{"generation":2},"status":{"observedGeneration":2}}`)
	send("new", `{"metadata":{"generation":1}}`) // an error in when counts as true
	for name, want := range map[string]bool{"changed": true, "unchanged": false, "new": true} {
		if _, ok := keyed.look(t, "GitRepo//"+name); ok != want {
			t.Errorf("%s: there %t, want %t; a missing namespace reads as empty", name, ok, want)
		}
	}
	// An explicit key wins over the expression.
	keyed.ingest(t, "Ce-Reschedulekey", "explicit", "Ce-Rescheduleafter", "1h")
	keyed.get(t, "explicit")
	r := broken.send(t)
	problem(t, r, http.StatusBadRequest, "invalid_argument")
	if !strings.Contains(string(r.Body), "missing") {
		t.Errorf("an error in key is quoted: %s", r.Body)
	}
}

// maxInterval does not bring a deleted object back.
func TestIngest_DeletedObjectStaysAway(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"ref.delete", "resource.delete", "resource.update"} {
		gone.answer(kind, script(status(500), status(204)))
		gone.ingest(t, "Ce-Type", "dev.knative.apiserver."+kind, "Ce-Subject", kind)
		gone.next(t, kind)
		gone.next(t, kind)
		if kind == "resource.update" {
			gone.next(t, kind)
			gone.cancel(t, kind)
			continue
		}
		gone.gone(t, kind)
	}
}

// An ingested event is a new one when an outcome makes it so.
func TestIngest_OutcomeMakesANewEvent(t *testing.T) {
	t.Parallel()
	fast.answer("in/again", script(status(500), status(200, "Reschedule-After", "0"), status(204)))
	fast.ingest(t, "Ce-Id", "theirs", "Ce-Subject", "in/again")
	for i, same := range []bool{true, true, false} {
		d := fast.next(t, "in/again")
		if (d.Attr("id") == "theirs") != same || d.Attr("type") != "t" || d.Attr("source") != "/s" || string(d.Body) != `{"x":1}` {
			t.Errorf("delivery %d: %v", i, d.Attributes)
		}
	}
}

// A burst of events collapses while a delivery is under way.
func TestIngest_BurstCollapsesDuringADelivery(t *testing.T) {
	t.Parallel()
	answer, release := hold()
	plain.answer("in/burst", answer)
	plain.ingest(t, "Ce-Subject", "in/burst")
	plain.next(t, "in/burst")
	for i := range 10 {
		plain.ingest(t, "Ce-Subject", "in/burst", "Ce-Id", fmt.Sprint("burst", i))
	}
	release <- status(204)
	if d := plain.next(t, "in/burst"); d.Attr("id") != "burst9" {
		t.Errorf("want the newest accepted event, got %v", d.Attributes)
	}
	release <- status(204)
	plain.gone(t, "in/burst")
	if n := len(sink.Of("plain", "in/burst")); n != 2 {
		t.Errorf("%d deliveries", n)
	}
}
