package api

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The body of a PUT is read exactly.
func TestPut_BodyIsReadExactly(t *testing.T) {
	t.Parallel()
	standard := schedule.Backoff{Base: time.Second, Factor: 2, Cap: 1000 * time.Second}
	tests := []struct {
		body string
		want schedule.Request
	}{
		{"", schedule.Request{}},
		{" \r\n\t", schedule.Request{}},
		{"{}", schedule.Request{}},
		{`{"delay":300}`, schedule.Request{Delay: new(5 * time.Minute)}},
		{`{"delay":0}`, schedule.Request{Delay: new(time.Duration(0))}},
		{`{"delay":1.0000000001}`, schedule.Request{Delay: new(time.Second + 1)}},
		{`{"delay":1e2}`, schedule.Request{Delay: new(100 * time.Second)}},
		{`{"delay":"5m30s"}`, schedule.Request{Delay: new(330 * time.Second)}},
		{`{"delay":"PT5M30S"}`, schedule.Request{Delay: new(330 * time.Second)}},
		{`{"d\u0065lay":"\u0031s"}`, schedule.Request{Delay: new(time.Second)}},
		{`{"dueAt":"2026-11-21T10:00:00.5+01:00"}`, schedule.Request{DueAt: now.Add(time.Second / 2)}},
		{`{"backoff":{}}`, schedule.Request{Backoff: &standard}},
		{`{"backoff":{"base":null,"factor":null,"cap":null,"maxAttempts":null}}`, schedule.Request{Backoff: &standard}},
		{`{"backoff":{"base":"2s","factor":1.5,"cap":"PT1H","maxAttempts":7}}`,
			schedule.Request{Backoff: &schedule.Backoff{Base: 2 * time.Second, Factor: 1.5, Cap: time.Hour, MaxAttempts: 7}}},
		{`{"backoff":{"base":"0s","factor":1,"cap":"0s","maxAttempts":1e1}}`,
			schedule.Request{Backoff: &schedule.Backoff{Factor: 1, MaxAttempts: 10}}},
		{`{"policy":"earliest","jitter":0.25,"maxInterval":"0s","slack":"PT10M","expiresAt":"2020-01-01T00:00:00Z","uid":"u","reason":"why"}`,
			schedule.Request{Policy: schedule.Earliest, Jitter: 0.25, MaxInterval: new(time.Duration(0)), Slack: new(10 * time.Minute),
				ExpiresAt: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), UID: "u", Reason: "why"}},
		{`{"delay":null,"dueAt":null,"backoff":null,"policy":null,"jitter":null,"event":null,"maxInterval":null,"slack":null,"expiresAt":null,"uid":null,"reason":null}`,
			schedule.Request{}},
		{`{"delay":null,"dueAt":"2026-11-21T09:00:01Z"}`, schedule.Request{DueAt: now.Add(time.Second)}},
		{`{"cron":"0 9 * * MON-FRI","timeZone":"Europe/Berlin","jitter":0.5}`,
			schedule.Request{Calendar: &schedule.Calendar{Cron: "0 9 * * MON-FRI", TimeZone: "Europe/Berlin"}, Jitter: 0.5}},
		{`{"timeZone":"","cron":"@hourly","delay":null}`, schedule.Request{Calendar: &schedule.Calendar{Cron: "@hourly"}}},
		{`{"cron":null,"timeZone":null,"delay":0}`, schedule.Request{Delay: new(time.Duration(0))}},
		{`{"uid":"","reason":""}`, schedule.Request{}},
		{`{"event":{}}`, schedule.Request{Event: &schedule.Event{}}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, newEdge(t).put(t, "k", tt.body)); diff != "" {
			t.Errorf("%s: %s", tt.body, diff)
		}
	}
}

