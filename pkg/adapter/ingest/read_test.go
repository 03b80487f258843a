package ingest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

var now = time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)

// event are the headers of a binary event; "-" takes one away.
func event(pairs ...string) http.Header {
	h := http.Header{}
	for i, pairs := 0, append([]string{"Ce-Specversion", "1.0", "Ce-Id", "i", "Ce-Source", "/s", "Ce-Type", "t"}, pairs...); i < len(pairs); i += 2 {
		if h.Set(pairs[i], pairs[i+1]); pairs[i+1] == "-" {
			h.Del(pairs[i])
		}
	}
	return h
}

// settings let events ask for everything.
func settings(key, when string) *schedule.Spec {
	return &schedule.Spec{
		UID: "u", Namespace: "ns", Name: "name", Ingest: schedule.Ingest{Key: key, When: when, MaxDelay: schedule.MaxDuration, Policies: []schedule.Policy{schedule.Replace, schedule.Earliest, schedule.Latest, schedule.Keep, schedule.Fail}},
	}
}

func rules(t testing.TB, key, when string) *Rules {
	t.Helper()
	r, err := Compile(settings(key, when))
	must(t, err)
	r.time = time.Minute // the machine may be busy
	return r
}

// refusal is the refusal of an event, nil when it is taken.
func refusal(t *testing.T, r *Rules, h http.Header, body string) *schedule.Error {
	t.Helper()
	items, err := r.Read(t.Context(), h, []byte(body), now, nil)
	if err != nil && len(items) > 0 {
		t.Fatalf("%v %v", items, err)
	}
	return asRefusal(t, err)
}

func asRefusal(t *testing.T, err error) *schedule.Error {
	t.Helper()
	refused, ok := errors.AsType[*schedule.Error](err)
	if err != nil && !ok {
		t.Fatalf("%v is no refusal", err)
	}
	return refused
}

// The key of an event.
func TestKey_OfAnEvent(t *testing.T) {
	t.Parallel()
	const kinds = "event.kind + '/' + event.namespace + '/' + event.name"
	jsonType := []string{"Content-Type", "application/json"}
	for name, tt := range map[string]struct {
		expression string
		h          http.Header
		body       string
		want       string
	}{
		"source and id":                       {"", event(), "", "/s/i"},
		"the subject":                         {"", event("Ce-Subject", "caf%C3%A9 1"), "", "café 1"},
		"the expression before the subject":   {"event.type", event("Ce-Subject", "x"), "", "t"},
		"the attribute before all":            {"event.type", event("Ce-Subject", "x", "Ce-Reschedulekey", "a%2Fb"), "", "a/b"},
		"the attribute before a failing one":  {"event.nope", event("Ce-Reschedulekey", "k"), "", "k"},
		"of an object":                        {kinds, event("Ce-Kind", "GitRepo", "Ce-Namespace", "team-a", "Ce-Name", "site"), "", "GitRepo/team-a/site"},
		"an empty namespace":                  {kinds, event("Ce-Kind", "Node", "Ce-Namespace", "", "Ce-Name", "n1"), "", "Node//n1"},
		"no namespace":                        {kinds, event("Ce-Kind", "Node", "Ce-Name", "n1"), "", "Node//n1"},
		"nothing of it":                       {kinds, event(), "", "//"},
		"a missing subject":                   {"event.subject + 'x'", event(), "", "x"},
		"of the data":                         {"event.data.metadata.uid", event(jsonType...), `{"metadata":{"uid":"u1"}}`, "u1"},
		"a whole number of 64 bits":           {"string(event.data.n)", event(jsonType...), `{"n":9223372036854775809}`, "9223372036854775809"},
		"a whole number of the data":          {"string(event.data.n + 1)", event(jsonType...), `{"n":9007199254740993}`, "9007199254740994"},
		"a fraction":                          {"string(event.data.n)", event(jsonType...), `{"n":1.5}`, "1.5"},
		"an element":                          {"event.data[1].x", event(jsonType...), `[0,{"x":"y"}]`, "y"},
		"data of a suffix":                    {"event.data.a", event("Content-Type", "application/vnd.x+json; charset=utf-8"), `{"a":"b"}`, "b"},
		"an attribute that is asked for":      {"has(event.team) ? event.team : 'none'", event(), "", "none"},
		"data that is asked for":              {"has(event.data) ? 'data' : 'none'", event("Content-Type", "text/plain"), "{}", "none"},
		"data that is not the JSON it claims": {"has(event.data) ? 'data' : 'none'", event(jsonType...), "{", "none"},
		"more than one value":                 {"has(event.data) ? 'data' : 'none'", event(jsonType...), "{}{}", "none"},
		"time and version":                    {"event.time + event.specversion", event("Ce-Time", "2026-01-02T03:04:05Z", "Ce-Specversion", "0.3"), "", "2026-01-02T03:04:05Z1.0"},
		"time as one":                         {"string(timestamp(event.time) + duration('1h'))", event("Ce-Time", "2026-01-02T03:04:05Z"), "", "2026-01-02T04:04:05Z"},
		"512 bytes":                           {"", event("Ce-Subject", strings.Repeat("k", 512)), "", strings.Repeat("k", 512)},
	} {
		items, err := rules(t, tt.expression, "").Read(context.Background(), tt.h, []byte(tt.body), now, nil)
		if err != nil || len(items) != 1 || items[0].Key != tt.want {
			t.Errorf("%s: %v %v, want %q", name, items, err, tt.want)
		}
	}
}

