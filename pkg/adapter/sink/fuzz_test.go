package sink

import (
	"errors"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

func FuzzRescheduleAfter(f *testing.F) {
	for _, s := range []string{"5m", "PT5M", "0.5", "never", "-1", "NaN", "1e9", "9999999999999999999999", "", ".", "1.", "P", "0x1p4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := parseRescheduleAfter(s)
		var refused *schedule.Error
		if err != nil && !errors.As(err, &refused) {
			t.Fatalf("%q: %v is no *schedule.Error", s, err)
		}
		if err == nil && (v.after < 0 || v.after > schedule.MaxDuration || v.never && v.after != 0) {
			t.Fatalf("%q: %+v", s, v)
		}
	})
}

func FuzzRetryAfter(f *testing.F) {
	now := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	for _, s := range []string{"120", "1.5", "-1", "Sat, 21 Nov 2026 09:01:00 GMT", "Sat, 21 Nov 9999 09:01:00 GMT", "Monday, 02-Jan-06 15:04:05 MST", "", "soon"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d := parseRetryAfter(s, now); d < 0 || d > schedule.MaxDuration {
			t.Fatalf("%q: %s", s, d)
		}
	})
}
