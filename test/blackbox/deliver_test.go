package blackbox

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

var (
	structured = declare("structured", "delivery: {format: json}\nceOverrides: {extensions: {team: platform}}")
	overridden = declare("overridden", "ceOverrides: {extensions: {team: \"plat form €\", ext: theirs}}")
	fast       = declare("fast", "delivery: {backoffDelay: PT0.01S}\ningest: {policies: [earliest, keep, replace]}")
)

// received answers as a function on the SDK's own receiver does, and hands out
// what it got.
func received(t *testing.T, reply func(cloudevents.Event) (*cloudevents.Event, cloudevents.Result)) (harness.Answer, <-chan cloudevents.Event) {
	t.Helper()
	got := make(chan cloudevents.Event, 16)
	p, err := cloudevents.NewHTTP()
	if err != nil {
		t.Fatal(err)
	}
	h, err := cloudevents.NewHTTPReceiveHandler(context.Background(), p, func(e cloudevents.Event) (*cloudevents.Event, cloudevents.Result) {
		got <- e
		return reply(e)
	})
	if err != nil {
		t.Fatal(err)
	}
	return func(w http.ResponseWriter, r *http.Request, d *harness.Delivery) {
		r.Body = body(d.Body)
		h.ServeHTTP(w, r)
	}, got
}

func ack(cloudevents.Event) (*cloudevents.Event, cloudevents.Result) { return nil, nil }

// A delivery carries the attributes of the contract.
func TestDelivery_HasTheAttributes(t *testing.T) {
	t.Parallel()
	const key = "deliver/€ 100%"
	v := plain.put(t, key, `{"delay":"100ms"}`)
	d := plain.next(t, key)
	due := v.DueAt.UTC().Format(time.RFC3339Nano)
	for name, want := range map[string]string{
		"specversion": "1.0", "type": "dev.reschedule.due", "subject": key, "time": due,
		"source":        "/apis/sources.reschedule.dev/v1alpha1/namespaces/tests/reschedulesources/plain",
		"reschedulekey": key, "reschedulerevision": fmt.Sprint(v.Revision), "rescheduledueat": due, "rescheduleattempt": "0",
	} {
		if d.Attr(name) != want {
			t.Errorf("%s is %q, want %q", name, d.Attr(name), want)
		}
	}
	if d.Attr("id") == "" || len(d.Body) != 0 {
		t.Errorf("id %q, body %q", d.Attr("id"), d.Body)
	}
	if h := d.Header.Get("Ce-Reschedulekey"); h != "deliver/%E2%82%AC%20100%25" {
		t.Errorf("Ce-Reschedulekey: %q", h)
	}
	if d.Header.Get("Kn-Namespace") != "tests" || d.Header.Get("Prefer") != "reply" {
		t.Errorf("headers: %v", d.Header)
	}
	if d.At.Before(v.DueAt) {
		t.Errorf("%s early", v.DueAt.Sub(d.At))
	}
}

// The event of a request is delivered.
func TestDelivery_HasTheEventOfTheRequest(t *testing.T) {
	t.Parallel()
	for i, c := range []struct{ event, contentType, body string }{
		{`"data":{"a": 1.50, "b":[]}`, "application/json", `{"a": 1.50, "b":[]}`},
		{`"data":"text"`, "application/json", `"text"`},
		{`"data":null`, "", ``},
		{`"data":false`, "application/json", `false`},
		{`"datacontenttype":"text/plain","data":"raw \"text\" €"`, "text/plain", `raw "text" €`},
		{`"datacontenttype":"application/xml","data":"<a/>"`, "application/xml", `<a/>`},
		{`"datacontenttype":"application/octet-stream","data_base64":"AP8B"`, "application/octet-stream", "\x00\xff\x01"},
		{`"data_base64":"eyJhIjoxfQ=="`, "application/json", `{"a":1}`},
		{`"datacontenttype":"application/cloudevents+json","data":"not one"`, "application/cloudevents+json", ``},
	} {
		key := fmt.Sprint("event/", i)
		plain.put(t, key, `{"event":{"type":"dev.example.sync","subject":"sub","dataschema":"https://example.com/s","ext":"a b","flag":true,"n":-7,`+c.event+`}}`)
		d := plain.next(t, key)
		if i == 8 {
			continue // whatever its form, it must not be taken for another event: Next has found the key
		}
		if string(d.Body) != c.body || d.Header.Get("Content-Type") != c.contentType {
			t.Errorf("%s: %q as %q", c.event, d.Body, d.Header.Get("Content-Type"))
		}
		for name, want := range map[string]string{"type": "dev.example.sync", "subject": "sub", "dataschema": "https://example.com/s", "ext": "a b", "flag": "true", "n": "-7"} {
			if d.Attr(name) != want {
				t.Errorf("%s: %s is %q, want %q", c.event, name, d.Attr(name), want)
			}
		}
	}
}

