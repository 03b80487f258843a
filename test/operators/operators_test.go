// Package operators has operators that run from zero replicas. Two are public: their
// controllers are in the modules that their authors published, and only their main
// programs are ours. The operator resident runs all the time, to compare with.
package operators

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

// The modules of the public operators have the sums in go.sum, and only our module is
// replaced.
func TestModules_AreAsPublished(t *testing.T) {
	t.Parallel()
	var module struct {
		Replace []struct{ Old struct{ Path string } }
	}
	if err := json.Unmarshal(output(t, "mod", "edit", "-json"), &module); err != nil {
		t.Fatal(err)
	}
	for _, r := range module.Replace {
		if r.Old.Path != "github.com/reschedule-dev/reschedule/sdk" {
			t.Errorf("go.mod replaces %s: it must be as it was published", r.Old.Path)
		}
	}
	if said := string(output(t, "mod", "verify")); strings.TrimSpace(said) != "all modules verified" {
		t.Errorf("go mod verify: %s", said)
	}
}

func output(t *testing.T, args ...string) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}
