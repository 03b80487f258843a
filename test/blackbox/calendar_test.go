package blackbox

import (
	"net/http"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

var scheduled = declare("scheduled", "schedule: {cron: 0 12 29 2 *, timeZone: Asia/Kolkata}\ningest: {policies: [earliest, latest], maxDelay: 876000h}")

// nextLeapDay is the next February 29 at noon in Kolkata.
func nextLeapDay() time.Time {
	for year := time.Now().UTC().Year(); ; year++ {
		if at := time.Date(year, time.February, 29, 6, 30, 0, 0, time.UTC); at.Month() == time.February && at.After(time.Now()) {
			return at
		}
	}
}

// A key has a calendar until something ends it: it is shown, edited, kept by an event, and continues after a run.
func TestCalendar_FromPutToNever(t *testing.T) {
	t.Parallel()
	const key = "calendar/own"
	leap := nextLeapDay()
	fast.answer(key, script(status(204), status(500, "Retry-After", "0"), status(200, "Reschedule-After", "1h"), status(200, "Reschedule-After", "never")))
	v := fast.put(t, key, `{"cron":"0 12 29 2 *","timeZone":"Asia/Kolkata","reason":"leap"}`)
	if g := fast.get(t, key); !g.DueAt.Equal(leap) || !v.DueAt.Equal(leap) || g.Cron != "0 12 29 2 *" || g.TimeZone != "Asia/Kolkata" {
		t.Errorf("%+v, %+v; want due %s", v, g, leap)
	}
	if v = fast.put(t, key, `{"cron":"0 12 29 2 *"}`); !v.DueAt.Equal(leap.Add(5*time.Hour+30*time.Minute)) || v.TimeZone != "" {
		t.Errorf("edited: %+v", v)
	}
	if v = fast.put(t, key, `{"delay":"1s","policy":"keep"}`); v.Result != "kept" || v.Cron == "" {
		t.Errorf("kept: %+v", v)
	}
	fast.put(t, key, `{"delay":"0s","policy":"earliest"}`)
	fast.next(t, key)
	if v = fast.settled(t, key); v.Cron == "" || !v.DueAt.Equal(leap.Add(5*time.Hour+30*time.Minute)) {
		t.Errorf("after a sooner run: %+v", v)
	}
	fast.decoded(t, http.MethodPost, harness.KeyPath(key)+"/run")
	fast.next(t, key)
	fast.next(t, key)
	if v = fast.settled(t, key); v.Cron == "" || time.Until(v.DueAt) > time.Hour {
		t.Errorf("Reschedule-After: %+v", v)
	}
	fast.decoded(t, http.MethodPost, harness.KeyPath(key)+"/run")
	fast.next(t, key)
	fast.gone(t, key)
	for field, body := range map[string]string{
		"cron": `{"cron":"0 0 30 2 *"}`, "timeZone": `{"cron":"@daily","timeZone":"Local"}`,
	} {
		r := fast.call(t, http.MethodPut, harness.KeyPath(key), body)
		problem(t, r, http.StatusBadRequest, "invalid_argument")
		var p struct{ Field string }
		if r.Into(t, &p); p.Field != field {
			t.Errorf("%s: names %q", body, p.Field)
		}
	}
}

// A source's schedule gives the time of keys that name none, and takes back those with a time of their own after their run.
func TestCalendar_OfTheSource(t *testing.T) {
	t.Parallel()
	leap := nextLeapDay()
	if v := scheduled.put(t, "no time", `{}`); !v.DueAt.Equal(leap) || v.Cron != "" {
		t.Errorf("%+v, want due %s", v, leap)
	}
	scheduled.put(t, "a time", `{"delay":"0s"}`)
	scheduled.next(t, "a time")
	if v := scheduled.settled(t, "a time"); !v.DueAt.Equal(leap) {
		t.Errorf("after its run: %+v, want due %s", v, leap)
	}
	event := []string{"Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "/s", "Ce-Type", "t", "Ce-Reschedulekey", "by event", "Ce-Reschedulecron", "0 12 29 2 *"}
	if r := scheduled.call(t, http.MethodPost, "", "", event...); r.Status != http.StatusAccepted {
		t.Fatalf("%d %s", r.Status, r.Body)
	}
	if v := scheduled.get(t, "by event"); v.Cron != "0 12 29 2 *" || !v.DueAt.Equal(leap.Add(5*time.Hour+30*time.Minute)) {
		t.Errorf("%+v", v)
	}
	problem(t, plain.call(t, http.MethodPost, "", "", event...), http.StatusForbidden, "permission_denied")
}
