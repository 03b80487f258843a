// Lint is golangci-lint without the part of it that took most of a first run: staticcheck's intermediate form of every
// function of every dependency. Five of its checks (SA4017, SA4018, SA4023, SA5012, S1011) want that form, to know which
// functions of a dependency have no effect, never return nil, or take pairs. Here they know this only of the functions of
// the project and of the standard library.
package main

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/golangci/golangci-lint/v2/pkg/commands"
	"github.com/golangci/golangci-lint/v2/pkg/exitcodes"
	"golang.org/x/tools/go/analysis"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
)

const (
	project = "github.com/reschedule-dev/reschedule"
	form    = "buildir" // the analyzer that builds the form; its package is internal
)

func main() {
	seen := map[*analysis.Analyzer]bool{}
	found := false
	for _, a := range slices.Concat(staticcheck.Analyzers, simple.Analyzers) {
		found = leaveOutModules(a.Analyzer, seen) || found
	}
	if !found {
		fmt.Fprintf(os.Stderr, "lint: no analyzer of staticcheck requires %q any more: look for its new name\n", form)
		os.Exit(exitcodes.Failure)
	}
	// Without a version, the linters' cache depends on the checksum of this program.
	if err := commands.Execute(commands.BuildInfo{}); err != nil {
		fmt.Fprintln(os.Stderr, "lint:", err)
		os.Exit(exitcodes.Failure)
	}
}

// leaveOutModules makes an analyzer that needs the form return nothing for packages of other modules, and reports
// whether it needs the form.
func leaveOutModules(a *analysis.Analyzer, seen map[*analysis.Analyzer]bool) bool {
	if needs, ok := seen[a]; ok {
		return needs
	}
	needs := a.Name == form
	for _, required := range a.Requires {
		needs = leaveOutModules(required, seen) || needs
	}
	seen[a] = needs
	if !needs {
		return false
	}
	run := a.Run
	a.Run = func(pass *analysis.Pass) (any, error) {
		module := "" // of the standard library
		if pass.Module != nil {
			module = pass.Module.Path
		}
		switch {
		case module == "" || module == project || strings.HasPrefix(module, project+"/"):
			return run(pass)
		case a.ResultType == nil:
			return nil, nil
		default:
			return reflect.Zero(a.ResultType).Interface(), nil
		}
	}
	return true
}
