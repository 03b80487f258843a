package command

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
)

var write = flag.Bool("update", false, "write docs/cli-reference.md")

// reference is the page, seen through a link so that go test knows its inputs.
const reference = "testdata/docs/cli-reference.md"

// docs/cli-reference.md is what --help prints, without the examples, and with each flag once.
func TestDocs_AreTheHelp(t *testing.T) {
	e := &program{connection: connection{version: "dev"}}
	root := e.root()
	page := &strings.Builder{}
	fmt.Fprintf(page, "# The commands\n\nWritten by `go -C cli test ./internal/command -update`. Each follows `kn source reschedule` or\n"+
		"`kubectl reschedule-source`. By task, with examples: [cli.md](cli.md).\n\n```text\n%s\n```\n", strings.TrimSpace(root.Long))
	seen := map[string]string{}
	for _, c := range commands(root) {
		describeCommand(page, c, seen)
		for _, sub := range commands(c) {
			describeCommand(page, sub, seen)
		}
	}
	kubectl, own := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	genericclioptions.NewConfigFlags(true).AddFlags(kubectl)
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if k := kubectl.Lookup(f.Name); k == nil || k.Usage != f.Usage {
			own.AddFlag(f)
		}
	})
	fmt.Fprintf(page, "\n## All commands\n\nAnd kubectl's, such as `--namespace` and `--context`: `kubectl options`.\n\n```text\n%s```\n", own.FlagUsages())

	if *write {
		if err := os.WriteFile(reference, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(reference)
	if err != nil || string(got) != page.String() {
		t.Errorf("docs/cli-reference.md is not what --help prints (%v): run the test with -update", err)
	}
}

// commands are the commands of this project below c, by name.
func commands(c *cobra.Command) []*cobra.Command {
	all := slices.DeleteFunc(slices.Clone(c.Commands()), func(c *cobra.Command) bool { return c.Name() == "help" || c.Name() == "completion" })
	slices.SortFunc(all, func(a, b *cobra.Command) int { return strings.Compare(a.Name(), b.Name()) })
	return all
}

// describeCommand writes the help of a command. A flag that another command has described is named only, and --output, whose
// formats differ, is always described.
func describeCommand(w *strings.Builder, c *cobra.Command, seen map[string]string) {
	text := c.Short + "."
	if c.Long != "" {
		text = c.Long
	}
	if c.HasSubCommands() {
		return
	}
	_, line, _ := strings.Cut(c.UseLine(), "reschedule ")
	fmt.Fprintf(w, "\n## %s\n\n```text\n%s\n", line, text)
	flags, again, of := pflag.NewFlagSet("", pflag.ContinueOnError), []string{}, map[string]bool{}
	c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		switch id := f.Name + f.Usage + f.DefValue; {
		case f.Name == "help":
		case seen[id] != "" && f.Name != "output":
			again = append(again, "--"+f.Name)
			of[seen[id]] = true
		default:
			seen[id] = c.Name()
			flags.AddFlag(f)
		}
	})
	if usages := flags.FlagUsages(); usages != "" {
		fmt.Fprintf(w, "\n%s", usages)
	}
	switch {
	case len(again) > 10 && len(of) == 1:
		fmt.Fprintf(w, "\nthe flags of %s\n", strings.Join(slices.Collect(maps.Keys(of)), ""))
	case len(again) > 0:
		fmt.Fprintf(w, "\nas above: %s\n", strings.Join(again, ", "))
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
