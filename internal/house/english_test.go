package house

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxWidth is where Markdown is wrapped.
const maxWidth = 120

// worst is the phrases that CONTRIBUTING.md asks to avoid. A comment may break
// one over two lines.
var worst = regexp.MustCompile(strings.ReplaceAll(
	`(?i)\b(?:those (?:that|of)|that of|whoever|somebody|nobody|anybody|mended|(?:is|are) to be)\b`, " ", `\s+(?://\s*)?`))

// The pages are in plain English: none has one of the worst phrases.
func TestMarkdown_PlainEnglish(t *testing.T) {
	t.Parallel()
	eachPage(t, func(name string, number int, line string) {
		if phrase := worst.FindString(line); phrase != "" {
			t.Errorf("%s:%d: %q: name the noun, or see CONTRIBUTING.md, How to write", name, number, phrase)
		}
	})
}

// A page is wrapped, so that a change of a word is a change of a line.
func TestMarkdown_IsWrapped(t *testing.T) {
	t.Parallel()
	eachPage(t, func(name string, number int, line string) {
		isCode, isTable := strings.HasPrefix(line, "    "), strings.HasPrefix(strings.TrimSpace(line), "|")
		if n := utf8.RuneCountInString(line); n > maxWidth && !isCode && !isTable && !strings.Contains(line, "://") {
			t.Errorf("%s:%d has %d characters, more than %d", name, number, n, maxWidth)
		}
	})
}

// The worst phrases in Go, by package. A count may shrink, then write the smaller
// one into the table, and never grow.
func TestGo_PlainEnglish(t *testing.T) {
	t.Parallel()
	tree := readTree(t)
	counts := map[string]int{}
	for _, f := range tree.files {
		if !f.generated && f.path != "internal/house/english_test.go" {
			text := strings.ReplaceAll(tree.texts[f.path], "http.NoBody", "") // a name of the standard library
			counts[path.Dir(f.path)] += len(worst.FindAllString(text, -1))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		switch n, most := counts[name], worstInGo[name]; {
		case n > most:
			t.Errorf("%s has %d of the worst phrases, at most %d: see CONTRIBUTING.md, How to write", name, n, most)
		case n < most:
			t.Logf("%s has %d now: write that into worstInGo, instead of %d", name, n, most)
		}
	}
}

// eachPage calls line with each line of Markdown that a person wrote: not code,
// not measurements, and not the history.
func eachPage(t *testing.T, line func(name string, number int, line string)) {
	t.Helper()
	for name, text := range readTree(t).texts {
		if path.Ext(name) != ".md" || name == "CHANGELOG.md" {
			continue
		}
		skip := false
		for i, l := range strings.Split(text, "\n") {
			if strings.HasPrefix(strings.TrimSpace(l), "```") || strings.HasPrefix(l, "<!-- results:") {
				skip = !skip
			} else if !skip {
				line(name, i+1, l)
			}
		}
	}
}

// worstInGo is how many of the worst phrases each package has at most.
var worstInGo = map[string]int{
	"internal/sim":                              2,
	"pkg/adapter":                               2,
	"pkg/adapter/access":                        1,
	"pkg/adapter/access/guard":                  9,
	"pkg/adapter/cluster":                       4,
	"pkg/adapter/api":                           16,
	"pkg/adapter/ingest":                        1,
	"pkg/adapter/sources":                       4,
	"pkg/apis/sources/ceilings":                 1,
	"pkg/apis/sources/expression":               2,
	"pkg/apis/sources/v1alpha1":                 5,
	"pkg/reconciler/reschedulesource":           14,
	"pkg/reconciler/reschedulesource/resources": 4,
	"test/blackbox":                             13,
	"test/cluster":                              25,
	"test/e2e":                                  48,
	"test/e2e/images/function":                  1,
	"test/e2e/images/nodekill":                  2,
	"test/hostile":                              3,
	"test/internal/harness":                     3,
	"test/internal/kube":                        5,
	"test/manifests":                            6,
}
