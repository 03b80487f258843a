package listener

import (
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
)

// A handler that panics is in the log as an error, with its stack. It was among the lines for debugging, and
// nothing said why a client had got no answer. Clients that repeat their calls do not fill the log. A handler that
// only ends its connection is not in the log.
func TestPanic_IsLogged(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		broken any
		logged bool
	}{
		{"a defect", "index out of range", true},
		{"an end of the connection", http.ErrAbortHandler, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			c := New(Config{Name: "test", Limit: 10, Heads: budget.New(1 << 20), Log: slog.New(slog.NewTextHandler(&log, nil))})
			c.panics.Per = time.Hour
			e := c.Over(l, &http.Server{
				ReadHeaderTimeout: time.Minute,
				Handler:           http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(test.broken) }),
			})
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				e.Serve()
			}()
			client := &http.Client{Transport: &http.Transport{}}
			for range 3 {
				answer, err := client.Get("http://" + l.Addr().String() + "/n/s" + strings.Repeat("x", loggedPath))
				if err == nil {
					_ = answer.Body.Close()
					t.Error("the call was answered:", answer.Status)
				}
			}
			client.CloseIdleConnections()
			e.Shutdown(t.Context()) // what the handler logs comes before
			<-ended
			lines := log.String()
			if !test.logged {
				if lines != "" {
					t.Errorf("the log is %q", lines)
				}
				return
			}
			for _, part := range []string{"level=ERROR", "index out of range", "path=/n/s", "endpoint_test.go"} {
				if !strings.Contains(lines, part) {
					t.Errorf("the log is without %q: %q", part, lines)
				}
			}
			if n := strings.Count(lines, "level="); n != 1 {
				t.Errorf("%d lines of three calls", n)
			}
			if strings.Contains(lines, strings.Repeat("x", loggedPath)) {
				t.Errorf("the whole path is in the log: %q", lines)
			}
		})
	}
}
