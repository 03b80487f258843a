package harness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Adapter is a running adapter.
type Adapter struct {
	// URL is the address of the schedule API, TLS its address with TLS (--tls-listen), Admin
	// the address of probes and metrics.
	URL, TLS, Admin string

	cmd    *exec.Cmd
	logs   *logs
	exited chan struct{}
	err    error // of the process, once it has exited
}

// Flags are the usual ones of a standalone adapter on free ports.
func Flags(sources, dataDir string, more ...string) []string {
	return append([]string{
		"--standalone", "--sources", sources, "--data-dir", dataDir,
		"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
	}, more...)
}

var readyLine = regexp.MustCompile(`^ready: schedule API on (http://\S+), probes and metrics on (http://[^\s,]+)(?:, schedule API with TLS on (https://\S+))?$`)

// Launch starts an adapter and returns once it says that it is ready. When it
// ends before, the error quotes its log.
func Launch(flags ...string) (*Adapter, error) { return Process{}.Launch(flags...) }

// Launch is [Launch] under p's limits.
func (p Process) Launch(flags ...string) (*Adapter, error) {
	cmd, gone := p.command(flags)
	a := &Adapter{cmd: cmd, logs: newLogs(), exited: make(chan struct{})}
	a.cmd.Stderr = a.logs
	stdout, err := a.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("harness: launching: %w", err)
	}
	if err := a.cmd.Start(); err != nil {
		return nil, fmt.Errorf("harness: launching: %w", err)
	}
	guard, err := newGuard(a.cmd.Process.Pid)
	if err != nil {
		_ = a.cmd.Process.Kill()
		return nil, errors.Join(fmt.Errorf("harness: launching: %w", err), a.cmd.Wait())
	}
	ready := make(chan []string, 1)
	go func() {
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if m := readyLine.FindStringSubmatch(lines.Text()); m != nil {
				ready <- m
			}
			_, _ = a.logs.Write([]byte("stdout: " + lines.Text() + "\n"))
		}
		_, _ = io.Copy(io.Discard, stdout) // its end is the process's
		guard.dismiss()
		a.err = a.cmd.Wait()
		gone()
		close(a.exited)
	}()
	select {
	case m := <-ready:
		a.URL, a.Admin, a.TLS = m[1], m[2], m[3]
		return a, nil
	case <-a.exited:
		return nil, &ExitError{Code: a.cmd.ProcessState.ExitCode(), Log: a.Log()}
	case <-time.After(3 * Patience):
		a.Kill()
		return nil, fmt.Errorf("harness: the adapter is not ready after %s:\n%s", 3*Patience, a.Log())
	}
}

// ExitError is the error of an adapter that ended before it was ready.
type ExitError struct {
	Code int
	Log  string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("harness: the adapter ended with status %d:\n%s", e.Code, e.Log)
}

// Start is [Launch] for one test: it fails the test, and kills the adapter at
// the test's end.
func Start(t testing.TB, flags ...string) *Adapter {
	t.Helper()
	a, err := Launch(flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Kill)
	return a
}

// Refused starts an adapter that must end by itself with an error, and returns
// what it said.
func Refused(t testing.TB, flags ...string) string {
	t.Helper()
	a, err := Launch(flags...)
	if err == nil {
		a.Kill()
		t.Fatalf("the adapter started with %q", flags)
	}
	var exit *ExitError
	if !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit.Code <= 0 || exit.Code == 66 || strings.Contains(exit.Log, "panic:") {
		t.Errorf("the adapter ended with status %d:\n%s", exit.Code, exit.Log)
	}
	return exit.Log
}

// Run runs one of the adapter's other commands and returns its status and output.
func Run(args ...string) (int, string) {
	cmd := exec.Command(Binary(), args...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		return -1, err.Error()
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// Kill is kill -9. It returns when the process is gone.
func (a *Adapter) Kill() {
	_ = a.cmd.Process.Kill() // it may be gone
	<-a.exited
}

var ownerLine = regexp.MustCompile(`(?m)^reschedule_group_owner 1$`)

// OwnsGroup reports whether the adapter, one of a group, says that it owns the group.
func (a *Adapter) OwnsGroup(ctx context.Context) bool {
	r, err := Do(ctx, http.MethodGet, a.Admin+"/metrics", "")
	return err == nil && ownerLine.Match(r.Body)
}

// Signal sends a signal.
func (a *Adapter) Signal(s syscall.Signal) error { return a.cmd.Process.Signal(s) }

// Exited is closed when the process is gone.
func (a *Adapter) Exited() <-chan struct{} { return a.exited }

// Terminate sends SIGTERM and returns the exit status and how long it took.
func (a *Adapter) Terminate(ctx context.Context) (status int, took time.Duration, err error) {
	start := time.Now()
	if err := a.Signal(syscall.SIGTERM); err != nil {
		return 0, 0, fmt.Errorf("harness: terminating: %w", err)
	}
	select {
	case <-a.exited:
		return a.cmd.ProcessState.ExitCode(), time.Since(start), nil
	case <-ctx.Done():
		return 0, 0, fmt.Errorf("harness: terminating: %w:\n%s", ctx.Err(), a.Log())
	}
}

// Reload sends SIGHUP and waits until the log says what became of it; it
// returns the lines that were logged meanwhile.
func (a *Adapter) Reload(t testing.TB) (ok bool, log string) {
	t.Helper()
	from := a.logs.len()
	if err := a.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(Patience)
	for {
		changed, lines := a.logs.since(from)
		for i, line := range lines {
			if strings.Contains(line, "sources reloaded") || strings.Contains(line, "stay as they were") {
				return strings.Contains(line, "sources reloaded"), strings.Join(lines[:i+1], "\n")
			}
		}
		select {
		case <-changed:
		case <-a.exited:
			t.Fatalf("the adapter ended at SIGHUP:\n%s", a.Log())
		case <-deadline:
			t.Fatalf("SIGHUP had no effect in %s:\n%s", Patience, a.Log())
		}
	}
}

// Log is what the adapter said so far.
func (a *Adapter) Log() string {
	_, lines := a.logs.since(0)
	return strings.Join(lines, "\n")
}

// AwaitLog returns the log once it has all of the texts: a line that was written
// before an answer may be read after it.
func (a *Adapter) AwaitLog(t testing.TB, texts ...string) string {
	t.Helper()
	deadline := time.After(Patience)
	for {
		changed, lines := a.logs.since(0)
		log := strings.Join(lines, "\n")
		missing := slices.IndexFunc(texts, func(text string) bool { return !strings.Contains(log, text) })
		if missing < 0 {
			return log
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%q is not in the log after %s:\n%s", texts[missing], Patience, log)
		}
	}
}

// logs are lines that can be waited for.
type logs struct {
	mu      sync.Mutex
	lines   []string
	partial string
	changed chan struct{}
}

func newLogs() *logs { return &logs{changed: make(chan struct{})} }

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	parts := strings.Split(l.partial+string(p), "\n")
	l.partial = parts[len(parts)-1]
	l.lines = append(l.lines, parts[:len(parts)-1]...)
	close(l.changed)
	l.changed = make(chan struct{})
	return len(p), nil
}

func (l *logs) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lines)
}

func (l *logs) since(n int) (<-chan struct{}, []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed, slices.Clone(l.lines[n:])
}
