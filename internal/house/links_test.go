package house

import (
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]*)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors is the fragments of a page's headings, as GitHub makes them.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(text, -1) {
		out[strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-")] = true
	}
	return out
}

// A link to a file or a section of the project leads somewhere.
func TestPages_LinksResolve(t *testing.T) {
	t.Parallel()
	texts := readTree(t).texts
	eachPage(t, func(name string, number int, line string) {
		for _, l := range link.FindAllStringSubmatch(line, -1) {
			file, section, found := strings.Cut(l[1], "#")
			if strings.Contains(file, "://") {
				continue
			}
			target := name
			if file != "" {
				target = path.Join(path.Dir(name), file)
			}
			if _, err := os.Stat(path.Join(root, target)); err != nil {
				t.Errorf("%s:%d: there is no file %s", name, number, target)
			} else if found && !anchors(texts[target])[section] {
				t.Errorf("%s:%d: %s has no section #%s", name, number, target, section)
			}
		}
	})
}
