package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

const (
	stopGrace  = 20 * time.Second // a process that did not end by then is killed
	readyLimit = 2 * time.Minute  // of a start: a store with ten million keys may be slow, but the driver ends
)

// usage is what a process uses of the machine.
type usage struct {
	cpu time.Duration // user and system, since its start
	rss int64         // bytes
	// written is how many bytes it has had written to the disk, 0 when that is not known.
	written int64
}

// service is a running contestant: a process, in tests a server within the test's own.
type service struct {
	addr, admin string // host:port
	usage       func() (usage, error)
	stop        func() error // in order
	kill        func() error // as kill -9
}

// process is a child process. The kernel kills it when the driver dies.
type process struct {
	cmd    *exec.Cmd
	stdout *bufio.Reader
	stderr *tail
	ended  chan struct{}
	err    error
}

func startProcess(cmd *exec.Cmd) (*process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	p := &process{cmd: cmd, stderr: new(tail), ended: make(chan struct{})}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("driver: %w", err)
	}
	cmd.Stdout, cmd.Stderr = write, p.stderr
	p.stdout = bufio.NewReader(read)
	err = cmd.Start()
	write.Close()
	if err != nil {
		read.Close()
		return nil, fmt.Errorf("driver: %w", err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// discardStdout keeps the process from blocking on a full pipe.
func (p *process) discardStdout() { go io.Copy(io.Discard, p.stdout) }

// signal sends the signal and waits for the end. After stopGrace it kills the process.
func (p *process) signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("driver: %w", err)
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(stopGrace):
		p.cmd.Process.Kill()
		<-p.ended
		return fmt.Errorf("driver: %s did not end within %s of %s", p.cmd.Path, stopGrace, s)
	}
}

func (p *process) service(addr, admin string) *service {
	return &service{
		addr: addr, admin: admin,
		usage: func() (usage, error) { return processUsage(p.cmd.Process.Pid) },
		stop:  func() error { return p.signal(syscall.SIGTERM) },
		kill:  func() error { return p.signal(syscall.SIGKILL) },
	}
}

// waitFor polls until check is true. If that takes too long or the process
// ends, it returns an error and no process is left.
func (p *process) waitFor(ctx context.Context, what string, every time.Duration, check func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for !check() {
		select {
		case <-p.ended:
			return fmt.Errorf("driver: %s ended before %s: %w: %s", p.cmd.Path, what, p.err, p.stderr)
		case <-ctx.Done():
			p.signal(syscall.SIGKILL)
			return fmt.Errorf("driver: %s: no %s within %s: %s", p.cmd.Path, what, readyLimit, p.stderr)
		case <-tick.C:
		}
	}
	return nil
}

// processUsage reads /proc, where the kernel counts CPU time in hundredths of a second.
func processUsage(pid int) (usage, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return usage{}, fmt.Errorf("driver: %w", err)
	}
	stat, err := p.Stat()
	if err != nil {
		return usage{}, fmt.Errorf("driver: %w", err)
	}
	u := usage{cpu: time.Duration(stat.CPUTime() * float64(time.Second)), rss: int64(stat.ResidentMemory())}
	if io, err := p.IO(); err == nil { // not for another user's process
		u.written = int64(io.WriteBytes)
	}
	return u, nil
}

// familyUsage adds the CPU time of the children of a process: PostgreSQL serves
// each connection with a child, and none of them ends within a window.
func familyUsage(pid int) (usage, error) {
	total, err := processUsage(pid)
	if err != nil {
		return total, err
	}
	all, err := procfs.AllProcs()
	if err != nil {
		return usage{}, fmt.Errorf("driver: %w", err)
	}
	for _, p := range all {
		if stat, err := p.Stat(); err == nil && stat.PPID == pid {
			total.cpu += time.Duration(stat.CPUTime() * float64(time.Second))
		}
	}
	return total, nil
}

// ownCPU returns the CPU time of the driver, which is the client in most scenarios.
func ownCPU() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// tail keeps the last part of a process's output, for the error about its end.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	const limit = 2048
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if over := len(t.text) - limit; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
