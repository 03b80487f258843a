package command

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var write = flag.Bool("update", false, "write docs/cli")

// pages is docs/cli, seen through a link so that go test knows its inputs.
const pages = "testdata/docs"

// The pages of docs/cli are what --help prints: one page for each command.
func TestDocs_AreTheHelp(t *testing.T) {
	e := &program{connection: connection{version: "dev"}}
	root := e.root()
	root.InitDefaultHelpFlag()
	want := map[string]string{}
	index := &strings.Builder{}
	fmt.Fprintf(index, "# kn source reschedule\n\nWritten by `go -C cli test ./internal/command -update`. By task: [cli.md](../cli.md).\n\n```text\n%s\n```\n\n## Commands\n\n", strings.TrimSpace(root.Long))
	for _, c := range commands(root) {
		name := c.Name() + ".md"
		fmt.Fprintf(index, "- [%s](%s): %s\n", c.Name(), name, c.Short)
		page := &strings.Builder{}
		fmt.Fprintf(page, "# %s\n\nWritten by `go -C cli test ./internal/command -update`.\nFlags of all commands: [README.md](README.md#flags-of-all-commands).\n", c.CommandPath())
		describeCommand(page, c)
		for _, sub := range commands(c) {
			fmt.Fprintf(page, "\n## %s\n", sub.Name())
			describeCommand(page, sub)
		}
		want[name] = page.String()
	}
	fmt.Fprintf(index, "\n## Flags of all commands\n\n```text\n%s```\n", root.PersistentFlags().FlagUsages())
	want["README.md"] = index.String()

	if *write {
		for name, text := range want {
			if err := os.WriteFile(filepath.Join(pages, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	files, err := os.ReadDir(pages)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if want[f.Name()] == "" {
			t.Errorf("docs/cli/%s is about no command: remove it", f.Name())
		}
	}
	for name, text := range want {
		got, err := os.ReadFile(filepath.Join(pages, name))
		if err != nil || !bytes.Equal(got, []byte(text)) {
			t.Errorf("docs/cli/%s is not what --help prints (%v): run the test with -update", name, err)
		}
	}
}

// commands are the commands of this project below c, by name.
func commands(c *cobra.Command) []*cobra.Command {
	all := slices.DeleteFunc(slices.Clone(c.Commands()), func(c *cobra.Command) bool { return c.Name() == "help" || c.Name() == "completion" })
	slices.SortFunc(all, func(a, b *cobra.Command) int { return strings.Compare(a.Name(), b.Name()) })
	return all
}

func describeCommand(w *strings.Builder, c *cobra.Command) {
	c.InitDefaultHelpFlag()
	text := c.Short + "."
	if c.Long != "" {
		text = c.Long
	}
	fmt.Fprintf(w, "\n```text\n%s\n\n", text)
	if c.Runnable() && !c.HasSubCommands() {
		fmt.Fprintf(w, "Usage:\n  %s\n", c.UseLine())
	}
	if c.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", c.Example)
	}
	if flags := c.LocalNonPersistentFlags().FlagUsages(); flags != "" && !c.HasSubCommands() {
		fmt.Fprintf(w, "\nFlags:\n%s", flags)
	}
	fmt.Fprint(w, "```\n")
}

// Every command has an example that begins with the name of the program, and a sentence.
func TestCommands_HaveExamples(t *testing.T) {
	e := &program{calledAsKubectl: true}
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		for _, sub := range commands(c) {
			look(sub)
			if sub.HasSubCommands() || sub.Name() == "version" {
				continue
			}
			if !strings.Contains(sub.Example, "kubectl reschedule-source ") || sub.Short == "" || strings.HasSuffix(sub.Short, ".") {
				t.Errorf("%s: %q, %q", sub.CommandPath(), sub.Short, sub.Example)
			}
		}
	}
	look(e.root())
}
