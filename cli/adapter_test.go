package main

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
)

// built is the adapter of this checkout, when ADAPTER_BINARY names none.
var built string

func adapterBinary() string { return cmp.Or(os.Getenv("ADAPTER_BINARY"), built) }

// adapter is an adapter that runs.
type adapter struct{ api, admin, data string }

// start starts an adapter in a shell that ends it when the shell's input ends, which it
// does also when this process is killed.
func start(args ...string) (a *adapter, stop func() error, err error) {
	shell := exec.Command("sh", append([]string{"-c", `"$@" </dev/null & cat >/dev/null; kill $!; wait $!`, "sh", adapterBinary()}, args...)...)
	log := &strings.Builder{}
	shell.Stderr = log
	stdin, err := shell.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	stdout, err := shell.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := shell.Start(); err != nil {
		return nil, nil, err
	}
	stop = func() error {
		_ = stdin.Close()
		_, _ = io.Copy(io.Discard, stdout)
		if err := shell.Wait(); err != nil {
			return fmt.Errorf("the adapter ended with %w:\n%s", err, log)
		}
		return nil
	}
	late := time.AfterFunc(patience, func() { _ = stdin.Close() })
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	late.Stop()
	m := regexp.MustCompile(`^ready: schedule API on (http://\S+), probes and metrics on (http://\S+)`).FindStringSubmatch(line)
	if m == nil {
		return nil, nil, fmt.Errorf("the adapter said %q: %w:\n%s", line, stop(), log)
	}
	return &adapter{api: m[1], admin: m[2]}, stop, nil
}

// newAdapter starts an adapter of a test alone, with a source of each name. Its data is in a
// directory, which may have been restored.
func newAdapter(t *testing.T, data string, sources ...string) *adapter {
	t.Helper()
	manifest := &strings.Builder{}
	for _, name := range sources {
		fmt.Fprintf(manifest, manifests, name, "default", "http://127.0.0.1:1/", "", ", suspend: true")
	}
	file := filepath.Join(t.TempDir(), "sources.yaml")
	if err := os.WriteFile(file, []byte(manifest.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	a, stop, err := start("--standalone", "--sources", file, "--data-dir", data, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	a.data = data
	return a
}

// run runs the command line with this adapter, and an input.
func (a *adapter) run(t *testing.T, input string, args ...string) result {
	t.Helper()
	return process(t, "kn-source-reschedule", input, append(args, "--server", a.api)...)
}

// ok requires success.
func (a *adapter) ok(t *testing.T, input string, args ...string) string {
	t.Helper()
	r := a.run(t, input, args...)
	if r.code != 0 {
		t.Fatalf("%q ended with %d:\n%s%s", args, r.code, r.stdout, r.err)
	}
	return r.stdout
}
