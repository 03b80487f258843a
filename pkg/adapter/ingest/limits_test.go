package ingest

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/expression"
)

// An event may choose a policy of spec.ingest.policies, and needs no permission for the source's own policy.
func TestEvent_AsksForPoliciesTheSourceAllows(t *testing.T) {
	t.Parallel()
	src := settings("", "")
	src.Ingest.Policies, src.Ingest.Policy = []schedule.Policy{schedule.Earliest, schedule.Keep}, schedule.Replace
	r, err := Compile(src)
	must(t, err)
	for policy, want := range map[string]schedule.Code{
		"earliest": "", "keep": "", "": schedule.CodeInvalid, "replace": schedule.CodeDenied, "latest": schedule.CodeDenied, "fail": schedule.CodeDenied, "newest": schedule.CodeInvalid,
	} {
		got := refusal(t, r, event("Ce-Reschedulepolicy", policy), "")
		switch {
		case want == "" && got == nil:
		case got == nil || got.Code != want || got.Field != "reschedulepolicy" || !strings.HasPrefix(got.Detail, "reschedulepolicy: "):
			t.Errorf("%q: %+v, want %q", policy, got, want)
		}
	}
	// A calendar stays: it needs a policy that may change the time of a key.
	calendar := event("Ce-Reschedulecron", "@daily")
	if got := refusal(t, r, calendar, ""); got == nil || got.Code != schedule.CodeDenied || got.Field != "reschedulecron" || !strings.Contains(got.Detail, "spec.ingest.policies") {
		t.Errorf("a calendar: %v", got)
	}
	for _, p := range []schedule.Policy{schedule.Replace, schedule.Latest} {
		src := settings("", "")
		src.Ingest.Policies = []schedule.Policy{schedule.Earliest, p}
		r, err := Compile(src)
		must(t, err)
		if got := refusal(t, r, calendar, ""); got != nil {
			t.Errorf("a calendar where events may ask for %s: %v", p, got)
		}
	}
	if got := refusal(t, r, event(), ""); got != nil {
		t.Errorf("the source's own policy: %v", got)
	}
}

// An event postpones a key by at most spec.ingest.maxDelay, whether it has a delay or a due time.
func TestEvent_PostponesUpToMaxDelay(t *testing.T) {
	t.Parallel()
	src := settings("", "")
	src.Ingest.MaxDelay = 24 * time.Hour
	r, err := Compile(src)
	must(t, err)
	for _, tt := range []struct {
		name, value string
		refused     bool
	}{
		{"Ce-Rescheduleafter", "24h", false},
		{"Ce-Rescheduleafter", "24h1ns", true},
		{"Ce-Rescheduleafter", "876000h", true},
		{"Ce-Rescheduleat", "2026-11-22T09:00:00Z", false},
		{"Ce-Rescheduleat", "2026-11-22T09:00:00.000000001Z", true},
		{"Ce-Reschedulecron", "0 9 22 11 *", false},
		{"Ce-Reschedulecron", "1 9 22 11 *", true},
		{"Ce-Rescheduleat", "2020-01-01T00:00:00Z", false},
	} {
		got := refusal(t, r, event(tt.name, tt.value), "")
		field := strings.ToLower(strings.TrimPrefix(tt.name, "Ce-"))
		if (got != nil) != tt.refused || got != nil && (got.Code != schedule.CodeInvalid || got.Field != field || !strings.Contains(got.Detail, "spec.ingest.maxDelay")) {
			t.Errorf("%s %s: %+v", tt.name, tt.value, got)
		}
	}
}

// costly takes some four fifths of what the expression for one event may cost.
const costly = "event.data.all(x, event.data.all(y, x == y)) && false"

// The events of a request share one cost limit. It is alone: others would not get a turn on a busy machine.
func TestExpressions_ShareOneAllowancePerRequest(t *testing.T) {
	numbers := func(n int) string { return "[" + strings.Repeat("1,", n-1) + "1]" }
	batch := func(n int, data string) string {
		one := `{"specversion":"1.0","id":"i","source":"/s","type":"t","data":` + data + `}`
		return "[" + strings.Repeat(one+",", n-1) + one + "]"
	}
	h := http.Header{"Content-Type": {"application/cloudevents-batch+json"}}
	r := rules(t, "", costly)
	items, err := r.Read(t.Context(), h, []byte(batch(2, numbers(300))), now, nil)
	if err != nil || len(items) != 2 { // over the bound of one event: an error, so it counts as true
		t.Errorf("%d %v", len(items), err)
	}
	if got := refusal(t, r, h, batch(30, numbers(300))); got == nil || !strings.Contains(got.Detail, "for the events of one request") ||
		got.Code != schedule.CodeInvalid || got.Field != expression.WhenField {
		t.Errorf("%+v", got)
	}
	if got := refusal(t, r, h, batch(maxBatch, numbers(3))); got != nil {
		t.Errorf("a full batch of cheap ones: %v", got)
	}
}

const maxBatch = 1000

// A request whose caller is gone is refused as unavailable, and none of its events is accepted.
func TestExpressions_NotForACallerWhoIsGone(t *testing.T) {
	t.Parallel()
	ctx, hangUp := context.WithCancel(t.Context())
	hangUp()
	items, err := rules(t, "event.id", "true").Read(ctx, event(), nil, now, nil)
	if refused := asRefusal(t, err); refused == nil || refused.Code != schedule.CodeUnavailable || len(items) > 0 {
		t.Errorf("%v %v", items, err)
	}
}

// A request that has used its time for expressions is refused as unavailable: an error of when would accept the event.
func TestExpressions_TimeOfARequestIsBounded(t *testing.T) {
	t.Parallel()
	r := rules(t, "event.id", "event.data == 1")
	for name, left := range map[string]*allowance{"no time": {cost: maxRequestCost}, "little time": {cost: maxRequestCost, time: 1}} {
		_, _, err := r.judge(t.Context(), left, &schedule.Event{ID: "i"}, true)
		if refused := asRefusal(t, err); refused == nil || refused.Code != schedule.CodeUnavailable || refused.RetryAfter == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	left := &allowance{cost: 1, time: time.Minute}
	_, _, err := r.judge(t.Context(), left, &schedule.Event{ID: "i"}, true)
	if refused := asRefusal(t, err); refused == nil || refused.Code != schedule.CodeInvalid || refused.Field != expression.WhenField {
		t.Errorf("no cost left: %v", err)
	}
}
