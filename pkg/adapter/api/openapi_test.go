package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/cloudevent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/recent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// document is openapi.json and its compiled schemas.
type document struct {
	root     map[string]any
	compiler *jsonschema.Compiler
}

func readDocument(t *testing.T) *document {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(newEdge(t).do("GET", "/openapi.json", "").Body.Bytes()))
	must(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	c.AssertContent()
	must(t, c.AddResource("http://x/openapi.json", v))
	return &document{root: v.(map[string]any), compiler: c}
}

// at is the part of the document under a JSON pointer, references followed;
// it returns the pointer that it ended at, nil when there is no such part.
func (d *document) at(pointer string) (any, string) {
	var v any = d.root
	at := ""
	for part := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		m, ok := v.(map[string]any)
		if !ok || m[part] == nil {
			return nil, ""
		}
		v, at = m[part], at+"/"+escapePointer(part)
		if ref, ok := v.(map[string]any)["$ref"].(string); ok {
			v, at = d.at(strings.TrimPrefix(ref, "#"))
		}
	}
	return v, at
}

func escapePointer(s string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(s) }

func (d *document) validate(t *testing.T, pointer string, body []byte) error {
	t.Helper()
	s, err := d.compiler.Compile("http://x/openapi.json#" + strings.ReplaceAll(strings.ReplaceAll(pointer, "{", "%7B"), "}", "%7D"))
	must(t, err)
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return s.Validate(v)
}

// response checks an answer against the document: its status is listed for the
// path and method, its headers are, and its body follows the schema.
func (d *document) response(t *testing.T, path, method string, w *httptest.ResponseRecorder) {
	t.Helper()
	name := fmt.Sprintf("%s %s %d", method, path, w.Code)
	got, at := d.at("/paths/" + escapePointer(path) + "/" + strings.ToLower(method) + "/responses/" + fmt.Sprint(w.Code))
	if got == nil {
		t.Errorf("%s is not in the document: %s", name, w.Body)
		return
	}
	response := got.(map[string]any)
	headers, _ := response["headers"].(map[string]any)
	for _, h := range []string{"ETag", "Retry-After", "WWW-Authenticate", "Allow"} {
		value := w.Header().Get(h)
		described, _ := headers[h].(map[string]any)
		if value != "" && described == nil || value == "" && described != nil && described["required"] == true {
			t.Errorf("%s: header %s is %q, described as %v", name, h, value, described)
		}
	}
	content, _ := response["content"].(map[string]any)
	if method == "HEAD" {
		return
	}
	if content == nil {
		if w.Body.Len() > 0 {
			t.Errorf("%s: a body that is not described: %s", name, w.Body)
		}
		return
	}
	media := w.Header().Get("Content-Type")
	if content[media] == nil {
		t.Errorf("%s: content type %q is not described", name, media)
		return
	}
	if media == typeEvents[0] {
		return
	}
	if err := d.validate(t, at+"/content/"+escapePointer(media)+"/schema", w.Body.Bytes()); err != nil {
		t.Errorf("%s: %s: %v", name, w.Body, err)
	}
}

const (
	pathOf       = "/{namespace}/{name}"
	pathOfAll    = pathOf + "/schedules"
	pathOfKey    = pathOfAll + "/{key}"
	pathOfRun    = pathOfKey + "/run"
	pathOfPast   = pathOfKey + "/history"
	pathOfLive   = pathOf + "/events"
	pathOfResync = pathOf + "/resync"
	pathOfDead   = pathOf + "/deadletters"
	pathOfOne    = pathOfDead + "/{key}"
	pathOfDo     = pathOfOne + "/redrive"
	pathOfDoes   = pathOfDead + "/redrive"
	wholeEvent   = `{"type":"t","subject":"s","datacontenttype":"text/plain","dataschema":"http://x/","data":"d","ext":1,"flag":true,"s":"x"}`
	wholeBody    = `"policy":"replace","jitter":0,"event":` + wholeEvent + `,"maxInterval":"1h","slack":"10m","expiresAt":"2027-01-01T00:00:00Z","uid":"u","reason":"r"`
)

