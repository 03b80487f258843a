package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
)

// The one source of every scenario.
const (
	namespace, source = "default", "bench"
	sourcePath        = "/" + namespace + "/" + source
	schedulesPath     = sourcePath + "/schedules"
)

// adapterBinary runs adapters as processes.
type adapterBinary struct{ file string }

// buildAdapter builds the product of the repository into dir.
func buildAdapter(ctx context.Context, repo, dir string) (adapterBinary, error) {
	file, err := filepath.Abs(filepath.Join(dir, "adapter"))
	if err != nil {
		return adapterBinary{}, fmt.Errorf("driver: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-tags", "grpcnotrace", "-o", file, "./cmd/adapter")
	cmd.Dir = repo
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return adapterBinary{}, fmt.Errorf("driver: building the adapter: %w: %s", err, bytes.TrimSpace(out))
	}
	return adapterBinary{file: file}, nil
}

// adapterConfig is what scenarios want of an adapter.
type adapterConfig struct {
	Dir  string // holds its data, and stays
	Sink string // host:port
}

// readyLimit bounds a start; a store with ten million keys may be slow, but the driver ends.
const readyLimit = 2 * time.Minute

// start starts an adapter and waits until it says that it is ready. It returns
// how long that took from the exec.
func (a adapterBinary) start(ctx context.Context, c adapterConfig) (*service, time.Duration, error) {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, 0, fmt.Errorf("driver: %w", err)
	}
	sources := c.Dir + ".yaml"
	manifest := fmt.Sprintf(`apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata:
  name: %s
  namespace: %s
spec:
  sink:
    uri: http://%s/
  limits:
    maxPending: 100000000
`, source, namespace, c.Sink)
	if err := os.WriteFile(sources, []byte(manifest), 0o644); err != nil {
		return nil, 0, fmt.Errorf("driver: %w", err)
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, 0, err
	}
	admin, err := freeAddr()
	if err != nil {
		return nil, 0, err
	}
	began := time.Now()
	p, err := startProcess(exec.Command(a.file, "--standalone", "--sources", sources, "--data-dir", c.Dir,
		"--listen", addr, "--admin-listen", admin))
	if err != nil {
		return nil, 0, err
	}
	p.discardStdout()
	if err := p.waitFor(ctx, "200 of /readyz", 2*time.Millisecond, readyLimit, func() bool { return isReady(admin) }); err != nil {
		p.cmd.Process.Kill()
		<-p.ended
		return nil, 0, err
	}
	return p.service(addr, admin), time.Since(began), nil
}

// freeAddr is a loopback address that nobody listens on.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("driver: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

var control = &http.Client{Timeout: load.CallTimeout}

func isReady(admin string) bool {
	answer, err := control.Get("http://" + admin + "/readyz")
	if err != nil {
		return false
	}
	answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// getJSON reads what a service tells.
func getJSON(addr, path string, into any) error {
	answer, err := control.Get("http://" + addr + path)
	if err != nil {
		return fmt.Errorf("driver: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 512))
		return fmt.Errorf("driver: GET %s: %s: %s", path, answer.Status, bytes.TrimSpace(text))
	}
	if err := json.NewDecoder(answer.Body).Decode(into); err != nil {
		return fmt.Errorf("driver: GET %s: %w", path, err)
	}
	return nil
}

// counts are those of `GET {address}` that scenarios look at.
type counts struct{ Pending, Due, InFlight int64 }

// resetSink says which keys the sink is to look for.
func resetSink(addr string, first uint32, n int) error {
	answer, err := control.Post(fmt.Sprintf("http://%s/reset?first=%d&n=%d", addr, first, n), "", nil)
	if err != nil {
		return fmt.Errorf("driver: %w", err)
	}
	return answer.Body.Close()
}

// awaitSink waits until the sink has seen n distinct keys, or for as long as the limit.
func awaitSink(ctx context.Context, addr string, n int64, every, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		var s sunk
		if err := getJSON(addr, "/", &s); err != nil {
			return err
		}
		if s.Seen >= n {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("driver: %d of %d events had come to the sink after %s", s.Seen, n, limit)
		case <-tick.C:
		}
	}
}
