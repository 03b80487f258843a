package blackbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// A PUT creates, then replaces, and shows the key.
func TestPut_CreatesReplacesAndShows(t *testing.T) {
	t.Parallel()
	const key = "put/shows"
	body := `{"delay":"1h","reason":"because","uid":"u-1","maxInterval":"PT10H","expiresAt":"2100-01-01T00:00:00Z",
		"event":{"type":"dev.example.sync","subject":"s","data":{"a":[1,2.50,"x"]},"ext":"e","flag":true,"n":-7}}`
	before := time.Now()
	v := plain.put(t, key, body)
	if v.Result != "created" || v.State != "waiting" || v.Key != key || v.Attempt == nil || *v.Attempt != 0 ||
		v.InFlight == nil || *v.InFlight || v.UID != "u-1" || v.Reason != "because" || v.MaxInterval != "10h0m0s" ||
		!v.ExpiresAt.Equal(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)) || !v.PreviousDueAt.IsZero() {
		t.Errorf("%+v", v)
	}
	if v.ScheduledAt.Before(before) || v.ScheduledAt.After(time.Now()) || !v.DueAt.Equal(v.ScheduledAt.Add(time.Hour)) {
		t.Errorf("scheduled at %s, due at %s", v.ScheduledAt, v.DueAt)
	}
	want := `{"data":{"a":[1,2.5,"x"]},"ext":"e","flag":true,"n":-7,"subject":"s","type":"dev.example.sync"}`
	if got, _ := json.Marshal(v.Event); string(got) != want {
		t.Errorf("event %s, want %s", got, want)
	}
	g := plain.get(t, key)
	if g.Result != "" {
		t.Errorf("GET has a result: %q", g.Result)
	}
	v.Result = ""
	if a, b := fmt.Sprintf("%+v", deref(v)), fmt.Sprintf("%+v", deref(g)); a != b {
		t.Errorf("GET shows\n%s\nwhat PUT showed as\n%s", b, a)
	}

	w := plain.put(t, key, `{"delay":"2h"}`)
	if w.Result != "replaced" || !w.PreviousDueAt.Equal(v.DueAt) || w.Revision <= v.Revision {
		t.Errorf("replaced: %+v", w)
	}
	if w.Reason != "" || w.UID != "" || w.MaxInterval != "" || !w.ExpiresAt.IsZero() {
		t.Errorf("with replace the body is the whole new occurrence: %+v", w)
	}
	if got, _ := json.Marshal(w.Event); string(got) != want {
		t.Errorf("the key keeps the event it has: %s", got)
	}
}

func deref(v harness.Schedule) any {
	return struct {
		harness.Schedule
		A int
		F bool
	}{func() harness.Schedule { c := v; c.Attempt, c.InFlight = nil, nil; return c }(), *v.Attempt, *v.InFlight}
}

// A PUT without a body, or with nulls, is an empty one.
func TestPut_NoBodyAndNullsAreEmpty(t *testing.T) {
	t.Parallel()
	for i, body := range []string{"", "{}", " \n", `{"delay":null,"dueAt":null,"backoff":null,"policy":null,"jitter":null,"event":null,"maxInterval":null,"expiresAt":null,"uid":null,"reason":null}`,
		`{"event":{"type":null,"data":null,"ext":null,"subject":null}}`} {
		key := fmt.Sprint("put/empty", i)
		v := plain.put(t, key, body)
		if v.Result != "created" || !v.DueAt.Equal(v.ScheduledAt) {
			t.Errorf("%q: %+v", body, v)
		}
		plain.next(t, key)
	}
	if v := plain.put(t, "put/null backoff", `{"backoff":{"base":null,"factor":null,"cap":null,"maxAttempts":null}}`); v.DueAt.Sub(v.ScheduledAt) != time.Second {
		t.Errorf("a back-off of nulls is one of defaults: %+v", v)
	}
	if r := plain.call(t, http.MethodPut, "/schedules/put%2Fbare", "", "Content-Type", ""); r.Status != http.StatusCreated {
		t.Errorf("no body and no type: %d %s", r.Status, r.Body)
	}
}