// The CloudEvents SDK reads both formats.
func TestDelivery_CloudEventsSDKReadsBoth(t *testing.T) {
	t.Parallel()
	for _, s := range []*source{plain, structured} {
		const key = "sdk/€"
		answer, got := received(t, ack)
		s.answer(key, answer)
		s.answer("overridden", func(w http.ResponseWriter, r *http.Request, d *harness.Delivery) {
			if d.Attr("subject") == key { // the other keys of the source are another test's, and overridden too
				answer(w, r, d)
			}
		})
		v := s.put(t, key, `{"event":{"type":"dev.example.sync","data":{"a":1},"n":3,"team":"theirs"}}`)
		e := <-got
		if err := e.Validate(); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
		// The SDK hands out header values as they came, percent-encoded.
		want := key
		if s == plain {
			want = "sdk/%E2%82%AC"
		}
		if e.Type() != "dev.example.sync" || e.Subject() != want || string(e.Data()) != `{"a":1}` || e.DataContentType() != "application/json" || !e.Time().Equal(v.DueAt) {
			t.Errorf("%s: %s", s.name, e)
		}
		ext := e.Extensions()
		if s == structured {
			if fmt.Sprint(ext["team"]) != "platform" {
				t.Errorf("ceOverrides are applied last: %v", ext)
			}
			continue
		}
		if fmt.Sprint(ext["reschedulekey"]) != want || fmt.Sprint(ext["reschedulerevision"]) != fmt.Sprint(v.Revision) {
			t.Errorf("%s: %v", s.name, ext)
		}
	}
}

// A structured delivery is one JSON object.
func TestDelivery_StructuredIsOneObject(t *testing.T) {
	t.Parallel()
	structured.put(t, "json", `{"event":{"data":{"a":1.50},"flag":true,"n":3}}`)
	var d *harness.Delivery
	sink.Find(t, "json", func(all []*harness.Delivery) bool {
		for _, got := range all {
			if got.Inbox == "structured" && got.Attr("subject") == "json" {
				d = got
			}
		}
		return d != nil
	})
	var e map[string]json.RawMessage
	if err := json.Unmarshal(d.Body, &e); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"data": `{"a":1.50}`, "flag": "true", "n": "3", "team": `"platform"`, "rescheduleattempt": "0", "specversion": `"1.0"`} {
		if string(e[name]) != want {
			t.Errorf("%s is %s, want %s", name, e[name], want)
		}
	}
	if d.Header.Get("Kn-Namespace") != "tests" || d.Header.Get("Ce-Id") != "" {
		t.Errorf("headers: %v", d.Header)
	}
}

// Overrides are applied last.
func TestDelivery_OverridesComeLast(t *testing.T) {
	t.Parallel()
	overridden.put(t, "k", `{"event":{"ext":"ours","other":"stays"}}`)
	d := overridden.next(t, "k")
	for name, want := range map[string]string{"team": "plat form €", "ext": "theirs", "subject": "k", "other": "stays"} {
		if d.Attr(name) != want {
			t.Errorf("%s is %q, want %q", name, d.Attr(name), want)
		}
	}
}

