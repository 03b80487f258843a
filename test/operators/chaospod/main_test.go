package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// changes are all that main.go has of its own.
var changes = []struct{ theirs, ours string }{
	{"\npackage main\n", `
// Command chaospod is controller-runtime's own example of an operator
// (sigs.k8s.io/controller-runtime v0.25.2, examples/crd/main.go) with two changes: an
// import, and the function that makes the manager. See TestProgram_IsTheExampleWithItsChanges.
package main
`},
	{"/pkg/log/zap\"\n)", "/pkg/log/zap\"\n\n\t\"github.com/reschedule-dev/reschedule/sdk/controller\"\n)"},
	{"ctrl.NewManager(", "controller.NewManager("},
}

// main.go is the example in the module cache, with the changes. The rest of the example,
// its package of types, is imported from there.
func TestProgram_IsTheExampleWithItsChanges(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}} {{.Replace}} {{.Dir}}", "sigs.k8s.io/controller-runtime").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir, ok := strings.CutPrefix(strings.TrimSpace(string(out)), "v0.25.2 <nil> ")
	if !ok {
		t.Fatalf("controller-runtime is %s, want v0.25.2 and not replaced: main.go names this version, and must be made from it", out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "examples", "crd", "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for _, c := range changes {
		if n := strings.Count(want, c.theirs); n != 1 {
			t.Fatalf("the example has %q %d times, want once", c.theirs, n)
		}
		want = strings.Replace(want, c.theirs, c.ours, 1)
	}
	ours, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(ours)); diff != "" {
		t.Errorf("main.go is not the example with its changes (-want +got):\n%s", diff)
	}
}
