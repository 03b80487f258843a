package house

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	maxWidth  = 120 // characters of a line of Markdown
	maxRow    = 300 // characters of a row of a table
	maxReadme = 600 // words
)

// worst is the phrases that CONTRIBUTING.md asks to avoid. A comment may break
// one over two lines, and a name may end with a word.
var worst = regexp.MustCompile(strings.ReplaceAll(
	`(?i)\b(?:those (?:that|of)|that of|the ones (?:that|of)|whoever|somebody|nobody|anybody|mended|(?:is|are) to be|ma(?:kes?|de) room)\b|[a-z](?-i:Whoever|Somebody|Nobody|Anybody)`, " ", `\s+(?:(?://|#|\*)\s*)?`))

// translated is the phrases of pages that sound translated, and what to write.
var translated = []struct{ phrase, write string }{
	{`(?:go(?:es|ing)?|went) on`, "continue, keep"},
	{`anew`, "again"},
	{`seldom`, "rarely"},
	{`beside`, "next to, in addition to"},
	{`in the place of`, "instead of, replace"},
	{`(?:is|are|was|were) away`, "is down"},
	{`way back`, "rollback"},
	{`some \d[\d,.]*`, "about"},
	{`ha(?:s|ve) (?:what|how|why)`, "shows, explains"},
}

// spaced is a pattern whose spaces may be the end of a line.
func spaced(pattern string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:` + strings.ReplaceAll(pattern, " ", `\s+`) + `)\b`)
}

// The pages are in plain English: none has one of the worst phrases, also not over two lines.
func TestMarkdown_PlainEnglish(t *testing.T) {
	t.Parallel()
	type place struct {
		page   string
		number int
	}
	bans := map[*regexp.Regexp]string{worst: "name the noun, or see CONTRIBUTING.md, How to write"}
	for _, p := range translated {
		bans[spaced(p.phrase)] = "write " + p.write
	}
	lines := map[place]string{}
	eachPage(t, func(name string, number int, line string) {
		text := lines[place{name, number - 1}] + "\n" + line
		for ban, advice := range bans {
			for _, at := range ban.FindAllStringIndex(text, -1) {
				if at[1] > len(text)-len(line) {
					t.Errorf("%s:%d: %q: %s", name, number, text[at[0]:at[1]], advice)
				}
			}
		}
		lines[place{name, number}] = line
	})
}

// README.md is read in a few minutes.
func TestReadme_IsShort(t *testing.T) {
	t.Parallel()
	if words := len(strings.Fields(string(readRoot(t, "README.md")))); words > maxReadme {
		t.Errorf("README.md has %d words, more than %d", words, maxReadme)
	}
}

// A page is wrapped, so that a change of a word is a change of a line. A table is for lists: prose stands below it.
func TestMarkdown_IsWrapped(t *testing.T) {
	t.Parallel()
	eachPage(t, func(name string, number int, line string) {
		width, isCode := maxWidth, strings.HasPrefix(line, "    ")
		if strings.HasPrefix(strings.TrimSpace(line), "|") {
			width = maxRow
		}
		if n := utf8.RuneCountInString(line); n > width && !isCode && !strings.Contains(line, "://") {
			t.Errorf("%s:%d has %d characters, more than %d", name, number, n, width)
		}
	})
}

// The comments, messages and names in Go are in plain English too.
func TestGo_PlainEnglish(t *testing.T) {
	t.Parallel()
	tree := readTree(t)
	for _, f := range tree.files {
		if f.generated || f.path == "internal/house/english_test.go" {
			continue
		}
		text := strings.ReplaceAll(tree.texts[f.path], "http.NoBody", "") // a name of the standard library
		for _, at := range worst.FindAllStringIndex(text, -1) {
			t.Errorf("%s:%d: %q: name the noun, or see CONTRIBUTING.md, How to write", f.path, 1+strings.Count(text[:at[0]], "\n"), text[at[0]:at[1]])
		}
	}
}

// others are the kinds of files, beside Go and Markdown, whose comments and messages a
// person writes.
var others = []string{".yaml", ".sh", ".py", ".java", ".js", ".rs", ".mod"}

// unread are the files of these kinds that are kept as they are.
var unread = map[string]bool{}

// So are manifests, scripts, and programs in other languages.
func TestOthers_PlainEnglish(t *testing.T) {
	t.Parallel()
	noBody := regexp.MustCompile(`\bnoBody\b`) // a name of Java's library
	for name, text := range readTree(t).texts {
		if unread[name] || path.Base(name) != "Makefile" && !slices.Contains(others, path.Ext(name)) {
			continue
		}
		text = noBody.ReplaceAllString(text, "")
		for _, at := range worst.FindAllStringIndex(text, -1) {
			t.Errorf("%s:%d: %q: name the noun, or see CONTRIBUTING.md, How to write", name, 1+strings.Count(text[:at[0]], "\n"), text[at[0]:at[1]])
		}
	}
}

// eachPage calls line with each line of Markdown that a person wrote: not code,
// and not measurements.
func eachPage(t *testing.T, line func(name string, number int, line string)) {
	t.Helper()
	for name, text := range readTree(t).texts {
		if path.Ext(name) != ".md" {
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

// maxTestName is how long the name of a test may be.
const maxTestName = 45

// A test is named TestSubject_Case. The sentence is its comment.
func TestTests_NamedAndExplained(t *testing.T) {
	t.Parallel()
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	tree := readTree(t)
	for _, f := range tree.files {
		for _, m := range declared.FindAllStringSubmatch(tree.texts[f.path], -1) {
			if name := m[1]; len(name) > maxTestName || !strings.Contains(name, "_") {
				t.Errorf("%s: %s: want Subject_Case in at most %d characters", f.path, name, maxTestName)
			}
		}
		for _, name := range f.bare {
			if !f.generated {
				t.Errorf("%s: %s has no comment: put its promise directly above it", f.path, name)
			}
		}
	}
}
