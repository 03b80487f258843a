package schedule

import (
	"strings"
	"testing"
	"time"
)

var t0 = time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)

// Instants are read as RFC 3339 and rounded up.
func TestParseInstant_RFC3339RoundedUp(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]time.Time{
		"2026-11-21T09:00:00Z":                    t0,
		"2026-11-21T10:30:00+01:30":               t0,
		"2026-11-21t09:00:00z":                    t0,
		"2026-11-20t23:00:00.5-10:00":             t0.Add(500 * time.Millisecond),
		"2026-12-31T23:59:60Z":                    time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC),
		"2026-12-31T18:59:60.25-05:00":            time.Date(2027, 1, 1, 0, 0, 0, 250e6, time.UTC),
		"2026-11-20T23:00:00-10:00":               t0,
		"2026-11-21T09:00:00.5Z":                  t0.Add(500 * time.Millisecond),
		"2026-11-21T09:00:00.000000001Z":          t0.Add(1),
		"2026-11-21T09:00:00.0000000001Z":         t0.Add(1),
		"2026-11-21T09:00:00.0000000010Z":         t0.Add(1),
		"2026-11-21T09:00:00.0000000011Z":         t0.Add(2),
		"2026-11-21T09:00:00.9999999999Z":         t0.Add(time.Second),
		"2026-11-21T10:00:00.9999999999+01:00":    t0.Add(time.Second),
		"2026-12-31T23:59:59.9999999999Z":         time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC),
		"2026-11-21T09:00:00.000000000000000000Z": t0,
		"2028-02-29T00:00:00Z":                    time.Date(2028, 2, 29, 0, 0, 0, 0, time.UTC),
		"1999-01-01T00:00:00Z":                    time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC),
		"0001-01-01T00:00:00Z":                    earliest, // never the zero time, which means none
		"1850-01-01T00:00:00Z":                    earliest,
		"1970-01-01T00:00:00Z":                    earliest,
	} {
		got, err := ParseInstant("dueAt", in, t0)
		if err != nil || !got.Equal(want) {
			t.Errorf("ParseInstant(%q) = %v, %v, want %v", in, got, err, want)
		}
		if got.Location() != time.UTC {
			t.Errorf("ParseInstant(%q) is not in UTC", in)
		}
	}
}

// An instant is at most a hundred years ahead.
func TestParseInstant_AtMostAHundredYears(t *testing.T) {
	t.Parallel()
	last := t0.Add(MaxDuration)
	if got, err := ParseInstant("dueAt", last.Format(time.RFC3339Nano), t0); err != nil || !got.Equal(last) {
		t.Errorf("the last instant allowed: %v, %v", got, err)
	}
	for _, in := range []string{
		last.Add(1).Format(time.RFC3339Nano),
		strings.TrimSuffix(last.Format(time.RFC3339), "Z") + ".0000000001Z",
		"9999-12-31T23:59:59Z",
	} {
		got, err := ParseInstant("dueAt", in, t0)
		refused(t, "ParseInstant", in, got, err, Error{Field: "dueAt", Detail: "more than 100 years ahead"})
	}
}

// A value that is no instant is refused.
func TestParseInstant_Refuses(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"", "now", "tomorrow", "2026-11-21", "09:00:00Z", "2026-11-21T09:00:00", "2026-11-21 09:00:00Z", "2026-11-21T09:00Z",
		"2026-11-21T9:00:00Z", "2026-11-21T09:00:00,5Z", "2026-11-21T09:00:00.Z", "2026-13-01T00:00:00Z", "2026-02-29T00:00:00Z",
		"2026-11-21T24:00:00Z", "2026-11-21T09:60:00Z", "2026-11-21T09:00:60Z", "2026-11-21T23:59:61Z", "2026-12-31T23:59:60+01:00", "2026-11-21T09:00:00+24:00", "2026-11-21T09:00:00+01:60", "2026-11-21T09:00:00+0100",
		"2026-11-21T09:00:00+01", "2026-11-21T09:00:00ZZ", " 2026-11-21T09:00:00Z", "2026-11-21T09:00:00Z\n", "20261121T090000Z",
		"12026-11-21T09:00:00Z", "-2026-11-21T09:00:00Z", "1795165200", "5m", "\xff",
	} {
		got, err := ParseInstant("expiresAt", in, t0)
		refused(t, "ParseInstant", in, got, err, Error{Field: "expiresAt", Detail: "RFC 3339"})
	}
}