// An event is read exactly.
func TestPut_EventIsReadExactly(t *testing.T) {
	t.Parallel()
	tests := []struct {
		event string
		want  schedule.Event
		shown string // "": as it was sent
	}{
		{event: `{"type":"t","subject":"s","datacontenttype":"application/json","dataschema":"http://x/y","a":"b","data":{"b":1,"a":[2]}}`,
			want: schedule.Event{Type: "t", Subject: "s", DataContentType: "application/json", DataSchema: "http://x/y",
				Extensions: map[string]any{"a": "b"}, Data: []byte(`{"b":1,"a":[2]}`)}},
		{event: `{"data":{ "z" : 1.0e2 ,"big":12345678901234567890 , "e":"\u00e9" }}`,
			want: schedule.Event{Data: []byte(`{ "z" : 1.0e2 ,"big":12345678901234567890 , "e":"\u00e9" }`)}},
		{event: `{"data":"text"}`, want: schedule.Event{Data: []byte(`"text"`)}},
		{event: `{"data":0}`, want: schedule.Event{Data: []byte(`0`)}},
		{event: `{"data":false}`, want: schedule.Event{Data: []byte(`false`)}},
		{event: `{"data":null}`, want: schedule.Event{}, shown: `{}`},
		{event: `{"datacontenttype":"application/vnd.x+json; v=1","data":"x"}`,
			want: schedule.Event{DataContentType: "application/vnd.x+json; v=1", Data: []byte(`"x"`)}},
		{event: `{"datacontenttype":"text/plain","data":"raw \u00e9\n\"q\""}`,
			want:  schedule.Event{DataContentType: "text/plain", Data: []byte("raw é\n\"q\"")},
			shown: `{"datacontenttype":"text/plain","data":"raw é\n\"q\""}`},
		{event: `{"data":"<x/>","datacontenttype":"application/xml"}`, // the type comes behind the data
			want:  schedule.Event{DataContentType: "application/xml", Data: []byte("<x/>")},
			shown: `{"datacontenttype":"application/xml","data":"<x/>"}`},
		{event: `{"datacontenttype":"text/plain","data":""}`, want: schedule.Event{DataContentType: "text/plain", Data: []byte{}}},
		{event: `{"datacontenttype":"text/plain","data":{"a":1}}`,
			want:  schedule.Event{DataContentType: "text/plain", Data: []byte(`{"a":1}`)},
			shown: `{"datacontenttype":"text/plain","data":"{\"a\":1}"}`},
		{event: `{"data_base64":"/wA="}`, want: schedule.Event{Data: []byte{0xff, 0}, DataBase64: true}},
		{event: `{"data_base64":""}`, want: schedule.Event{Data: []byte{}, DataBase64: true}},
		{event: `{"data_base64":null,"data":1}`, want: schedule.Event{Data: []byte("1")}, shown: `{"data":1}`},
		{event: `{"datacontenttype":" application/cloudevents+json ","data":{}}`, // the sink does not receive blanks around it
			want:  schedule.Event{DataContentType: "application/cloudevents+json", Data: []byte(`{}`)},
			shown: `{"datacontenttype":"application/cloudevents+json","data":{}}`},
		{event: `{"b":true,"c":-2147483648,"a0":"","n":null}`,
			want:  schedule.Event{Extensions: map[string]any{"b": true, "c": int32(-2147483648), "a0": ""}},
			shown: `{"a0":"","b":true,"c":-2147483648}`},
	}
	for _, tt := range tests {
		e := newEdge(t)
		if diff := cmp.Diff(&tt.want, e.put(t, "k", `{"event":`+tt.event+`}`).Event); diff != "" {
			t.Errorf("%s: %s", tt.event, diff)
		}
		if tt.shown == "" {
			tt.shown = tt.event
		}
		if body := e.do("GET", base+"/schedules/k", "").Body.String(); !strings.HasSuffix(body, `,"event":`+tt.shown+"}\n") {
			t.Errorf("%s is shown as %s", tt.event, body)
		}
	}
}

