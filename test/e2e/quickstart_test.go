//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// quickstart is the page. It applies sleepingExample as it is, and makes a namespace for it.
const (
	sleepingExample     = "../../examples/python-sleeping"
	quickstart          = "docs/quickstart.md"
	quickstartNamespace = "preview-17"
)

// step is a block of commands of a page, and what the page says it prints.
type step struct {
	line     int // of its fence in the page
	commands string
	prints   string // "" when the page does not say
}

// steps reads the blocks ```sh of a page. A block of text or JSON right behind
// one is what it prints.
func steps(page string) []step {
	var all []step
	lines := strings.Split(page, "\n")
	for i := 0; i < len(lines); i++ {
		language, fenced := strings.CutPrefix(lines[i], "```")
		if !fenced {
			continue
		}
		begin := i + 1
		for i++; i < len(lines) && lines[i] != "```"; i++ {
		}
		text := strings.Join(lines[begin:i], "\n")
		switch {
		case language == "sh":
			all = append(all, step{line: begin, commands: text})
		case (language == "text" || language == "json") && len(all) > 0:
			all[len(all)-1].prints = text
		}
	}
	return all
}

// matches reports whether a block printed what the page says: alike but for
// white space, with anything in the place of each ….
func matches(page, printed string) bool {
	white := regexp.MustCompile(`\s+`)
	pattern := strings.ReplaceAll(regexp.QuoteMeta(white.ReplaceAllString(page, "")), "…", ".+")
	return regexp.MustCompile("^" + pattern + "$").MatchString(white.ReplaceAllString(printed, ""))
}

// The page applies config/, which make deploy has done before: it starts nothing anew beside other tests.
// It takes longest, and mostly waits, so it begins before all others, until it waits for the first time.
func TestQuickStart_WorksAsWritten(t *testing.T) {
	page, err := os.ReadFile("../../" + quickstart)
	if err != nil {
		t.Fatal(err)
	}
	blocks := steps(string(page))
	if len(blocks) == 0 {
		t.Fatalf("%s has no commands", quickstart)
	}
	waits := slices.IndexFunc(blocks, func(b step) bool { return strings.Contains(b.commands, "--for=delete") })
	if waits < 0 {
		t.Fatalf("%s waits for no pod to go", quickstart)
	}
	cleanUpQuickstart(t)

	dir := t.TempDir()
	// As the page says for a cluster with Knative Eventing.
	installed := strings.NewReplacer("kubectl kustomize hack/without-knative | ko apply -f -", "ko apply -f config/", "reschedule-system", "knative-eventing")
	var script strings.Builder
	for i, b := range blocks {
		fmt.Fprintf(&script, "exec >%s\n%s\n", output(dir, i), installed.Replace(b.commands))
	}
	// All in one shell, as a reader of the page does it: with the
	// variables of the blocks before.
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	began := time.Now()
	file := filepath.Join(dir, "script")
	if err := os.WriteFile(file, []byte(script.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "bash", "-e", file)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "PATH="+withKo(t, dir)+string(os.PathListSeparator)+os.Getenv("PATH"))
	var said bytes.Buffer
	cmd.Stderr = &said
	// With what it started in the background.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var failure error
	go func() {
		defer close(ended)
		failure = cmd.Wait()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // usually there is nothing left
	}()
	// reached waits until the shell has come to a block, or has ended.
	reached := func(block int) {
		_ = poll(ctx, 15*time.Minute, func() error {
			select {
			case <-ended:
				return nil
			default:
				_, err := os.Stat(output(dir, block))
				return err
			}
		})
		t.Logf("%s:%d was reached after %s", quickstart, blocks[block].line, time.Since(began).Round(time.Second))
	}
	reached(waits)
	over := beside(t)
	reached(len(blocks) - 1)
	over() // it cleans up: a namespace with a pod of Knative takes minutes
	<-ended

	for i, b := range blocks {
		printed, err := os.ReadFile(output(dir, i))
		if err != nil {
			break // the shell did not come so far
		}
		last := i == len(blocks)-1
		if _, err := os.Stat(output(dir, i+1)); failure != nil && (last || err != nil) {
			t.Errorf("%s:%d: the commands failed: %v\n%s\nprinted:\n%s\nsaid:\n%s", quickstart, b.line, failure, b.commands, printed, tail(said.String()))
			return
		}
		if b.prints != "" && !matches(b.prints, string(printed)) {
			t.Errorf("%s:%d: printed:\n%s\nthe page says:\n%s", quickstart, b.line, printed, b.prints)
		}
	}
	if failure != nil {
		t.Errorf("%s: %v\n%s", quickstart, failure, tail(said.String()))
	}
}

func output(dir string, block int) string { return filepath.Join(dir, fmt.Sprintf("%02d", block)) }

// withKo makes a folder with the ko of tools/ko in it.
func withKo(t *testing.T, dir string) string {
	t.Helper()
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	const script = "#!/bin/sh\nexec go run -modfile=tools/ko/go.mod github.com/google/ko \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "ko"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return bin
}

// tail is the end of what a shell said.
func tail(text string) string {
	const most = 40
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// cleanUpQuickstart removes what an earlier run left, and sees to it that this
// one leaves nothing but what the page leaves.
func cleanUpQuickstart(t *testing.T) {
	t.Helper()
	remove := func(ctx context.Context) error {
		for _, what := range [][]string{{"namespace", quickstartNamespace}, {"-k", sleepingExample}} {
			args := append([]string{"delete", "--ignore-not-found"}, what...)
			if said, err := exec.CommandContext(ctx, "kubectl", args...).CombinedOutput(); err != nil {
				return fmt.Errorf("kubectl %q: %w: %s", args, err, said)
			}
		}
		return nil
	}
	if err := remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience) // the test's own is over
		defer cancel()
		if t.Failed() {
			(&namespace{cluster: world, t: t, name: pythonName}).dump(ctx)
		}
		if err := remove(ctx); err != nil {
			t.Error(err)
		}
	})
}

// A page is compared as its readers compare it.
func TestQuickStart_ComparesOutput(t *testing.T) {
	beside(t)
	const page = "text\n```sh\necho a\necho b\n```\n\n```text\na …\n```\nmore\n```yaml\nx: y\n```\n```sh\ntrue\n```\n"
	blocks := steps(page)
	if len(blocks) != 2 || blocks[0] != (step{2, "echo a\necho b", "a …"}) || blocks[1] != (step{14, "true", ""}) {
		t.Errorf("the steps are %+v", blocks)
	}
	for _, c := range []struct {
		page, printed string
		want          bool
	}{
		{"NAME   AGE\nx      …", "NAME  AGE\nx     12s\n", true},
		{`{"a":…, "b":"…"}`, `{"a":1,"b":"2"}`, true},
		{`{"a":…}`, `{"b":1}`, false},
		{"0/0", "1/1", false},
		{"a.c", "abc", false},
		{"x …", "x", false},
		{"x", "x\ny", false},
	} {
		if got := matches(c.page, c.printed); got != c.want {
			t.Errorf("%q and %q: %t", c.page, c.printed, got)
		}
	}
}