// Delays and due times are read as the contract says.
func TestPut_DelaysAndDueTimes(t *testing.T) {
	t.Parallel()
	for field, want := range map[string]time.Duration{
		`"delay":3600`: time.Hour, `"delay":3600.5`: time.Hour + 500*time.Millisecond, `"delay":"1h30m"`: 90 * time.Minute,
		`"delay":"PT1H30M"`: 90 * time.Minute, `"delay":"P1W"`: 7 * 24 * time.Hour, `"delay":"P1DT12H"`: 36 * time.Hour,
		`"delay":"PT3600.25S"`: time.Hour + 250*time.Millisecond, `"delay":"1.5h"`: 90 * time.Minute, `"delay":"3600s1ns"`: time.Hour + 1,
		`"delay":3.6e3`: time.Hour, `"delay":"P36500D"`: 36500 * 24 * time.Hour, `"delay":"PT0.5H"`: 30 * time.Minute,
		`"delay":3600.0000000001`: time.Hour + 1, // finer than the clock: up
	} {
		if v := plain.put(t, "put/delays", "{"+field+"}"); v.DueAt.Sub(v.ScheduledAt) != want {
			t.Errorf("%s: due after %s, want %s", field, v.DueAt.Sub(v.ScheduledAt), want)
		}
	}
	for field, want := range map[string]string{
		`"dueAt":"2090-01-02T03:04:05.123456789Z"`: "2090-01-02T03:04:05.123456789Z", `"dueAt":"2090-01-02T03:04:05+02:00"`: "2090-01-02T01:04:05Z",
		`"dueAt":"2090-01-02T03:04:05.1234567891Z"`: "2090-01-02T03:04:05.12345679Z",
	} {
		if v := plain.put(t, "put/delays", "{"+field+"}"); v.DueAt.Format(time.RFC3339Nano) != want {
			t.Errorf("%s: due at %s, want %s", field, v.DueAt.Format(time.RFC3339Nano), want)
		}
	}
	if v := plain.put(t, "put/past", `{"dueAt":"2001-01-01T00:00:00Z"}`); !v.DueAt.Equal(v.ScheduledAt) {
		t.Errorf("in the past: due at %s, accepted at %s", v.DueAt, v.ScheduledAt)
	}
}