// An ingested event is shown whole.
func TestGet_ShowsIngestedEventWhole(t *testing.T) {
	t.Parallel()
	tests := []struct {
		event schedule.Event
		want  string
	}{
		{schedule.Event{ID: "1", Source: "/s", Type: "t", Subject: "x", Time: now, Data: []byte(`{"a":1}`)},
			`{"id":"1","source":"/s","type":"t","subject":"x","time":"2026-11-21T09:00:00Z","data":{"a":1}}`},
		{schedule.Event{ID: "1", Source: "/s", Type: "t", Data: []byte(`{"a":`)},
			`{"id":"1","source":"/s","type":"t","data_base64":"eyJhIjo="}`},
		{schedule.Event{ID: "1", Source: "/s", Type: "t", DataContentType: "text/plain", Data: []byte("\xff")},
			`{"id":"1","source":"/s","type":"t","datacontenttype":"text/plain","data_base64":"/w=="}`},
	}
	for _, tt := range tests {
		if got := string(appendEvent(nil, &tt.event)); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}

// A bad field is refused by name.
func TestPut_BadFieldIsNamed(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", schedule.MaxDataBytes)
	tests := []struct{ body, field string }{
		{`[]`, "body"}, {`null`, "body"}, {`1`, "body"}, {`{`, "body"}, {`{"delay":1`, "body"}, {`{"delay":1}}`, "body"},
		{`{} {}`, "body"}, {`{} x`, "body"}, {`{"delay":01}`, "body"}, {`{"delay":NaN}`, "body"}, {"{\"reason\":\"\xff\"}", "body"},
		{`{"reason":"\ud800"}`, "body"}, {`{delay:1}`, "body"}, {`{"delay":1,}`, "body"}, {"\ufeff{}", "body"}, {`{1:2}`, "body"},
		{`{"dely":1}`, "dely"}, {`{"dueat":"2026-11-21T09:00:00Z"}`, "dueat"}, {`{"key":"k"}`, "key"}, {`{"":1}`, ""},
		{`{"cron":"0 0 30 2 *"}`, "cron"}, {`{"cron":"@every 5m"}`, "cron"}, {`{"cron":"@reboot"}`, "cron"}, {`{"cron":""}`, "cron"}, {`{"cron":5}`, "cron"},
		{`{"cron":"TZ=UTC 0 9 * * *"}`, "cron"}, {`{"cron":"0 9 * * *\u0000"}`, "cron"}, {`{"cron":"* * * *"}`, "cron"}, {`{"cron":"@hourly","cron":"@daily"}`, "cron"},
		{`{"cron":"@hourly","delay":0}`, "cron"}, {`{"dueAt":"2026-11-21T09:00:00Z","cron":"@hourly"}`, "cron"}, {`{"cron":"@hourly","backoff":{}}`, "cron"},
		{`{"timeZone":"UTC"}`, "timeZone"}, {`{"timeZone":""}`, "timeZone"}, {`{"timeZone":"UTC","delay":1}`, "timeZone"}, {`{"cron":"","timeZone":"UTC"}`, "timeZone"},
		{`{"cron":"@hourly","timeZone":"Local"}`, "timeZone"}, {`{"cron":"@hourly","timeZone":"Europe/Bonn"}`, "timeZone"}, {`{"cron":"@hourly","timeZone":1}`, "timeZone"},
		{`{"cron":"@hourly","timezone":"UTC"}`, "timezone"},
		{`{"unknown":null}`, "unknown"},
		{`{"delay":1,"delay":1}`, "delay"}, {`{"delay":null,"delay":1}`, "delay"}, {`{"event":{},"event":{}}`, "event"},
		{`{"delay":"5"}`, "delay"}, {`{"delay":""}`, "delay"}, {`{"delay":-1}`, "delay"}, {`{"delay":"-1s"}`, "delay"},
		{`{"delay":true}`, "delay"}, {`{"delay":{}}`, "delay"}, {`{"delay":[1]}`, "delay"}, {`{"delay":1e400}`, "delay"},
		{`{"delay":"P1Y"}`, "delay"}, {`{"delay":"1000000h"}`, "delay"},
		{`{"dueAt":1}`, "dueAt"}, {`{"dueAt":"tomorrow"}`, "dueAt"}, {`{"dueAt":"2226-11-21T09:00:00Z"}`, "dueAt"},
		{`{"dueAt":"2026-11-21T09:00:00"}`, "dueAt"}, {`{"dueAt":""}`, "dueAt"},
		{`{"delay":1,"dueAt":"2026-11-21T09:00:00Z"}`, "dueAt"}, {`{"delay":1,"backoff":{}}`, "backoff"},
		{`{"backoff":{},"dueAt":"2026-11-21T09:00:00Z"}`, "backoff"},
		{`{"backoff":1}`, "backoff"}, {`{"backoff":[]}`, "backoff"}, {`{"backoff":{"bas":"1s"}}`, "backoff.bas"},
		{`{"backoff":{"base":1}}`, "backoff.base"}, {`{"backoff":{"base":"1"}}`, "backoff.base"}, {`{"backoff":{"base":"-1s"}}`, "backoff.base"},
		{`{"backoff":{"cap":"x"}}`, "backoff.cap"}, {`{"backoff":{"cap":1}}`, "backoff.cap"},
		{`{"backoff":{"factor":0.9}}`, "backoff.factor"}, {`{"backoff":{"factor":"2"}}`, "backoff.factor"}, {`{"backoff":{"factor":1e999}}`, "backoff.factor"},
		{`{"backoff":{"maxAttempts":-1}}`, "backoff.maxAttempts"}, {`{"backoff":{"maxAttempts":1.5}}`, "backoff.maxAttempts"},
		{`{"backoff":{"maxAttempts":"1"}}`, "backoff.maxAttempts"}, {`{"backoff":{"maxAttempts":4294967296}}`, "backoff.maxAttempts"},
		{`{"backoff":{"base":"1s","base":"1s"}}`, "backoff.base"},
		{`{"policy":"Replace"}`, "policy"}, {`{"policy":""}`, "policy"}, {`{"policy":1}`, "policy"},
		{`{"jitter":1.01}`, "jitter"}, {`{"jitter":-0.1}`, "jitter"}, {`{"jitter":"0.5"}`, "jitter"}, {`{"jitter":1e999}`, "jitter"},
		{`{"slack":"-1s"}`, "slack"}, {`{"slack":600}`, "slack"}, {`{"maxInterval":10}`, "maxInterval"}, {`{"maxInterval":"ten"}`, "maxInterval"}, {`{"maxInterval":"-1h"}`, "maxInterval"},
		{`{"expiresAt":1}`, "expiresAt"}, {`{"expiresAt":"never"}`, "expiresAt"},
		{`{"uid":1}`, "uid"}, {`{"uid":"\u0000"}`, "uid"}, {`{"uid":"` + strings.Repeat("u", 257) + `"}`, "uid"},
		{`{"reason":1}`, "reason"}, {`{"reason":"a\nb"}`, "reason"}, {`{"reason":"\u0085"}`, "reason"}, {`{"reason":"` + strings.Repeat("r", 1025) + `"}`, "reason"},
		{`{"event":1}`, "event"}, {`{"event":"x"}`, "event"}, {`{"event":[]}`, "event"},
		{`{"event":{"id":"1"}}`, "event.id"}, {`{"event":{"source":"1"}}`, "event.source"}, {`{"event":{"specversion":"1.0"}}`, "event.specversion"},
		{`{"event":{"time":"2026-11-21T09:00:00Z"}}`, "event.time"},
		{`{"event":{"type":""}}`, "event.type"}, {`{"event":{"type":1}}`, "event.type"}, {`{"event":{"type":"a\u0007"}}`, "event.type"},
		{`{"event":{"type":"\ufffe"}}`, "event.type"}, {`{"event":{"type":"` + strings.Repeat("t", 8189) + `"}}`, "event.type"},
		{`{"event":{"a":1,"subject":"` + strings.Repeat("é", 1400) + `","b":true}}`, "event.subject"}, {`{"event":{"a":1,"b":"` + strings.Repeat("b", 5000) + `","c":"` + strings.Repeat("c", 3200) + `"}}`, "event.b"},
		{`{"event":{"subject":""}}`, "event.subject"}, {`{"event":{"datacontenttype":"json"}}`, "event.datacontenttype"},
		{`{"event":{"datacontenttype":"a/b; x"}}`, "event.datacontenttype"},
		{`{"event":{"dataschema":"relative"}}`, "event.dataschema"}, {`{"event":{"dataschema":":"}}`, "event.dataschema"},
		{`{"event":{"Team":"x"}}`, "event.Team"}, {`{"event":{"a_b":"x"}}`, "event.a_b"}, {`{"event":{"":"x"}}`, "event"}, {`{"event":{"é":"x"}}`, "event.é"},
		{`{"event":{"x":1.5}}`, "event.x"}, {`{"event":{"x":1.0}}`, "event.x"}, {`{"event":{"x":2147483648}}`, "event.x"},
		{`{"event":{"x":{}}}`, "event.x"}, {`{"event":{"x":[]}}`, "event.x"}, {`{"event":{"x":"\u0001"}}`, "event.x"},
		{`{"event":{"x":"1","x":"1"}}`, "event.x"}, {`{"event":{"type":"t","type":"t"}}`, "event.type"},
		{`{"event":{"` + strings.Repeat("a", 65) + `":1}}`, "event." + strings.Repeat("a", 64) + "…"},
		{`{"event":{"reschedulefinal":true}}`, "event.reschedulefinal"}, // only a watch knows that an object is gone
		{`{"event":{"reschedulekey":"x"}}`, "event.reschedulekey"}, {`{"event":{"rescheduleafter":"1s"}}`, "event.rescheduleafter"},
		{`{"event":{"data":1,"data_base64":""}}`, "event.data"}, {`{"event":{"data_base64":"","data":1}}`, "event.data"},
		{`{"event":{"data_base64":1}}`, "event.data_base64"}, {`{"event":{"data_base64":"a"}}`, "event.data_base64"},
		{`{"event":{"data_base64":"_-8="}}`, "event.data_base64"}, {`{"event":{"data_base64":"/w\n=="}}`, "event.data_base64"},
		{`{"event":{"data_base64":"/x=="}}`, "event.data_base64"}, // bits beyond the last byte
		{`{"event":{"data":{"a":1,"a":2}}}`, "event.data"},
		{`{"event":{"data":"` + big + `"}}`, "event.data"}, // two quotes too many
		{`{"event":{"datacontenttype":"text/plain","data":"` + big + `x"}}`, "event.data"},
		{`{"event":{"data":[` + strings.Repeat("1,", 132<<10) + `1]}}`, "event.data"},
		{`{"event":{"data_base64":"` + base64.StdEncoding.EncodeToString([]byte(big+"x")) + `"}}`, "event.data_base64"},
	}
	for _, tt := range tests {
		e := newEdge(t)
		w := e.do("PUT", base+"/schedules/k", tt.body)
		p := problemOf(t, w.Body.Bytes())
		status, code := http.StatusBadRequest, "invalid_argument"
		if len(tt.body) > schedule.MaxDataBytes {
			status, code = http.StatusRequestEntityTooLarge, "too_large"
		}
		if w.Code != status || p.Code != code || p.Field != tt.field || !strings.HasPrefix(p.Detail, tt.field) || len(e.requests) != 0 {
			t.Errorf("%.60s: %d %+v", tt.body, w.Code, p)
		}
		if tt.field == "body" && strings.Contains(p.Detail, "JSON") && !strings.Contains(p.Detail, "at byte ") {
			t.Errorf("%.60s: no position: %s", tt.body, p.Detail)
		}
	}
}

// Data may have 256 KiB.
func TestPut_DataMayHave256KiB(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", schedule.MaxDataBytes)
	for _, event := range []string{
		`{"data":"` + big[2:] + `"}`,
		`{"datacontenttype":"text/plain","data":"` + big + `"}`,
		`{"datacontenttype":"text/plain","data":"` + strings.Repeat(`\u0078`, schedule.MaxDataBytes) + `"}`,
		`{"data_base64":"` + base64.StdEncoding.EncodeToString([]byte(big)) + `"}`,
	} {
		if n := len(newEdge(t).put(t, "k", `{"event":`+event+`}`).Event.Data); n != schedule.MaxDataBytes {
			t.Errorf("%.60s: %d bytes", event, n)
		}
	}
}

type problem struct {
	Type, Title, Detail, Code, Field string
	Status                           int
}

func problemOf(t testing.TB, body []byte) (p problem) {
	t.Helper()
	if err := json.Unmarshal(body, &p); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return p
}

// The answer to a PUT follows the contract.
func TestPut_AnswerFollowsTheContract(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	w := e.do("PUT", base+"/schedules/GitRepo%2Fteam-a%2Fsite",
		`{"delay":300.5,"uid":"u-1","reason":"poll","maxInterval":"10h","slack":"10m","expiresAt":"2026-12-01T00:00:00Z","event":{"type":"x","data":{"a": 1}}}`)
	const event = `"event":{"type":"x","data":{"a": 1}}`
	want := `{"key":"GitRepo/team-a/site","revision":101,"result":"created","state":"waiting","dueAt":"2026-11-21T09:05:00.5Z",` +
		`"scheduledAt":"2026-11-21T09:00:00Z","attempt":0,"inFlight":false,"uid":"u-1","reason":"poll","maxInterval":"10h0m0s","slack":"10m0s",` +
		`"expiresAt":"2026-12-01T00:00:00Z",` + event + "}\n"
	if w.Code != http.StatusCreated || w.Body.String() != want || w.Header().Get("ETag") != `"101"` || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	w = e.do("PUT", base+"/schedules/GitRepo%2Fteam-a%2Fsite", `{"dueAt":"2020-01-01T00:00:00Z"}`)
	want = `{"key":"GitRepo/team-a/site","revision":102,"result":"replaced","state":"due","dueAt":"2026-11-21T09:00:00Z","previousDueAt":"2026-11-21T09:05:00.5Z",` +
		`"scheduledAt":"2026-11-21T09:00:00Z","attempt":0,"inFlight":false,` + event + "}\n"
	if w.Code != http.StatusOK || w.Body.String() != want {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w = e.do("GET", base+"/schedules/GitRepo%2Fteam-a%2Fsite", "")
	want = `{"key":"GitRepo/team-a/site","revision":102,"state":"due","dueAt":"2026-11-21T09:00:00Z","previousDueAt":"2026-11-21T09:05:00.5Z",` +
		`"scheduledAt":"2026-11-21T09:00:00Z","attempt":0,"inFlight":false,"tries":0,` + event + "}\n"
	if w.Code != http.StatusOK || w.Body.String() != want || w.Header().Get("ETag") != `"102"` {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if got := e.do("GET", base+"/schedules", "").Body.String(); !strings.Contains(got, strings.TrimSpace(want)) {
		t.Errorf("the list has %s, not %s", got, want)
	}
	e.entries["GitRepo/team-a/site"] = failedOnce(e.entries["GitRepo/team-a/site"])
	want = `"attempt":0,"inFlight":false,"tries":1,"nextAttemptAt":"2026-11-21T09:01:00Z","lastFailure":{"at":"2026-11-21T09:00:00Z","status":503,"error":"the sink answered 503 Service Unavailable","detail":"down"},` + event + "}\n"
	if got := e.do("GET", base+"/schedules/GitRepo%2Fteam-a%2Fsite", "").Body.String(); !strings.HasSuffix(got, want) {
		t.Errorf("between two attempts %s, not %s", got, want)
	}
}
