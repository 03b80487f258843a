package operators

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

const (
	movePage = "../../docs/move-an-operator.md"
	scaffold = "testdata/websites"
)

// The diff of docs/move-an-operator.md is applied to main.go of a project in the
// layout of kubebuilder, and the result is compiled. So is the project before the
// diff, so that a failure is the diff's. Then it prints the manifests of the page.
func TestMovePage_TheDiffCompiles(t *testing.T) {
	t.Parallel()
	page := readText(t, movePage)
	if command := "\ngo get github.com/reschedule-dev/reschedule/sdk@latest\n"; !strings.Contains(page, command) {
		t.Errorf("%s has no line %q", movePage, strings.TrimSpace(command))
	}
	_, diff, found := strings.Cut(page, "\n```diff\n")
	diff, _, ends := strings.Cut(diff, "```\n")
	if !found || !ends {
		t.Fatalf("%s has no block of ```diff", movePage)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(scaffold)); err != nil {
		t.Fatal(err)
	}
	sdk, err := filepath.Abs("../../sdk")
	if err != nil {
		t.Fatal(err)
	}
	writeText(t, filepath.Join(dir, "go.sum"), readText(t, "go.sum"))
	writeText(t, filepath.Join(dir, "go.mod"), strings.NewReplacer(
		"module github.com/reschedule-dev/reschedule/test/operators", "module example.com/websites",
		"=> ../../sdk", "=> "+sdk,
	).Replace(readText(t, "go.mod")))

	program := filepath.Join(dir, "cmd", "main.go")
	for _, text := range []string{readText(t, program), applyDiff(t, readText(t, program), diff)} {
		writeText(t, program, text)
		// Not go vet, which looks at every dependency.
		cmd := exec.CommandContext(t.Context(), "go", "build", "-mod=mod", "./...")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOPROXY=off", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s\n%s", err, out, text)
		}
	}
	comparePrinted(t, dir, page)
}

// comparePrinted runs the project, which prints its RescheduleSource, and compares it with
// the first block of YAML of the page. There is no API server. The page says why it lacks
// changes.
func comparePrinted(t *testing.T, dir, page string) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "kubeconfig")
	writeText(t, config, `{apiVersion: v1, kind: Config, current-context: a, clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}], contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {}}]}`)
	cmd := exec.CommandContext(t.Context(), "go", "run", "-mod=mod", "./cmd")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOPROXY=off", "GOWORK=off", "KUBECONFIG="+config, "RESCHEDULE_PRINT_SOURCE=websites-system/websites")
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go run: %v\n%s", err, log.String())
	}
	_, block, found := strings.Cut(page, "\n```yaml\n")
	block, _, ends := strings.Cut(block, "```\n")
	if !found || !ends {
		t.Fatalf("%s has no block of ```yaml", movePage)
	}
	printed := strings.Replace(string(out), ", changes: Any}", "}", 1)
	if diff := cmp.Diff(objects(t, block), objects(t, printed)); diff != "" {
		t.Errorf("%s differs from what is printed: -page +printed\n%s", movePage, diff)
	}
}

func objects(t *testing.T, text string) (all []any) {
	t.Helper()
	for document := range strings.SplitSeq(text, "---\n") {
		var o any
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		all = append(all, o)
	}
	return all
}

// applyDiff replaces the old lines of each hunk by its new lines. A line " …"
// separates hunks.
func applyDiff(t *testing.T, text, diff string) string {
	t.Helper()
	for hunk := range strings.SplitSeq(diff, " …\n") {
		var before, after strings.Builder
		for line := range strings.Lines(hunk) {
			kind, rest := line[:1], line[1:]
			if kind != "+" {
				before.WriteString(rest)
			}
			if kind != "-" {
				after.WriteString(rest)
			}
		}
		if strings.Count(text, before.String()) != 1 {
			t.Fatalf("main.go does not have these lines exactly once:\n%s", before.String())
		}
		text = strings.Replace(text, before.String(), after.String(), 1)
	}
	return text
}

func readText(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func writeText(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