// denies is a guard that takes the token secret, and lets no caller do anything while it denies.
type denies struct {
	access.Guard
	now bool
}

func (d *denies) Admit(r *http.Request, a access.Request) (access.Caller, error) {
	if d.now {
		return access.Caller{}, schedule.Refuse(schedule.CodeDenied, "no")
	}
	return d.Guard.Admit(r, a)
}

// Calls have every answer that the document lists, and no other.
func TestOpenAPI_IsTrue(t *testing.T) {
	t.Parallel()
	d := readDocument(t)
	seen, deny := map[string]bool{}, false
	call := func(change func(*edge), path, method, target, body string, headers ...string) {
		t.Helper()
		guard := &denies{Guard: access.NewTokens("secret")}
		e := newEdge(t, func(c *Config) { c.Guard = guard })
		e.put(t, "old", `{`+wholeBody+`,"delay":5}`, "Authorization", "Bearer secret")
		e.put(t, "flying", `{"event":`+wholeEvent+`}`, "Authorization", "Bearer secret")
		e.inFlight["flying"] = true
		e.entries["old"] = failedOnce(e.entries["old"])
		e.letters["dead"] = kept("dead", 400, "no")
		e.letters["lost"] = kept("lost", 0, "dispatch error")
		e.outcomes = []recent.Outcome{{At: now, Result: "retrying", Status: 503, Attempt: 1, Lateness: time.Millisecond, Cause: "v1/Secret/a/b"}, {At: now, Result: "delivered"}}
		e.EndEvents() // a stream ends at once
		guard.now = deny
		if change != nil {
			change(e)
		}
		if !slices.Contains(headers, "Authorization") {
			headers = append(headers, "Authorization", "Bearer secret")
		}
		w := e.do(method, target, body, headers...)
		d.response(t, path, method, w)
		seen[fmt.Sprintf("%s %s %d", method, path, w.Code)] = true
	}
	failing := func(err error) func(*edge) {
		return func(e *edge) { e.fail, e.refusal = err, err }
	}
	all, dead := base+"/schedules", base+"/deadletters"
	for _, c := range []struct{ path, method, target, body string }{
		{"/openapi.json", "GET", "/openapi.json", ""}, {"/openapi.json", "HEAD", "/openapi.json", ""},
		{pathOfResync, "POST", base + "/resync", `{"over":"1m","prefix":"Website/"}`},
		{pathOf, "GET", base, ""}, {pathOf, "HEAD", base, ""}, {pathOf, "POST", base, "x"},
		{pathOfAll, "GET", all, ""}, {pathOfAll, "GET", all + "?prefix=o&limit=1&order=due", ""}, {pathOfAll, "HEAD", all, ""},
		{pathOfAll, "POST", all, `{"items":[{"key":"a",` + wholeBody + `,"dueAt":"2026-11-22T00:00:00Z"},{"key":"old","policy":"fail"},{"key":"old","backoff":{"base":"1s","factor":2,"cap":"1m","maxAttempts":3}},{}]}`},
		{pathOfAll, "DELETE", all + "?all=true", ""}, {pathOfAll, "DELETE", all + "?prefix=x", ""},
		{pathOfKey, "PUT", all + "/new", ""}, {pathOfKey, "PUT", all + "/old", ""}, {pathOfKey, "PUT", all + "/old", `{"policy":"keep"}`},
		{pathOfKey, "PUT", all + "/flying", ""}, {pathOfKey, "PUT", all + "/new", "{" + wholeBody + `,"delay":"0s"}`},
		{pathOfKey, "GET", all + "/old", ""}, {pathOfKey, "GET", all + "/flying", ""}, {pathOfKey, "HEAD", all + "/old", ""}, {pathOfKey, "DELETE", all + "/old", ""},
		{pathOfAll, "GET", all + "?state=retrying", ""},
		{pathOfRun, "POST", all + "/old/run", ""}, {pathOfRun, "POST", all + "/flying/run", "{}"},
		{pathOfPast, "GET", all + "/old/history", ""}, {pathOfPast, "HEAD", all + "/old/history", ""},
		{pathOfLive, "GET", base + "/events", ""},
		{pathOfDead, "GET", dead, ""}, {pathOfDead, "GET", dead + "?prefix=d&limit=1", ""}, {pathOfDead, "HEAD", dead, ""}, {pathOfDead, "DELETE", dead + "?all=true", ""},
		{pathOfOne, "GET", dead + "/dead", ""}, {pathOfOne, "GET", dead + "/lost", ""}, {pathOfOne, "HEAD", dead + "/dead", ""}, {pathOfOne, "DELETE", dead + "/dead", ""},
		{pathOfDo, "POST", dead + "/dead/redrive", ""}, {pathOfDo, "POST", dead + "/dead/redrive?replace=true", ""}, {pathOfDoes, "POST", dead + "/redrive?all=true&replace=true", ""}, {pathOfDoes, "POST", dead + "/redrive?prefix=d", "{}"},
	} {
		call(nil, c.path, c.method, c.target, c.body)
		if c.path == "/openapi.json" {
			continue
		}
		call(nil, c.path, c.method, c.target, c.body, "Authorization", "Bearer wrong")
		deny = true
		call(nil, c.path, c.method, c.target, c.body)
		deny = false
		call(nil, c.path, c.method, strings.Replace(c.target, "/demo", "/none", 1), c.body)
		call(failing(errors.New("broken")), c.path, c.method, c.target, c.body)
	}
	for _, c := range []struct{ path, method, target string }{
		{pathOfResync, "POST", base + "/resync?x"}, {pathOf, "GET", base + "?x"}, {pathOf, "HEAD", base + "?x"},
		{pathOfAll, "GET", all + "?x"}, {pathOfAll, "HEAD", all + "?x"}, {pathOfAll, "POST", all}, {pathOfAll, "DELETE", all},
		{pathOfKey, "PUT", all + "/k?x"}, {pathOfKey, "GET", all + "/k?x"}, {pathOfKey, "HEAD", all + "/k?x"}, {pathOfKey, "DELETE", all + "/k?x"},
		{pathOfRun, "POST", all + "/k/run?x"}, {pathOfPast, "GET", all + "/k/history?x"}, {pathOfPast, "HEAD", all + "/k/history?x"}, {pathOfLive, "GET", base + "/events?x"},
		{pathOfDead, "GET", dead + "?x"}, {pathOfDead, "HEAD", dead + "?x"}, {pathOfDead, "DELETE", dead},
		{pathOfOne, "GET", dead + "/k?x"}, {pathOfOne, "HEAD", dead + "/k?x"}, {pathOfOne, "DELETE", dead + "/k?x"},
		{pathOfDo, "POST", dead + "/k/redrive?x"}, {pathOfDoes, "POST", dead + "/redrive"},
	} {
		call(nil, c.path, c.method, c.target, "")
	}
	full := &schedule.Error{Code: schedule.CodeStorageFull, Detail: "full", RetryAfter: time.Second}
	quota := schedule.Refuse(schedule.CodeQuota, "quota")
	huge := strings.Repeat(" ", maxBody+1)
	for _, c := range []struct{ path, method, target, body string }{
		{pathOfResync, "POST", base + "/resync", "{}"}, {pathOf, "POST", base, "x"}, {pathOfAll, "POST", all, `{"items":[{"key":"k"}]}`}, {pathOfKey, "PUT", all + "/k", "{}"},
	} {
		call(failing(full), c.path, c.method, c.target, c.body)
		call(nil, c.path, c.method, c.target, huge)
		call(nil, c.path, c.method, c.target, c.body, "Content-Encoding", "gzip")
		if c.path != pathOfAll {
			call(failing(quota), c.path, c.method, c.target, c.body)
		}
	}
	for path, target := range map[string]string{pathOfRun: all + "/old/run", pathOfDo: dead + "/dead/redrive", pathOfDoes: dead + "/redrive?all=true"} {
		call(failing(full), path, "POST", target, "")
		call(nil, path, "POST", target, huge)
		call(nil, path, "POST", target, "x")
		if path != pathOfRun {
			call(failing(quota), path, "POST", target, "")
		}
	}
	call(func(e *edge) { e.entries["dead"] = &schedule.Entry{Revision: 1} }, pathOfDo, "POST", dead+"/dead/redrive", "")
	call(nil, pathOfRun, "POST", all+"/old/run", "", "If-Match", `"1"`)
	call(failing(schedule.Refuse(schedule.CodePrecondition, "no watch")), pathOfResync, "POST", base+"/resync", "")
	call(failing(schedule.Invalid("reschedulepolicy", "no")), pathOf, "POST", base, "x")
	call(failing(schedule.Refuse(schedule.CodeExists, "exists")), pathOf, "POST", base, "x")
	call(nil, pathOfKey, "PUT", all+"/old", `{"policy":"fail"}`)
	call(func(e *edge) { e.entries["old"] = &schedule.Entry{Revision: 1, Attempt: 3} }, pathOfKey, "PUT", all+"/old", `{"backoff":{"maxAttempts":3}}`)
	call(nil, pathOfKey, "PUT", all+"/old", "", "If-None-Match", "*")
	call(nil, pathOfKey, "PUT", all+"/old", "", "If-Match", `"1"`, "Traceparent", "x", "Tracestate", "y")
	call(nil, pathOfKey, "DELETE", all+"/old?uid=other", "")
	call(nil, pathOfKey, "DELETE", all+"/old", "", "If-Match", `"1"`)

	paths, _ := d.at("/paths")
	for path, item := range paths.(map[string]any) {
		for method, op := range item.(map[string]any) {
			if method == "parameters" {
				continue
			}
			for status := range op.(map[string]any)["responses"].(map[string]any) {
				if name := strings.ToUpper(method) + " " + path + " " + status; !seen[name] {
					t.Errorf("%s is in the document, but nothing answers so", name)
				}
			}
		}
	}
}

