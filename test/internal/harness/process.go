package harness

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Process is an adapter's, where it is not to be as usual.
type Process struct {
	Env    []string // NAME=value, beside the environment of this process
	Memory int64    // the most that it may take, in bytes; 0 = no limit
	Binary string   // the program; default the adapter of this checkout
}

// Pod is the process of config/500-adapter.yaml: 1 GiB, of which Go's runtime
// aims at 85 %.
func Pod() Process {
	return Process{Env: []string{"GOMEMLIMIT=880MiB"}, Memory: 1 << 30}
}

// Start is [Process.Launch] for one test, as [Start] is.
func (p Process) Start(t testing.TB, flags ...string) *Adapter {
	t.Helper()
	a, err := p.Launch(flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Kill)
	return a
}

// command is the adapter's under p's limits, and what to do when it is gone.
// The limit of memory is a control group's, which kills the process as a pod's
// does; where none can be made it is one of the address space, by which Go's
// runtime ends it.
func (p Process) command(flags []string) (cmd *exec.Cmd, gone func()) {
	binary := cmp.Or(p.Binary, Binary())
	cmd, gone = exec.Command(binary, flags...), func() {}
	if p.Memory > 0 {
		confine := fmt.Sprintf(`ulimit -d %d && exec "$0" "$@"`, p.Memory>>10)
		if group, err := memoryGroup(p.Memory); err == nil {
			confine = fmt.Sprintf(`echo $$ > %q && exec "$0" "$@"`, filepath.Join(group, "cgroup.procs"))
			gone = func() { _ = os.Remove(group) } // a group that is left does no harm
		}
		cmd = exec.Command("sh", append([]string{"-c", confine, binary}, flags...)...)
	}
	// The race detector's exit code must not be taken for one of the adapter's.
	cmd.Env = append(append(cmd.Environ(), "GORACE=exitcode=66 halt_on_error=1"), p.Env...)
	return cmd, gone
}

// memoryGroup makes a control group with a limit of memory: of version 1, or of
// version 2 where the root hands the controller down.
func memoryGroup(limit int64) (dir string, err error) {
	const groups = "/sys/fs/cgroup"
	for _, at := range []struct{ dir, limit string }{
		{groups + "/memory", "memory.limit_in_bytes"},
		{groups, "memory.max"},
	} {
		if at.dir == groups {
			_ = os.WriteFile(groups+"/cgroup.subtree_control", []byte("+memory"), 0) // shows below
		}
		if dir, err = os.MkdirTemp(at.dir, "reschedule-test-"); err != nil {
			continue
		}
		// WriteFile would make the file where there is no such group.
		var f *os.File
		if f, err = os.OpenFile(filepath.Join(dir, at.limit), os.O_WRONLY, 0); err == nil {
			_, err = f.WriteString(strconv.FormatInt(limit, 10))
			err = errors.Join(err, f.Close())
		}
		if err == nil {
			return dir, nil
		}
		_ = os.Remove(dir)
	}
	return "", err
}

// OpenFiles is how many files and connections the process has open.
func (a *Adapter) OpenFiles(t testing.TB) int {
	t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", a.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

// PeakMemory is the most memory that the process has had resident, in bytes,
// also when it is gone.
func (a *Adapter) PeakMemory(t testing.TB) int64 {
	t.Helper()
	select {
	case <-a.exited:
		if usage, ok := a.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
			return usage.Maxrss << 10
		}
	default:
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(status) {
		if value, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			kib, err := strconv.ParseInt(string(bytes.Fields(value)[0]), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("no VmHWM in %s", status)
	return 0
}

// Verdict says how the process ended by itself, "" while it lives.
func (a *Adapter) Verdict() string {
	select {
	case <-a.exited:
		return a.cmd.ProcessState.String()
	default:
		return ""
	}
}

// ProcessorTime is what the process has used of the processors so far.
func (a *Adapter) ProcessorTime(t testing.TB) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", a.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	// The name, in parentheses, may hold blanks; the fields behind it do not.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	var ticks int
	for _, field := range fields[11:13] { // utime, stime
		n, err := strconv.Atoi(string(field))
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
}
