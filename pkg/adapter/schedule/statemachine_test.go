package schedule

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/state-machine.md")

const intro = `# The states of a key

Written by ` + "`go test ./pkg/adapter/schedule -update`" + ` from pkg/adapter/schedule/transitions.go. A random walk shows that
every step below happens, and no other.

Callers see ` + "`waiting`, `due` and `inFlight`" + `. A key that is absent or leaving is a 404; one that is behind is
` + "`waiting` or `due` with `\"inFlight\": true`" + `. A step to waiting whose time has come continues to due. An answer to a
delivery is one of: succeed (2xx), fail (another attempt, or none because something newer replaced it), give up
(rejected, or retries used up), expire.

`

// docs/state-machine.md is generated from the table.
func TestTransitions_AreDocumented(t *testing.T) {
	t.Parallel()
	path := filepath.Join("..", "..", "..", "docs", "state-machine.md")
	want := drawing()
	if *update {
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(want), 0o644))
	}
	got, err := os.ReadFile(path)
	must(t, err)
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/state-machine.md is not what the table says: run the test with -update:\n%s", diff)
	}
}

func drawing() string {
	var b strings.Builder
	b.WriteString(intro + "```mermaid\nstateDiagram-v2\n")
	node := func(s State, other string) string {
		if s == Absent {
			return other
		}
		return string(s)
	}
	drawn := map[string]int{} // by arrow; an arrow has all its events
	var arrows []string
	for _, tr := range Transitions {
		arrow := fmt.Sprintf("    %s --> %s: ", node(tr.From, "[*]"), node(tr.To, "[*]"))
		if i, again := drawn[arrow]; again {
			arrows[i] += ", " + string(tr.On)
			continue
		}
		drawn[arrow] = len(arrows)
		arrows = append(arrows, arrow+string(tr.On))
	}
	b.WriteString(strings.Join(arrows, "\n") + "\n")
	b.WriteString("```\n\n| from | on | to | |\n|---|---|---|---|\n")
	for _, tr := range Transitions {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", tr.From, tr.On, tr.To, tr.Note)
	}
	return b.String()
}

// Two rows for one step would be two truths.
func TestTransitions_EachOnce(t *testing.T) {
	t.Parallel()
	seen := map[Transition]bool{}
	for _, tr := range Transitions {
		tr.Note = ""
		if seen[tr] {
			t.Errorf("%s on %q to %s is there twice", tr.From, tr.On, tr.To)
		}
		seen[tr] = true
	}
}
