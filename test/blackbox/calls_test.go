package blackbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// A key is one path segment, whatever characters it has.
func TestKey_IsOnePathSegment(t *testing.T) {
	t.Parallel()
	for path, key := range map[string]string{
		"GitRepo%2Fteam-a%2Fsite": "GitRepo/team-a/site", "%2E": ".", "%2E%2E": "..", ".": ".", "..": "..", "%252F": "%2F",
		"a%20b+c": "a b+c", "%E2%82%AC%F0%9F%98%80": "€😀", "%3F%23%25": "?#%", "a;b=c,d:e@f!$&'()*": "a;b=c,d:e@f!$&'()*",
		"%2e%2e%2fx": "../x", "schedules": "schedules", "...": "...", "%2F": "/", "a%2F%2Fb": "a//b", "%22%5C": `"\`,
		strings.Repeat("k", 512): strings.Repeat("k", 512), strings.Repeat("%E2%82%AC", 170): strings.Repeat("€", 170),
	} {
		r := plain.call(t, http.MethodPut, "/schedules/"+path, `{"delay":"50ms"}`)
		var v harness.Schedule
		if r.Into(t, &v); r.Status != http.StatusCreated && r.Status != http.StatusOK || v.Key != key {
			t.Errorf("%s: %d key %q, want %q", path, r.Status, v.Key, key)
			continue
		}
		d := plain.next(t, key)
		if d.Attr("subject") != key {
			t.Errorf("%q was delivered with subject %q", key, d.Attr("subject"))
		}
		plain.gone(t, key)
		plain.cancel(t, key)
	}
}

// An invalid key is 400.
func TestKey_InvalidIs400(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"%00", "a%0Ab", "%7F", "%C2%85", "%FF", "%C3", strings.Repeat("k", 513), strings.Repeat("%E2%82%AC", 171), "%ED%A0%80", ""} {
		for _, method := range []string{http.MethodPut, http.MethodGet, http.MethodDelete} {
			problem(t, plain.call(t, method, "/schedules/"+path, ""), http.StatusBadRequest, "invalid_argument")
		}
		if unescaped, err := url.PathUnescape(path); err == nil {
			r := plain.call(t, http.MethodPost, "/schedules", fmt.Sprintf(`{"items":[{"key":%s}]}`, quote(unescaped)))
			var v harness.Schedule
			if r.Status == http.StatusBadRequest {
				continue // not JSON at all
			}
			if r.Into(t, &v); len(v.Items) != 1 || v.Items[0].Status != http.StatusBadRequest || v.Items[0].Code != "invalid_argument" {
				t.Errorf("bulk %q: %s", unescaped, r.Body)
			}
		}
	}
}

func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range []byte(s) {
		if r < 0x20 {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteByte(r)
		}
	}
	return b.String() + `"`
}

// Another method is 405 with Allow.
func TestMethod_UnknownIs405WithAllow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ method, below, allow string }{
		{http.MethodPost, "/schedules/k", "PUT"}, {http.MethodPatch, "/schedules/k", "DELETE"}, {http.MethodPut, "/schedules", "POST"},
		{http.MethodPatch, "/schedules", "GET"}, {http.MethodDelete, "", "POST"}, {http.MethodPut, "", "GET"}, {http.MethodOptions, "/schedules/k", "GET"},
		{"BREW", "/schedules/k", "GET"}, {http.MethodTrace, "/schedules", "GET"},
	} {
		r := plain.call(t, c.method, c.below, "")
		problem(t, r, http.StatusMethodNotAllowed, "method_not_allowed")
		if !slices.Contains(strings.Split(r.Header.Get("Allow"), ", "), c.allow) {
			t.Errorf("%s %s: Allow: %q", c.method, c.below, r.Header.Get("Allow"))
		}
	}
}

