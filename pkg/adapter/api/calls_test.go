package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// expect is a table of calls and the status, code and field of their answers.
type expect struct {
	method, target, body string
	headers              []string
	status               int
	code, field          string
}

func (x *expect) check(t *testing.T, e *edge) {
	t.Helper()
	w := e.do(x.method, x.target, x.body, x.headers...)
	if w.Code != x.status {
		t.Errorf("%s %s %q %s: %d %s", x.method, x.target, x.headers, x.body, w.Code, w.Body)
		return
	}
	if x.status < 400 {
		return
	}
	p := problemOf(t, w.Body.Bytes())
	if p.Code != x.code || p.Field != x.field || p.Status != x.status || p.Type != "about:blank" || p.Title == "" || p.Detail == "" ||
		w.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("%s %s %q %s: %v %+v", x.method, x.target, x.headers, x.body, w.Header(), p)
	}
}

// An unknown path or method is refused.
func TestPath_UnknownIsRefused(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	for _, x := range []expect{
		{method: "GET", target: "/", status: 404, code: "not_found"},
		{method: "GET", target: "/default", status: 404, code: "not_found"},
		{method: "GET", target: "//demo", status: 404, code: "not_found"},
		{method: "GET", target: "/default/demo//", status: 404, code: "not_found"},
		{method: "GET", target: "//", status: 404, code: "not_found"},
		{method: "GET", target: "/default/demo/%2F", status: 404, code: "not_found"},
		{method: "POST", target: "/default/demo/resync/", status: 404, code: "not_found"},
		{method: "POST", target: "/default/demo/schedules/", status: 405, code: "method_not_allowed"},
		{method: "GET", target: "/default/demo/schedule", status: 404, code: "not_found"},
		{method: "PUT", target: "/default/demo/schedules/a/b", status: 404, code: "not_found"},
		{method: "GET", target: "/default/other", status: 404, code: "not_found"},
		{method: "GET", target: "/other/demo/schedules", status: 404, code: "not_found"},
		{method: "PUT", target: "/default/other/schedules/k", status: 404, code: "not_found"},
		{method: "GET", target: "/default/demo/schedules/absent", status: 404, code: "not_found"},
		{method: "PUT", target: "/default/demo/schedules/", status: 400, code: "invalid_argument", field: "key"},
		{method: "PUT", target: "/default/demo/schedules/a%00b", status: 400, code: "invalid_argument", field: "key"},
		{method: "PUT", target: "/default/demo/schedules/%ff", status: 400, code: "invalid_argument", field: "key"},
		{method: "PUT", target: "/default/demo/schedules/" + strings.Repeat("a", 513), status: 400, code: "invalid_argument", field: "key"},
		{method: "PUT", target: "/default/demo/schedules/" + strings.Repeat("a", 512), status: 201},
		{method: "PUT", target: "/default/demo/schedules/" + strings.Repeat("%2F", 512), status: 201},
	} {
		x.check(t, e)
	}
	for target, allow := range map[string]string{
		"/default/demo":             "GET, HEAD, POST",
		"/default/demo/schedules":   "DELETE, GET, HEAD, POST",
		"/default/demo/schedules/k": "DELETE, GET, HEAD, PUT",
		"/openapi.json":             "GET, HEAD",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "get"} {
			w := e.do(method, target, "")
			if strings.Contains(", "+allow+",", ", "+method+",") {
				if w.Code == http.StatusMethodNotAllowed {
					t.Errorf("%s %s: %d", method, target, w.Code)
				}
				continue
			}
			if p := problemOf(t, w.Body.Bytes()); w.Code != 405 || p.Code != "method_not_allowed" || w.Header().Get("Allow") != allow {
				t.Errorf("%s %s: %d %v", method, target, w.Code, w.Header())
			}
		}
	}
}

