package sdk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/reschedule-dev/reschedule/sdk"
)

// Failures of real connections are the same errors as the failures of the fake
// transport in the other tests.
func TestNetwork_FailuresAreDistinguished(t *testing.T) {
	t.Parallel()
	hangUp := func(w http.ResponseWriter) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.Close()
	}
	cut := func(w http.ResponseWriter) {
		w.Header().Set("Content-Length", "1000")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, waiting)
	}
	for name, c := range map[string]struct {
		refuse      bool // the first connection
		first       func(http.ResponseWriter)
		again       bool // a back-off is made again
		seen, seen2 int64
	}{
		"a connection that is refused":   {refuse: true, again: true, seen: 1, seen2: 1},
		"one that ends without answer":   {first: hangUp, seen: 2, seen2: 1},
		"one that ends within an answer": {first: cut, seen: 2, seen2: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, k := range []struct {
				call func(context.Context, *sdk.Client) error
				ok   bool
				seen int64
			}{{put(sdk.After(0)), true, c.seen}, {backOff, c.again, c.seen2}} {
				var seen, dialled atomic.Int64
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if _, err := io.Copy(io.Discard, r.Body); err != nil {
						t.Error(err)
					}
					if seen.Add(1) == 1 && c.first != nil {
						c.first(w)
						return
					}
					w.WriteHeader(http.StatusCreated)
					_, _ = io.WriteString(w, waiting)
				}))
				defer server.Close()
				transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
					if dialled.Add(1) == 1 && c.refuse {
						address = closedPort(t)
					}
					return new(net.Dialer).DialContext(ctx, network, address)
				}}
				defer transport.CloseIdleConnections()
				client, err := sdk.New(server.URL+"/ops/web", sdk.WithHTTPClient(&http.Client{Transport: transport}))
				if err != nil {
					t.Fatal(err)
				}
				if err := k.call(t.Context(), client); (err == nil) != k.ok || err != nil && !errors.Is(err, sdk.ErrUnavailable) || seen.Load() != k.seen {
					t.Errorf("%v after %d requests, want %d", err, seen.Load(), k.seen)
				}
			}
		})
	}
}

// closedPort is an address without a listener.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Error(err)
		return ""
	}
	_ = l.Close()
	return l.Addr().String()
}

// A call that is repeatable outlives a restart of the adapter.
func TestNetwork_CallOutlivesARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sources := filepath.Join(dir, "sources.yaml")
	var manifest bytes.Buffer
	fmt.Fprintf(&manifest, manifests, "http://"+closedPort(t))
	if err := os.WriteFile(sources, manifest.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	listen := closedPort(t)
	transport := &http.Transport{}
	var client *sdk.Client
	for run := range 3 {
		called := make(chan error, 1)
		if run > 0 { // while there is no adapter
			go func() {
				// No adapter has got it, so that it is repeated also under a condition.
				_, err := client.Schedule(t.Context(), fmt.Sprint(run), sdk.Request{}, sdk.IfAbsent())
				called <- err
			}()
		}
		address, stop, err := start(sources, filepath.Join(dir, "data"), listen)
		if err != nil {
			t.Fatal(err)
		}
		if run == 0 {
			called <- nil
			if client, err = sdk.New(address+"/default/still", sdk.WithHTTPClient(&http.Client{Transport: transport})); err != nil {
				t.Error(err)
			}
		}
		if err := <-called; err != nil {
			t.Errorf("run %d: %v", run, err)
		}
		if n, err := client.Counts(t.Context()); err != nil || n.Pending != run {
			t.Errorf("run %d: the counts are %s, %v", run, show(n), err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		// The next call must dial. On a connection of which it is not yet known that it is
		// closed, the outcome of a call is not known either.
		transport.CloseIdleConnections()
	}
}
