package sink

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

func benchAttempt(url string) schedule.Attempt {
	return attempt(url, withEvent(&schedule.Event{
		Type: "dev.example.reconcile", DataContentType: "application/json", Data: []byte(`{"pad":"` + strings.Repeat("x", 246) + `"}`),
	}))
}

// BenchmarkDeliver posts to a server in the same process, 100 at a time: the
// Sender beside a bare net/http client that posts the same event.
func BenchmarkDeliver(b *testing.B) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusNoContent)
	}))
	defer srv.Close()
	const parallel = 100
	a := benchAttempt(srv.URL)
	b.Run("sender", func(b *testing.B) {
		s, _ := newSender(b)
		b.ReportAllocs()
		b.SetParallelism(parallel / 2)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if o := s.Send(context.Background(), a); o.Kind != schedule.Succeeded {
					b.Errorf("%+v", o)
				}
			}
		})
	})
	b.Run("bare client", func(b *testing.B) {
		s, _ := newSender(b)
		r, _ := s.route(a.Target)
		var model message
		must(b, s.request(context.Background(), &model, &a, r))
		header := http.Header{}
		for _, l := range model.header {
			header.Set(l.name, l.value)
		}
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000, DialContext: (&net.Dialer{}).DialContext}}
		defer client.CloseIdleConnections()
		b.ReportAllocs()
		b.SetParallelism(parallel / 2)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				req, _ := http.NewRequest(http.MethodPost, srv.URL, strings.NewReader(string(a.Entry.Event.Data)))
				req.Header = header.Clone()
				resp, err := client.Do(req)
				if err != nil {
					b.Error(err)
					continue
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	})
}