// An address may end with a slash, which clients also make of a call for the key "..": that has no effect.
func TestAddress_SlashAtItsEndCountsAsNone(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	e.put(t, "k", "")
	e.counts.Pending = 1
	if w := e.do("POST", base+"/", "x"); w.Code != http.StatusAccepted || len(e.ingested) != 1 {
		t.Errorf("an event: %d %s", w.Code, w.Body)
	}
	if w := e.do("GET", base+"/", ""); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"pending":1`) {
		t.Errorf("the counts: %d %s", w.Code, w.Body)
	}
	for _, method := range []string{"DELETE", "PUT"} {
		if w := e.do(method, base+"/", "{}"); w.Code != http.StatusMethodNotAllowed || len(e.entries) != 1 {
			t.Errorf("%s: %d %s", method, w.Code, w.Body)
		}
	}
}

// A key travels as it was sent.
func TestKey_TravelsAsSent(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	server := httptest.NewServer(e)
	defer server.Close()
	for sent, key := range map[string]string{
		"GitRepo%2Fteam-a%2Fsite": "GitRepo/team-a/site",
		"..":                      "..", ".": ".", "%2e%2E": "..", "%2F": "/", "%2F%2F": "//", "a%2F..%2Fb": "a/../b",
		"a+b": "a+b", "a%20b": "a b", "%25": "%", "%252F": "%2F", "a;b=c": "a;b=c", "%C3%A9": "é", "é%2F": "é/", `"%2F"`: `"/"`,
		"a:b@c!$&'()*,=~": "a:b@c!$&'()*,=~", "%3F%23": "?#", "schedules": "schedules", "[x]|^%2F": "[x]|^/",
	} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		must(t, err)
		fmt.Fprintf(conn, "PUT /default/demo/schedules/%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", sent)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		must(t, err)
		var got struct{ Key string }
		err = json.NewDecoder(resp.Body).Decode(&got)
		conn.Close()
		if err != nil || resp.StatusCode != http.StatusCreated && resp.StatusCode != http.StatusOK || got.Key != key {
			t.Errorf("%s: %d %q, %v; want key %q", sent, resp.StatusCode, got.Key, err, key)
		}
	}
}

// Conditions guard a change.
func TestConditions_GuardAChange(t *testing.T) {
	t.Parallel()
	const key, absent = base + "/schedules/k", base + "/schedules/absent"
	const precondition, invalid = "precondition_failed", "invalid_argument"
	for _, x := range []expect{
		{method: "PUT", target: key, headers: []string{"If-Match", `"101"`}, status: 200},
		{method: "PUT", target: key, headers: []string{"If-Match", ` "101" `}, status: 200},
		{method: "PUT", target: key, headers: []string{"If-Match", `*`}, status: 200},
		{method: "PUT", target: key, headers: []string{"If-Match", `"7", "101"`}, status: 200},
		{method: "PUT", target: key, headers: []string{"If-Match", `"7"`, "If-Match", `,"101",,`}, status: 200},
		{method: "PUT", target: key, headers: []string{"If-Match", `"102"`}, status: 412, code: precondition},
		{method: "PUT", target: key, headers: []string{"If-Match", `"7","8"`}, status: 412, code: precondition},
		{method: "PUT", target: key, headers: []string{"If-Match", `W/"101"`}, status: 412, code: precondition},
		{method: "PUT", target: key, headers: []string{"If-Match", `"0101"`}, status: 412, code: precondition},
		{method: "PUT", target: key, headers: []string{"If-Match", `"abc"`}, status: 412, code: precondition},
		{method: "PUT", target: key, headers: []string{"If-Match", `""`}, status: 412, code: precondition},
		{method: "PUT", target: key, headers: []string{"If-Match", `101`}, status: 400, code: invalid, field: "If-Match"},
		{method: "PUT", target: key, headers: []string{"If-Match", ``}, status: 400, code: invalid, field: "If-Match"},
		{method: "PUT", target: key, headers: []string{"If-Match", `"101`}, status: 400, code: invalid, field: "If-Match"},
		{method: "PUT", target: key, headers: []string{"If-Match", `"101" "102"`}, status: 400, code: invalid, field: "If-Match"},
		{method: "PUT", target: key, headers: []string{"If-Match", `*, "101"`}, status: 400, code: invalid, field: "If-Match"},
		{method: "PUT", target: key, headers: []string{"If-Match", strings.Repeat(`"1",`, 101)}, status: 400, code: invalid, field: "If-Match"},
		{method: "PUT", target: absent, headers: []string{"If-Match", `"101"`}, status: 412, code: precondition},
		{method: "PUT", target: absent, headers: []string{"If-Match", `*`}, status: 412, code: precondition},
		{method: "PUT", target: key, headers: []string{"If-None-Match", `*`}, status: 412, code: precondition},
		{method: "PUT", target: absent, headers: []string{"If-None-Match", `*`}, status: 201},
		{method: "PUT", target: absent, headers: []string{"If-None-Match", `"101"`}, status: 400, code: invalid, field: "If-None-Match"},
		{method: "PUT", target: absent, headers: []string{"If-None-Match", ``}, status: 400, code: invalid, field: "If-None-Match"},
		{method: "PUT", target: key, headers: []string{"If-Match", `"102"`}, body: `{"policy":"fail"}`, status: 412, code: precondition},
		{method: "PUT", target: key, headers: []string{"If-Match", `"101"`}, body: `{"policy":"fail"}`, status: 409, code: "already_exists"},
		{method: "DELETE", target: key, headers: []string{"If-Match", `"101"`}, status: 204},
		{method: "DELETE", target: key, headers: []string{"If-Match", `*`}, status: 204},
		{method: "DELETE", target: key, headers: []string{"If-Match", `"102"`}, status: 412, code: precondition},
		{method: "DELETE", target: absent, headers: []string{"If-Match", `"101"`}, status: 412, code: precondition},
		{method: "DELETE", target: absent, headers: []string{"If-Match", `*`}, status: 412, code: precondition},
		{method: "DELETE", target: absent, status: 204},
		{method: "DELETE", target: absent + "?uid=x", status: 204},
		{method: "DELETE", target: key + "?uid=u%2F1", status: 204},
		{method: "DELETE", target: key + "?uid=x", status: 412, code: precondition},
		{method: "DELETE", target: key + "?uid=x", headers: []string{"If-Match", "*"}, status: 412, code: precondition},
		{method: "DELETE", target: key + "?uid=", status: 400, code: invalid, field: "uid"},
		{method: "DELETE", target: key + "?uid=a&uid=a", status: 400, code: invalid, field: "uid"},
		{method: "DELETE", target: key + "?uid=%00", status: 400, code: invalid, field: "uid"},
		{method: "DELETE", target: key + "?all=true", status: 400, code: invalid, field: "all"},
		{method: "DELETE", target: key, headers: []string{"If-None-Match", "*"}, status: 400, code: invalid, field: "If-None-Match"},
		{method: "DELETE", target: base + "/schedules?all=true", headers: []string{"If-Match", "*"}, status: 400, code: invalid, field: "If-Match"},
		{method: "POST", target: base + "/schedules", body: `{"items":[]}`, headers: []string{"If-None-Match", "*"}, status: 400, code: invalid, field: "If-None-Match"},
		{method: "GET", target: key, headers: []string{"If-None-Match", `"101"`}, status: 200},
	} {
		e := newEdge(t)
		e.put(t, "k", `{"uid":"u/1"}`)
		x.check(t, e)
		if v, _, _ := e.Get("k"); x.status >= 400 && v.Revision != 101 {
			t.Errorf("%v changed the key", x)
		}
	}
}