// The document lists every field, parameter, method and code.
func TestOpenAPI_IsComplete(t *testing.T) {
	t.Parallel()
	d := readDocument(t)
	properties := func(schema string) []string {
		v, _ := d.at("/components/schemas/" + schema + "/properties")
		return keysOf(v)
	}
	sorted := func(n names) []string { return slices.Sorted(slices.Values(n)) }
	check := func(what string, want, got []string) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: code and document differ: %s", what, diff)
		}
	}
	check("request", sorted(requestFields), properties("ScheduleRequest"))
	check("item", sorted(itemFields), properties("BulkItem"))
	check("bulk", sorted(bulkFields), properties("BulkRequest"))
	check("backoff", sorted(backoffFields), properties("Backoff"))
	check("event", sorted(eventFields[:eventSettable]), properties("Event"))
	refused, _ := d.at("/components/schemas/Event/propertyNames/not")
	check("names that cannot be set", sorted(append(slices.Clone(eventFields[eventSettable:]), cloudevent.Reserved...)), strs(refused.(map[string]any)["enum"]))
	codes, _ := d.at("/components/schemas/Code")
	var ours []string
	for code := range statuses {
		ours = append(ours, string(code))
	}
	slices.Sort(ours)
	check("codes", ours, strs(codes.(map[string]any)["enum"]))
	for path, target := range map[string]string{"/openapi.json": "/openapi.json", pathOf: base, pathOfAll: base + "/schedules", pathOfKey: base + "/schedules/k",
		pathOfRun: base + "/schedules/k/run", pathOfPast: base + "/schedules/k/history", pathOfLive: base + "/events",
		pathOfDead: base + "/deadletters", pathOfOne: base + "/deadletters/k", pathOfDo: base + "/deadletters/k/redrive"} {
		v, _ := d.at("/paths/" + escapePointer(path))
		var methods []string
		for _, m := range keysOf(v) {
			if m != "parameters" {
				methods = append(methods, strings.ToUpper(m))
			}
		}
		check(path, strings.Split(newEdge(t).do("BREW", target, "").Header().Get("Allow"), ", "), methods)
	}
	for op, params := range map[string][]string{
		pathOfAll + " get": {"prefix", "limit", "continue", "order", "state"}, pathOfAll + " delete": {"prefix", "all"}, pathOfKey + " delete": {"uid"},
		pathOfDead + " get": {"prefix", "limit", "continue"}, pathOfDead + " delete": {"prefix", "all"}, pathOfDoes + " post": {"prefix", "all"},
		pathOf + " get": nil, pathOfKey + " get": nil, pathOfKey + " put": nil, pathOfAll + " post": nil,
	} {
		path, method, _ := strings.Cut(op, " ")
		v, _ := d.at("/paths/" + escapePointer(path) + "/" + method)
		list, _ := v.(map[string]any)["parameters"].([]any)
		var query []string
		for _, p := range list {
			if p := p.(map[string]any); p["in"] == "query" {
				query = append(query, p["name"].(string))
			}
		}
		check(op, params, query)
		for _, name := range []string{"prefix", "limit", "continue", "order", "state", "all", "uid"} {
			target := map[string]string{pathOf: base, pathOfAll: base + "/schedules", pathOfKey: base + "/schedules/k", pathOfDead: base + "/deadletters", pathOfDoes: base + "/deadletters/redrive"}[path]
			p := problem{}
			if w := newEdge(t).do(strings.ToUpper(method), target+"?"+name+"=", ""); w.Code >= 400 {
				p = problemOf(t, w.Body.Bytes())
			}
			if unknown := strings.Contains(p.Detail, "is not a parameter"); unknown == slices.Contains(query, name) {
				t.Errorf("%s: parameter %s: %s", op, name, p.Detail)
			}
		}
	}
}