// A bad key is refused.
func TestKey_BadIsRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		expression string
		h          http.Header
		field, say string
	}{
		"an error":           {"event.nope", event(), "spec.ingest.key", "no such key: nope"},
		"another type":       {"event.data", event("Content-Type", "application/json"), "spec.ingest.key", "map"},
		"too dear":           {"[1,2,3,4,5,6,7,8,9,10].map(a, event.data.map(b, event.data.map(c, c))).size() > 0 ? 'a' : 'b'", event("Content-Type", "application/json", "X", "big"), "spec.ingest.key", "cost limit"},
		"an empty one":       {"''", event(), "spec.ingest.key", "empty"},
		"an empty attribute": {"", event("Ce-Reschedulekey", ""), "reschedulekey", "empty"},
		"a control":          {"", event("Ce-Reschedulekey", "a%0Ab"), "reschedulekey", "control"},
		"a long subject":     {"", event("Ce-Subject", strings.Repeat("k", 513)), "subject", "513"},
		"a long id":          {"", event("Ce-Id", strings.Repeat("k", 513)), "id", "516"},
	} {
		body := "{}"
		if tt.h.Get("X") != "" {
			body = "[" + strings.Repeat("1,", 2000) + "1]"
		}
		if got := refusal(t, rules(t, tt.expression, ""), tt.h, body); got == nil || got.Code != schedule.CodeInvalid || got.Field != tt.field || !strings.Contains(got.Detail, tt.say) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// An event is accepted unless when is false. An error or another type counts as true, so that no event is lost.
func TestWhen_Decides(t *testing.T) {
	t.Parallel()
	const generations = "event.data.metadata.generation != event.data.status.observedGeneration"
	for name, tt := range map[string]struct {
		when, body string
		taken      bool
	}{
		"true":                      {generations, `{"metadata":{"generation":2},"status":{"observedGeneration":1}}`, true},
		"false":                     {generations, `{"metadata":{"generation":2},"status":{"observedGeneration":2.0}}`, false},
		"an error counts as true":   {generations, `{"metadata":{"generation":2}}`, true},
		"another type counts, too":  {"event.data", `{"a":1}`, true},
		"one that happens to be no": {"event.data", `false`, false},
		"no JSON counts as true":    {generations, `{`, true},
		"a constant":                {"false", ``, false},
		"of an attribute":           {"event.type == 'other'", ``, false},
	} {
		items, err := rules(t, "", tt.when).Read(context.Background(), event("Content-Type", "application/json"), []byte(tt.body), now, nil)
		if err != nil || len(items) != map[bool]int{true: 1}[tt.taken] {
			t.Errorf("%s: %v %v", name, items, err)
		}
	}
}

// A dropped event needs no key.
func TestWhen_DroppedNeedsNoKey(t *testing.T) {
	t.Parallel()
	if items, err := rules(t, "event.nope", "false").Read(context.Background(), event(), nil, now, nil); err != nil || len(items) != 0 {
		t.Errorf("%v %v", items, err)
	}
}

// rescheduleafter, rescheduleat and reschedulepolicy set the delay, the due time and the policy. Each is optional.
func TestSteering_Attributes(t *testing.T) {
	t.Parallel()
	d := func(d time.Duration) *time.Duration { return &d }
	for name, tt := range map[string]struct {
		h    http.Header
		want schedule.Request
	}{
		"nothing":         {event(), schedule.Request{}},
		"after, Go":       {event("Ce-Rescheduleafter", "1h30m"), schedule.Request{Delay: d(90 * time.Minute)}},
		"after, ISO":      {event("Ce-Rescheduleafter", "PT5M"), schedule.Request{Delay: d(5 * time.Minute)}},
		"after zero":      {event("Ce-Rescheduleafter", "0s"), schedule.Request{Delay: d(0)}},
		"at":              {event("Ce-Rescheduleat", "2026-11-22T10:00:00+01:00"), schedule.Request{DueAt: now.Add(24 * time.Hour)}},
		"at, in the past": {event("Ce-Rescheduleat", "2020-01-01T00:00:00Z"), schedule.Request{DueAt: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)}},
		"calendar":        {event("Ce-Reschedulecron", "0 9 * * MON"), schedule.Request{Calendar: &schedule.Calendar{Cron: "0 9 * * MON"}}},
		"with a zone": {event("Ce-Reschedulecron", "0%209 * * *", "Ce-Rescheduletimezone", "Europe/Berlin"),
			schedule.Request{Calendar: &schedule.Calendar{Cron: "0 9 * * *", TimeZone: "Europe/Berlin"}}},
		"policy":   {event("Ce-Reschedulepolicy", "latest"), schedule.Request{Policy: schedule.Latest}},
		"priority": {event("Ce-Reschedulepriority", "low"), schedule.Request{Priority: schedule.LowPriority}},
	} {
		items, err := rules(t, "", "").Read(context.Background(), tt.h, nil, now, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := items[0].Request
		if !got.Ingested || got.Event == nil || got.Event.Extensions["reschedulepriority"] != nil { // a delivery has the key's
			t.Errorf("%s: %+v", name, got)
		}
		got.Ingested, got.Event = false, nil
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// A bad steering attribute is refused.
func TestSteering_BadIsRefused(t *testing.T) {
	t.Parallel()
	structured := http.Header{"Content-Type": {"application/cloudevents+json"}}
	jsonEvent := func(more string) string {
		return `{"specversion":"1.0","id":"i","source":"/s","type":"t",` + more + `}`
	}
	for name, tt := range map[string]struct {
		h     http.Header
		body  string
		field string
	}{
		"a number as string":  {event("Ce-Rescheduleafter", "30"), "", "rescheduleafter"},
		"a number":            {structured, jsonEvent(`"rescheduleafter":30`), "rescheduleafter"},
		"negative":            {event("Ce-Rescheduleafter", "-5m"), "", "rescheduleafter"},
		"empty":               {event("Ce-Rescheduleafter", ""), "", "rescheduleafter"},
		"years":               {event("Ce-Rescheduleafter", "P1Y"), "", "rescheduleafter"},
		"never":               {event("Ce-Rescheduleafter", "never"), "", "rescheduleafter"},
		"too long":            {event("Ce-Rescheduleafter", "876601h"), "", "rescheduleafter"},
		"no instant":          {event("Ce-Rescheduleat", "tomorrow"), "", "rescheduleat"},
		"a number as instant": {structured, jsonEvent(`"rescheduleat":30`), "rescheduleat"},
		"too far":             {event("Ce-Rescheduleat", "2200-01-01T00:00:00Z"), "", "rescheduleat"},
		"both":                {event("Ce-Rescheduleat", "2026-11-22T00:00:00Z", "Ce-Rescheduleafter", "5m"), "", "rescheduleafter"},
		"no calendar":         {event("Ce-Reschedulecron", "0 0 30 2 *"), "", "reschedulecron"},
		"no calendar either":  {event("Ce-Reschedulecron", ""), "", "reschedulecron"},
		"a bool as calendar":  {structured, jsonEvent(`"reschedulecron":true`), "reschedulecron"},
		"an interval":         {event("Ce-Reschedulecron", "@every 5m"), "", "reschedulecron"},
		"a zone alone":        {event("Ce-Rescheduletimezone", "UTC"), "", "rescheduletimezone"},
		"no zone":             {event("Ce-Reschedulecron", "@daily", "Ce-Rescheduletimezone", "Local"), "", "rescheduletimezone"},
		"a number as zone":    {structured, jsonEvent(`"reschedulecron":"@daily","rescheduletimezone":1`), "rescheduletimezone"},
		"calendar and delay":  {event("Ce-Reschedulecron", "@daily", "Ce-Rescheduleafter", "5m"), "", "reschedulecron"},
		"calendar and due":    {event("Ce-Reschedulecron", "@daily", "Ce-Rescheduleat", "2026-11-22T00:00:00Z"), "", "reschedulecron"},
		"no policy":           {event("Ce-Reschedulepolicy", "newest"), "", "reschedulepolicy"},
		"a bool as policy":    {structured, jsonEvent(`"reschedulepolicy":true`), "reschedulepolicy"},
		"no priority":         {event("Ce-Reschedulepriority", "urgent"), "", "reschedulepriority"},
		"the key is a number": {structured, jsonEvent(`"reschedulekey":""`), "reschedulekey"},
	} {
		if got := refusal(t, rules(t, "", ""), tt.h, tt.body); got == nil || got.Code != schedule.CodeInvalid || got.Field != tt.field || !strings.Contains(got.Detail, tt.field) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The event is kept as it came.
func TestEvent_IsKeptAsItCame(t *testing.T) {
	t.Parallel()
	body := `{"specversion":"1.0","id":"i","source":"/s%2Fx","type":"t","n":3,"reschedulekey":"k","rescheduleafter":"5m","data": {"a" : 1}}`
	items, err := rules(t, "", "").Read(context.Background(), http.Header{"Content-Type": {"application/cloudevents+json"}}, []byte(body), now, nil)
	must(t, err)
	want := &schedule.Event{ID: "i", Source: "/s%2Fx", Type: "t", Data: []byte(`{"a" : 1}`),
		Extensions: map[string]any{"n": int32(3), "reschedulekey": "k", "rescheduleafter": "5m"}}
	if d := cmp.Diff(want, items[0].Request.Event); d != "" || items[0].Key != "k" {
		t.Errorf("%q %s", items[0].Key, d)
	}
}

// The size of data.
func TestEvent_SizeOfData(t *testing.T) {
	t.Parallel()
	r, h, most := rules(t, "", ""), event("Content-Type", "text/plain"), strings.Repeat("x", schedule.MaxDataBytes)
	if got := refusal(t, r, h, most); got != nil {
		t.Error(got)
	}
	if got := refusal(t, r, h, most+"x"); got == nil || got.Code != schedule.CodeTooLarge {
		t.Error(got)
	}
}

// All events of a batch are accepted, or none.
func TestBatch_IsOneDecision(t *testing.T) {
	t.Parallel()
	h := http.Header{"Content-Type": {"application/cloudevents-batch+json"}}
	one := func(id, more string) string {
		return fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/s","type":"t"%s}`, id, more)
	}
	r := rules(t, "", "event.id != 'dropped'")
	items, err := r.Read(context.Background(), h, []byte("["+one("a", "")+","+one("dropped", "")+","+one("a", `,"reschedulepolicy":"replace"`)+"]"), now, nil)
	keys := func(items []queue.Item) (keys []string) {
		for _, i := range items {
			keys = append(keys, i.Key+string(i.Request.Policy))
		}
		return keys
	}
	if d := cmp.Diff([]string{"/s/a", "/s/areplace"}, keys(items)); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	if got := refusal(t, r, h, "["+one("a", "")+","+one("b", `,"rescheduleafter":"x"`)+"]"); got == nil || got.Field != "rescheduleafter" || !strings.HasPrefix(got.Detail, "events[1]: rescheduleafter: ") {
		t.Error(got)
	}
}

// A batch with an event that its sender may not send is refused whole.
func TestBatch_ForbiddenEventRefusesAll(t *testing.T) {
	t.Parallel()
	var asked []string
	judge := func(e *schedule.Event) error {
		asked = append(asked, e.ID)
		if e.ID == "b" {
			return schedule.Refuse(schedule.CodeDenied, "no")
		}
		return nil
	}
	h := http.Header{"Content-Type": {"application/cloudevents-batch+json"}}
	body := `[{"specversion":"1.0","id":"a","source":"/s","type":"t"},{"specversion":"1.0","id":"b","source":"/s","type":"t"}]`
	items, err := rules(t, "", "false").Read(context.Background(), h, []byte(body), now, judge) // when does not hide them from the judge
	if refused := asRefusal(t, err); refused == nil || refused.Code != schedule.CodeDenied || len(items) > 0 {
		t.Errorf("%v %v", items, err)
	}
	if d := cmp.Diff([]string{"a", "b"}, asked); d != "" {
		t.Error(d)
	}
}

// Unknown media types are refused.
func TestMediaType_Unknown(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]http.Header{
		"another format":            {"Content-Type": {"application/cloudevents+avro"}},
		"another format of a batch": {"Content-Type": {"application/cloudevents-batch+avro"}},
	} {
		if got := refusal(t, rules(t, "", ""), h, "{}"); got == nil || got.Code != schedule.CodeMediaType {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// lines gives a header several lines.
func lines(h http.Header, name string, values ...string) http.Header {
	h[name] = values
	return h
}

// The trace context of the call comes first, then the event's.
func TestTraceContext_OfCallOrEvent(t *testing.T) {
	t.Parallel()
	const parent, other = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	for name, tt := range map[string]struct {
		h             http.Header
		parent, state string
	}{
		"none":                   {event(), "", ""},
		"of the call":            {event("Traceparent", parent, "Tracestate", "a=b", "Ce-Traceparent", other), parent, "a=b"},
		"of the event":           {event("Ce-Traceparent", other, "Ce-Tracestate", "c=d"), other, "c=d"},
		"a bad one of the call":  {event("Traceparent", "00-junk", "Ce-Traceparent", other), other, ""},
		"a bad one":              {event("Traceparent", strings.Repeat("0", 55)), "", ""},
		"a bad state":            {event("Traceparent", parent, "Tracestate", "junk"), parent, ""},
		"two of the call":        {lines(event("Ce-Traceparent", other), "Traceparent", parent, parent), other, ""},
		"a state in two lines":   {lines(event("Traceparent", parent), "Tracestate", "a=b", "c=d"), parent, "a=b,c=d"},
		"a state without parent": {event("Tracestate", "a=b"), "", ""},
	} {
		items, err := rules(t, "", "").Read(context.Background(), tt.h, nil, now, nil)
		must(t, err)
		if got := items[0].Request; got.TraceParent != tt.parent || got.TraceState != tt.state {
			t.Errorf("%s: %q %q", name, got.TraceParent, got.TraceState)
		}
	}
}

// must ends the test with an error of its own steps.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
