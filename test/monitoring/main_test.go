package monitoring

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

const (
	config    = "../../config/monitoring/"
	rulesFile = config + "rules/reschedule.yaml"
	docsFile  = "../../docs/monitoring.md"
)

var update = flag.Bool("update", false, "write the generated files of config/monitoring")

// programs is the directory of prometheus and promtool.
var programs string

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(string) (func() error, error) {
		cmd := exec.Command("../../hack/prometheus.sh")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("hack/prometheus.sh: %w", err)
		}
		programs = strings.TrimSpace(string(out))
		return func() error { return nil }, nil
	}))
}

func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(programs, "promtool"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
