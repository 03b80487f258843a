package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
)

// The one source of most scenarios.
const (
	namespace, source = "default", "bench"
	sourcePath        = "/" + namespace + "/" + source
)

// schedulesPath returns the path of one of so many sources. The first is the one source.
func schedulesPath(i uint32, sources int) string {
	path := sourcePath
	if at := int(i % uint32(sources)); at > 0 {
		path += "-" + strconv.Itoa(at)
	}
	return path + "/schedules"
}

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

// adapterConfig is the configuration that a scenario chooses.
type adapterConfig struct {
	Dir     string // of its data, which stay
	Sink    string // host:port
	Sources int    // default 1
}

// start starts an adapter and waits until it is ready. It returns the time from
// the exec until then.
func (a adapterBinary) start(ctx context.Context, c adapterConfig) (*service, time.Duration, error) {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, 0, fmt.Errorf("driver: %w", err)
	}
	sources := c.Dir + ".yaml"
	var manifest bytes.Buffer
	for i := range max(c.Sources, 1) {
		name := source
		if i > 0 {
			name += "-" + strconv.Itoa(i)
		}
		fmt.Fprintf(&manifest, `---
apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata:
  name: %s
  namespace: %s
spec:
  sink:
    uri: http://%s/
  limits:
    maxPending: 100000000
`, name, namespace, c.Sink)
	}
	if err := os.WriteFile(sources, manifest.Bytes(), 0o644); err != nil {
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
	if err := p.waitFor(ctx, "200 of /readyz", 2*time.Millisecond, func() bool { return isReady(admin) }); err != nil {
		return nil, 0, err
	}
	return p.service(addr, admin), time.Since(began), nil
}

// freeAddr returns a loopback address without a listener. Its port lies below the ports of
// outgoing connections, so that no connection takes it before the program listens.
func freeAddr() (string, error) {
	var err error
	for range 100 {
		address := "127.0.0.1:" + strconv.Itoa(15000+rand.IntN(15000))
		var l net.Listener
		if l, err = net.Listen("tcp", address); err == nil {
			return address, l.Close()
		}
	}
	return "", fmt.Errorf("driver: no free port: %w", err)
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

// getJSON reads an answer of a service.
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

// resetSink sets the keys that the sink counts.
func resetSink(addr string, first uint32, n int) error {
	answer, err := control.Post(fmt.Sprintf("http://%s/reset?first=%d&n=%d", addr, first, n), "", nil)
	if err != nil {
		return fmt.Errorf("driver: %w", err)
	}
	return answer.Body.Close()
}

// awaitSink waits until the sink has seen n distinct keys, at most for the limit, and returns the arrivals.
func awaitSink(ctx context.Context, addr string, n int64, every, limit time.Duration) (arrivals, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		var now arrivals
		if err := getJSON(addr, "/", &now); err != nil {
			return now, err
		}
		if now.Seen >= n {
			err := getJSON(addr, "/?arrivals=1", &now)
			return now, err
		}
		if sleep(ctx, every) != nil {
			return now, fmt.Errorf("driver: %d of %d events had come to the sink after %s", now.Seen, n, limit)
		}
	}
}
