package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"github.com/reschedule-dev/reschedule/bench/load"
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
	addr       string // host:port
	ready      time.Duration
	usage      func() (usage, error)
	stop, kill func() error // in order, and as kill -9
}

// serve starts a server and waits until it is ready. The kernel kills it when the driver dies.
func serve(ctx context.Context, cmd *exec.Cmd, addr string, stop os.Signal, every time.Duration, isReady func() bool) (*service, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	stderr := new(tail)
	cmd.Stderr = stderr
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // ProcessState has it
	}()
	end := func(s os.Signal) error {
		if err := cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		select {
		case <-ended:
			return nil
		case <-time.After(stopGrace):
			cmd.Process.Kill()
			<-ended
			return fmt.Errorf("%s did not end within %s of %s", cmd.Path, stopGrace, s)
		}
	}
	starting, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	for tick := time.NewTicker(every); !isReady(); {
		select {
		case <-ended:
			return nil, fmt.Errorf("%s ended before it was ready: %s: %s", cmd.Path, cmd.ProcessState, *stderr)
		case <-starting.Done():
			return nil, errors.Join(fmt.Errorf("%s was not ready within %s", cmd.Path, readyLimit), end(syscall.SIGKILL))
		case <-tick.C:
		}
	}
	return &service{
		addr: addr, ready: time.Since(began),
		usage: func() (usage, error) { return processUsage(cmd.Process.Pid) },
		stop:  func() error { return end(stop) },
		kill:  func() error { return end(syscall.SIGKILL) },
	}, nil
}

// tail keeps the last part of a process's output, for the error about its end.
type tail []byte

func (t *tail) Write(b []byte) (int, error) {
	const limit = 2048
	*t = append(*t, b...)
	*t = (*t)[max(len(*t)-limit, 0):]
	return len(b), nil
}

// processUsage reads /proc, where the kernel counts CPU time in hundredths of a second.
func processUsage(pid int) (usage, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return usage{}, err
	}
	stat, err := p.Stat()
	if err != nil {
		return usage{}, err
	}
	io, _ := p.IO() // not for another user's process
	return usage{cpu: cpuTime(stat), rss: int64(stat.ResidentMemory()), written: int64(io.WriteBytes)}, nil
}

func cpuTime(stat procfs.ProcStat) time.Duration {
	return time.Duration(stat.CPUTime() * float64(time.Second))
}

// familyUsage adds the CPU time of the children of a process: PostgreSQL serves
// each connection with a child, and none of them ends within a window.
func familyUsage(pid int) (usage, error) {
	total, err := processUsage(pid)
	if err != nil {
		return total, err
	}
	all, err := procfs.AllProcs()
	for _, p := range all {
		if stat, err := p.Stat(); err == nil && stat.PPID == pid {
			total.cpu += cpuTime(stat)
		}
	}
	return total, err
}

// ownCPU returns the CPU time of the driver, which is the client in most scenarios.
func ownCPU() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// freeAddr returns a loopback address without a listener. Its port lies below the ports of
// outgoing connections, so that no connection takes it before the program listens.
func freeAddr() (string, error) {
	for {
		address := fmt.Sprintf("127.0.0.1:%d", 15000+rand.IntN(15000))
		l, err := net.Listen("tcp", address)
		if err == nil {
			return address, l.Close()
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return "", err
		}
	}
}

// listens says whether a server accepts connections.
func listens(addr string) bool {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

var control = &http.Client{Timeout: load.CallTimeout}

// getJSON reads an answer of a service.
func getJSON(addr, path string, into any) error {
	answer, err := control.Get("http://" + addr + path)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s: %.300s (%w)", path, answer.Status, bytes.TrimSpace(text), err)
	}
	return json.Unmarshal(text, into)
}