// An absent path is 404.
func TestPath_AbsentIs404(t *testing.T) {
	t.Parallel()
	problem(t, plain.call(t, http.MethodGet, "/schedules/absent", ""), http.StatusNotFound, "not_found")
	for _, path := range []string{"/tests/absent", "/tests/absent/schedules", "/tests/absent/schedules/k", "/absent/plain/schedules", "/", "/tests", "/tests/plain/other", "/tests/plain/schedules/a/b", "//tests/plain"} {
		r, err := harness.Do(t.Context(), http.MethodGet, shared.URL+path, "")
		if err != nil {
			t.Fatal(err)
		}
		problem(t, r, http.StatusNotFound, "not_found")
	}
	r, err := harness.Do(t.Context(), http.MethodPost, shared.URL+"/tests/absent", "{}", "Ce-Id", "1")
	if err != nil {
		t.Fatal(err)
	}
	problem(t, r, http.StatusNotFound, "not_found")
}

// DELETE is idempotent.
func TestDelete_IsIdempotent(t *testing.T) {
	t.Parallel()
	plain.cancel(t, "delete/never there")
	plain.put(t, "delete/k", `{"delay":"1h"}`)
	for range 2 {
		plain.cancel(t, "delete/k")
		if _, ok := plain.look(t, "delete/k"); ok {
			t.Error("the key is still there")
		}
	}
}

// Conditions are checked first.
func TestConditions_AreCheckedFirst(t *testing.T) {
	t.Parallel()
	const key = "conditions"
	put := func(status int, body string, headers ...string) {
		t.Helper()
		r := plain.call(t, http.MethodPut, "/schedules/"+key, body, headers...)
		if status >= 400 {
			problem(t, r, status, "precondition_failed")
		} else if r.Status != status {
			t.Errorf("%v: %d %s", headers, r.Status, r.Body)
		}
	}
	put(412, `{"delay":"1h"}`, "If-Match", `"1"`)
	put(412, `{"delay":"1h"}`, "If-Match", `*`)
	put(201, `{"delay":"1h"}`, "If-None-Match", `*`)
	put(412, `{"delay":"1h"}`, "If-None-Match", `*`)
	v := plain.get(t, key)
	tag, old := fmt.Sprintf(`"%d"`, v.Revision), fmt.Sprintf(`"%d"`, v.Revision-1)
	put(412, `{"delay":"1h"}`, "If-Match", old)
	put(412, `{"delay":"1h","policy":"fail"}`, "If-Match", old)
	put(412, `{"delay":"1h","uid":"another"}`, "If-Match", old)
	put(412, `{"delay":"1h"}`, "If-Match", "W/"+tag)
	if plain.get(t, key).Revision != v.Revision {
		t.Error("a missed condition changed the key")
	}
	put(200, `{"delay":"1h","policy":"keep"}`, "If-Match", tag)
	put(200, `{"delay":"1h"}`, "If-Match", old+", "+tag)
	put(412, `{"delay":"1h"}`, "If-Match", tag)
	put(200, `{"delay":"1h","uid":"u"}`, "If-Match", `*`)
	tag = fmt.Sprintf(`"%d"`, plain.get(t, key).Revision)

	del := func(status int, query string, headers ...string) {
		t.Helper()
		r := plain.call(t, http.MethodDelete, "/schedules/"+key+query, "", headers...)
		if status >= 400 {
			problem(t, r, status, "precondition_failed")
		} else if r.Status != status {
			t.Errorf("DELETE%s %v: %d %s", query, headers, r.Status, r.Body)
		}
	}
	del(412, "", "If-Match", old)
	del(412, "?uid=v")
	del(412, "?uid=v", "If-Match", tag)
	del(412, "?uid=u", "If-Match", old)
	plain.get(t, key)
	del(204, "?uid=u", "If-Match", tag)
	del(412, "", "If-Match", tag)
	del(412, "", "If-Match", "*")
	del(204, "?uid=u")
	del(204, "")
	for _, bad := range []string{"1", `"1`, ""} {
		r := plain.call(t, http.MethodPut, "/schedules/"+key, "", "If-Match", bad)
		if bad != "" && r.Status != http.StatusBadRequest {
			t.Errorf("If-Match %q: %d %s", bad, r.Status, r.Body)
		}
	}
}

// A revision is never reused for a key.
func TestRevision_IsNeverReused(t *testing.T) {
	t.Parallel()
	last := uint64(0)
	for i := range 20 {
		v := plain.put(t, "revisions", `{"delay":"1h"}`)
		if v.Revision <= last || v.Result != "created" {
			t.Errorf("after %d came %d (%s)", last, v.Revision, v.Result)
		}
		last = v.Revision
		if i%2 == 0 {
			plain.cancel(t, "revisions")
		} else if r := plain.call(t, http.MethodDelete, "/schedules?prefix=revisions", ""); string(r.Body) != "{\"deleted\":1}\n" {
			t.Errorf("%s", r.Body)
		}
	}
}

