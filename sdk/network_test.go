package sdk_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/reschedule-dev/reschedule/sdk"
)

// Failures of real connections are what the fake transport makes: a back-off, which counts, is repeated when its
// connection was refused, and not when it was lost.
func TestNetwork_FailuresAreDistinguished(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dials int // the first one is refused if there are two
		fail  func(http.ResponseWriter)
	}{
		"a connection that is refused": {dials: 2},
		"one that ends without answer": {1, func(w http.ResponseWriter) {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = conn.Close()
			}
		}},
		"one that ends within an answer": {1, func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "1000")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, waiting)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if c.fail != nil {
					c.fail(w)
					return
				}
				w.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(w, waiting)
			}))
			defer server.Close()
			dialled := 0
			transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				if dialled++; dialled < c.dials {
					address = "127.0.0.1:1"
				}
				return new(net.Dialer).DialContext(ctx, network, address)
			}}
			defer transport.CloseIdleConnections()
			client, err := sdk.New(server.URL+"/ops/web", sdk.WithHTTPClient(&http.Client{Transport: transport}))
			if err != nil {
				t.Fatal(err)
			}
			if err := backOff(t.Context(), client); errors.Is(err, sdk.ErrUnavailable) != (c.fail != nil) || dialled != c.dials {
				t.Errorf("%v after %d connections, want %d", err, dialled, c.dials)
			}
		})
	}
}
