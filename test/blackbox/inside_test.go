package blackbox

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

var (
	inside  = declare("inside", "")
	short   = declare("short", "deadLetters: {maxAge: 1s}")
	warmed  = declare("warmed", "warmUp: 1s")
	follows = declare("follows", "")
)

// decoded is the answer of a call that succeeds.
func (s *source) decoded(t *testing.T, method, below string) map[string]any {
	t.Helper()
	r := s.call(t, method, below, "")
	if r.Status != http.StatusOK {
		t.Fatalf("%s %s: %d %s", method, below, r.Status, r.Body)
	}
	var v map[string]any
	r.Into(t, &v)
	return v
}

// listedKeys are the keys of a list.
func listedKeys(v map[string]any) string {
	var keys []string
	for _, item := range v["items"].([]any) {
		keys = append(keys, item.(map[string]any)["key"].(string))
	}
	return strings.Join(keys, " ")
}

// A key between two attempts shows when and why, also in its history, and run ends the
// wait.
func TestInside_RetryingKeyIsRun(t *testing.T) {
	t.Parallel()
	inside.answer("inside/r", func(w http.ResponseWriter, _ *http.Request, _ *harness.Delivery) {
		w.Header().Set("Retry-After", "900")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, strings.Repeat("x", 3000))
	})
	put := inside.put(t, "inside/r", `{"uid":"u","reason":"why","event":{"type":"x"}}`)
	inside.next(t, "inside/r")
	inside.settled(t, "inside/r")
	inside.put(t, "inside/w", `{"delay":"1h"}`)
	for state, want := range map[string]string{"waiting": "inside/w", "due": "inside/r", "retrying": "inside/r", "inFlight": ""} {
		for _, order := range []string{"key", "due"} {
			if got := listedKeys(inside.decoded(t, "GET", "/schedules?prefix=inside/&state="+state+"&order="+order)); got != want {
				t.Errorf("state %s by %s: %s", state, order, got)
			}
		}
	}
	problem(t, inside.call(t, "GET", "/schedules?state=late", ""), http.StatusBadRequest, "invalid_argument")
	v := inside.decoded(t, "GET", harness.KeyPath("inside/r"))
	failure, _ := v["lastFailure"].(map[string]any)
	next, err := time.Parse(time.RFC3339Nano, fmt.Sprint(v["nextAttemptAt"]))
	if v["tries"] != 1.0 || failure["status"] != 503.0 || failure["detail"] != strings.Repeat("x", 1024) || err != nil || time.Until(next) < 10*time.Minute {
		t.Errorf("%v", v)
	}
	if c := inside.decoded(t, "GET", ""); c["retrying"] != 1.0 || c["deadLetters"] != 0.0 {
		t.Errorf("%v", c)
	}
	inside.answer("inside/r", harness.Status(204))
	problem(t, inside.call(t, "POST", "/schedules/absent/run", ""), http.StatusNotFound, "not_found")
	before := time.Now()
	v = inside.decoded(t, "POST", harness.KeyPath("inside/r")+"/run")
	due, err := time.Parse(time.RFC3339Nano, fmt.Sprint(v["dueAt"]))
	if err != nil || due.Before(before.Add(-time.Second)) || v["attempt"] != 1.0 || v["uid"] != "u" || v["reason"] != "why" || v["revision"].(float64) <= float64(put.Revision) {
		t.Errorf("%v", v)
	}
	if d := inside.next(t, "inside/r"); d.Attempt != 1 || d.Attr("type") != "x" {
		t.Errorf("%v", d.Attributes)
	}
	inside.gone(t, "inside/r")
	h := inside.decoded(t, "GET", harness.KeyPath("inside/r")+"/history")
	items := h["items"].([]any)
	if len(items) != 2 || items[0].(map[string]any)["result"] != "delivered" || items[0].(map[string]any)["status"] != 204.0 || items[1].(map[string]any)["status"] != 503.0 || h["since"] == "" {
		t.Errorf("%v", h)
	}
}

// A key that is run during its delivery comes up once more.
func TestRun_InFlightComesUpOnceMore(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	inside.answer("inside/f", func(w http.ResponseWriter, _ *http.Request, _ *harness.Delivery) {
		<-release
		w.WriteHeader(http.StatusNoContent)
	})
	inside.put(t, "inside/f", `{}`)
	first := inside.next(t, "inside/f")
	v := inside.decoded(t, "POST", harness.KeyPath("inside/f")+"/run")
	if v["inFlight"] != true {
		t.Errorf("%v", v)
	}
	close(release)
	if d := inside.next(t, "inside/f"); d.Attr("id") == first.Attr("id") {
		t.Errorf("it is not a new occurrence: %v", d.Attributes)
	}
	inside.gone(t, "inside/f")
}