// A bad PUT is 400 and names the field.
func TestPut_BadIs400AndNamesTheField(t *testing.T) {
	t.Parallel()
	const key = "put/bad"
	before := plain.put(t, key, `{"delay":"1h"}`)
	for body, field := range map[string]string{
		`{"delay":"5"}`: "delay", `{"delay":""}`: "delay", `{"delay":-1}`: "delay", `{"delay":"-1s"}`: "delay", `{"delay":"P1Y"}`: "delay",
		`{"delay":"P1M"}`: "delay", `{"delay":"soon"}`: "delay", `{"delay":"P"}`: "delay", `{"delay":"PT"}`: "delay", `{"delay":true}`: "delay",
		`{"delay":"1000000h"}`: "delay", `{"delay":1e300}`: "delay", `{"delay":[]}`: "delay",
		`{"dueAt":"tomorrow"}`: "dueAt", `{"dueAt":5}`: "dueAt", `{"dueAt":"2990-01-01T00:00:00Z"}`: "dueAt", `{"dueAt":"2026-11-21 09:00:00Z"}`: "dueAt",
		`{"dueAt":"2026-11-21T09:00:00"}`:               "dueAt",
		`{"delay":"1s","dueAt":"2090-01-01T00:00:00Z"}`: "dueAt",
		`{"delay":"1s","backoff":{}}`:                   "backoff", `{"dueAt":"2090-01-01T00:00:00Z","backoff":{}}`: "backoff",
		`{"backoff":{"base":-1}}`: "backoff", `{"backoff":{"base":5}}`: "backoff.base", `{"backoff":{"cap":5}}`: "backoff.cap", `{"backoff":{"base":"-1s"}}`: "backoff.base", `{"backoff":{"factor":0.5}}`: "backoff.factor",
		`{"backoff":{"cap":"x"}}`: "backoff.cap", `{"backoff":{"maxAttempts":-1}}`: "backoff.maxAttempts", `{"backoff":{"maxAttempts":1.5}}`: "backoff.maxAttempts",
		`{"backoff":{"more":1}}`: "more", `{"backoff":3}`: "backoff",
		`{"policy":"newest"}`: "policy", `{"policy":1}`: "policy", `{"jitter":1.1}`: "jitter", `{"jitter":-0.1}`: "jitter", `{"jitter":"1"}`: "jitter",
		`{"event":{"id":"1"}}`: "event.id", `{"event":{"source":"/x"}}`: "event.source", `{"event":{"specversion":"1.0"}}`: "event.specversion",
		`{"event":{"time":"2026-11-21T09:00:00Z"}}`: "event.time", `{"event":{"data":1,"data_base64":"AA=="}}`: "data", `{"event":{"data_base64":"?"}}`: "data_base64",
		`{"event":{"Upper":"x"}}`: "Upper", `{"event":{"a-b":"x"}}`: "a-b", `{"event":{"ext":{}}}`: "ext", `{"event":"x"}`: "event",
		`{"maxInterval":5}`: "maxInterval", `{"maxInterval":"P1Y"}`: "maxInterval", `{"expiresAt":"x"}`: "expiresAt",
		`{"uid":5}`: "uid", `{"reason":5}`: "reason", `{"when":"now"}`: "when", `{"key":"x"}`: "key", `{"Delay":"1s"}`: "Delay", `{"delay":"1s","delay":"2s"}`: "delay",
		`[]`: "", `"x"`: "", `{`: "", `{} {}`: "", `{"delay":"1s"}x`: "", "\xff": "", `{"delay":01}`: "",
	} {
		r := plain.call(t, http.MethodPut, harness.KeyPath(key), body)
		problem(t, r, http.StatusBadRequest, "invalid_argument")
		if !strings.Contains(string(r.Body), field) {
			t.Errorf("%s: the answer does not name %q: %s", body, field, r.Body)
		}
	}
	if after := plain.get(t, key); after.Revision != before.Revision {
		t.Error("a refused PUT changed the key")
	}
}

// A PUT of another type is 415.
func TestPut_OtherTypeIs415(t *testing.T) {
	t.Parallel()
	for _, ct := range []string{"text/plain", "application/xml", "application/x-www-form-urlencoded"} {
		problem(t, plain.call(t, http.MethodPut, "/schedules/put%2Ftype", `{"delay":"1h"}`, "Content-Type", ct), http.StatusUnsupportedMediaType, "unsupported_media_type")
	}
	problem(t, plain.call(t, http.MethodPut, "/schedules/put%2Ftype", `{"delay":"1h"}`, "Content-Encoding", "gzip"), http.StatusUnsupportedMediaType, "unsupported_media_type")
	for _, ct := range []string{"application/json", "application/json; charset=utf-8", "Application/JSON"} {
		plain.put(t, "put/type", `{"delay":"1h"}`, "Content-Type", ct)
	}
}

