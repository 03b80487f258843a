package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is a program that was started.
type Process struct {
	name   string
	cmd    *exec.Cmd
	log    string // a file
	exited chan struct{}
}

// Launch starts a program whose output is added to the file log. env is added
// to the environment of the tests.
func Launch(log string, env []string, binary string, args ...string) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("kube: %w", err)
	}
	defer out.Close()
	p := &Process{name: binary, cmd: exec.Command(binary, args...), log: log, exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.Env = append(p.cmd.Environ(), env...)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("kube: %w", err)
	}
	guard, pipe, err := watch(p.cmd.Process.Pid)
	if err != nil {
		_ = p.cmd.Process.Kill()
		return nil, errors.Join(fmt.Errorf("kube: %w", err), p.cmd.Wait())
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in its log
		// A system does not hand out an id again so soon that the guard could
		// meet another process under it.
		_ = guard.Process.Kill()
		_ = guard.Wait()
		_ = pipe.Close()
		close(p.exited)
	}()
	return p, nil
}

// watch sees to it that a process does not outlive this one, even when this one
// panics or is killed: a shell waits on a pipe from here, which the kernel
// closes in any case. Linux's own way, a signal at the parent's death, comes
// at the death of the parent's thread, and threads come and go.
func watch(pid int) (*exec.Cmd, io.Closer, error) {
	cmd := exec.Command("sh", "-c", `cat >/dev/null; kill -9 "$0"`, strconv.Itoa(pid))
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	return cmd, pipe, cmd.Start()
}

// Kill is kill -9. It returns when the process is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may be gone
	<-p.exited
}

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited is closed when the process is gone.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Terminate sends SIGTERM and waits for the end, which it brings about itself
// when ctx ends first.
func (p *Process) Terminate(ctx context.Context) error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may be gone
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("kube: %s did not end at SIGTERM: %w", p.name, ctx.Err())
	}
}

// Log is the end of what the process said.
func (p *Process) Log() string {
	const most = 200
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return p.log + ":\n" + strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// Until calls done, again and again, until it says so. The error is of the
// last call; a process that ends meanwhile ends the wait.
func (p *Process) Until(ctx context.Context, done func(context.Context) error) error {
	if err := until(ctx, p.exited, done); err != nil {
		return fmt.Errorf("kube: %s: %w\n%s", p.name, err, p.Log())
	}
	return nil
}

// until calls done until it says so, Patience or ctx is over, or stop is closed.
func until(ctx context.Context, stop <-chan struct{}, done func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		err := done(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-stop:
			return fmt.Errorf("it ended: %w", err)
		case <-ctx.Done():
			return err
		case <-again.C:
		}
	}
}