var bulk = declare("bulk", "")

// A bulk call accepts or refuses each item alone.
func TestBulk_ItemsAreIndependent(t *testing.T) {
	t.Parallel()
	bulk.put(t, "there", `{"delay":"1h"}`)
	body := `{"items":[
		{"key":"a","delay":"1h","reason":"r"},{"key":"there","delay":"2h"},{"key":"there","policy":"fail"},{"key":"","delay":"1h"},
		{"key":"twice","delay":"1h"},{"key":"twice","delay":"2h","policy":"earliest","reason":"later"},{"key":"twice","policy":"keep"},
		{"key":"b","delay":"-1s"},{"key":"c","unknown":1},{"delay":"1h"},{"key":"d","event":{"data":"` + strings.Repeat("x", 256<<10) + `"}},{"key":"e","delay":"1h"},
		{"key":"f","backoff":{"maxAttempts":1,"base":"1h"}},{"key":"f","backoff":{"maxAttempts":1}}]}`
	r := bulk.call(t, http.MethodPost, "/schedules", body)
	var v harness.Schedule
	if r.Into(t, &v); r.Status != http.StatusOK {
		t.Fatalf("%d %s", r.Status, r.Body)
	}
	type line struct {
		key    string
		status int
		what   string
	}
	want := []line{{"a", 201, "created"}, {"there", 200, "replaced"}, {"there", 409, "already_exists"}, {"", 400, "invalid_argument"},
		{"twice", 201, "created"}, {"twice", 200, "merged"}, {"twice", 200, "kept"}, {"b", 400, "invalid_argument"}, {"c", 400, "invalid_argument"},
		{"", 400, "invalid_argument"}, {"d", 413, "too_large"}, {"e", 201, "created"}, {"f", 201, "created"}, {"f", 409, "attempts_exhausted"}}
	if len(v.Items) != len(want) {
		t.Fatalf("%d items: %s", len(v.Items), r.Body)
	}
	for i, item := range v.Items {
		if got := (line{item.Key, item.Status, item.Result + item.Code}); got != want[i] {
			t.Errorf("item %d: %v, want %v", i, got, want[i])
		}
		if failed := item.Status >= 400; failed == (item.Detail == "") || failed == (item.Revision > 0) {
			t.Errorf("item %d: %+v", i, item)
		}
	}
	if g := bulk.get(t, "twice"); g.DueAt.Sub(g.ScheduledAt) > time.Hour || g.Reason != "later" || g.Revision != v.Items[5].Revision {
		t.Errorf("the same key twice is applied in order: %+v", g)
	}
}

// A bulk call takes a thousand items.
func TestBulk_Takes1000Items(t *testing.T) {
	t.Parallel()
	items := func(n int) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf(`{"key":"many/%04d","delay":"1h"}`, i)
		}
		return `{"items":[` + strings.Join(all, ",") + `]}`
	}
	var v harness.Schedule
	r := bulk.call(t, http.MethodPost, "/schedules", items(1000))
	if r.Into(t, &v); r.Status != http.StatusOK || len(v.Items) != 1000 {
		t.Errorf("1000: %d with %d items", r.Status, len(v.Items))
	}
	problem(t, bulk.call(t, http.MethodPost, "/schedules", items(1001)), http.StatusBadRequest, "invalid_argument")
	for _, body := range []string{`{"items":[{"key":"x"}],"more":1}`, `{"item":[]}`, `[]`, `{"items":{}}`, `{"items":[1]`, `{}`, ``} {
		if r := bulk.call(t, http.MethodPost, "/schedules", body); r.Status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", body, r.Status, r.Body)
		}
	}
	if _, ok := bulk.look(t, "x"); ok {
		t.Error("a refused bulk call took an item")
	}
	if r := bulk.call(t, http.MethodPost, "/schedules", `{"items":[]}`); r.Status != http.StatusOK || string(r.Body) != "{\"items\":[]}\n" {
		t.Errorf("no items: %d %s", r.Status, r.Body)
	}
	if r := bulk.call(t, http.MethodDelete, "/schedules?prefix=many%2F", ""); string(r.Body) != "{\"deleted\":1000}\n" {
		t.Errorf("%d %s", r.Status, r.Body)
	}
}

