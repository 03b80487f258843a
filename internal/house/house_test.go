// Package house keeps the plan of the packages, which may import which, and the
// rules for text.
//
// It guarantees, whenever the tests pass, that every package of the module is on
// the plan in plan_test.go, imports only packages that the plan allows, and has a
// package comment and a caption in ARCHITECTURE.md. No file is over 600 lines,
// leaves work open, skips a test, or names a path of one machine; no type has more than 40
// methods or 20 fields; no test waits for a time on the real clock; but for the exceptions
// in plan_test.go. Pages name paths, tests and functions that exist, are wrapped, and
// are in plain English.
//
// How it works: it reads every file of the tree with go/parser, whatever its
// build tags, and asks go list for what a package reaches.
//
// It leaves style to the linters.
package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	module   = "github.com/reschedule-dev/reschedule/"
	maxLines = 600
)

// allows reports whether the pattern lets a package import pkg.
func allows(pattern, pkg string) bool {
	if dir, ok := strings.CutSuffix(pattern, "/..."); ok {
		return below(dir, pkg)
	}
	return pattern == pkg
}

func below(dir, pkg string) bool { return pkg == dir || strings.HasPrefix(pkg, dir+"/") }

// The plan and the tree have the same packages, so that the plan cannot become outdated. No package has a vague name.
func TestPlan_HasEveryPackage(t *testing.T) {
	t.Parallel()
	tree := readTree(t)
	for name, r := range plan {
		if tree.packages[name] == nil && !planned[name] {
			t.Errorf("%s is on the plan, but not in the tree", name)
		}
		for _, m := range r.may {
			dir := strings.TrimSuffix(m, "/...")
			if _, ok := plan[dir]; !ok && !slices.Contains(generated, dir) {
				t.Errorf("%s may import %s, which is not on the plan", name, m)
			}
		}
	}
	for _, f := range tree.files {
		if slices.ContainsFunc(generated, func(dir string) bool { return below(dir, f.path) }) && !f.generated {
			t.Errorf("%s is not generated, unlike its neighbours", f.path)
		}
	}
	for name := range tree.packages {
		if _, ok := plan[name]; !ok {
			t.Errorf("%s is not on the plan", name)
		}
		for part := range strings.SplitSeq(name, "/") {
			if slices.Contains(vague, part) {
				t.Errorf("%s: name the package after its content, not %q", name, part)
			}
		}
	}
}

// The comment of a package, and its caption in ARCHITECTURE.md, tell a reader what the package is for.
func TestPackages_CommentAndCaption(t *testing.T) {
	t.Parallel()
	captions := readRoot(t, "ARCHITECTURE.md")
	for name, p := range readTree(t).packages {
		if len(p.doc) == 0 {
			t.Errorf("%s has no package comment", name)
		}
		if !bytes.Contains(captions, []byte("`"+name+"`")) {
			t.Errorf("%s has no caption in ARCHITECTURE.md", name)
		}
	}
}

// A package imports only what its rule on the plan allows, and production code imports no package for tests.
func TestImports_FollowThePlan(t *testing.T) {
	t.Parallel()
	for name, p := range readTree(t).packages {
		r := plan[name]
		for imp, file := range p.imports {
			ours, inside := strings.CutPrefix(imp, module)
			switch {
			case inside && !slices.ContainsFunc(r.may, func(m string) bool { return allows(m, ours) }):
				t.Errorf("%s: %s must not import %s", file, name, ours)
			case slices.ContainsFunc(r.not, func(ban string) bool { return below(ban, imp) }):
				t.Errorf("%s: %s must not import %s", file, name, imp)
			case inside && !below("internal", name) && !below("test", name) && slices.ContainsFunc(forTests, func(m string) bool { return allows(m, ours) }):
				t.Errorf("%s: %s is for tests", file, ours)
			}
		}
	}
}

// A package does not depend on a banned package through other packages either.
func TestImports_AtAnyDepth(t *testing.T) {
	t.Parallel()
	// go test does not see what go list reads. readTree and go.mod make it drop a
	// cached pass when the tree changes. Releases are built with this tag.
	readTree(t)
	readRoot(t, "go.mod")
	cmd := exec.Command("go", "list", "-tags=grpcnotrace", "-json=ImportPath,Deps", "./...")
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath string
			Deps       []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(p.ImportPath, module)
		for _, ban := range plan[name].never {
			if i := slices.IndexFunc(p.Deps, func(d string) bool { return below(ban, d) }); i >= 0 {
				t.Errorf("%s must not reach %s, but has %s", name, ban, p.Deps[i])
			}
		}
	}
}