// The trace context of the request travels to the sink.
func TestDelivery_CarriesTheTraceContext(t *testing.T) {
	t.Parallel()
	const trace = "0af7651916cd43dd8448eb211c80319c"
	parent := "00-" + trace + "-b7ad6b7169203331-01"
	plain.put(t, "trace/put", "", "Traceparent", parent)
	if d := plain.next(t, "trace/put"); !strings.Contains(d.Header.Get("Traceparent"), trace) {
		t.Errorf("traceparent %q", d.Header.Get("Traceparent"))
	}
	plain.call(t, http.MethodPost, "", "{}", "Traceparent", parent, "Ce-Id", "1", "Ce-Type", "t", "Ce-Source", "/s", "Ce-Specversion", "1.0", "Ce-Subject", "trace/in")
	if d := plain.next(t, "trace/in"); !strings.Contains(d.Header.Get("Traceparent"), trace) {
		t.Errorf("traceparent of an ingested event %q", d.Header.Get("Traceparent"))
	}
	plain.call(t, http.MethodPost, "", "{}", "Ce-Traceparent", parent, "Ce-Id", "1", "Ce-Type", "t", "Ce-Source", "/s", "Ce-Specversion", "1.0", "Ce-Subject", "trace/attribute")
	if d := plain.next(t, "trace/attribute"); d.Attr("traceparent") != parent {
		t.Errorf("ce-traceparent %q", d.Attr("traceparent"))
	}
}

// A key is delivered once at a time, and a newer occurrence afterwards.
func TestDelivery_OneAtATimeThenTheNewer(t *testing.T) {
	t.Parallel()
	const key = "one at a time"
	answer, release := hold()
	plain.answer(key, answer)
	plain.put(t, key, `{"event":{"type":"first"}}`)
	plain.next(t, key)
	if v := plain.get(t, key); v.State != "inFlight" || !*v.InFlight {
		t.Errorf("%+v", v)
	}
	for i, policy := range []string{"fail", "keep", "earliest"} {
		v := plain.put(t, key, `{"event":{"type":"second"},"policy":"`+policy+`"}`)
		if created := i == 0; created != (v.Result == "created") || !*v.InFlight {
			t.Errorf("%s: %+v", policy, v)
		}
	}
	if v := plain.get(t, key); v.State != "due" || !*v.InFlight {
		t.Errorf("behind a delivery: %+v", v)
	}
	plain.passes(t, time.Now().Add(200*time.Millisecond))
	if n := len(sink.Of("plain", key)); n != 1 {
		t.Errorf("%d deliveries of one key at a time", n)
	}
	release <- status(500)
	d := plain.next(t, key)
	if d.Attr("type") != "second" || d.Attempt != 0 {
		t.Errorf("%s, attempt %d: the failure of what was superseded is not retried, and its counter is its own", d.Attr("type"), d.Attempt)
	}
	release <- status(204)
	plain.gone(t, key)
	if n := len(sink.Of("plain", key)); n != 2 {
		t.Errorf("%d deliveries", n)
	}
}

// The failure of an occurrence that a PUT replaced is not retried.
func TestPut_ReplacedFailureIsNotRetried(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]func(http.ResponseWriter){"failed": status(500), "busy": status(503, "Retry-After", "0"), "refused": status(400), "fine": status(204)} {
		for _, policy := range []string{"replace", "earliest", "latest"} {
			key := "took the place/" + name + "/" + policy
			answer, release := hold()
			fast.answer(key, answer)
			fast.put(t, key, `{"event":{"type":"old"},"maxInterval":"10ms"}`)
			fast.next(t, key)
			v := fast.put(t, key, `{"event":{"type":"new"},"delay":"1h","policy":"`+policy+`"}`)
			release <- a
			g := fast.settled(t, key)
			if !g.DueAt.Equal(v.DueAt) || g.Revision != v.Revision || g.State != "waiting" || *g.Attempt != 0 || g.Event["type"] != "new" {
				t.Errorf("%s: %+v, was acknowledged as %+v", key, g, v)
			}
		}
	}
	fast.passes(t, time.Now().Add(100*time.Millisecond))
	for _, d := range sink.Of("fast", "") {
		if strings.HasPrefix(d.Key, "took the place/") && d.Attr("type") == "new" {
			t.Errorf("%s was delivered an hour early", d.Key)
		}
	}
}

