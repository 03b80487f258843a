package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// The answer to a delivery says what happens next with its key.
func TestOperator_AnswersWithTheOutcome(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key, attempt, data string
		schedule           int // what the schedule API answers
		status             int
		after, scheduled   string
	}{
		"a build that takes a while is looked at again": {key: "Build/app", attempt: "0", data: `{"readyAt":"2126-01-01T00:00:00Z"}`, status: 204, after: "2s"},
		"a build that is ready is done":                 {key: "Build/app", attempt: "0", data: `{"readyAt":"2026-01-01T00:00:00Z"}`, status: 204},
		"a build that cannot be read is retried":        {key: "Build/app", attempt: "0", data: `[]`, status: 503},
		"a deploy fails":                                {key: "Deploy/web", attempt: "0", status: 503},
		"a deploy fails again":                          {key: "Deploy/web", attempt: "1", status: 503},
		"a deploy works the third time":                 {key: "Deploy/web", attempt: "2", status: 204},
		"a site schedules its certificate":              {key: "Site/shop", attempt: "0", schedule: 201, status: 204, scheduled: "PUT /ops/web/schedules/Certificate%2Fshop " + `{"delay":"2s","reason":"asked for by the operator"}`},
		"a site that cannot schedule is retried":        {key: "Site/shop", attempt: "0", schedule: 429, status: 503, scheduled: "PUT /ops/web/schedules/Certificate%2Fshop " + `{"delay":"2s","reason":"asked for by the operator"}`},
		"a key it does not know is done":                {key: "Other/x", attempt: "0", status: 204},
		"a percent-encoded key is read":                 {key: "Site/caf%C3%A9", attempt: "0", schedule: 201, status: 204, scheduled: "PUT /ops/web/schedules/Certificate%2Fcaf%C3%A9 " + `{"delay":"2s","reason":"asked for by the operator"}`},
		"a request that is not an event is refused":     {status: 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var scheduled string
			api := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				scheduled = r.Method + " " + r.URL.EscapedPath() + " " + string(body)
				rw.WriteHeader(c.schedule)
				// As the schedule API does. An answer without a body may be lost when the server of another case ends.
				_, _ = io.WriteString(rw, "{}")
			}))
			defer api.Close()
			r := httptest.NewRequest("POST", "/", strings.NewReader(c.data))
			if c.key != "" {
				for name, value := range map[string]string{
					"Ce-Id": "1", "Ce-Specversion": "1.0", "Ce-Type": "dev.reschedule.due", "Ce-Source": "/s", "Content-Type": "application/json",
					"Ce-Reschedulekey": c.key, "Ce-Rescheduleattempt": c.attempt, "Ce-Rescheduledueat": "2026-11-21T09:00:00.5Z",
				} {
					r.Header.Set(name, value)
				}
			}
			rw := httptest.NewRecorder()
			operator{source: api.URL + "/ops/web", every: 2 * time.Second}.ServeHTTP(rw, r)
			if after := rw.Header().Get("Reschedule-After"); rw.Code != c.status || after != c.after || scheduled != c.scheduled {
				t.Errorf("got %d, Reschedule-After %q, scheduled %q; want %d, %q, %q", rw.Code, after, scheduled, c.status, c.after, c.scheduled)
			}
		})
	}
}
