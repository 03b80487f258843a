package monitoring

import (
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	instrument = regexp.MustCompile(`"(reschedule_[a-z_]+)"`)
	documented = regexp.MustCompile("`(reschedule_[a-z_]+)")
	metricName = regexp.MustCompile(`\breschedule_[a-z_]+`)
	histogram  = regexp.MustCompile(`_(bucket|sum|count)$`)
	// suffixes are what OpenTelemetry adds for counters and units.
	suffixes = []string{"", "_total", "_seconds", "_bytes", "_seconds_total"}
)

// instruments are the names that the adapter's code makes metrics with.
func instruments(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	code := os.DirFS("../../pkg/adapter")
	err := fs.WalkDir(code, ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(code, path)
		for _, m := range instrument.FindAllStringSubmatch(string(text), -1) {
			found[m[1]] = true
		}
		return err
	})
	if err != nil || len(found) < 30 {
		t.Fatalf("%d instruments: %v", len(found), err)
	}
	return found
}

// The headers of the two tables of metrics. A single adapter has none of a group's.
const (
	ofEach  = "| metric | meaning |"
	ofGroup = "| metric of a group | meaning |"
)

// inTable are the metrics of a table in the page.
func inTable(t *testing.T, header string) map[string]bool {
	t.Helper()
	_, section, _ := strings.Cut(read(t, docsFile), header)
	section, _, _ = strings.Cut(section, "\n\n")
	found := map[string]bool{}
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, m := range documented.FindAllStringSubmatch(cells[1], -1) {
			found[m[1]] = true
		}
	}
	return found
}

func allDocumented(t *testing.T) map[string]bool {
	t.Helper()
	all := inTable(t, ofEach)
	maps.Copy(all, inTable(t, ofGroup))
	return all
}

// Every metric of the adapter is documented, and every documented one exists.
func TestNames_DocumentedOnesExist(t *testing.T) {
	t.Parallel()
	code, docs := instruments(t), allDocumented(t)
	for name := range code {
		if !slices.ContainsFunc(suffixes, func(s string) bool { return docs[name+s] }) {
			t.Errorf("%s is in no table of docs/monitoring.md", name)
		}
	}
	for name := range docs {
		if !slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(name, s) && code[strings.TrimSuffix(name, s)] }) {
			t.Errorf("a page has %s, which the adapter has not", name)
		}
	}
}

// Rules, dashboards and pages name only metrics that exist, and each metric has a panel.
func TestNames_UsedOnesExist(t *testing.T) {
	t.Parallel()
	docs, shown := allDocumented(t), map[string]bool{}
	files := []string{rulesFile, docsFile, "../../docs/backup.md", "../../docs/capacity.md", "../../docs/high-availability.md", "../../docs/http-api.md", "../../docs/move-an-operator.md"}
	drawn := slices.Collect(maps.Keys(boards(t)))
	for _, file := range append(files, drawn...) {
		for _, name := range metricName.FindAllString(read(t, file), -1) {
			name = strings.TrimSuffix(name, "_") // reschedule_connections*
			plain := histogram.ReplaceAllString(name, "")
			exists := docs[name] || docs[plain] || slices.ContainsFunc(slices.Collect(maps.Keys(docs)), func(d string) bool {
				return strings.HasSuffix(file, ".md") && strings.HasPrefix(d, name)
			})
			if !exists {
				t.Errorf("%s names %s, which does not exist", file, name)
			}
			if slices.Contains(drawn, file) {
				shown[name], shown[plain] = true, true
			}
		}
	}
	for name := range docs {
		if !shown[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
}