// An event during a delivery that fails is delivered at the retry.
func TestEvent_DuringFailureComesAtTheRetry(t *testing.T) {
	t.Parallel()
	const key = "event during"
	answer, release := hold()
	fast.answer(key, answer)
	fast.put(t, key, `{"event":{"type":"old"}}`)
	first := fast.next(t, key)
	fast.ingest(t, "Ce-Type", "new", "Ce-Id", "during", "Ce-Reschedulekey", "event%20during", "Ce-Rescheduleafter", "1h")
	if v := fast.get(t, key); v.State != "waiting" || !*v.InFlight {
		t.Errorf("behind the delivery: %+v", v)
	}
	release <- status(500)
	d := fast.next(t, key) // an event never postpones
	if d.Attr("type") != "new" || d.Attr("id") != "during" || d.Attempt != 1 || !d.DueAt.Equal(first.DueAt) {
		t.Errorf("%v", d.Attributes)
	}
	release <- status(204)
	fast.gone(t, key)
}

// After a DELETE the answer of the delivery under way has no effect.
func TestDelete_TheAnswerHasNoEffect(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]func(http.ResponseWriter){
		"again": status(200, "Reschedule-After", "0"), "failed": status(500), "refused": status(400), "interval": status(200),
	} {
		key := "deleted/" + name
		answer, release := hold()
		fast.answer(key, answer)
		fast.put(t, key, `{"maxInterval":"10ms"}`)
		fast.next(t, key)
		fast.cancel(t, key)
		if _, ok := fast.look(t, key); ok {
			t.Errorf("%s: GET is 404 at once", name)
		}
		release <- a
	}
	fast.passes(t, time.Now().Add(300*time.Millisecond))
	for _, d := range sink.Of("fast", "") {
		if strings.HasPrefix(d.Key, "deleted/") && len(sink.Of("fast", d.Key)) != 1 {
			t.Errorf("%s was delivered again", d.Key)
		}
	}
}

// An occurrence that was replaced or cancelled in time is not delivered.
func TestChange_InTimeStopsTheDelivery(t *testing.T) {
	t.Parallel()
	at := time.Now().Add(300 * time.Millisecond)
	due := at.UTC().Format(time.RFC3339Nano)
	for i := range 50 {
		key := fmt.Sprint("superseded/", i)
		plain.put(t, key, `{"dueAt":"`+due+`"}`)
		if i%2 == 0 {
			plain.cancel(t, key)
		} else {
			plain.put(t, key, `{"delay":"1h"}`)
		}
	}
	if time.Now().After(at) {
		t.Log("the machine is too slow for this to say much")
		return
	}
	plain.passes(t, at.Add(200*time.Millisecond))
	for i := range 50 {
		if n := len(sink.Of("plain", fmt.Sprint("superseded/", i))); n != 0 {
			t.Errorf("%d was delivered %d times", i, n)
		}
	}
}

// A thousand keys due at one instant are delivered once each and not early.
func TestInstant_1000KeysOnceEachNotEarly(t *testing.T) {
	t.Parallel()
	at := time.Now().Add(700 * time.Millisecond).UTC().Format(time.RFC3339Nano)
	var items []string
	for i := range 1000 {
		items = append(items, fmt.Sprintf(`{"key":"burst/%d","dueAt":%q}`, i, at))
	}
	bulk.call(t, http.MethodPost, "/schedules", `{"items":[`+strings.Join(items, ",")+`]}`)
	for i := range 1000 {
		bulk.next(t, fmt.Sprint("burst/", i))
	}
	eventually(t, "all done", func() bool { return len(bulk.pages(t, "prefix=burst")) == 0 })
	n := 0
	for _, d := range sink.Of("bulk", "") {
		if strings.HasPrefix(d.Key, "burst/") {
			n++
		}
	}
	if n != 1000 {
		t.Errorf("%d deliveries", n)
	}
}
