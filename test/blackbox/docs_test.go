package blackbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// block is commands of a page, and the answer that it shows directly below.
var block = regexp.MustCompile("(?ms)^```sh\n(.*?)^```\n(?:\n```json\n(.*?)^```$)?")

// A reader pastes the commands of docs/http-api.md one after the other, with curl and bash. Every call succeeds, and its
// answer has the fields that the page shows.
func TestDocs_HTTPAPIRunsInOrder(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/http-api.md")
	if err != nil {
		t.Fatal(err)
	}
	// The example operator fails keys of deploys twice, which its own tests hold.
	operator := harness.NewSink()
	t.Cleanup(operator.Close)
	operator.Answer("", "Deploy/shop", harness.Status(http.StatusServiceUnavailable))
	address, err := harness.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	own := strings.NewReplacer("127.0.0.1:8081", strings.TrimPrefix(operator.URL, "http://"),
		"127.0.0.1:8080 &", address+" --admin-listen 127.0.0.1:0 &", "127.0.0.1:8080", address, "sleep 1;", "sleep 0.1;")

	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	adapter, err := filepath.Abs(harness.Binary())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(adapter, filepath.Join(dir, "bin", "adapter")); err != nil {
		t.Fatal(err)
	}
	// The operator of the page is the sink above.
	if err := os.WriteFile(filepath.Join(dir, "bin", "operator"), []byte("#!/bin/sh\nexec sleep 600\n"), 0o700); err != nil {
		t.Fatal(err)
	}

	// A call that is answered with an error ends the script, and 28 is the end of --max-time.
	const begin, end = `set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
go() { :; }
curl() { local code=0; command curl -sS --fail-with-body "$@" || code=$?; [ $code = 28 ] || return $code; }
`, "-- end of a block\n"
	script := bytes.NewBufferString(begin)
	blocks := block.FindAllStringSubmatch(string(page), -1)
	for _, b := range blocks {
		script.WriteString(own.Replace(b[1]) + "\necho; echo " + end)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*harness.Patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "bash")
	// Its trap ends the programs that it started.
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, harness.Patience
	var stderr bytes.Buffer
	cmd.Dir, cmd.Stdin, cmd.Stderr = dir, script, &stderr
	out, err := cmd.Output()
	outputs := strings.Split(string(out), end)
	if err != nil {
		t.Fatalf("%v after block %d:\n%s\n%s", err, len(outputs)-1, out, stderr.Bytes())
	}
	if len(outputs) != len(blocks)+1 || len(blocks) < 10 {
		t.Fatalf("%d of %d blocks ran:\n%s", len(outputs)-1, len(blocks), out)
	}
	for i, b := range blocks {
		if b[2] == "" {
			continue
		}
		var want any
		if err := json.Unmarshal([]byte(b[2]), &want); err != nil {
			t.Errorf("the page shows %s: %v", b[2], err)
		} else if !slices.ContainsFunc(answers(outputs[i]), func(got any) bool { return shape(got) == shape(want) }) {
			t.Errorf("the page shows %s, and got\n%s", b[2], outputs[i])
		}
	}
}

// answers are the objects in what a block prints.
func answers(output string) []any {
	var all []any
	for {
		_, rest, found := strings.Cut("\n"+output, "\n{")
		if !found {
			return all
		}
		dec := json.NewDecoder(strings.NewReader("{" + rest))
		var one any
		if dec.Decode(&one) == nil {
			all = append(all, one)
		}
		output = rest
	}
}

// shape is the names in a JSON value, without their values. Of an array it has the first element of each shape.
func shape(value any) string {
	switch value := value.(type) {
	case map[string]any:
		var names []string
		for name, v := range value {
			names = append(names, fmt.Sprintf("%s:%s", name, shape(v)))
		}
		slices.Sort(names)
		return fmt.Sprint(names)
	case []any:
		var items []string
		for _, v := range value {
			if s := shape(v); !slices.Contains(items, s) {
				items = append(items, s)
			}
		}
		return fmt.Sprint("list of ", items)
	}
	return ""
}
