package blackbox

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

var (
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

// What is refused is kept, the newest of a source; it survives kill -9 and is redriven.
func TestDeadLetters_KeptAndRedriven(t *testing.T) {
	t.Parallel()
	keep := &source{name: "keepers", spec: "deadLetters: {keep: 2, maxAge: 168h}"}
	o := alone(t, nil, keep)
	for _, key := range []string{"a", "b/1", "b/2"} {
		keep.answer(key, func(w http.ResponseWriter, _ *http.Request, _ *harness.Delivery) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, "no such thing")
		})
		keep.put(t, key, `{"event":{"type":"x"}}`)
		keep.next(t, key)
		keep.gone(t, key)
	}
	// An outcome is on the disk with the next acknowledged change. Without one, the key may be delivered again after the kill.
	keep.put(t, "durable", `{"delay":"24h"}`)
	keep.cancel(t, "durable")
	o.Kill()
	o.restart(t)
	if got := listedKeys(keep.decoded(t, "GET", "/deadletters")); got != "b/1 b/2" {
		t.Errorf("kept are %s", got)
	}
	l := keep.decoded(t, "GET", "/deadletters/b%2F1")
	if l["key"] != "b/1" || l["attempts"] != 1.0 || l["status"] != 400.0 || l["detail"] != "no such thing" || l["event"].(map[string]any)["type"] != "x" {
		t.Errorf("%v", l)
	}
	keep.answer("b/1", harness.Status(204))
	if v := keep.decoded(t, "POST", "/deadletters/b%2F1/redrive"); v["redriven"] != 1.0 {
		t.Errorf("%v", v)
	}
	if d := keep.next(t, "b/1"); d.Attempt != 0 || d.Attr("type") != "x" {
		t.Errorf("%v", d.Attributes)
	}
	keep.put(t, "b/2", `{"event":{"type":"newer"},"delay":"1h"}`)
	problem(t, keep.call(t, "POST", "/deadletters/b%2F2/redrive", ""), http.StatusConflict, "already_exists")
	if v := keep.decoded(t, "DELETE", "/deadletters?prefix=b"); v["deleted"] != 1.0 {
		t.Errorf("%v", v)
	}
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
	must(t, err)
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

var patient = declare("patient", "")

// A key with slack that is due waits for company, and goes with a key that does not wait.
func TestSlack_WaitsForCompany(t *testing.T) {
	t.Parallel()
	patient.answer("waits", harness.Status(204))
	if v := patient.put(t, "waits", `{"delay":"1ms","slack":"PT1H"}`); v.Slack != "1h0m0s" {
		t.Errorf("the answer to PUT has the slack %q", v.Slack)
	}
	eventually(t, "it is due, and waits", func() bool {
		v := patient.get(t, "waits")
		return v.State == "due" && v.CompanyUntil.Equal(v.DueAt.Add(time.Hour))
	})
	if until := patient.decoded(t, "GET", "")["companyUntil"]; until == nil {
		t.Error("the source does not show that a key waits for company")
	}
	patient.put(t, "now", "")
	patient.next(t, "now")
	patient.next(t, "waits")
	patient.gone(t, "waits")
	items := patient.decoded(t, "GET", "/schedules/waits/history")["items"].([]any)
	if late := items[0].(map[string]any)["lateness"]; late != "0s" {
		t.Errorf("within its slack it is late by %v", late)
	}
}
