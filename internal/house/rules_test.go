package house

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// rulesOf returns the section of ARCHITECTURE.md about the rules.
func rulesOf(t *testing.T) string {
	t.Helper()
	_, section, found := strings.Cut(string(readRoot(t, "ARCHITECTURE.md")), "\n## Where a rule of the contract lives\n")
	section, _, _ = strings.Cut(section, "\n## ")
	if !found {
		t.Fatal("ARCHITECTURE.md has no section about the rules")
	}
	return section
}

var quoted = regexp.MustCompile("`([^`]+)`")

// ARCHITECTURE.md says in which function a rule of the contract lives. A table
// that names a function that has moved is worse than none.
func TestRules_LiveWhereThePageSays(t *testing.T) {
	t.Parallel()
	texts := readTree(t).texts
	for _, row := range regexp.MustCompile("(?m)^\\| .* \\| `([^`]+)` \\| (.*) \\|$").FindAllStringSubmatch(rulesOf(t), -1) {
		for _, name := range quoted.FindAllStringSubmatch(row[2], -1) {
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
}

// named is where names of the contract are declared, and how.
var named = []struct{ path, declaration string }{
	{"pkg/apis/sources/v1alpha1/reschedulesource_types.go", `json:"(\w+)`},
	{"pkg/apis/sources/v1alpha1/reschedulesource_watch.go", `json:"(\w+)`},
	{"pkg/apis/sources/v1alpha1/reschedulesource_lifecycle.go", `(?m)^\t?(?:const )?Condition([A-Z]\w+) .*= `},
	{"pkg/apis/sources/v1alpha1/reschedulesource_lifecycle.go", `(?m)^\t?(?:const )?Reason\w+ .*= "(\w+)"`},
	{"pkg/reconciler/reschedulesource/addressable.go", `(?:invalid\(|&obstacle\{)"(\w+)"`},
	{"pkg/reconciler/reschedulesource/sinks.go", `(?:failure\(|return )"(\w+)"`},
	{"pkg/reconciler/reschedulesource/watching.go", `failure\("(\w+)"`},
	{"pkg/reconciler/reschedulesource/ceilings.go", `(?:EventTypeWarning, |MarkLimited\()"(\w+)"`},
	{"pkg/reconciler/reschedulesource/resources/adapter.go", `Availability\{corev1\.\w+, "(\w+)"`},
	{"pkg/adapter/cluster/sources.go", `const reason\w+ = "(\w+)"`},
	{"pkg/adapter/registry.go", `Reason: +"(\w+)"`},
	{"pkg/adapter/schedule/errors.go", `Code = "(\w+)"`},
	{"pkg/adapter/adapter.go", `"((?:Event|Delivery|Answer)[A-Z]\w+)"`},
	{"pkg/adapter/cluster/warn.go", `"(Event[A-Z]\w+)"`},
	{"pkg/adapter/watch/source.go", `"(Watch[A-Z]\w+)"`},
}

// A reader searches the page for a field, a code, a condition or a reason. Each has a row.
func TestRules_EachNameHasARow(t *testing.T) {
	t.Parallel()
	texts := readTree(t).texts
	var rules strings.Builder
	for _, rule := range regexp.MustCompile("(?m)^\\| (.*?) \\| `").FindAllStringSubmatch(rulesOf(t), -1) {
		for _, name := range quoted.FindAllStringSubmatch(rule[1], -1) {
			rules.WriteString(name[1] + "\n")
		}
	}
	for _, n := range named {
		found := regexp.MustCompile(n.declaration).FindAllStringSubmatch(texts[n.path], -1)
		if len(found) == 0 {
			t.Errorf("%s declares no name by %s", n.path, n.declaration)
		}
		for _, name := range found {
			// metadata, items and Ready are of every kind of object, and a message has no rule.
			if !slices.Contains([]string{"metadata", "items", "Ready", "message"}, name[1]) && !regexp.MustCompile(`\b`+name[1]+`\b`).MatchString(rules.String()) {
				t.Errorf("ARCHITECTURE.md has no rule with %s, which %s declares", name[1], n.path)
			}
		}
	}
}
