package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopGrace is how long a process may take to end before it is killed.
const stopGrace = 20 * time.Second

// usage is what a process has used of the machine.
type usage struct {
	cpu time.Duration // user and system, since its start
	rss int64         // bytes
}

// service is something that runs and is measured: a process, in tests a server
// within the test's own.
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
	if err := cmd.Start(); err != nil {
		read.Close()
		write.Close()
		return nil, fmt.Errorf("driver: %w", err)
	}
	write.Close()
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// discardStdout keeps the process from blocking on what nobody reads.
func (p *process) discardStdout() { go io.Copy(io.Discard, p.stdout) }

// signal sends the signal and waits for the end; it kills what does not end.
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

// waitFor polls until check says yes, the process ends or the time is over.
func (p *process) waitFor(ctx context.Context, what string, every, limit time.Duration, check func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for !check() {
		select {
		case <-p.ended:
			return fmt.Errorf("driver: %s ended before %s: %w: %s", p.cmd.Path, what, p.err, p.stderr)
		case <-ctx.Done():
			return fmt.Errorf("driver: %s: no %s within %s: %s", p.cmd.Path, what, limit, p.stderr)
		case <-tick.C:
		}
	}
	return nil
}

// processUsage reads /proc. The kernel counts CPU time in hundredths of a second there.
func processUsage(pid int) (usage, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}, fmt.Errorf("driver: %w", err)
	}
	return parseStat(text)
}

func parseStat(text []byte) (usage, error) {
	// The name, in parentheses, may hold anything; fields are counted behind it, from the third on.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 22 {
		return usage{}, fmt.Errorf("driver: /proc/PID/stat: %q", text)
	}
	number := func(i int) int64 {
		n, _ := strconv.ParseInt(fields[i-3], 10, 64)
		return n
	}
	const tick = time.Second / 100
	return usage{cpu: time.Duration(number(14)+number(15)) * tick, rss: number(24) * int64(os.Getpagesize())}, nil
}

// ownCPU is the CPU time of the driver, the client of most scenarios.
func ownCPU() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// tail keeps the last of what a process says, for the error that tells of its end.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 2048

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if over := len(t.text) - tailBytes; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
