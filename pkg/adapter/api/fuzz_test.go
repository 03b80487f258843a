package api

import (
	"encoding/json"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/reschedule-dev/reschedule/internal/heap"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// bounded makes a call whose memory and time follow from the size of its body. The bounds are coarse:
// what grows faster than the body takes seconds, and many megabytes.
func bounded(t *testing.T, body []byte, call func() *httptest.ResponseRecorder) *httptest.ResponseRecorder {
	t.Helper()
	var w *httptest.ResponseRecorder
	start := time.Now()
	n := heap.Allocated(func() { w = call() })
	took := time.Since(start)
	if n > int64(1<<20+512*len(body)) {
		t.Fatalf("%d bytes allocated for a body of %d", n, len(body))
	}
	if most := time.Second + time.Duration(len(body))*10*time.Microsecond; took > most {
		t.Fatalf("%s for a body of %d bytes", took, len(body))
	}
	return w
}

// FuzzPut wants an answer that is JSON, a request within its bounds, and the same event when the answer is sent back.
func FuzzPut(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `null`, `{"delay":1.5}`, `{` + wholeBody + `}`, `{"backoff":{"base":"1s","factor":2,"cap":"1h","maxAttempts":3}}`,
		`{"event":{"data":{"a":[1,"\u00e9"]},"x":5}}`, `{"event":{"data_base64":"/wA="}}`, `{"event":{"datacontenttype":"text/plain","data":"\ud83d\ude00"}}`,
		`{"dueAt":"2026-11-21T09:00:00.123456789Z","jitter":1}`, `{"delay":1e400}`, `{"cron":"0 9 29 2 *","timeZone":"Europe/Berlin","jitter":0.1}`, `{"cron":"*/5 8-18/2,23 ? JAN-mar,*/4 1","policy":"latest"}`, `{"cron":"@every 1s"}`, `{"cron":"TZ= 1"}`,
		`{"event":{"data":{"a":1,"a":2}}}`, `{"de\u006cay":1}`,
		`{"event":{"data":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}}`, `{` + strings.Repeat(`"x":1,`, 9000) + `"y":2}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		e := newEdge(t)
		w := bounded(t, body, func() *httptest.ResponseRecorder { return e.do("PUT", base+"/schedules/k", string(body)) })
		if !json.Valid(w.Body.Bytes()) {
			t.Fatalf("answer %q", w.Body)
		}
		if w.Code != 201 {
			if w.Code != 400 && w.Code != 413 || len(e.requests) != 0 {
				t.Fatalf("%d, %d requests", w.Code, len(e.requests))
			}
			return
		}
		r := e.requests[0]
		times := 0
		for _, given := range []bool{r.Delay != nil, !r.DueAt.IsZero(), r.Backoff != nil, r.Calendar != nil} {
			if given {
				times++
			}
		}
		if times > 1 || r.Jitter < 0 || r.Jitter > 1 || len(r.UID) > maxUID || len(r.Reason) > maxReason || !utf8.ValidString(r.UID+r.Reason) ||
			r.Delay != nil && *r.Delay < 0 || r.Backoff != nil && !(r.Backoff.Factor >= 1 && r.Backoff.Base >= 0 && r.Backoff.Cap >= 0) {
			t.Fatalf("%+v", r)
		}
		if c := r.Calendar; c != nil {
			if next := c.Next(now); !next.After(now) || next.After(now.AddDate(10, 0, 0)) {
				t.Fatalf("%+v comes at %s", c, next)
			}
			var shown struct{ Cron, TimeZone string }
			if err := json.Unmarshal(e.do("GET", base+"/schedules/k", "").Body.Bytes(), &shown); err != nil || shown.Cron != c.Cron || shown.TimeZone != c.TimeZone {
				t.Fatalf("%+v is shown as %+v: %v", c, shown, err)
			}
		}
		if r.Event == nil {
			return
		}
		shown := appendEvent(nil, r.Event)
		if again := e.put(t, "again", `{"event":`+string(shown)+`}`); !again.Event.Equal(r.Event) {
			t.Fatalf("%+v shown as %s is %+v", r.Event, shown, again.Event)
		}
	})
}

// FuzzBulk wants an answer for each item of a body that is JSON, and no requests of one that is not.
func FuzzBulk(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `{"items":[]}`, `{"items":[{"key":"a"},{"key":"b","delay":"x"},1,null,{"key":"a","event":{"data":1}}]}`, `{"items":[{"key":"a"},]}`,
		`{"items":[{"key":"a"}],"items":[]}`, `{"items":[{"x":{"y":[1]},"key":"a","key":"b"}]}`,
		`{"items":[` + strings.Repeat(`{},`, 900) + `1]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		e := newEdge(t)
		w := bounded(t, body, func() *httptest.ResponseRecorder { return e.do("POST", base+"/schedules", string(body)) })
		if w.Code != 200 {
			if w.Code != 400 || !json.Valid(w.Body.Bytes()) || len(e.requests) != 0 {
				t.Fatalf("%d %q, %d requests", w.Code, w.Body, len(e.requests))
			}
			return
		}
		var asked struct{ Items []jsontext.Value }
		var answer struct {
			Items []struct {
				Key    *string
				Status int
			}
		}
		if err := json.Unmarshal(body, &asked); err != nil {
			t.Fatalf("accepted what is not JSON: %v", err)
		}
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || len(answer.Items) != len(asked.Items) {
			t.Fatalf("%d items, %v, answered %s", len(asked.Items), err, w.Body)
		}
		good := 0
		for _, item := range answer.Items {
			if item.Key == nil || item.Status < 200 {
				t.Fatalf("%s", w.Body)
			}
			if item.Status < 300 {
				good++
			}
		}
		if good != len(e.requests) {
			t.Fatalf("%d requests, answered %s", len(e.requests), w.Body)
		}
	})
}

