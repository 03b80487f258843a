package blackbox

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// One way through each family of calls. What single calls accept and answer is in the tables of pkg/adapter/api, ingest
// and cloudevent; policies, counters and outcomes are in schedule; requests to sinks and their answers in sink.

var (
	fast     = declare("fast", "delivery: {backoffDelay: PT0.01S}")
	lettered = declare("lettered", "ceOverrides: {extensions: {team: platform}}\ndelivery: {retry: 0, format: json, deadLetterSink: {uri: \"SINK/dead-letters\"}}")
)

// A key is put, refused, delivered, retried, due again as its sink asks, run and deleted.
func TestKey_FromPutToDelete(t *testing.T) {
	t.Parallel()
	const key, trace = "smoke/€ 100%", "0af7651916cd43dd8448eb211c80319c"
	path := harness.KeyPath(key)
	fast.answer(key, script(status(503, "Retry-After", "0"), status(200, "Reschedule-After", "1h"), status(204)))
	v := fast.put(t, key, `{"delay":"2s","reason":"because","uid":"u-1","expiresAt":"2100-01-01T00:00:00Z","event":{"type":"dev.example.sync","data":{"a": 2.50},"ext":"e"}}`,
		"If-None-Match", "*", "Traceparent", "00-"+trace+"-b7ad6b7169203331-01")
	if v.Result != "created" || v.State != "waiting" || v.UID != "u-1" || v.Reason != "because" || v.DueAt.Sub(v.ScheduledAt) != 2*time.Second {
		t.Errorf("%+v", v)
	}
	g := fast.get(t, key)
	if g.Result = "created"; !cmp.Equal(v, g) {
		t.Errorf("GET shows %+v, PUT showed %+v", g, v)
	}
	problem(t, fast.call(t, http.MethodPut, path, `{"policy":"fail"}`), http.StatusConflict, "already_exists")
	problem(t, fast.call(t, http.MethodPut, path, `{"delay":"soon"}`), http.StatusBadRequest, "invalid_argument")
	problem(t, fast.call(t, http.MethodPut, path, "", "If-Match", fmt.Sprintf("%q", fmt.Sprint(v.Revision+1))), http.StatusPreconditionFailed, "precondition_failed")

	first := fast.next(t, key)
	due := v.DueAt.UTC().Format(time.RFC3339Nano)
	for name, want := range map[string]string{
		"specversion": "1.0", "type": "dev.example.sync", "subject": key, "time": due, "ext": "e",
		"source":        "/apis/sources.reschedule.dev/v1alpha1/namespaces/tests/reschedulesources/fast",
		"reschedulekey": key, "reschedulerevision": fmt.Sprint(v.Revision), "rescheduledueat": due, "rescheduleattempt": "0",
	} {
		if first.Attr(name) != want {
			t.Errorf("%s is %q, want %q", name, first.Attr(name), want)
		}
	}
	if h := first.Header; string(first.Body) != `{"a": 2.50}` || h.Get("Kn-Namespace") != namespace || h.Get("Prefer") != "reply" || !strings.Contains(h.Get("Traceparent"), trace) {
		t.Errorf("headers %v, body %s", h, first.Body)
	}
	if retry := fast.next(t, key); retry.Attr("id") != first.Attr("id") || retry.Attempt != 1 {
		t.Errorf("the retry is %v, the first was %v", retry.Attributes, first.Attributes)
	}
	if g := fast.settled(t, key); g.State != "waiting" || g.Revision <= v.Revision || *g.Attempt != 0 || time.Until(g.DueAt) < 50*time.Minute || g.UID != "u-1" {
		t.Errorf("due again: %+v", g)
	}
	fast.decoded(t, http.MethodPost, path+"/run")
	if again := fast.next(t, key); again.Attr("id") == first.Attr("id") || again.Attr("type") != "dev.example.sync" {
		t.Errorf("the next occurrence is %v", again.Attributes)
	}
	fast.gone(t, key)
	if items := fast.decoded(t, http.MethodGet, path+"/history")["items"].([]any); len(items) != 3 || items[2].(map[string]any)["status"] != 503.0 {
		t.Errorf("%v", items)
	}
	fast.put(t, key, `{"delay":"1h"}`)
	for range 2 {
		fast.cancel(t, key)
	}
	fast.gone(t, key)
}

