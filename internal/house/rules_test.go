package house

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	item      = regexp.MustCompile("(?m)^- `([^`]+)`: (.*(?:\n  .*)*)$")
	functions = regexp.MustCompile("\\((`[\\w.]+`(?:,\\s+`[\\w.]+`)*)\\)")
	quoted    = regexp.MustCompile("`([^`]+)`")
)

// rules calls rule with each file of docs/rules.md, and what the page says of it.
func rules(t *testing.T, rule func(file, text string)) {
	t.Helper()
	items := item.FindAllStringSubmatch(string(readRoot(t, "docs/rules.md")), -1)
	if len(items) == 0 {
		t.Fatal("docs/rules.md has no rule")
	}
	for _, i := range items {
		file := i[1]
		if !strings.HasPrefix(file, "pkg/") {
			file = "pkg/adapter/" + file
		}
		rule(file, i[2])
	}
}

// docs/rules.md says in which function a rule is. A page that names a function that has moved is worse than none.
func TestRules_AreWhereThePageSays(t *testing.T) {
	t.Parallel()
	texts := readTree(t).texts
	rules(t, func(file, text string) {
		found := functions.FindAllString(text, -1)
		if len(found) == 0 {
			t.Errorf("docs/rules.md names no function of %s", file)
		}
		for _, name := range quoted.FindAllStringSubmatch(strings.Join(found, " "), -1) {
			declaration := "func " + regexp.QuoteMeta(name[1]) + `[(\[]`
			if typ, method, ok := strings.Cut(name[1], "."); ok {
				declaration = `func \(\w+ \*?` + typ + `\) ` + method + `\(`
			}
			if !regexp.MustCompile(`(?m)^` + declaration).MatchString(texts[file]) {
				t.Errorf("%s has no function %s", file, name[1])
			}
		}
	})
}

// named is where names of the contract are declared, and how.
var named = []struct{ path, declaration string }{
	{"pkg/apis/sources/v1alpha1/reschedulesource_types.go", `json:"(\w+)`},
	{"pkg/apis/sources/v1alpha1/reschedulesource_watch.go", `json:"(\w+)`},
	{"pkg/apis/sources/v1alpha1/reschedulesource_scale.go", `json:"(\w+)`},
	{"pkg/apis/sources/v1alpha1/reschedulesource_scale.go", `(?m)^\t?(?:const )?(?:Reason|Condition)\w+ .*= "(\w+)"`},
	{"pkg/reconciler/reschedulesource/finalizers.go", `EventTypeWarning, "(\w+)"`},
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

// A reader searches the page for a field, a code, a condition or a reason. Each is there.
func TestRules_HaveEachName(t *testing.T) {
	t.Parallel()
	texts := readTree(t).texts
	var names strings.Builder
	rules(t, func(_, text string) {
		for _, name := range quoted.FindAllStringSubmatch(functions.ReplaceAllString(text, ""), -1) {
			names.WriteString(name[1] + "\n")
		}
	})
	for _, n := range named {
		found := regexp.MustCompile(n.declaration).FindAllStringSubmatch(texts[n.path], -1)
		if len(found) == 0 {
			t.Errorf("%s declares no name by %s", n.path, n.declaration)
		}
		for _, name := range found {
			// metadata, items and Ready are of every kind of object, and a message has no rule.
			if !slices.Contains([]string{"metadata", "items", "Ready", "message"}, name[1]) && !regexp.MustCompile(`\b`+name[1]+`\b`).MatchString(names.String()) {
				t.Errorf("docs/rules.md has no rule with %s, which %s declares", name[1], n.path)
			}
		}
	}
}