// A body over 16 MiB is 413.
func TestBody_Over16MiBIs413(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{{http.MethodPut, "/schedules/big"}, {http.MethodPost, "/schedules"}, {http.MethodPost, ""}} {
		r, err := harness.Do(t.Context(), c[0], plain.url()+c[1], strings.Repeat(" ", 17<<20), "Ce-Id", "1", "Ce-Type", "t", "Ce-Source", "/s", "Ce-Specversion", "1.0")
		if err != nil {
			t.Errorf("%v: %v", c, err)
			continue
		}
		problem(t, r, http.StatusRequestEntityTooLarge, "too_large")
	}
}

// An event may have 256 KiB of decoded data.
func TestEvent_MayHave256KiBOfData(t *testing.T) {
	t.Parallel()
	const key = "data/most"
	plain.put(t, key, `{"delay":"1h","event":{"datacontenttype":"text/plain","data":"`+strings.Repeat("x", 256<<10)+`"}}`)
	plain.put(t, key, `{"delay":"1h","event":{"data_base64":"`+strings.Repeat("QUFB", 256<<10/3)+`"}}`)
	for _, data := range []string{`"datacontenttype":"text/plain","data":"` + strings.Repeat("x", 256<<10+1) + `"`, `"data_base64":"` + strings.Repeat("QUFB", 256<<10/3+1) + `"`} {
		problem(t, plain.call(t, http.MethodPut, "/schedules/data%2Fmost", `{"event":{`+data+`}}`), http.StatusRequestEntityTooLarge, "too_large")
	}
}

// An event may have 8 KiB of attributes, names and values, as they are percent-encoded: it is stored, read back and
// delivered. A byte more is refused.
func TestEvent_MayHave8KiBOfAttributes(t *testing.T) {
	t.Parallel()
	many := map[string]any{}
	for i := range 320 {
		many[fmt.Sprintf("many%03d", i)] = "fourteen-bytes"
	}
	for name, event := range map[string]map[string]any{
		"one":       {"x": strings.Repeat("x", 8<<10-1)},
		"not ASCII": {"x": strings.Repeat("é", (8<<10-1)/6) + strings.Repeat("x", (8<<10-1)%6)},
		"all kinds": {"type": strings.Repeat("t", 2000), "subject": strings.Repeat("s", 2000), "dataschema": "https:" + strings.Repeat("d", 1994), "x": strings.Repeat("x", 8<<10-6000-len("typesubjectdataschemax"))},
		"many":      many,
	} {
		key := "attributes/" + name
		body := func() string { b, _ := json.Marshal(map[string]any{"delay": "1h", "event": event}); return string(b) }
		plain.put(t, key, body())
		if got := plain.get(t, key).Event; !reflect.DeepEqual(got, event) {
			t.Errorf("%s: read back as %v", name, got)
		}
		plain.call(t, http.MethodPost, harness.KeyPath(key)+"/run", "")
		d := plain.next(t, key)
		for attribute, want := range event {
			if d.Attr(attribute) != want {
				t.Errorf("%s: delivered with %s %q", name, attribute, d.Attr(attribute))
			}
		}
		if last, ok := event["x"]; ok {
			event["x"] = last.(string) + "x"
			problem(t, plain.call(t, http.MethodPut, harness.KeyPath(key), body()), http.StatusBadRequest, "invalid_argument")
		}
	}
	most := strings.Repeat("x", 8<<10-len("id1typetsource/ssubjectattributes/camedatacontenttypeapplication/jsonx"))
	plain.ingest(t, "Ce-Subject", "attributes/came", "Ce-X", most)
	if d := plain.next(t, "attributes/came"); d.Attr("x") != most {
		t.Errorf("delivered with %q", d.Attr("x"))
	}
	problem(t, plain.send(t, "Ce-Subject", "attributes/came", "Ce-X", most+"x"), http.StatusBadRequest, "invalid_argument")
}