// A bulk call answers for each item; lists, counts and a bulk DELETE agree with it.
func TestBulk_ListAndCounts(t *testing.T) {
	t.Parallel()
	s := bulk
	var v harness.Schedule
	s.call(t, http.MethodPost, "/schedules", `{"items":[{"key":"a/2","delay":"1h"},{"key":"a/1","delay":"2h"},{"key":"a/3","delay":"soon"},{"key":"b","delay":"3h"}]}`).Into(t, &v)
	var got []string
	for _, item := range v.Items {
		got = append(got, fmt.Sprint(item.Key, " ", item.Status, " ", item.Result+item.Code))
	}
	if want := []string{"a/2 201 created", "a/1 201 created", "a/3 400 invalid_argument", "b 201 created"}; !cmp.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for query, want := range map[string]string{"order=key": "a/1 a/2 b", "order=due": "a/2 a/1 b", "prefix=a%2F": "a/1 a/2", "state=due": ""} {
		if got := strings.Join(keysOf(s.pages(t, "limit=1&"+query)), " "); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	if c := s.counts(t); c.Pending != 3 || c.Due != 0 || c.NextDueAt == nil || !c.NextDueAt.Equal(v.Items[0].DueAt) {
		t.Errorf("%+v", c)
	}
	problem(t, s.call(t, http.MethodDelete, "/schedules", ""), http.StatusBadRequest, "invalid_argument")
	if r := s.call(t, http.MethodDelete, "/schedules?prefix=a%2F", ""); string(r.Body) != "{\"deleted\":2}\n" || len(s.pages(t, "")) != 1 {
		t.Errorf("%d %s", r.Status, r.Body)
	}
}

var bulk = declare("bulk", "")

// An event of the CloudEvents SDK is delivered to the SDK as it came, and the event of its reply is the next one.
func TestEvent_FromSDKToSDK(t *testing.T) {
	t.Parallel()
	event := func(id, name, value string) cloudevents.Event {
		e := cloudevents.NewEvent()
		e.SetID(id)
		e.SetSource("/made/by/sdk")
		e.SetType("dev.example." + id)
		e.SetExtension(name, value)
		_ = e.SetData("application/json", map[string]int{"a": 1})
		return e
	}
	p, err := cloudevents.NewHTTP()
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan cloudevents.Event, 2)
	receiver, err := cloudevents.NewHTTPReceiveHandler(context.Background(), p, func(e cloudevents.Event) (*cloudevents.Event, cloudevents.Result) {
		got <- e
		reply := event("next", "rescheduleafter", "5m")
		return &reply, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	plain.answer("sdk", func(w http.ResponseWriter, r *http.Request, d *harness.Delivery) {
		r.Body = io.NopCloser(strings.NewReader(string(d.Body)))
		receiver.ServeHTTP(w, r)
	})
	c, err := cloudevents.NewClientHTTP(cloudevents.WithTarget(plain.url()), cloudevents.WithRoundTripper(harness.Client.Transport))
	if err != nil {
		t.Fatal(err)
	}
	var status *cehttp.Result
	if result := c.Send(binding.WithForceStructured(t.Context()), event("sent", "reschedulekey", "sdk")); !cloudevents.ResultAs(result, &status) || status.StatusCode != http.StatusAccepted {
		t.Errorf("%v", result)
	}
	if e := <-got; e.Validate() != nil || e.ID() != "sent" || e.Source() != "/made/by/sdk" || e.Type() != "dev.example.sent" || string(e.Data()) != `{"a":1}` {
		t.Errorf("%s", e)
	}
	plain.next(t, "sdk")
	if g := plain.settled(t, "sdk"); g.Event["type"] != "dev.example.next" || time.Until(g.DueAt) > 5*time.Minute {
		t.Errorf("%+v", g)
	}
	problem(t, plain.send(t, "Ce-Type", ""), http.StatusBadRequest, "invalid_argument")
	problem(t, plain.send(t, "Ce-Reschedulekey", "sdk", "Ce-Reschedulepolicy", "latest"), http.StatusForbidden, "permission_denied")
}

// What a sink refuses goes to the dead letter sink, in the format of the source.
func TestDeadLetter_GoesToItsSink(t *testing.T) {
	t.Parallel()
	lettered.answer("k", harness.Status(http.StatusBadRequest))
	lettered.put(t, "k", `{"event":{"data":{"a":1}}}`)
	first, d := lettered.next(t, "k"), sink.Next(t, "dead-letters", "k")
	for name, want := range map[string]string{
		"id": first.Attr("id"), "team": "platform", "knativeerrordest": sink.URL + "/lettered", "knativeerrorcode": "400",
	} {
		if d.Attr(name) != want {
			t.Errorf("%s is %q, want %q", name, d.Attr(name), want)
		}
	}
	if !strings.Contains(string(d.Body), `"data":{"a":1}`) {
		t.Errorf("%s", d.Body)
	}
	lettered.gone(t, "k")
}
