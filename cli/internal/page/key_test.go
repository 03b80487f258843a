package page

import (
	"strings"
	"testing"
)

// The page of a source has its keys by priority, and the page of a key its priority and calendar, as text.
func TestViews_PriorityAndCalendar(t *testing.T) {
	t.Parallel()
	api := &fakeAPI{answers: map[string]string{
		"GET /ops/repos":             strings.TrimSuffix(noCounts, "}") + `,"priorities":{"high":{"pending":0,"due":0},"normal":{"pending":2310,"due":40},"low":{"pending":3,"due":1}}}`,
		"GET /ops/repos/schedules":   `{"items":[],"continue":""}`,
		"GET /ops/repos/schedules/k": `{"key":"k","revision":1,"state":"waiting","dueAt":"2026-11-23T02:00:00Z","scheduledAt":"2026-11-22T02:40:00Z","attempt":0,"inFlight":false,"priority":"low","cron":"<b>\u202e","timeZone":"Europe/Berlin"}`,
	}}
	h := serve(t, api)
	for target, part := range map[string]string{
		"/source?ns=ops&name=repos":    `<p class="sub">By priority: 2310 normal, 40 due; 3 low, 1 due</p>`,
		"/key?ns=ops&name=repos&key=k": `<dt>Calendar</dt><dd><code><bdi>&lt;b&gt;<span class="escape">U+202E</span> in Europe/Berlin</bdi></code></dd></div>` + "\n" + `<div><dt>Priority</dt><dd>low</dd>`,
	} {
		if w := do(h, "GET", target, ""); !strings.Contains(w.Body.String(), part) {
			t.Errorf("%s does not show %q: %s", target, part, w.Body)
		}
	}
}
