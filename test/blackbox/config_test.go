package blackbox

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// A bad --config refuses the start and names the key; on SIGHUP it keeps what was, and a good one is in force for the
// next request. What it cuts is in the log.
func TestConfig_IsValidatedAndReloaded(t *testing.T) {
	t.Parallel()
	config := write(t, filepath.Join(t.TempDir(), "config.yaml"), "max-pending: 1\n")
	s := &source{name: "config", spec: "limits: {maxPending: 5, maxInFlight: 5}"}
	o := alone(t, []string{"--config", config}, s)
	full := func() {
		t.Helper()
		r := s.call(t, http.MethodPut, "/schedules/2", `{"delay":"1h"}`)
		problem(t, r, http.StatusTooManyRequests, "quota_exceeded")
		if !strings.Contains(string(r.Body), "max-pending in config-reschedule") || r.Header.Get("Retry-After") == "" {
			t.Errorf("%v %s", r.Header, r.Body)
		}
	}
	s.put(t, "1", `{"delay":"1h"}`)
	full()
	o.AwaitLog(t, "source=tests/config field=spec.limits.maxPending wanted=5 ceiling=1 key=max-pending")
	if strings.Contains(o.Log(), "spec.limits.maxInFlight") {
		t.Errorf("a limit within its ceiling is told:\n%s", o.Log())
	}
	for text, why := range map[string]string{"": "no key", "max-pendig: 2\n": "max-pendig"} {
		write(t, config, text)
		if ok, log := o.Reload(t); ok || !strings.Contains(log, why) {
			t.Errorf("%q is taken: %s", text, log)
		}
		full()
		if out := harness.Refused(t, harness.Flags(o.file, t.TempDir(), "--config", config)...); !strings.Contains(out, why) {
			t.Errorf("the start with %q says %s", text, out)
		}
	}
	write(t, config, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: config-reschedule}\ndata:\n  max-pending: \"2\"\n  min-delay: 10m\n")
	if ok, log := o.Reload(t); !ok || strings.Count(log, "source=tests/config field=spec.limits.maxPending wanted=5 ceiling=2 key=max-pending") != 1 {
		t.Errorf("a good file is refused, or its cut is not told: %s", log)
	}
	if v := s.put(t, "2", `{"delay":"1s"}`); v.DueAt.Sub(v.ScheduledAt) != 10*time.Minute {
		t.Errorf("a wait below min-delay became %s", v.DueAt.Sub(v.ScheduledAt))
	}
	if out := harness.Refused(t, harness.Flags(o.file, t.TempDir(), "--config", config+".gone")...); !strings.Contains(out, "gone") {
		t.Errorf("without the file the start says %s", out)
	}
}
