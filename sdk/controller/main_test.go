package controller

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// built is the adapter, when ADAPTER_BINARY names none.
var built string

// TestMain builds the adapter of this checkout, or takes ADAPTER_BINARY. With a
// directory in OPERATOR_DIR this process is not the test but its operator.
func TestMain(m *testing.M) {
	if dir := os.Getenv("OPERATOR_DIR"); dir != "" {
		fmt.Fprintln(os.Stderr, mortalOperator(dir, os.Getenv("OPERATOR_LISTEN")))
		os.Exit(1)
	}
	ctrl.SetLogger(logr.Discard())
	code, err := withAdapter(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		code = 1
	}
	os.Exit(code)
}

func withAdapter(tests func() int) (int, error) {
	dir, err := os.MkdirTemp("", "reschedule-sdk-controller-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if os.Getenv("ADAPTER_BINARY") == "" {
		built = filepath.Join(dir, "adapter")
		build := exec.Command("go", "build", "-C", "../..", "-trimpath", "-tags", "grpcnotrace", "-o", built, "./cmd/adapter")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make test builds it, so that it is there already
		if out, err := build.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("building the adapter: %w\n%s", err, out)
		}
	}
	return tests(), nil
}

// adapter starts an adapter with the specs of sources in namespace default, by name, and
// returns its address. It runs in a shell that ends it when the shell's input ends, which
// it does also when this process is killed. It reads ADAPTER_BINARY again: go test reuses a
// result only while the variables that tests read are the same, and it does not see what
// TestMain reads.
func adapter(t *testing.T, specs map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	var manifests strings.Builder
	for name, spec := range specs {
		fmt.Fprintf(&manifests, "---\napiVersion: sources.reschedule.dev/v1alpha1\nkind: RescheduleSource\nmetadata: {name: %s, namespace: default}\nspec: %s\n", name, spec)
	}
	sources := filepath.Join(dir, "sources.yaml")
	if err := os.WriteFile(sources, []byte(manifests.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	shell := exec.Command("sh", "-c", `"$@" </dev/null & cat >/dev/null; kill $!; wait $!`, "sh", cmp.Or(os.Getenv("ADAPTER_BINARY"), built),
		"--standalone", "--sources", sources, "--data-dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
	log := &strings.Builder{}
	shell.Stderr = log
	stdin, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := shell.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_, _ = io.Copy(io.Discard, stdout)
		if err := shell.Wait(); err != nil || t.Failed() {
			t.Logf("the adapter ended with %v:\n%s", err, log)
		}
	})
	late := time.AfterFunc(patience, func() { _ = stdin.Close() })
	defer late.Stop()
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if m := regexp.MustCompile(`^ready: schedule API on (http://\S+),`).FindStringSubmatch(lines.Text()); m != nil {
			return m[1] + "/default/"
		}
	}
	t.Fatal("the adapter is not ready")
	return ""
}