// FuzzPath wants every key back that a client escapes, and no other path taken for a key.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"a", "..", ".", "a/b", "//", "%2F", "é", "a b+c", "\"/\"", "\xff", "\x00", "", "schedules", "?#;"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if u, err := url.ParseRequestURI(base + "/schedules/" + url.PathEscape(s)); err != nil {
			t.Fatal(err)
		} else if p := splitPath(u); p.kind != pathKey || p.key != s || p.namespace != "default" || p.name != "demo" {
			t.Fatalf("%q: %+v", s, p)
		}
		u, err := url.ParseRequestURI("/" + s)
		if err != nil {
			return
		}
		raw, _, _ := strings.Cut(s, "?")
		p := splitPath(u)
		if segments := strings.Split(raw, "/"); p.kind == pathKey && (len(segments) != 4 || !strings.Contains(u.Path, "/schedules/")) {
			t.Fatalf("%q: %+v", s, p)
		}
		if p.kind == pathKey && schedule.ValidateKey(p.key) == nil {
			w := httptest.NewRecorder()
			newEdge(t).ServeHTTP(w, httptest.NewRequest("PUT", "/default/demo/schedules/"+url.PathEscape(p.key), nil))
			if w.Code != 201 {
				t.Fatalf("%q: %d", p.key, w.Code)
			}
		}
	})
}

// FuzzQuery wants an accepted list to be within its bounds, and a bulk DELETE never to cancel more than was asked for.
func FuzzQuery(f *testing.F) {
	for _, s := range []string{"", "prefix=a&limit=5", "limit=1000&order=due&continue=x", "all=true", "prefix=%2F", "all=true&prefix=", "a;b", "%zz", "prefix=%01"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		values, _ := url.ParseQuery(raw)
		if o, err := listOptions(raw); err == nil {
			if o.Limit < 1 || o.Limit > maxLimit || o.Prefix != values.Get("prefix") || o.Continue != values.Get("continue") || schedule.IsDeadLetterKey(o.Prefix) {
				t.Fatalf("%q: %+v", raw, o)
			}
		}
		if prefix, err := selection(raw, "x"); err == nil && prefix != values.Get("prefix") || err == nil && prefix == "" && values.Get("all") != "true" {
			t.Fatalf("%q cancels %q", raw, prefix)
		}
		if uid, err := cancelUID(raw); err == nil && uid == "" && values.Has("uid") {
			t.Fatalf("%q has an empty uid", raw)
		}
	})
}

// FuzzIfMatch wants a header that we could have written to match, and no accepted one without a tag.
func FuzzIfMatch(f *testing.F) {
	for _, s := range []string{`"1"`, `*`, `W/"1"`, `"1", "2"`, `"`, ``, `,`, `"a,b"`, `"1"x`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := parseIfMatch(map[string][]string{"If-Match": {s}})
		if err == nil && !m.any && strings.Count(s, `"`) < 2 {
			t.Fatalf("%q: %+v", s, m)
		}
		for _, rev := range m.revisions {
			if !strings.Contains(s, `"`+jsontext.Uint(rev).String()+`"`) {
				t.Fatalf("%q: %d", s, rev)
			}
		}
	})
}
