package operators

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	movePage = "../../docs/move-an-operator.md"
	scaffold = "testdata/websites"
)

// The diff of docs/move-an-operator.md is applied to main.go of a project in the
// layout of kubebuilder, and the result is compiled. So is the project before the
// diff, so that a failure is the diff's.
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
		cmd := exec.CommandContext(t.Context(), "go", "vet", "-mod=mod", "./...")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOPROXY=off", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go vet: %v\n%s\n%s", err, out, text)
		}
	}
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
