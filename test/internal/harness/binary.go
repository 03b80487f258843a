package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Binary is the path of the built adapter, while [Main] runs.
var Binary string

// Main builds the adapter, with the race detector if the tests are, runs the
// tests between before and after, and returns the exit code.
func Main(m *testing.M, before func(dir string) (after func() error, err error)) int {
	dir, err := os.MkdirTemp("", "reschedule-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "harness:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	if Binary, err = build(dir); err != nil {
		fmt.Fprintln(os.Stderr, "harness: building the adapter:", err)
		return 1
	}
	after, err := before(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "harness:", err)
		return 1
	}
	code := m.Run()
	if err := after(); err != nil {
		fmt.Fprintln(os.Stderr, "harness:", err)
		code = max(code, 1)
	}
	return code
}

// build honours ADAPTER_BINARY, for a run against another build.
func build(dir string) (string, error) {
	if ready := os.Getenv("ADAPTER_BINARY"); ready != "" {
		return filepath.Abs(ready)
	}
	binary := filepath.Join(dir, "adapter")
	args := []string{"build", "-o", binary}
	if RaceEnabled {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "github.com/reschedule-dev/reschedule/cmd/adapter")...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if !RaceEnabled {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	return binary, cmd.Run()
}