// What is refused is kept, the newest of a source; it survives a restart and is redriven.
func TestDeadLetters_KeptAndRedriven(t *testing.T) {
	t.Parallel()
	keep := &source{name: "keepers", spec: "deadLetters: {keep: 3, maxAge: 168h}"}
	o := alone(t, nil, keep)
	refuse := func(w http.ResponseWriter, _ *http.Request, _ *harness.Delivery) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, "no such thing")
	}
	for _, key := range []string{"a", "b/1", "b/2", "b/3"} {
		keep.answer(key, refuse)
		keep.put(t, key, `{"event":{"type":"x","data":{"k":"`+key+`"}}}`)
		keep.next(t, key)
		keep.gone(t, key)
	}
	if got := listedKeys(keep.decoded(t, "GET", "/deadletters")); got != "b/1 b/2 b/3" {
		t.Errorf("kept are %s", got)
	}
	if got := keep.decoded(t, "GET", "/deadletters?limit=1&prefix=b"); listedKeys(got) != "b/1" || got["continue"] == "" {
		t.Errorf("%v", got)
	}
	// An outcome is on the disk with the next acknowledged change. Without one, the key may be delivered again after the kill.
	keep.put(t, "durable", `{"delay":"24h"}`)
	if r := keep.call(t, http.MethodDelete, harness.KeyPath("durable"), ""); r.Status != http.StatusOK && r.Status != http.StatusNoContent {
		t.Fatalf("DELETE: %d %s", r.Status, r.Body)
	}
	o.Kill()
	o.Adapter = harness.Start(t, harness.Flags(o.file, filepath.Join(o.dir, "data"))...)
	l := keep.decoded(t, "GET", "/deadletters/b%2F1")
	if l["key"] != "b/1" || l["attempts"] != 1.0 || l["status"] != 400.0 || l["detail"] != "no such thing" || l["event"].(map[string]any)["type"] != "x" {
		t.Errorf("%v", l)
	}
	if c := keep.decoded(t, "GET", ""); c["deadLetters"] != 3.0 || c["pending"] != 0.0 || c["nextDueAt"] != nil {
		t.Errorf("%v", c)
	}
	problem(t, keep.call(t, "POST", "/deadletters/absent/redrive", ""), http.StatusNotFound, "not_found")
	problem(t, keep.call(t, "GET", "/deadletters/absent", ""), http.StatusNotFound, "not_found")
	problem(t, keep.call(t, "POST", "/deadletters/redrive", ""), http.StatusBadRequest, "invalid_argument")
	problem(t, keep.call(t, "DELETE", "/deadletters", ""), http.StatusBadRequest, "invalid_argument")
	for range 2 {
		if r := keep.call(t, "DELETE", "/deadletters/b%2F3", ""); r.Status != http.StatusNoContent {
			t.Errorf("DELETE: %d %s", r.Status, r.Body)
		}
	}
	keep.answer("b/1", harness.Status(204))
	keep.answer("b/2", harness.Status(204))
	if v := keep.decoded(t, "POST", "/deadletters/b%2F1/redrive"); v["redriven"] != 1.0 {
		t.Errorf("%v", v)
	}
	if d := keep.next(t, "b/1"); d.Attempt != 0 || d.Attr("type") != "x" {
		t.Errorf("%v", d.Attributes)
	}
	keep.put(t, "b/2", `{"event":{"type":"newer"},"delay":"1h"}`)
	problem(t, keep.call(t, "POST", "/deadletters/b%2F2/redrive", ""), http.StatusConflict, "already_exists")
	if v := keep.decoded(t, "POST", "/deadletters/redrive?all=true"); v["redriven"] != 0.0 || v["skipped"] != 1.0 || listedKeys(keep.decoded(t, "GET", "/deadletters")) != "b/2" {
		t.Errorf("%v", v)
	}
	problem(t, keep.call(t, "POST", "/deadletters/redrive?all=true&replace=yes", ""), http.StatusBadRequest, "invalid_argument")
	if v := keep.decoded(t, "POST", "/deadletters/redrive?all=true&replace=true"); v["redriven"] != 1.0 || v["skipped"] != 0.0 {
		t.Errorf("%v", v)
	}
	if d := keep.next(t, "b/2"); d.Attr("type") != "x" {
		t.Errorf("%v", d.Attributes)
	}
	if v := keep.decoded(t, "DELETE", "/deadletters?prefix=b"); v["deleted"] != 0.0 {
		t.Errorf("%v", v)
	}
}