// The policy decides about the time of a waiting key.
func TestPolicy_DecidesAboutAWaitingKey(t *testing.T) {
	t.Parallel()
	const first, soon, late = "2090-01-02T00:00:00Z", "2090-01-01T00:00:00Z", "2090-01-03T00:00:00Z"
	for _, c := range []struct{ policy, at, result, due, event string }{
		{"replace", soon, "replaced", soon, "new"}, {"replace", late, "replaced", late, "new"},
		{"earliest", soon, "replaced", soon, "new"}, {"earliest", late, "merged", first, "new"},
		{"latest", soon, "merged", first, "new"}, {"latest", late, "replaced", late, "new"},
		{"earliest", first, "merged", first, "new"}, {"latest", first, "merged", first, "new"},
		{"keep", soon, "kept", first, "old"}, {"keep", late, "kept", first, "old"},
		{"fail", soon, "", first, "old"}, {"fail", late, "", first, "old"},
	} {
		key := "policy/" + c.policy + c.at
		v := plain.put(t, key, `{"dueAt":"`+first+`","event":{"type":"old"},"reason":"r","uid":"u","maxInterval":"1h","expiresAt":"2095-01-01T00:00:00Z","policy":"`+c.policy+`"}`)
		r := plain.call(t, http.MethodPut, harness.KeyPath(key), `{"dueAt":"`+c.at+`","event":{"type":"new"},"policy":"`+c.policy+`"}`)
		if c.policy == "fail" {
			problem(t, r, http.StatusConflict, "already_exists")
		} else {
			var w harness.Schedule
			previous := v.DueAt
			if c.result == "kept" { // nothing changed
				previous = time.Time{}
			}
			if r.Into(t, &w); r.Status != http.StatusOK || w.Result != c.result || !w.PreviousDueAt.Equal(previous) {
				t.Errorf("%s to %s: %d %s", c.policy, c.at, r.Status, r.Body)
			}
		}
		g := plain.get(t, key)
		if g.PreviousDueAt.IsZero() != (c.event == "old") || !g.PreviousDueAt.IsZero() && !g.PreviousDueAt.Equal(v.DueAt) {
			t.Errorf("%s to %s: GET shows previousDueAt %s, want none or %s", c.policy, c.at, g.PreviousDueAt, v.DueAt)
		}
		if g.DueAt.Format(time.RFC3339) != c.due || g.Event["type"] != c.event {
			t.Errorf("%s to %s: due at %s with %v", c.policy, c.at, g.DueAt, g.Event)
		}
		if unchanged := c.event == "old"; unchanged != (g.Revision == v.Revision) || g.Revision < v.Revision {
			t.Errorf("%s to %s: revision %d after %d", c.policy, c.at, g.Revision, v.Revision)
		}
		// With the other policies every absent field stays as it was.
		if kept := c.policy != "replace"; kept != (g.Reason == "r" && g.UID == "u" && g.MaxInterval == "1h0m0s" && !g.ExpiresAt.IsZero()) {
			t.Errorf("%s to %s: %+v", c.policy, c.at, g)
		}
	}
}

var latest = declare("latest", "delay: 1h\nconflictPolicy: latest\nmaxInterval: 3h")

// The policy and the delay of the source hold where a request names none.
func TestPolicy_DefaultsOfTheSource(t *testing.T) {
	t.Parallel()
	v := latest.put(t, "k", "")
	if v.DueAt.Sub(v.ScheduledAt) != time.Hour {
		t.Errorf("due after %s", v.DueAt.Sub(v.ScheduledAt))
	}
	if w := latest.put(t, "k", `{"delay":"1s"}`); w.Result != "merged" || !w.DueAt.Equal(v.DueAt) {
		t.Errorf("%+v", w)
	}
}

// Jitter adds up to its share and never subtracts.
func TestJitter_AddsAndNeverSubtracts(t *testing.T) {
	t.Parallel()
	seen := map[time.Duration]bool{}
	for range 50 {
		v := plain.put(t, "put/jitter", `{"delay":"100s","jitter":0.5}`)
		d := v.DueAt.Sub(v.ScheduledAt)
		if d < 100*time.Second || d > 150*time.Second {
			t.Errorf("due after %s", d)
		}
		seen[d] = true
	}
	if len(seen) < 10 {
		t.Errorf("%d different waits in 50", len(seen))
	}
	if v := plain.put(t, "put/jitter", `{"delay":"100s","jitter":0}`); v.DueAt.Sub(v.ScheduledAt) != 100*time.Second {
		t.Errorf("without jitter: %+v", v)
	}
}

