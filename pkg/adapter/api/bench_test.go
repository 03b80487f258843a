package api

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// still is a source that does nothing, so that only the edge is measured.
type still struct {
	*fake
	entry schedule.Entry
}

func (s *still) Schedule(key string, r *schedule.Request, _ queue.ClaimMemory) (queue.Scheduled, error) {
	e := s.entry
	e.Event = r.Event
	return queue.Scheduled{Result: schedule.Created, View: schedule.View{Key: key, Entry: &e, State: schedule.Waiting}}, nil
}

func (s *still) ScheduleAll(items []queue.Item, _ queue.ClaimMemory) ([]queue.Scheduled, error) {
	out := make([]queue.Scheduled, len(items))
	for i := range items {
		out[i], _ = s.Schedule(items[i].Key, &items[i].Request, nil)
	}
	return out, nil
}

// recorder is a response writer that costs nothing.
type recorder struct {
	header http.Header
	status int
	bytes  int
}

func (r *recorder) Header() http.Header             { return r.header }
func (r *recorder) WriteHeader(status int)          { r.status = status }
func (r *recorder) SetReadDeadline(time.Time) error { return nil }
func (r *recorder) Write(b []byte) (int, error)     { r.bytes += len(b); return len(b), nil }

func bench(b *testing.B, method, target, body string, status int) {
	e := newEdge(b)
	e.lookup = func(string, string) (source, letters, bool) {
		return &still{fake: e.fake, entry: schedule.Entry{Revision: 184467, ScheduledAt: now, DueAt: now.Add(300e9)}}, nil, true
	}
	r := httptest.NewRequest(method, target, nil)
	r.Header.Set("Content-Type", "application/json")
	r.ContentLength = int64(len(body))
	content := bytes.NewReader(nil)
	r.Body = io.NopCloser(content)
	w := &recorder{header: http.Header{}}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		content.Reset([]byte(body))
		clear(w.header)
		e.ServeHTTP(w, r)
		if w.status != status {
			b.Fatal(w.status)
		}
	}
}

// event256 has 256 bytes of data.
var event256 = `{"type":"dev.example.poll","subject":"site","data":{"repository":"` + strings.Repeat("x", 239) + `"}}`

func BenchmarkPut(b *testing.B) {
	bench(b, "PUT", base+"/schedules/GitRepo%2Fteam-a%2Fsite", `{"delay":300,"event":`+event256+`}`, http.StatusCreated)
}

func BenchmarkBulkOf100(b *testing.B) {
	items := make([]string, 100)
	for i := range items {
		items[i] = fmt.Sprintf(`{"key":"GitRepo/team-a/site-%d","delay":"5m","event":%s}`, i, event256)
	}
	bench(b, "POST", base+"/schedules", `{"items":[`+strings.Join(items, ",")+`]}`, http.StatusOK)
}