// A file that a person wrote has at most maxLines, and none of its comments leaves work for later.
func TestFiles_ShortAndComplete(t *testing.T) {
	t.Parallel()
	open := regexp.MustCompile(`\b(TODO|FIXME|XXX)\b`)
	for _, f := range readTree(t).files {
		if f.lines > maxLines && !f.generated {
			t.Errorf("%s has %d lines, more than %d: split it, perhaps into two packages", f.path, f.lines, maxLines)
		}
		for _, c := range f.comments {
			if f.generated {
				break
			}
			if word := open.FindString(c); word != "" {
				t.Errorf("%s leaves work open: %s", f.path, word)
			}
		}
	}
}

// No test is skipped, because a skipped test checks nothing. Only the files in sleepers wait on the real clock.
func TestTests_NeitherSkipNorSleep(t *testing.T) {
	t.Parallel()
	slept := map[string]bool{}
	for _, f := range readTree(t).files {
		if !strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		for _, call := range f.calls {
			if slices.Contains([]string{"t.Skip", "t.Skipf", "t.SkipNow", "b.Skip", "b.Skipf", "b.SkipNow", "f.Skip", "f.Skipf", "f.SkipNow"}, call) {
				t.Errorf("%s calls %s: a check that cannot run must fail, or not exist", f.path, call)
			}
		}
		slept[f.path] = f.sleeps && !f.synctest
		if slept[f.path] && sleepers[f.path] == "" {
			t.Errorf("%s waits on the real clock: use testing/synctest or a channel", f.path)
		}
	}
	for name := range sleepers {
		if !slept[name] {
			t.Errorf("%s does not sleep: take it off the list", name)
		}
	}
}

// A type, of the product or of a test, is small enough to be read as a whole.
func TestTypes_AreSmall(t *testing.T) {
	t.Parallel()
	types := map[string]size{}
	for _, f := range readTree(t).files {
		for name, n := range f.types {
			types[name] = size{types[name].methods + n.methods, max(types[name].fields, n.fields)}
		}
	}
	for name, n := range types {
		if n.methods > maxMethods || n.fields > maxFields {
			t.Errorf("%s has %d methods and %d fields, and may have %d and %d: split it by what its callers need", name, n.methods, n.fields, maxMethods, maxFields)
		}
	}
}

// A path of one machine, written by an editor, a shell or a tool, works on no other.
func TestFiles_PortablePaths(t *testing.T) {
	t.Parallel()
	private := regexp.MustCompile(`(^|[^\w.~$}*-])/(root|work|home|Users)/[\w.]`)
	for name, text := range readTree(t).texts {
		for i, line := range strings.Split(text, "\n") {
			if private.MatchString(line) {
				t.Errorf("%s:%d names a path of one machine", name, i+1)
			}
		}
	}
}

// A page that names a missing path misleads its reader.
func TestPages_PathsExist(t *testing.T) {
	t.Parallel()
	quoted := regexp.MustCompile("`((?:pkg|cmd|internal|test|docs|tools|bench|examples|sdk|config)/[\\w./-]+)`")
	for name, text := range readTree(t).texts {
		if path.Ext(name) != ".md" {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(path.Join(root, m[1])); err != nil && !planned[m[1]] {
				t.Errorf("%s names %s, which does not exist", name, m[1])
			}
		}
	}
}

// A promise without its test is not checked.
func TestPages_TestsExist(t *testing.T) {
	t.Parallel()
	texts := readTree(t).texts
	declaration, mention := regexp.MustCompile(`(?m)^func (Test\w+)\(`), regexp.MustCompile(`\bTest[A-Z]\w+`)
	declared := map[string]bool{}
	for name, text := range texts {
		if strings.HasSuffix(name, "_test.go") {
			for _, m := range declaration.FindAllStringSubmatch(text, -1) {
				declared[m[1]] = true
			}
		}
	}
	for name, text := range texts {
		if path.Ext(name) != ".md" {
			continue
		}
		for _, test := range mention.FindAllString(text, -1) {
			if !declared[test] {
				t.Errorf("%s names %s, which does not exist", name, test)
			}
		}
	}
}

// A package that is planned and not yet written has its rule on the plan too.
func TestPlan_PlannedPackages(t *testing.T) {
	t.Parallel()
	for _, name := range slices.Sorted(maps.Keys(planned)) {
		if _, ok := plan[name]; !ok {
			t.Errorf("%s is planned, but not on the plan", name)
		}
	}
}