// The backoff grows with the attempts that the server counts.
func TestBackoff_GrowsWithTheAttempts(t *testing.T) {
	t.Parallel()
	const key = "backoff/grows"
	for i, want := range []time.Duration{10 * time.Second, 30 * time.Second, 90 * time.Second, 100 * time.Second, 100 * time.Second} {
		v := plain.put(t, key, `{"backoff":{"base":"10s","factor":3,"cap":"100s"}}`)
		if *v.Attempt != i+1 || v.DueAt.Sub(v.ScheduledAt) != want {
			t.Errorf("call %d: attempt %d after %s, want %s", i+1, *v.Attempt, v.DueAt.Sub(v.ScheduledAt), want)
		}
	}
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000} {
		if v := plain.put(t, "backoff/defaults", `{"backoff":{}}`); *v.Attempt != i+1 || v.DueAt.Sub(v.ScheduledAt) != want*time.Second {
			t.Errorf("defaults, call %d: attempt %d after %s", i+1, *v.Attempt, v.DueAt.Sub(v.ScheduledAt))
		}
	}
	if v := plain.put(t, key, `{"delay":"1h"}`); *v.Attempt != 0 {
		t.Errorf("a PUT with a time sets the counter to 0, not to %d", *v.Attempt)
	}
}

// The call after maxAttempts is 409, unless there is a maxInterval.
func TestBackoff_AfterMaxAttemptsIs409(t *testing.T) {
	t.Parallel()
	const body = `{"backoff":{"base":"1h","maxAttempts":2}}`
	for range 2 {
		plain.put(t, "backoff/most", body)
	}
	before := plain.get(t, "backoff/most")
	problem(t, plain.call(t, http.MethodPut, "/schedules/backoff%2Fmost", body), http.StatusConflict, "attempts_exhausted")
	if after := plain.get(t, "backoff/most"); after.Revision != before.Revision || *after.Attempt != 2 || !after.DueAt.Equal(before.DueAt) {
		t.Errorf("something changed: %+v", after)
	}
	for range 2 {
		latest.put(t, "backoff/most", body)
	}
	if v := latest.put(t, "backoff/most", `{"policy":"replace",`+body[1:]); v.DueAt.Sub(v.ScheduledAt) != 3*time.Hour || *v.Attempt != 0 {
		t.Errorf("the source's maxInterval sets the time: %+v", v)
	}
	for range 2 {
		plain.put(t, "backoff/own", `{"maxInterval":"5h",`+body[1:])
	}
	if v := plain.put(t, "backoff/own", `{"maxInterval":"5h",`+body[1:]); v.DueAt.Sub(v.ScheduledAt) != 5*time.Hour {
		t.Errorf("the key's maxInterval sets the time: %+v", v)
	}
}

// Another uid replaces, whatever the policy.
func TestUID_OtherReplacesInEveryPolicy(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"replace", "earliest", "latest", "keep", "fail"} {
		key := "uid/" + policy
		for range 3 {
			plain.put(t, key, `{"backoff":{"base":"9s"},"uid":"one","reason":"r"}`)
		}
		v := plain.put(t, key, `{"delay":"30m","uid":"two","policy":"`+policy+`"}`)
		if v.UID != "two" || v.DueAt.Sub(v.ScheduledAt) != 30*time.Minute || *v.Attempt != 0 || v.Result != "replaced" || v.Reason != "" {
			t.Errorf("%s: %+v", policy, v)
		}
		w := plain.put(t, key, `{"backoff":{"base":"9s"},"uid":"three","policy":"`+policy+`"}`)
		if *w.Attempt != 1 || w.DueAt.Sub(w.ScheduledAt) != 9*time.Second {
			t.Errorf("%s: a new uid's counter starts anew: %+v", policy, w)
		}
	}
}