// A dead letter is gone within 5 s of its age.
func TestDeadLetters_GoneAfterTheirAge(t *testing.T) {
	t.Parallel()
	short.answer("k", harness.Status(400))
	short.put(t, "k", `{}`)
	short.next(t, "k")
	eventually(t, "the dead letter is gone", func() bool {
		return short.counts(t).Pending == 0 && listedKeys(short.decoded(t, "GET", "/deadletters")) == "" && short.decoded(t, "GET", "")["deadLetters"] == 0.0
	})
}

// A sink that may sleep gets one GET before the due time.
func TestWarmUp_CallsTheSinkOnce(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	warmed.put(t, "k", `{"delay":"3s"}`)
	d := warmed.next(t, "k")
	metrics, err := harness.Do(t.Context(), "GET", shared.Admin+"/metrics", "")
	if err != nil || !strings.Contains(string(metrics.Body), `reschedule_warm_ups_total{kn_source_name="warmed"`) {
		t.Errorf("no warm-up is counted: %v", err)
	}
	if d.At.Sub(begin) < 3*time.Second || sink.WarmUps(warmed.name) != 1 {
		t.Errorf("delivered after %s, woken %d times", d.At.Sub(begin), sink.WarmUps(warmed.name))
	}
}

// live is a stream of events.
type live struct {
	t     *testing.T
	lines *bufio.Scanner
	id    string
}

// follow opens a stream.
func (s *source) follow(t *testing.T, last string) (*live, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url()+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	resp, err := (&http.Client{}).Do(r)
	if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%v %v", resp, err)
	}
	return &live{t: t, lines: bufio.NewScanner(resp.Body)}, func() { cancel(); _ = resp.Body.Close() }
}

// next is the next event: its kind, its key and its result.
func (l *live) next() string {
	l.t.Helper()
	kind := ""
	for l.lines.Scan() {
		name, value, _ := strings.Cut(l.lines.Text(), ": ")
		switch name {
		case "id":
			l.id = value
		case "event":
			kind = value
		case "data":
			var v struct{ Key, Result string }
			if err := json.Unmarshal([]byte(value), &v); err != nil {
				l.t.Fatal(err)
			}
			return strings.TrimSpace(kind + " " + v.Key + " " + v.Result)
		}
	}
	l.t.Fatalf("the stream ended: %v", l.lines.Err())
	return ""
}

// Events come as they happen, and go on behind the last one that was received.
func TestEvents_ComeAndGoOn(t *testing.T) {
	t.Parallel()
	l, end := follows.follow(t, "")
	if !l.lines.Scan() || !strings.HasPrefix(l.lines.Text(), ":") {
		t.Fatalf("at first %q", l.lines.Text())
	}
	follows.put(t, "k", `{}`)
	for _, want := range []string{"scheduled k", "started k", "outcome k delivered"} {
		if got := l.next(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if want == "started k" {
			defer func(id string) {
				again, end := follows.follow(t, id)
				defer end()
				for _, want := range []string{"outcome k delivered", "scheduled l"} {
					if got := again.next(); got != want {
						t.Errorf("after the break %q, want %q", got, want)
					}
				}
			}(l.id)
		}
	}
	end()
	follows.put(t, "l", `{"delay":"1h"}`)
	problem(t, follows.call(t, "POST", "/events", ""), http.StatusMethodNotAllowed, "method_not_allowed")
}

// A follower does not hold up the end of the adapter.
func TestEvents_EndWithTheAdapter(t *testing.T) {
	t.Parallel()
	s := &source{name: "follows"}
	o := alone(t, nil, s)
	l, end := s.follow(t, "")
	defer end()
	l.lines.Scan()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	status, _, err := o.Terminate(ctx)
	if err != nil || status != 0 || time.Since(began) > 1500*time.Millisecond {
		t.Errorf("it ended with %d %v after %s", status, err, time.Since(began))
	}
	for l.lines.Scan() {
	}
}