// A change under If-Match: * is tried again when another change came first.
func TestIfMatchAny_RetriesWhenOvertaken(t *testing.T) {
	t.Parallel()
	e, times := newEdge(t), 3
	e.put(t, "k", "")
	e.overtake = func() {
		if times--; times >= 0 {
			e.Lock()
			defer e.Unlock()
			e.revision++
			n := *e.entries["k"]
			n.Revision = e.revision
			e.entries["k"] = &n
		}
	}
	if w := e.do("PUT", base+"/schedules/k", "", "If-Match", "*"); w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	times = 1000
	if w := e.do("PUT", base+"/schedules/k", "", "If-Match", "*"); w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Errorf("overtaken for ever: %d %s", w.Code, w.Body)
	}
}

// Parameters are read strictly.
func TestParameters_AreStrict(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	const list, invalid = base + "/schedules", "invalid_argument"
	for _, x := range []expect{
		{method: "GET", target: list + "?", status: 200},
		{method: "GET", target: list + "?prefix=&limit=&continue=&order=", status: 200},
		{method: "GET", target: list + "?limit=1&order=due&prefix=a%2Fb+c", status: 200},
		{method: "GET", target: list + "?limit=1000&order=key", status: 200},
		{method: "GET", target: list + "?limit=0", status: 400, code: invalid, field: "limit"},
		{method: "GET", target: list + "?limit=1001", status: 400, code: invalid, field: "limit"},
		{method: "GET", target: list + "?limit=-1", status: 400, code: invalid, field: "limit"},
		{method: "GET", target: list + "?limit=1.0", status: 400, code: invalid, field: "limit"},
		{method: "GET", target: list + "?limit=99999999999999999999", status: 400, code: invalid, field: "limit"},
		{method: "GET", target: list + "?order=Due", status: 400, code: invalid, field: "order"},
		{method: "GET", target: list + "?continue=garbage", status: 400, code: invalid, field: "continue"},
		{method: "GET", target: list + "?prefix=%01", status: 400, code: invalid, field: "prefix"},
		{method: "GET", target: list + "?prefix=%ff", status: 400, code: invalid, field: "prefix"},
		{method: "GET", target: list + "?prefix=%zz", status: 400, code: invalid, field: "prefix"},
		{method: "GET", target: list + "?%zz=1", status: 400, code: invalid, field: "query"},
		{method: "GET", target: list + "?prefix=" + strings.Repeat("a", 513), status: 400, code: invalid, field: "prefix"},
		{method: "GET", target: list + "?prefix=a&prefix=a", status: 400, code: invalid, field: "prefix"},
		{method: "GET", target: list + "?Limit=5", status: 400, code: invalid, field: "Limit"},
		{method: "GET", target: list + "?limit=5;order=due", status: 400, code: invalid, field: "limit"},
		{method: "GET", target: base + "?x", status: 400, code: invalid, field: "x"},
		{method: "GET", target: list + "/k?x=1", status: 400, code: invalid, field: "x"},
		{method: "PUT", target: list + "/k?dryRun=All", status: 400, code: invalid, field: "dryRun"},
		{method: "POST", target: list + "?x=1", body: `{"items":[]}`, status: 400, code: invalid, field: "x"},
		{method: "DELETE", target: list, status: 400, code: invalid, field: "prefix"},
		{method: "DELETE", target: list + "?prefix=", status: 400, code: invalid, field: "prefix"},
		{method: "DELETE", target: list + "?prefix", status: 400, code: invalid, field: "prefix"},
		{method: "DELETE", target: list + "?all=false", status: 400, code: invalid, field: "prefix"},
		{method: "DELETE", target: list + "?all=1", status: 400, code: invalid, field: "all"},
		{method: "DELETE", target: list + "?all=", status: 400, code: invalid, field: "all"},
		{method: "DELETE", target: list + "?all=true&prefix=a", status: 400, code: invalid, field: "all"},
		{method: "DELETE", target: list + "?all=true&prefix=", status: 400, code: invalid, field: "all"},
		{method: "DELETE", target: list + "?prefx=a", status: 400, code: invalid, field: "prefx"},
		{method: "DELETE", target: list + "?prefix=%01", status: 400, code: invalid, field: "prefix"},
		{method: "DELETE", target: list + "?prefix=a", status: 200},
		{method: "DELETE", target: list + "?all=false&prefix=a", status: 200},
		{method: "DELETE", target: list + "?all=true", status: 200},
	} {
		x.check(t, e)
	}
}

