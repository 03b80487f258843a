// Package house keeps the floor plan: which room may open which door.
//
// It guarantees, whenever the tests pass, that every package of the module is
// on the plan in plan_test.go, imports only what the plan allows it, has a
// package comment and a caption in ARCHITECTURE.md; and that no file is over
// 600 lines, leaves work open in a comment, skips a test, waits on the real
// clock in a test, or names a path of somebody's machine.
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

// opens reports whether the pattern lets a room import pkg.
func opens(pattern, pkg string) bool {
	if dir, ok := strings.CutSuffix(pattern, "/..."); ok {
		return below(dir, pkg)
	}
	return pattern == pkg
}

func below(dir, pkg string) bool { return pkg == dir || strings.HasPrefix(pkg, dir+"/") }

func TestEveryPackageIsOnTheFloorPlanAndTheOtherWayRound(t *testing.T) {
	t.Parallel()
	tree := readTree(t)
	for name, r := range rooms {
		if tree.packages[name] == nil && !planned[name] {
			t.Errorf("%s is on the floor plan, but not in the tree", name)
		}
		for _, m := range r.may {
			dir := strings.TrimSuffix(m, "/...")
			if _, ok := rooms[dir]; !ok && !slices.Contains(generated, dir) {
				t.Errorf("%s may import %s, which is not on the floor plan", name, m)
			}
		}
	}
	for _, f := range tree.files {
		if slices.ContainsFunc(generated, func(dir string) bool { return below(dir, f.path) }) && !f.generated {
			t.Errorf("%s is not generated, unlike all beside it", f.path)
		}
	}
	for name := range tree.packages {
		if _, ok := rooms[name]; !ok {
			t.Errorf("%s is not on the floor plan", name)
		}
		for part := range strings.SplitSeq(name, "/") {
			if slices.Contains(drawers, part) {
				t.Errorf("%s: %q says nothing of what is in it", name, part)
			}
		}
	}
}

func TestEveryRoomSaysWhatItIs(t *testing.T) {
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

func TestNoRoomOpensADoorThatIsNotOnThePlan(t *testing.T) {
	t.Parallel()
	for name, p := range readTree(t).packages {
		r := rooms[name]
		for imp, file := range p.imports {
			ours, inside := strings.CutPrefix(imp, module)
			switch {
			case inside && !slices.ContainsFunc(r.may, func(m string) bool { return opens(m, ours) }):
				t.Errorf("%s: %s must not import %s", file, name, ours)
			case slices.ContainsFunc(r.not, func(ban string) bool { return below(ban, imp) }):
				t.Errorf("%s: %s must not import %s", file, name, imp)
			case inside && !below("internal", name) && !below("test", name) && slices.ContainsFunc(forTests, func(m string) bool { return opens(m, ours) }):
				t.Errorf("%s: %s is for tests", file, ours)
			}
		}
	}
}

func TestNoRoomReachesWhatItMustNotAtAnyDepth(t *testing.T) {
	t.Parallel()
	// go list reads the tree itself, which go test does not see: readTree makes
	// that a cached pass is dropped when the tree changes, go.mod likewise. The
	// tag is that of releases.
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
		for _, ban := range rooms[name].never {
			if i := slices.IndexFunc(p.Deps, func(d string) bool { return below(ban, d) }); i >= 0 {
				t.Errorf("%s must not reach %s, but has %s", name, ban, p.Deps[i])
			}
		}
	}
}

func TestNoFileIsTooLongOrLeavesWorkOpen(t *testing.T) {
	t.Parallel()
	open := regexp.MustCompile(`\b(TODO|FIXME|XXX)\b`)
	for _, f := range readTree(t).files {
		if f.lines > maxLines && !f.generated {
			t.Errorf("%s has %d lines, more than %d: is there a second room inside?", f.path, f.lines, maxLines)
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

func TestNoTestSkipsOrWaitsOnTheRealClock(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, f := range readTree(t).files {
		if !strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		for _, call := range f.calls {
			switch {
			case slices.Contains([]string{"t.Skip", "t.Skipf", "t.SkipNow", "b.Skip", "b.Skipf", "b.SkipNow", "f.Skip", "f.Skipf", "f.SkipNow"}, call):
				t.Errorf("%s calls %s: a check that cannot run must fail, or not exist", f.path, call)
			case call == "time.Sleep" && sleepers[f.path] != "":
				used[f.path] = true
			case call == "time.Sleep" && !f.synctest:
				t.Errorf("%s waits on the real clock: use testing/synctest or a channel", f.path)
			}
		}
	}
	for name := range sleepers {
		if !used[name] {
			t.Errorf("%s does not sleep: take it off the list", name)
		}
	}
}

// What somebody's editor, shell or tool wrote works on no other machine.
func TestNoFileNamesAPathOfSomebodysMachine(t *testing.T) {
	t.Parallel()
	private := regexp.MustCompile(`(^|[^\w.~$}*-])/(root|work|home|Users)/[\w.]`)
	for name, text := range readTree(t).texts {
		for i, line := range strings.Split(text, "\n") {
			if private.MatchString(line) {
				t.Errorf("%s:%d names a path of somebody's machine", name, i+1)
			}
		}
	}
}

// A map that names what is gone is worse than none.
func TestEveryPathInTheProjectsPagesExists(t *testing.T) {
	t.Parallel()
	quoted := regexp.MustCompile("`((?:pkg|cmd|internal|test|docs|tools|bench|examples|sdk|config)/[\\w./-]+)`")
	for name, text := range readTree(t).texts {
		if path.Ext(name) != ".md" {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(path.Join(root, m[1])); err != nil && !planned[m[1]] {
				t.Errorf("%s names %s, which is not there", name, m[1])
			}
		}
	}
}

// A promise whose test is gone is none.
func TestEveryTestThatAPageNamesExists(t *testing.T) {
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
				t.Errorf("%s names %s, which is not there", name, test)
			}
		}
	}
}

func TestThePlanItselfIsInOrder(t *testing.T) {
	t.Parallel()
	for _, name := range slices.Sorted(maps.Keys(planned)) {
		if _, ok := rooms[name]; !ok {
			t.Errorf("%s is planned, but not on the floor plan", name)
		}
	}
}
