package sink

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// A reply with a time schedules its key again, and the header decides before the attributes. A time that cannot be read
// makes the attempt a failed one; an event that cannot be used is logged.
func TestReply_Cases(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	binary := func(more map[string]string) map[string]string {
		h := map[string]string{"Ce-Specversion": "1.0", "Ce-Id": "r", "Ce-Source": "/sink", "Ce-Type": "t"}
		for k, v := range more {
			if h[k] = v; v == "-" {
				delete(h, k)
			}
		}
		return h
	}
	reply := &schedule.Event{Source: "/sink", Type: "t"}
	structured, required := map[string]string{"Content-Type": "application/cloudevents+json"}, `"specversion":"1.0","id":"r","source":"/sink","type":"t"`
	big := strings.Repeat("x", schedule.MaxDataBytes+1)
	for name, tt := range map[string]struct {
		headers  map[string]string
		body     string
		again    *schedule.RescheduleAfter
		never    bool
		warnings int
		bad      string // what makes the attempt a failed one
	}{
		"binary, after": {binary(map[string]string{"Ce-Rescheduleafter": "5m"}), "", &schedule.RescheduleAfter{After: 5 * time.Minute, Reply: reply}, false, 0, ""},
		"binary, at": {binary(map[string]string{"Ce-Rescheduleat": "2026-11-22T00:00:00Z"}), "",
			&schedule.RescheduleAfter{At: time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC), Reply: reply}, false, 0, ""},
		"everything of the event but its id, time and key": {
			binary(map[string]string{"Ce-Rescheduleafter": "PT5M", "Ce-Subject": "s", "Ce-Time": "2020-01-01T00:00:00Z", "Ce-Dataschema": "http://d", "Content-Type": "text/plain",
				"Ce-Team": "x%20y", "Ce-Reschedulekey": "other", "Ce-Reschedulepolicy": "fail", "Ce-Reschedulerevision": "1", "Ce-Rescheduledueat": "x", "Ce-Rescheduleattempt": "1"}), "hello",
			&schedule.RescheduleAfter{After: 5 * time.Minute, Reply: &schedule.Event{Source: "/sink", Type: "t", Subject: "s", DataSchema: "http://d", DataContentType: "text/plain",
				Data: []byte("hello"), Extensions: map[string]any{"team": "x y"}}}, false, 0, "",
		},
		"structured": {
			map[string]string{"Content-Type": "application/cloudevents+json; charset=utf-8"},
			`{"specversion":"1.0","id":"r","source":"/sink","type":"t","rescheduleafter":"5m","n":3,"data": {"a" : 1}}`,
			&schedule.RescheduleAfter{After: 5 * time.Minute, Reply: &schedule.Event{Source: "/sink", Type: "t", Data: []byte(`{"a" : 1}`), Extensions: map[string]any{"n": int32(3)}}}, false, 0, "",
		},
		"version 0.3": {binary(map[string]string{"Ce-Specversion": "0.3", "Ce-Rescheduleafter": "5m", "Ce-Schemaurl": "http://d"}), "",
			&schedule.RescheduleAfter{After: 5 * time.Minute, Reply: &schedule.Event{Source: "/sink", Type: "t", DataSchema: "http://d"}}, false, 0, ""},
		"the header decides the time": {binary(map[string]string{"Ce-Rescheduleafter": "5m", "Reschedule-After": "7"}), "", &schedule.RescheduleAfter{After: 7 * time.Second, Reply: reply}, false, 0, ""},
		"also over an instant": {binary(map[string]string{"Ce-Rescheduleat": "2026-11-22T00:00:00Z", "Reschedule-After": "7"}), "",
			&schedule.RescheduleAfter{After: 7 * time.Second, Reply: reply}, false, 0, ""},
		"also over what cannot be read": {binary(map[string]string{"Ce-Rescheduleafter": "soon", "Reschedule-After": "7"}), "",
			&schedule.RescheduleAfter{After: 7 * time.Second, Reply: reply}, false, 0, ""},
		"the header says never":               {binary(map[string]string{"Ce-Rescheduleafter": "5m", "Reschedule-After": "never"}), "", nil, true, 0, ""},
		"an unreadable header beside a time":  {binary(map[string]string{"Ce-Rescheduleafter": "5m", "Reschedule-After": "soon"}), "", nil, false, 0, `Reschedule-After: "soon" is not a duration`},
		"an ordinary reply":                   {binary(nil), "data", nil, false, 0, ""},
		"an ordinary reply beside the header": {binary(map[string]string{"Reschedule-After": "7"}), "data", &schedule.RescheduleAfter{After: 7 * time.Second}, false, 0, ""},
		"a number":                            {binary(map[string]string{"Ce-Rescheduleafter": "3e1"}), "", &schedule.RescheduleAfter{After: 30 * time.Second, Reply: reply}, false, 0, ""},
		"a number in JSON":                    {structured, `{` + required + `,"rescheduleafter":300}`, &schedule.RescheduleAfter{After: 5 * time.Minute, Reply: reply}, false, 0, ""},
		"a fraction in JSON":                  {structured, `{` + required + `,"rescheduleafter":1.5e0}`, &schedule.RescheduleAfter{After: 1500 * time.Millisecond, Reply: reply}, false, 0, ""},
		"what is no duration":                 {binary(map[string]string{"Ce-Rescheduleafter": "7x"}), "", nil, false, 0, `rescheduleafter: "7x" is not a duration`},
		"an empty attribute":                  {binary(map[string]string{"Ce-Rescheduleafter": ""}), "", nil, false, 0, `rescheduleafter: "" is not a duration`},
		"a blank in the instant":              {binary(map[string]string{"Ce-Rescheduleat": "2026-11-22 00:00:00Z"}), "", nil, false, 0, `rescheduleat: "2026-11-22 00:00:00Z" is not an RFC 3339 instant`},
		"a boolean in JSON":                   {structured, `{` + required + `,"rescheduleafter":true}`, nil, false, 0, "rescheduleafter: true is not a duration"},
		"a negative duration":                 {binary(map[string]string{"Ce-Rescheduleafter": "-5m"}), "", &schedule.RescheduleAfter{Reply: reply}, false, 0, ""},
		"the year 9999":                       {binary(map[string]string{"Ce-Rescheduleat": "9999-12-31T23:59:59Z"}), "", &schedule.RescheduleAfter{At: now.Add(schedule.MaxDuration), Reply: reply}, false, 0, ""},
		"both attributes":                     {binary(map[string]string{"Ce-Rescheduleafter": "5m", "Ce-Rescheduleat": "2026-11-22T00:00:00Z"}), "", nil, false, 0, "one of the two"},
		"no valid event keeps the time":       {binary(map[string]string{"Ce-Rescheduleafter": "5m", "Ce-Id": "-"}), "", &schedule.RescheduleAfter{After: 5 * time.Minute}, false, 1, ""},
		"no event at all keeps the time":      {map[string]string{"Ce-Rescheduleafter": "5m"}, "", &schedule.RescheduleAfter{After: 5 * time.Minute}, false, 1, ""},
		"not even JSON":                       {structured, "{", nil, false, 0, "the reply is not a CloudEvent"},
		"not even JSON beside the header":     {map[string]string{"Content-Type": "application/cloudevents+json", "Reschedule-After": "7"}, "{", &schedule.RescheduleAfter{After: 7 * time.Second}, false, 1, ""},
		"a wait in what is no event":          {structured, `{"rescheduleAfter":"5m"}`, nil, false, 0, "the reply is not a CloudEvent: specversion"},
		"no wait in what is no event":         {structured, `{` + required + `,"dataschema":"relative"}`, nil, false, 1, ""},
		"an empty body":                       {structured, "", nil, false, 0, ""},
		"an empty body with a coding":         {map[string]string{"Content-Type": "application/cloudevents+json", "Content-Encoding": "gzip"}, "", nil, false, 0, ""},
		"a foreign format":                    {map[string]string{"Content-Type": "application/cloudevents+avro"}, "\x01", nil, false, 1, ""},
		"a foreign format beside the header":  {map[string]string{"Content-Type": "application/cloudevents+avro", "Reschedule-After": "7"}, "\x01", &schedule.RescheduleAfter{After: 7 * time.Second}, false, 1, ""},
		"an object as the wait":               {structured, `{` + required + `,"rescheduleafter":{}}`, nil, false, 0, "rescheduleafter: {} is neither"},
		"the wait twice":                      {structured, `{` + required + `,"rescheduleafter":"5m","rescheduleafter":"7x"}`, nil, false, 0, `rescheduleafter: is there twice: "5m" and "7x"`},
		"half a character as the wait":        {structured, `{` + required + `,"rescheduleafter":"\ud800"}`, nil, false, 0, `rescheduleafter: "\ud800" is not a string`},
		"a batch of none":                     {map[string]string{"Content-Type": "application/cloudevents-batch+json"}, "[]", nil, false, 0, ""},
		"a batch of two":                      {map[string]string{"Content-Type": "application/cloudevents-batch+json"}, "[{" + required + "},{" + required + "}]", nil, false, 0, ""},
		"a batch with a time":                 {map[string]string{"Content-Type": "application/cloudevents-batch+json"}, "[{" + required + "},{" + required + `,"rescheduleafter":"5m"}]`, nil, false, 0, "the reply is a batch of 2 events"},
		"a batch beside a time":               {map[string]string{"Content-Type": "application/cloudevents-batch+json", "Ce-Rescheduleafter": "5m"}, "[]", &schedule.RescheduleAfter{After: 5 * time.Minute}, false, 0, ""},
		"compressed data keeps the time":      {binary(map[string]string{"Ce-Rescheduleafter": "5m", "Content-Encoding": "gzip"}), "\x1f\x8b\x08", &schedule.RescheduleAfter{After: 5 * time.Minute}, false, 1, ""},
		"compressed, structured":              {map[string]string{"Content-Type": "application/cloudevents+json", "Content-Encoding": "gzip"}, "\x1f\x8b\x08", nil, false, 0, `the reply has the content coding "gzip"`},
		"compressed, an ordinary reply":       {binary(map[string]string{"Content-Encoding": "br"}), "\x1f\x8b\x08", nil, false, 0, ""},
		"too much data keeps the time":        {binary(map[string]string{"Ce-Rescheduleafter": "5m", "Content-Type": "text/plain"}), big, &schedule.RescheduleAfter{After: 5 * time.Minute}, false, 1, ""},
		"far too much data too":               {binary(map[string]string{"Ce-Rescheduleafter": "5m", "Content-Type": "text/plain"}), strings.Repeat(big, 8), &schedule.RescheduleAfter{After: 5 * time.Minute}, false, 1, ""},
		"too large attributes keep the time":  {structured, `{` + required + `,"rescheduleafter":"5m","x":"` + big[:9<<10] + `"}`, &schedule.RescheduleAfter{After: 5 * time.Minute}, false, 1, ""},
		"too large, an ordinary reply":        {structured, `{` + required + `,"x":"` + big[:9<<10] + `"}`, nil, false, 0, ""},
		"far too much, structured":            {structured, strings.Repeat(" ", 2<<20), nil, false, 0, "the reply has more than 1048576 bytes"},
	} {
		url, _ := sinkOf(t, func(w http.ResponseWriter, _ *http.Request) {
			for k, v := range tt.headers {
				w.Header().Set(k, v)
			}
			if tt.headers["Content-Type"] == "" {
				w.Header()["Content-Type"] = nil
			}
			io.WriteString(w, tt.body)
		})
		s, l := newSender(t, func(c *Config) { c.Now = func() time.Time { return now } })
		got := send(t, s, attempt(url))
		want := schedule.Outcome{Kind: schedule.Succeeded, Again: tt.again, Never: tt.never}
		if tt.again != nil && tt.again.Reply != nil && tt.body == "data" {
			want.Again.Reply.Data = []byte(tt.body)
		}
		if tt.bad != "" {
			want.Kind, want.Failure = schedule.Failed, schedule.Failure{Dest: url, Code: http.StatusOK, Data: got.Failure.Data}
		}
		if d := cmp.Diff(want, got, butStatus); d != "" || !strings.Contains(string(got.Failure.Data), tt.bad) {
			t.Errorf("%s: %s, detail %q, want %q", name, d, got.Failure.Data, tt.bad)
		}
		if l.warnings() != tt.warnings {
			t.Errorf("%s: %d warnings, want %d", name, l.warnings(), tt.warnings)
		}
	}
}
