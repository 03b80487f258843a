package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// README.md shows how the two programs differ: without the removed lines, and without the added lines, they are the same.
func TestServerless_DiffersAsInTheReadme(t *testing.T) {
	t.Parallel()
	read := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	_, block, _ := strings.Cut(read("../../README.md"), "```diff\n")
	block, _, found := strings.Cut(block, "```")
	shown := strings.Split(block, "\n")
	// without are the lines of a program, but for the lines that README.md shows with a sign, all of which it must have.
	without := func(program, sign string) (lines []string) {
		for line := range strings.Lines(read(program)) {
			line = strings.TrimSuffix(line, "\n")
			if i := slices.Index(shown, sign+line); i >= 0 {
				shown = slices.Delete(shown, i, i+1)
				continue
			}
			lines = append(lines, line)
		}
		return lines
	}
	resident, serverless := without("../resident/main.go", "-"), without("main.go", "+")
	shown = slices.DeleteFunc(shown, func(line string) bool { return !strings.HasPrefix(line, "-") && !strings.HasPrefix(line, "+") })
	if !found || len(shown) > 0 || !slices.Equal(resident, serverless) {
		t.Errorf("README.md shows %q, which is not there; without what it shows they are\n%s\nand\n%s", shown, strings.Join(resident, "\n"), strings.Join(serverless, "\n"))
	}
}
