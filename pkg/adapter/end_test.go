package adapter

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/backup"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// A start whose store waits for space on a full disk ends with its context. SIGTERM did not end the process.
func TestStart_EndsWhileTheStoreWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		space := make(chan struct{})
		defer close(space)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		a := &Adapter{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
		begun := time.Now()
		_, err := a.whileInUse(ctx, func() (host, error) {
			<-space
			return nil, nil //nolint:nilnil // the start has ended before
		})
		if took := time.Since(begun); !errors.Is(err, context.DeadlineExceeded) || took != time.Minute+openTimeout {
			t.Errorf("%v after %s", err, took)
		}
	})
}

// A store that opens just when the context ends is closed in order.
func TestStart_EndsWhenTheStoreHasOpened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		a := &Adapter{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
		opened, err := a.whileInUse(ctx, func() (host, error) {
			<-ctx.Done()
			return &alone{}, nil
		})
		if opened == nil || err != nil {
			t.Errorf("%v %v", opened, err)
		}
	})
}

// A second seal, of the adapter that serves back-ups of the sealed store, finds nothing to do. It failed, and ended the
// adapter.
func TestSeal_AgainLeavesTheAdapter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	db, err := store.Open(store.Options{Dir: dir})
	must(t, err)
	must(t, db.Seal())
	a := &alone{DB: db, quit: func() { t.Error("the adapter ends") }, sealed: make(chan error, 1)}
	server, err := backup.Serve(a, dir, slog.New(slog.DiscardHandler))
	must(t, err)
	defer server.Close()
	for range 2 {
		if code := backup.Main(t.Context(), []string{"seal", "--data-dir", dir}, nil, t.Output(), t.Output()); code != 0 {
			t.Errorf("the seal ends with %d", code)
		}
	}
	if code := backup.Main(t.Context(), []string{"backup", "--data-dir", dir, "-f", filepath.Join(t.TempDir(), "file")}, nil, t.Output(), t.Output()); code != 0 {
		t.Errorf("a back-up ends with %d", code)
	}
	must(t, db.Close())
}

// portHost has a port for other members, on which a call is under way.
type portHost struct {
	host
	left error // of the context, when the port begins to end
}

func (*portHost) Leave()       {}
func (*portHost) Close() error { return nil }

// Shutdown implements host.
func (h *portHost) Shutdown(ctx context.Context) { h.left = ctx.Err() }

// A call that hangs leaves the port for other members the time for what is under way there. It was cut off.
func TestStop_HungCallLeavesThePortItsTime(t *testing.T) {
	t.Parallel()
	h := &portHost{}
	a := &Adapter{host: h, connections: newConnections(slog.New(slog.DiscardHandler)), origin: (&Config{}).origin(nil)}
	began := make(chan struct{})
	e, err := a.listen("127.0.0.1:0", &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { //nolint:gosec // of a test
		close(began)
		<-r.Context().Done()
	})}, a.connections.plain)
	must(t, err)
	a.calls = append(a.calls, e)
	a.answer(e)
	go func() {
		if resp, err := http.Get("http://" + e.Addr().String()); err == nil {
			resp.Body.Close()
		}
	}()
	<-began
	must(t, a.end())
	if h.left != nil {
		t.Error("the port ends with", h.left)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