// A list has its pages and a bulk delete its count.
func TestList_PagesAndBulkDeleteCounts(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	for i := range 150 {
		e.put(t, fmt.Sprintf("a%%2F%03d", i), fmt.Sprintf(`{"delay":%d}`, 1000-i))
	}
	e.put(t, "b", `{"event":{"subject":"s"}}`)
	pages := func(query string) (sizes []int, keys []string) {
		for token := "-"; token != ""; {
			q := query
			if token != "-" {
				q += "&continue=" + strings.ReplaceAll(token, "/", "%2F")
			}
			var page struct {
				Items    []struct{ Key string }
				Continue *string
			}
			w := e.do("GET", base+q, "")
			if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil || page.Continue == nil || w.Code != 200 {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			for _, item := range page.Items {
				keys = append(keys, item.Key)
			}
			sizes, token = append(sizes, len(page.Items)), *page.Continue
		}
		return sizes, keys
	}
	sizes, keys := pages("/schedules?")
	if diff := cmp.Diff([]int{100, 51}, sizes); diff != "" || keys[0] != "a/000" || keys[150] != "b" {
		t.Error(diff, keys)
	}
	sizes, keys = pages("/schedules?prefix=a%2F&limit=140&order=due")
	if diff := cmp.Diff([]int{140, 10}, sizes); diff != "" || keys[0] != "a/149" || keys[149] != "a/000" {
		t.Error(diff, keys)
	}
	e.letters = map[string]*schedule.Entry{"d1": kept("d1", 400, "no"), "d2": kept("d2", 400, "no"), "e": kept("e", 400, "no")}
	sizes, keys = pages("/deadletters?prefix=d&limit=1")
	if diff := cmp.Diff([]string{"d1", "d2"}, keys); diff != "" || len(sizes) != 2 {
		t.Error(diff, sizes)
	}
	if w := e.do("DELETE", base+"/schedules?prefix=a%2F", ""); w.Body.String() != `{"deleted":150}`+"\n" {
		t.Error(w.Body)
	}
	if w := e.do("DELETE", base+"/schedules?all=true", ""); w.Body.String() != `{"deleted":1}`+"\n" {
		t.Error(w.Body)
	}
	if w := e.do("GET", base+"/schedules", ""); w.Body.String() != `{"items":[],"continue":""}`+"\n" {
		t.Error(w.Body)
	}
}

// A page of large events ends early.
func TestList_LargeEventsEndAPage(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	body := `{"event":{"data":"` + strings.Repeat("x", 200<<10) + `"}}`
	for i := range 100 {
		e.put(t, fmt.Sprint(i), body)
	}
	w := e.do("GET", base+"/schedules?limit=1000", "")
	if n := w.Body.Len(); n < listBytes || n > listBytes+listChunk*201<<10 || !strings.Contains(w.Body.String()[n-40:], `"continue":"3`) {
		t.Errorf("%d bytes, %s", n, w.Body.String()[n-40:])
	}
	all := e.bytes.Claim("another", "source")
	if !all.TryGrow(e.cfg.Budget) {
		t.Errorf("the list kept %d of the budget", e.bytes.Used())
	}
	if w := e.do("GET", base+"/schedules?limit=1000", ""); w.Code != 503 {
		t.Errorf("without budget: %d", w.Code)
	}
}

// The answer has every count.
func TestCounts_AreComplete(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	if w := e.do("GET", base, ""); w.Body.String() != `{"pending":0,"due":0,"inFlight":0,"retrying":0,"deadLetters":0,"nextDueAt":null,"oldestDueAt":null,"watched":3}`+"\n" {
		t.Error(w.Body)
	}
	e.counts = queue.Counts{Pending: 1, Due: 2, InFlight: 4, Retrying: 5, Kept: 6, DeadLetters: 7, NextDueAt: now.Add(time.Second), OldestDueAt: now}
	if w := e.do("GET", base, ""); w.Body.String() != `{"pending":1,"due":2,"inFlight":4,"retrying":5,"deadLetters":6,"nextDueAt":"2026-11-21T09:00:01Z","oldestDueAt":"2026-11-21T09:00:00Z","watched":3}`+"\n" {
		t.Error(w.Body)
	}
}

// HEAD answers as GET, without a body.
func TestHead_AnswersAsGet(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	e.put(t, "k", "")
	server := httptest.NewServer(e)
	defer server.Close()
	for _, target := range []string{base, base + "/schedules", base + "/schedules/k", base + "/schedules/absent", "/openapi.json"} {
		get, err := server.Client().Get(server.URL + target)
		must(t, err)
		body, _ := io.ReadAll(get.Body)
		get.Body.Close()
		head, err := server.Client().Head(server.URL + target)
		must(t, err)
		head.Body.Close()
		get.Header.Del("Date")
		head.Header.Del("Date")
		if diff := cmp.Diff(get.Header, head.Header); diff != "" || head.StatusCode != get.StatusCode || head.ContentLength != int64(len(body)) {
			t.Errorf("%s: %s", target, diff)
		}
	}
}

// The caller does not see a fault of the queue; the log has it. A call that meets the store of an owner which has lost
// its lease is answered as during a failover, and is no fault to log.
func TestQueueFault_StaysPrivate(t *testing.T) {
	t.Parallel()
	tests := []struct {
		fail   error
		status int
		code   string
		after  string
		detail string
	}{
		{errors.New("secret path"), 503, "unavailable", "5", "perhaps after its change"},
		{schedule.Refuse(schedule.CodeStorageFull, "full"), 507, "storage_full", "", "full"},
		{&schedule.Error{Code: schedule.CodeStorageFull, RetryAfter: 10 * time.Second, Detail: "full"}, 507, "storage_full", "10", "full"},
		{schedule.Refuse(schedule.CodeQuota, "quota"), 429, "quota_exceeded", "5", "quota"},
		{&schedule.Error{Code: schedule.CodeQuota, RetryAfter: 1100 * time.Millisecond, Detail: "quota"}, 429, "quota_exceeded", "2", "quota"},
		{schedule.Refuse(schedule.CodeNotFound, "removed"), 404, "not_found", "", "removed"},
		{schedule.Refuse(schedule.CodeDenied, "no"), 403, "permission_denied", "", "no"},
		{schedule.Refuse("new_code", "?"), 503, "new_code", "5", "?"},
		{fmt.Errorf("reading: %w", store.ErrClosed), 503, "unavailable", "1", "nothing was changed"},
		{fmt.Errorf("reading: %w", store.ErrNotOwner), 503, "unavailable", "1", "nothing was changed"},
		{fmt.Errorf("reading: %w", store.ErrUnknown), 503, "unavailable", "1", "is unknown; PUT and DELETE may be repeated"},
	}
	for _, tt := range tests {
		var logged bytes.Buffer
		e := newEdge(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&logged, nil)) })
		e.fail, e.refusal = tt.fail, tt.fail
		for _, x := range []expect{
			{method: "PUT", target: base + "/schedules/k"}, {method: "GET", target: base + "/schedules/k"}, {method: "DELETE", target: base + "/schedules/k"},
			{method: "DELETE", target: base + "/schedules/k", headers: []string{"If-Match", "*"}},
			{method: "GET", target: base + "/schedules"}, {method: "POST", target: base + "/schedules", body: `{"items":[{"key":"k"}]}`},
			{method: "DELETE", target: base + "/schedules?all=true"}, {method: "GET", target: base}, {method: "POST", target: base, body: "x"},
		} {
			w := e.do(x.method, x.target, x.body, x.headers...)
			p := problemOf(t, w.Body.Bytes())
			if w.Code != tt.status || p.Code != tt.code || w.Header().Get("Retry-After") != tt.after || !strings.Contains(p.Detail, tt.detail) || strings.Contains(w.Body.String(), "secret") {
				t.Errorf("%s %s: %d %v %s", x.method, x.target, w.Code, w.Header(), w.Body)
			}
		}
		if told := strings.Contains(logged.String(), "secret path"); told != (tt.fail.Error() == "secret path") || !told && logged.Len() > 0 {
			t.Errorf("%v: it logs %s", tt.fail, logged.String())
		}
	}
}

