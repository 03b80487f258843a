package harness

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// built is the adapter that [Main] built, when ADAPTER_BINARY names none.
var built string

// Binary returns the path of the adapter: ADAPTER_BINARY, or the program that [Main] built.
//
// It reads the variable at each call. go test reuses a result only while the variables
// that tests read are the same, and it does not see what TestMain reads.
func Binary() string { return cmp.Or(os.Getenv("ADAPTER_BINARY"), built) }

// Main builds the adapter, with the race detector if the tests are, runs the
// tests between before and after, and returns the exit code.
func Main(m *testing.M, before func(dir string) (after func() error, err error)) int {
	dir, err := os.MkdirTemp("", "reschedule-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "harness:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	if os.Getenv("ADAPTER_BINARY") == "" {
		built = filepath.Join(dir, "adapter")
		if err := Build(built, "github.com/reschedule-dev/reschedule/cmd/adapter"); err != nil {
			fmt.Fprintln(os.Stderr, "harness: building the adapter:", err)
			return 1
		}
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

// Build compiles a program of this checkout to a file, with the race detector if the
// tests are.
func Build(file, program string, flags ...string) error {
	args, cgo := append([]string{"build", "-o", file}, flags...), "CGO_ENABLED=0"
	if RaceEnabled {
		args, cgo = append(args, "-race"), "CGO_ENABLED=1"
	}
	cmd := exec.Command("go", append(args, program)...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.Env = append(os.Environ(), cgo)
	return cmd.Run()
}
