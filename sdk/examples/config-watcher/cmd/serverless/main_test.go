package main

import (
	"os"
	"strings"
	"testing"
)

// README.md shows how the two programs differ. Without the removed lines, and without the
// added lines, they must be the same.
func TestServerless_DiffersAsInTheReadme(t *testing.T) {
	t.Parallel()
	_, block, found := strings.Cut(read(t, "../../README.md"), "```diff\n")
	block, _, ends := strings.Cut(block, "```")
	if !found || !ends {
		t.Fatal("README.md has no block of ```diff")
	}
	var resident, serverless []string
	for line := range strings.Lines(block) {
		if gone, ok := strings.CutPrefix(line, "-"); ok {
			resident = append(resident, gone)
		} else if added, ok := strings.CutPrefix(line, "+"); ok {
			serverless = append(serverless, added)
		}
	}
	left, right := without(t, read(t, "../resident/main.go"), resident), without(t, read(t, "main.go"), serverless)
	for i := range max(len(left), len(right)) {
		if i >= len(left) || i >= len(right) || left[i] != right[i] {
			t.Fatalf("they also differ at line %d:\nresident:   %q\nserverless: %q", i+1, left[min(i, len(left)):min(i+1, len(left))], right[min(i, len(right)):min(i+1, len(right))])
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// without is a text without some of its lines, all of which it must have, in this order.
func without(t *testing.T, text string, some []string) []string {
	t.Helper()
	var left []string
	for line := range strings.Lines(text) {
		if len(some) > 0 && line == some[0] {
			some = some[1:]
			continue
		}
		left = append(left, line)
	}
	if len(some) > 0 {
		t.Fatalf("README.md shows a line that is not there, or not at that place: %q", some[0])
	}
	return left
}
