package group

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A member that ends goes on forwarding while callers call it, since a busy node sends it new
// connections for longer than usual. It was 3 s, whatever came, and connections were refused.
func TestLeave_ForwardsWhileCalled(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		calls []time.Duration // after SIGTERM
		takes time.Duration   // each call
		ends  time.Duration
	}{
		{"no call", nil, 0, forwardLeast},
		{"the nodes learn it at once", []time.Duration{1, 100 * time.Millisecond}, 0, forwardLeast},
		{"a caller waits since before", []time.Duration{-time.Second}, 6 * time.Second, 5*time.Second + forwardQuiet},
		{"all callers wait for an answer", []time.Duration{3 * time.Second}, 3500 * time.Millisecond, 6500*time.Millisecond + forwardQuiet},
		{"an answer never comes", []time.Duration{3 * time.Second}, time.Minute, ForwardMost},
		{"a node learns it late", []time.Duration{1, 4 * time.Second, 5500 * time.Millisecond, 6500 * time.Millisecond}, 0, 6500*time.Millisecond + forwardQuiet},
		{"one never learns it", []time.Duration{4 * time.Second, 5500 * time.Millisecond, 7 * time.Second, 8500 * time.Millisecond, 9500 * time.Millisecond}, 0, ForwardMost},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := &Member{stage: &stage{}}
				begun := time.Now().Add(time.Second)
				var caller sync.WaitGroup
				caller.Go(func() {
					api := m.Route(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(test.takes) }))
					for _, at := range test.calls {
						time.Sleep(time.Until(begun.Add(at)))
						answer := httptest.NewRecorder()
						api.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/openapi.json", http.NoBody))
						if at > 0 && answer.Header().Get("Connection") != "close" {
							t.Error("the caller is not told to go elsewhere")
						}
					}
				})
				time.Sleep(time.Until(begun))
				m.stage.leaving.Store(true)
				m.callers.awaitQuiet(begun, slog.New(slog.DiscardHandler))
				if took := time.Since(begun); took != test.ends {
					t.Errorf("it ended after %s, want %s", took, test.ends)
				}
				caller.Wait()
			})
		})
	}
}

// A stream of events may last for hours: a member that ends does not wait for its end.
func TestLeave_StreamsAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c callers
		begun := time.Now()
		defer c.call(httptest.NewRequest(http.MethodGet, "/ns/s/events", http.NoBody))()
		c.awaitQuiet(begun, slog.New(slog.DiscardHandler))
		if took := time.Since(begun); took != forwardLeast {
			t.Errorf("it ended after %s, want %s", took, forwardLeast)
		}
	})
}