// TestOpenAPI_AcceptsWhatHandlersAccept holds the schemas of requests against the decoder, both ways.
func TestOpenAPI_AcceptsWhatHandlersAccept(t *testing.T) {
	t.Parallel()
	d := readDocument(t)
	for _, body := range []string{
		`{}`, `{"delay":1}`, `{"delay":"1s"}`, `{"delay":null,"dueAt":null,"backoff":null,"policy":null,"jitter":null,"event":null,"maxInterval":null,"slack":null,"expiresAt":null,"uid":null,"reason":null}`,
		`{` + wholeBody + `}`, `{"backoff":{"base":null,"factor":null,"cap":null,"maxAttempts":null}}`, `{"backoff":{"base":"1s","factor":1,"cap":"1s","maxAttempts":4294967295}}`,
		`{"event":{"data":null,"type":null,"x":null}}`, `{"event":{"data":[1],"x":-5}}`, `{"event":{"data_base64":"AAAA"}}`, `{"jitter":1}`, `{"policy":"latest"}`,
		`{"cron":"0 9 * * MON","timeZone":"Europe/Berlin"}`, `{"cron":"@hourly","timeZone":""}`, `{"cron":null,"timeZone":null}`,
	} {
		if w := newEdge(t).do("PUT", base+"/schedules/k", body); w.Code != http.StatusCreated {
			t.Errorf("%s: %s", body, w.Body)
		}
		if err := d.validate(t, "/components/schemas/ScheduleRequest", []byte(body)); err != nil {
			t.Errorf("accepted, but not by the document: %s: %v", body, err)
		}
	}
	for _, body := range []string{
		`[]`, `null`, `{"x":1}`, `{"key":"k"}`, `{"delay":-1}`, `{"delay":true}`, `{"dueAt":1}`, `{"dueAt":"x"}`, `{"backoff":1}`, `{"backoff":{"x":1}}`,
		`{"backoff":{"factor":0.5}}`, `{"backoff":{"maxAttempts":-1}}`, `{"backoff":{"maxAttempts":0.5}}`, `{"backoff":{"maxAttempts":4294967296}}`, `{"policy":"x"}`,
		`{"cron":""}`, `{"cron":1}`, `{"cron":"@hourly","timeZone":1}`, `{"cron":"` + strings.Repeat(" ", 248) + `* * * * *"}`,
		`{"jitter":2}`, `{"jitter":"1"}`, `{"maxInterval":1}`, `{"slack":1}`, `{"expiresAt":1}`, `{"uid":1}`, `{"reason":1}`, `{"event":1}`, `{"event":{"id":"1"}}`, `{"event":{"source":"1"}}`,
		`{"event":{"X":"1"}}`, `{"event":{"x":1.5}}`, `{"event":{"x":{}}}`, `{"event":{"x":2147483648}}`, `{"event":{"reschedulekey":"k"}}`, `{"event":{"type":""}}`,
		`{"event":{"data_base64":"*"}}`, `{"event":{"dataschema":"relative"}}`, `{"uid":"` + strings.Repeat("u", 257) + `"}`, `{"reason":"` + strings.Repeat("r", 1025) + `"}`,
	} {
		if w := newEdge(t).do("PUT", base+"/schedules/k", body); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d", body, w.Code)
		}
		if d.validate(t, "/components/schemas/ScheduleRequest", []byte(body)) == nil {
			t.Errorf("refused, but not by the document: %s", body)
		}
	}
	for body, good := range map[string]bool{`{"items":[]}`: true, `{"items":[{"key":"k",` + wholeBody + `}]}`: true, `{}`: false, `{"items":null}`: false, `{"items":[],"x":1}`: false} {
		if w := newEdge(t).do("POST", base+"/schedules", body); (w.Code == http.StatusOK) != good {
			t.Errorf("%s: %d", body, w.Code)
		}
		if err := d.validate(t, "/components/schemas/BulkRequest", []byte(body)); (err == nil) != good {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// failedOnce is the entry between two attempts.
func failedOnce(e *schedule.Entry) *schedule.Entry {
	n := *e
	n.Tries, n.RetryAt = 1, now.Add(time.Minute)
	n.LastFailure = &schedule.LastFailure{At: now, Code: 503, Data: []byte("down")}
	return &n
}

// kept is a dead letter.
func kept(key string, code int, data string) *schedule.Entry {
	return &schedule.Entry{ScheduledAt: now, DeadLetter: &schedule.DeadLetter{Key: key, Due: now, Tries: 3, Failure: schedule.Failure{Code: code, Data: []byte(data)}}}
}

func keysOf(v any) []string {
	var keys []string
	for k := range v.(map[string]any) {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func strs(v any) []string {
	var out []string
	for _, s := range v.([]any) {
		out = append(out, s.(string))
	}
	slices.Sort(out)
	return out
}

// The document is JSON and names every operation once.
func TestOpenAPI_NamesEachOperationOnce(t *testing.T) {
	t.Parallel()
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(openAPIDocument, &doc); err != nil || doc.OpenAPI != "3.1.0" {
		t.Fatal(doc.OpenAPI, err)
	}
	ids := map[string]bool{}
	for path, item := range doc.Paths {
		for method, raw := range item {
			var op struct{ OperationID string }
			if method == "parameters" {
				continue
			}
			if err := json.Unmarshal(raw, &op); err != nil || op.OperationID == "" || ids[op.OperationID] {
				t.Errorf("%s %s: %q %v", method, path, op.OperationID, err)
			}
			ids[op.OperationID] = true
		}
	}
}
