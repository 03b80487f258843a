package house

import (
	"slices"
	"strings"
	"testing"
)

// A package of the data plane stands in one line of the drawing in ARCHITECTURE.md, and the plan
// lets it import only packages of the lines below its own.
func TestLayers_DrawnAsPlanned(t *testing.T) {
	t.Parallel()
	_, after, found := strings.Cut(string(readRoot(t, "ARCHITECTURE.md")), "\n```text\ncommands ")
	drawing, _, ended := strings.Cut(after, "\n```\n")
	if !found || !ended {
		t.Fatal("ARCHITECTURE.md has no drawing of the layers")
	}
	lines := strings.Split("commands "+drawing, "\n")
	layer := map[string]int{}
	for i, line := range lines {
		_, names, found := strings.Cut(line, "│ ")
		if !found {
			t.Fatalf("%q: want what it is, │, and packages", line)
		}
		for name := range strings.FieldsSeq(names) {
			if _, ok := plan["pkg/adapter/"+name]; ok {
				name = "pkg/adapter/" + name
			}
			if _, ok := plan[name]; !ok || layer[name] > 0 {
				t.Errorf("%s is not on the plan, or drawn twice", name)
			}
			layer[name] = len(lines) - i
		}
	}
	for name, r := range plan {
		if !below("pkg/adapter", name) || slices.Contains(forTests, name) {
			continue
		}
		if layer[name] == 0 {
			t.Errorf("%s is not drawn", name)
		}
		for _, m := range r.may {
			if layer[m] >= layer[name] {
				t.Errorf("%s may import %s, which is not drawn below it", name, m)
			}
		}
	}
}
