package house

import (
	"regexp"
	"strings"
	"testing"
)

// ARCHITECTURE.md says in which function a rule of the contract lives. A table
// that names a function that has moved is worse than none.
func TestRules_LiveWhereThePageSays(t *testing.T) {
	t.Parallel()
	_, section, found := strings.Cut(string(readRoot(t, "ARCHITECTURE.md")), "\n## Where a rule of the contract lives\n")
	section, _, _ = strings.Cut(section, "\n## ")
	if !found {
		t.Fatal("ARCHITECTURE.md has no section about the rules")
	}
	texts := readTree(t).texts
	rules := 0
	for _, row := range regexp.MustCompile("(?m)^\\| .* \\| `([^`]+)` \\| (.*) \\|$").FindAllStringSubmatch(section, -1) {
		rules++
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[2], -1) {
			declaration := "func " + name[1] + "("
			if typ, method, ok := strings.Cut(name[1], "."); ok {
				declaration = `func \(\w+ \*?` + typ + `\) ` + method + `\(`
			} else {
				declaration = regexp.QuoteMeta(declaration)
			}
			if !regexp.MustCompile(`(?m)^` + declaration).MatchString(texts[row[1]]) {
				t.Errorf("%s has no function %s", row[1], name[1])
			}
		}
	}
	if rules < 200 {
		t.Errorf("%d rules, want 200 or more", rules)
	}
}
