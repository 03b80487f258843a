package group

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/metric/noop"
)

// A forwarded call has the path that its caller sent. The keys of callers that leave characters
// as they are, which should be encoded, lost their %2F: the owner saw another path.
func TestForwarded_KeepsThePath(t *testing.T) {
	t.Parallel()
	var got *http.Request
	m, owner := newSending(t, func(_ http.ResponseWriter, r *http.Request) { got = r })
	for _, target := range []string{
		"/n/s/schedules/k", "/n/s/schedules/k?limit=1&x=%2F", "/n/s/schedules/GitRepo%2Fteam%2Fsite", "/n/s/schedules/GitRepo%2Fteam%2Fsité",
		"/n/s/schedules/é%2Fhistory", "/n/s/schedules/a|b^{c}%2F\"d\"", "/n/s/schedules/%C3%A9", "/n/s/schedules/%252F", "/n/s/schedules//é%2F",
	} {
		sent := httptest.NewRequest(http.MethodPut, target, strings.NewReader("{}"))
		f, err := newForwarding(httptest.NewRecorder(), sent)
		if err != nil {
			t.Fatal(err)
		}
		answer := httptest.NewRecorder()
		if !m.forward(answer, sent, f, own{m}, owner, nil) || answer.Code != http.StatusOK {
			t.Fatalf("%s: %d %s", target, answer.Code, answer.Body)
		}
		if got.URL.Path != sent.URL.Path || got.URL.RawPath != sent.URL.RawPath || got.URL.RawQuery != sent.URL.RawQuery {
			t.Errorf("%s came as %q, %q, query %q", target, got.URL.Path, got.URL.RawPath, got.URL.RawQuery)
		}
	}
}

// newSending returns a member that forwards, and the address of an owner that answers so.
func newSending(t *testing.T, answer http.HandlerFunc) (m *Member, owner string) {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	m = &Member{client: forwarder(nil)}
	m.forwarded, _ = noop.Meter{}.Int64Counter("forwarded")
	t.Cleanup(m.client.CloseIdleConnections)
	return m, strings.TrimPrefix(server.URL, "http://")
}
