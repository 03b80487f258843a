package sink

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/internal/heap"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Any value of Reschedule-After is a duration up to MaxDuration, never, or a *schedule.Error.
func FuzzRescheduleAfter(f *testing.F) {
	for _, s := range []string{"5m", "PT5M", "0.5", "never", "-1", "NaN", "1e9", "9999999999999999999999", "", ".", "1.", "P", "0x1p4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := rescheduleAfter(http.Header{"Reschedule-After": {s}})
		var refused *schedule.Error
		if err != nil && !errors.As(err, &refused) {
			t.Fatalf("%q: %v is no *schedule.Error", s, err)
		}
		if err == nil && (v.after < 0 || v.after > schedule.MaxDuration || v.never && v.after != 0) {
			t.Fatalf("%q: %+v", s, v)
		}
	})
}

// Any value of Retry-After gives a duration from 0 to MaxDuration.
func FuzzRetryAfter(f *testing.F) {
	now := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	for _, s := range []string{"120", "1.5", "-1", "Sat, 21 Nov 2026 09:01:00 GMT", "Sat, 21 Nov 9999 09:01:00 GMT", "Monday, 02-Jan-06 15:04:05 MST", "", "soon"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d, _ := parseRetryAfter(s, now); d < 0 || d > schedule.MaxDuration {
			t.Fatalf("%q: %s", s, d)
		}
	})
}

// FuzzReply wants time and data within their bounds, and memory and time by the size of the reply.
func FuzzReply(f *testing.F) {
	const required = `"specversion":"1.0","id":"i","source":"/s","type":"t"`
	for _, body := range []string{
		`{` + required + `,"rescheduleafter":"5m","data":{"a":1}}`, `{` + required + `,"rescheduleat":"2026-11-21T09:00:00Z","data_base64":"aGk="}`,
		`{` + required + `,"rescheduleafter":"5m","data":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}`,
		`{` + required + `,` + strings.Repeat(`"x":1,`, 9000) + `"y":2}`, `{` + required + `,"rescheduleafter":"-1","reschedulekey":"k"}`,
	} {
		f.Add("application/cloudevents+json", "", "", body)
	}
	f.Add("application/cloudevents-batch+json", "", "", "["+strings.Repeat(`{"specversion":"1.0","id":"i","source":"/s","type":"t"},`, 900)+"1]")
	f.Add("text/plain", "1.0", "1h", strings.Repeat("x", schedule.MaxDataBytes+1))
	s := New(Config{Log: slog.New(slog.DiscardHandler)})
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, media, version, after, body string) {
		h := http.Header{"Content-Type": {media}}
		if version != "" {
			for name, value := range map[string]string{"Ce-Specversion": version, "Ce-Id": "i", "Ce-Source": "/s", "Ce-Type": "t", "Ce-Rescheduleafter": after} {
				h.Set(name, value)
			}
		}
		a := attempt("http://sink.example")
		size := len(body) + len(after)
		var again *schedule.RescheduleAfter
		start := time.Now()
		n := heap.Allocated(func() {
			again, _ = s.reply(t.Context(), &a, &http.Response{Header: h, Body: io.NopCloser(strings.NewReader(body))}, false)
		})
		took := time.Since(start)
		if n > int64(1<<20+256*size) {
			t.Fatalf("%d bytes allocated for a reply of %d", n, size)
		}
		if took > time.Second+time.Duration(size)*10*time.Microsecond {
			t.Fatalf("%s for a reply of %d bytes", took, size)
		}
		if again == nil {
			return
		}
		if again.After < 0 || again.After > schedule.MaxDuration || again.Reply != nil && len(again.Reply.Data) > schedule.MaxDataBytes {
			t.Fatalf("%+v", again)
		}
	})
}
