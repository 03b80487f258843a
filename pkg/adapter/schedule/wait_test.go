package schedule

import (
	"strings"
	"testing"
	"time"
)

// Each wait that a sink may send has its meaning; what cannot be read is an error that quotes it.
func TestParseWait_EachForm(t *testing.T) {
	t.Parallel()
	const unreadable = -1
	for s, want := range map[string]time.Duration{
		"300": 5 * time.Minute, "1e2": 100 * time.Second, "1E2": 100 * time.Second, "1.0E-4": 100 * time.Microsecond, "1e-05": 10 * time.Microsecond,
		"1.2345678E7": 12345678 * time.Second, "0.5": time.Second / 2, "0": 0, "-0": 0, "0s": 0, " 5m ": 5 * time.Minute, "PT5M": 5 * time.Minute, "P1D": 24 * time.Hour,
		"1e-400000000000": 1,
		// Negative waits: the time has come already.
		"-3": 0, "-3s": 0, "-1e3": 0, "-1e-05": 0, "-PT5M": 0, "PT-5M": 0, "PT-27H-46M-40S": 0, "PT-0.5S": 0, "-876601h": 0, "-1e400000000000": 0,
		// Waits that are too long.
		"876601h": MaxDuration, "3155760001": MaxDuration, "1e400000000000": MaxDuration, "P36526D": MaxDuration,
		"": unreadable, "7x": unreadable, "7d": unreadable, "pt5m": unreadable, "+30": unreadable, "5min": unreadable, "5m 30s": unreadable, "5m, 6m": unreadable,
		"never": unreadable, "NaN": unreadable, "Infinity": unreadable, "0x10": unreadable, "--5": unreadable, "-": unreadable, "-7x": unreadable, "10-20": unreadable,
		"PT-5M3S": unreadable, "PT5-M": unreadable, "Sat, 21 Nov 2026 09:00:00 GMT": unreadable, "2026-11-21T09:00:00Z": unreadable, "2026-11-21": unreadable,
	} {
		got, err := ParseWait("Reschedule-After", s)
		switch {
		case want == unreadable && err == nil:
			t.Errorf("%q: %s, want an error", s, got)
		case want == unreadable && (!strings.HasPrefix(err.Error(), "Reschedule-After: ") || !strings.Contains(err.Error(), s)):
			t.Errorf("%q: the error does not quote it: %v", s, err)
		case want != unreadable && (err != nil || got != want):
			t.Errorf("%q: %s (%v), want %s", s, got, err, want)
		}
	}
}

// An instant of a sink that is too far ahead is the last one that may be stored.
func TestParseWaitUntil_YearNineThousand(t *testing.T) {
	t.Parallel()
	if at, err := ParseWaitUntil("rescheduleat", "9999-12-31T23:59:59Z", t0); err != nil || !at.Equal(t0.Add(MaxDuration)) {
		t.Errorf("%s, %v", at, err)
	}
	if at, err := ParseWaitUntil("rescheduleat", "2026-11-21T10:00:00+01:00", t0); err != nil || !at.Equal(t0) {
		t.Errorf("%s, %v", at, err)
	}
	for _, s := range []string{"", "2026-11-21 09:00:00Z", "2026-11-21", "tomorrow", "99999-01-01T00:00:00Z"} {
		if at, err := ParseWaitUntil("rescheduleat", s, t0); err == nil {
			t.Errorf("%q: %s, want an error", s, at)
		}
	}
}
