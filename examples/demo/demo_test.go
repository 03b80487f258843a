package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	// The demo runs the adapter as a process, which go test does not see. With this
	// import a change of the adapter makes a cached result stale.
	_ "github.com/reschedule-dev/reschedule/pkg/adapter"
)

var bin string // where the programs are built once for all tests

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "reschedule-demo-test-")
		if err == nil {
			defer func() { _ = os.RemoveAll(dir) }()
			err = build(context.Background(), dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		bin = dir
		return m.Run()
	}())
}

// seeInputs looks at the programs that TestMain builds. go test reuses a result while the
// files that tests look at are the same, and mains cannot be imported.
func seeInputs() {
	for _, file := range []string{"../operator/main.go", "../../cmd/adapter/main.go"} {
		_, _ = os.Stat(file)
	}
	_ = filepath.WalkDir("../../cli", func(path string, _ fs.DirEntry, err error) error {
		_, _ = os.Stat(path)
		return err
	})
}

// The demo succeeds with short waits, and with a bound on lateness that a busy machine
// does not reach: it finds wake-ups that are early, lost or unexpected.
func TestDemo_Succeeds(t *testing.T) {
	t.Parallel()
	seeInputs()
	var out bytes.Buffer
	d := demo{out: &out, beat: 200 * time.Millisecond, slack: 30 * time.Second, bin: bin}
	ok, err := d.run(t.Context())
	if err != nil || !ok {
		t.Fatalf("ok %v, error %v\n%s", ok, err, &out)
	}
	// A busy machine may wake Build/app so late that it need not ask for a second wake-up.
	if got := d.ledger.wakeUps; got != 10 && got != 9 {
		t.Errorf("%d wake-ups, want 10\n%s", got, &out)
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("colours that were not asked for:\n%q", &out)
	}
	for _, want := range []string{"503: again after 200ms", "503: again after 400ms", "Reschedule-After: 400ms", "after the restart", "?secret=", `Key "Deploy/web"`, `Key "Lease/during"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("does not show %q:\n%s", want, &out)
		}
	}
	checkAllEnded(t, out.String())
}

// interrupter cancels the demo when it prints a word, as Ctrl-C would.
type interrupter struct {
	bytes.Buffer
	word   string
	cancel context.CancelFunc
}

func (i *interrupter) Write(p []byte) (int, error) {
	if strings.Contains(string(p), i.word) {
		i.cancel()
	}
	return i.Buffer.Write(p)
}

// An interrupted demo ends its processes and removes its files.
func TestDemo_InterruptedLeavesNothing(t *testing.T) {
	for _, word := range []string{"operator http", "DELETE", "✓", "kill -9", "restart"} {
		t.Run(word, func(t *testing.T) {
			seeInputs()
			dir := t.TempDir()
			t.Setenv("TMPDIR", dir)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := &interrupter{word: word, cancel: cancel}
			d := demo{out: out, beat: 200 * time.Millisecond, slack: 30 * time.Second, bin: bin}
			if ok, err := d.run(ctx); ok || !errors.Is(err, context.Canceled) {
				t.Errorf("ok %v, error %v\n%s", ok, err, out)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v (error %v)", left, err)
			}
			checkAllEnded(t, out.String())
		})
	}
}

// Colours start and end within a line.
func TestPaint_ColoursEachLine(t *testing.T) {
	t.Parallel()
	d := demo{colour: true}
	if got, want := d.paint(red, "\na b\nc\n"), "\n\x1b[31ma b\x1b[0m\n\x1b[31mc\x1b[0m\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func checkAllEnded(t *testing.T, out string) {
	t.Helper()
	pids := regexp.MustCompile(`pid (\d+)`).FindAllStringSubmatch(out, -1)
	if len(pids) < 2 {
		t.Errorf("the processes are not named:\n%s", out)
	}
	for _, m := range pids {
		if pid, err := strconv.Atoi(m[1]); err != nil || syscall.Kill(pid, 0) == nil {
			t.Errorf("process %s still runs (%v)", m[1], err)
		}
	}
}