// CloudEvents go to the receiver.
func TestCloudEvent_IsHandedOn(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	w := e.do("POST", base+"?any=thing", `{"a":1}`, "Content-Type", "application/cloudevents+json", "Ce-Id", "1")
	if w.Code != http.StatusAccepted || w.Body.Len() != 0 || len(e.ingested) != 1 || e.ingested[0] != `{"a":1}` {
		t.Errorf("%d %s %q", w.Code, w.Body, e.ingested)
	}
	if w := e.do("POST", base, "x", "Content-Encoding", "gzip"); w.Code != 415 {
		t.Errorf("compressed: %d", w.Code)
	}
	e.ingest = nil
	if w := e.do("POST", base, "x"); w.Code != 405 || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("without ingress: %d %v", w.Code, w.Header())
	}
}

// The handler serves real sources.
func TestHandler_ServesRealSources(t *testing.T) {
	t.Parallel()
	h := New(Config{Lookup: func(string, string) (*queue.Source, bool) { return nil, false }})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", base, nil))
	if w.Code != http.StatusNotFound {
		t.Errorf("%d", w.Code)
	}
}

// A resync takes its body strictly, and none at all.
func TestResync_Body(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	for body, want := range map[string]string{
		"": " ", "{}": " ", `{"over":"PT1M"}`: " 1m0s", `{"over":null,"prefix":"Website/a"}`: "Website/a ", `{"prefix":"","over":"0s"}`: " 0s",
	} {
		e.resyncs = nil
		if w := e.do("POST", base+"/resync", body); w.Code != 200 || w.Body.String() != `{"scheduled":7}`+"\n" || len(e.resyncs) != 1 || e.resyncs[0] != want {
			t.Errorf("%s: %d %s, asked for %q", body, w.Code, w.Body, e.resyncs)
		}
	}
	e.resyncs = nil
	for _, body := range []string{"null", "[]", `{"over":60}`, `{"over":"soon"}`, `{"overs":"1m"}`, `{"prefix":"a\u0001"}`, `{} {}`, `{"over":"1m","over":"2m"}`, `{"over":"1m"`} {
		if w := e.do("POST", base+"/resync", body); w.Code != 400 || !strings.Contains(w.Body.String(), "invalid_argument") {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
	if w := e.do("GET", base+"/resync", ""); w.Code != 405 || w.Header().Get("Allow") != "POST" {
		t.Errorf("GET: %d %s", w.Code, w.Header())
	}
	if len(e.resyncs) > 0 {
		t.Errorf("a bad body resynced: %q", e.resyncs)
	}
}
