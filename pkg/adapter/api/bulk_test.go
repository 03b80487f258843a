package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A bulk call accepts or refuses each item alone.
func TestBulk_ItemsAreIndependent(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	e.settings.MaxPending = 3
	w := e.do("POST", base+"/schedules", `{"items":[
		{"key":"a/1","delay":60,"reason":"r"},
		{"key":"a/1","delay":"2m"},
		{"key":"a/1","policy":"fail"},
		{"delay":1},
		{"delay":"x","key":"late"},
		{"key":"","delay":1},
		{"key":7},
		{"key":"dup","delay":1,"delay":2},
		{"key":"unknown","dely":{"deep":[1,{"x":"}"}]}},
		{"key":"event","event":{"id":"1","data":[1,2]}},
		{"key":"bo","backoff":{"base":1,"x":2}},
		{"key":"big","event":{"data":"`+strings.Repeat("x", 256<<10)+`"}},
		17,
		null,
		[{"key":"x"}],
		{"key":"b","event":{"data":{"k":"v"}}},
		{"key":"c"},
		{"key":"d"}
	]}`, "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	want := strings.Join([]string{
		`{"key":"a/1","status":201,"revision":101,"result":"created","state":"waiting","dueAt":"2026-11-21T09:01:00Z","scheduledAt":"2026-11-21T09:00:00Z","attempt":0,"inFlight":false,"reason":"r"}`,
		`{"key":"a/1","status":200,"revision":102,"result":"replaced","state":"waiting","dueAt":"2026-11-21T09:02:00Z","previousDueAt":"2026-11-21T09:01:00Z","scheduledAt":"2026-11-21T09:00:00Z","attempt":0,"inFlight":false}`,
		`{"key":"a/1","status":409,"code":"already_exists","detail":"key \"a/1\" is already scheduled for 2026-11-21T09:02:00Z and the policy is fail"}`,
		`{"key":"","status":400,"code":"invalid_argument","detail":"key: is missing"}`,
		`{"key":"late","status":400,"code":"invalid_argument","detail":"delay: \"x\" is not a duration such as 5m30s or PT5M30S"}`,
		`{"key":"","status":400,"code":"invalid_argument","detail":"key: is empty"}`,
		`{"key":"","status":400,"code":"invalid_argument","detail":"key: is not a string"}`,
		`{"key":"dup","status":400,"code":"invalid_argument","detail":"delay: is given twice"}`,
		`{"key":"unknown","status":400,"code":"invalid_argument","detail":"dely: is not a field here"}`,
		`{"key":"event","status":400,"code":"invalid_argument","detail":"event.id: cannot be set"}`,
		`{"key":"bo","status":400,"code":"invalid_argument","detail":"backoff.base: is not a string"}`,
		`{"key":"big","status":413,"code":"too_large","detail":"event.data: has more than 262144 bytes of decoded data"}`,
		`{"key":"","status":400,"code":"invalid_argument","detail":"item: is not an object"}`,
		`{"key":"","status":400,"code":"invalid_argument","detail":"item: is not an object"}`,
		`{"key":"","status":400,"code":"invalid_argument","detail":"item: is not an object"}`,
		`{"key":"b","status":201,"revision":104,"result":"created","state":"waiting","dueAt":"2026-11-21T09:01:00Z","scheduledAt":"2026-11-21T09:00:00Z","attempt":0,"inFlight":false,"event":{"data":{"k":"v"}}}`,
		`{"key":"c","status":201,"revision":105,"result":"created","state":"waiting","dueAt":"2026-11-21T09:01:00Z","scheduledAt":"2026-11-21T09:00:00Z","attempt":0,"inFlight":false}`,
		`{"key":"d","status":429,"code":"quota_exceeded","detail":"limits.maxPending: full"}`,
	}, ",\n")
	got := strings.ReplaceAll(w.Body.String(), `},{"key":`, "},\n"+`{"key":`)
	if diff := cmp.Diff(`{"items":[`+want+"]}\n", got); diff != "" || w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, diff)
	}
	for _, r := range e.requests {
		if r.TraceParent == "" {
			t.Error("an item without the call's trace context")
		}
	}
}

// A bulk call that is broken changes nothing.
func TestBulk_BrokenBodyChangesNothing(t *testing.T) {
	t.Parallel()
	many := strings.Repeat(`{"key":"k"},`, 1000) + `{"key":"k"}`
	tests := []struct{ body, field string }{
		{``, "items"}, {` `, "items"}, {`{}`, "items"}, {`{"items":null}`, "items"}, {`{"items":{}}`, "items"}, {`{"items":"x"}`, "items"},
		{`{"items":[{"key":"a"}],"items":[]}`, "items"}, {`{"items":[{"key":"a"}],"item":1}`, "item"}, {`{"dryRun":true,"items":[{"key":"a"}]}`, "dryRun"},
		{`[{"key":"a"}]`, "body"}, {`null`, "items"}, {`"x"`, "body"},
		{`{"items":[{"key":"a"},{"key":"b"]}`, "body"}, {`{"items":[{"key":"a"}`, "body"}, {`{"items":[{"key":"a"}]}x`, "body"},
		{`{"items":[{"key":"a"} {"key":"b"}]}`, "body"}, {"{\"items\":[{\"key\":\"a\"},{\"key\":\"\xff\"}]}", "body"}, {`{"items":[,]}`, "body"},
		{`{"items":[` + many + `]}`, "items"},
	}
	for _, tt := range tests {
		e := newEdge(t)
		w := e.do("POST", base+"/schedules", tt.body)
		p := problemOf(t, w.Body.Bytes())
		if w.Code != http.StatusBadRequest || p.Field != tt.field || !strings.HasPrefix(p.Detail, tt.field) || len(e.requests) != 0 {
			t.Errorf("%.50s: %d %+v, %d requests", tt.body, w.Code, p, len(e.requests))
		}
	}
}

// A bulk call takes 1000 items.
func TestBulk_Takes1000Items(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, `,{"key":"%d","delay":%d}`, i, i)
	}
	w := e.do("POST", base+"/schedules", `{"items":[`+b.String()[1:]+`]}`)
	if w.Code != http.StatusOK || strings.Count(w.Body.String(), `"status":201`) != 1000 || *e.requests[999].Delay != 999*time.Second {
		t.Errorf("%d, %d items", w.Code, strings.Count(w.Body.String(), `"status":201`))
	}
	if w := e.do("POST", base+"/schedules", `{"items":[]}`); w.Body.String() != `{"items":[]}`+"\n" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
