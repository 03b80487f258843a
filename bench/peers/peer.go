package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
)

// peer is one durable timer.
type peer struct {
	name     string
	settings string                        // for the page
	notes    map[string]string             // for the page: footnotes of the kills' table, by the heading of the cell
	lanes    int                           // of the rounds of kill -9, side by side; 0: one
	version  func() (string, error)        // an error says why it cannot run
	start    func(h *host) error           // starts all its processes on the data in h.dir; returns when it takes calls
	connect  func(h *host) (client, error) // for one caller
}

// client is the connection of one caller.
type client interface {
	// schedule returns when it is durable that the key is due at a time. It replaces an earlier one of the key.
	schedule(ctx context.Context, key string, at time.Time, data string) error
	// cancel returns when it is durable that the key is not due.
	cancel(ctx context.Context, key string) error
	close()
}

const (
	workers  = 100                   // deliveries at a time
	lease    = 30 * time.Second      // after which a delivery whose worker is gone is repeated, where a peer has a setting for it
	patience = 10 * time.Second      // of one call
	idlePoll = 50 * time.Millisecond // of the loops
)

// host is where a peer runs: its data, its sink and its processes. Addresses stay over restarts.
type host struct {
	dir, sink string
	fresh     bool // nothing was started on the data before
	addrs     map[string]string
	running   []*exec.Cmd
	state     any // of the peer
}

func newHost(dir, sink string) *host {
	return &host{dir: dir, sink: sink, fresh: true, addrs: map[string]string{}}
}

// addr returns the loopback address of a name. Its port lies below the ports of outgoing connections.
func (h *host) addr(name string) string {
	for h.addrs[name] == "" {
		addr := fmt.Sprintf("127.0.0.1:%d", 15000+rand.IntN(15000))
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			h.addrs[name] = addr
		}
	}
	return h.addrs[name]
}

// run starts a process, which ends with this one.
func (h *host) run(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	output, err := os.OpenFile(filepath.Join(h.dir, filepath.Base(cmd.Path)+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer output.Close()
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		return err
	}
	h.running = append(h.running, cmd)
	return nil
}

// serve starts a part of this program in a process of its own.
func (h *host) serve(args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return h.run(exec.Command(self, append([]string{"serve"}, args...)...))
}

// up starts the peer and waits for its answer.
func (h *host) up(p *peer) error {
	err := p.start(h)
	h.fresh = false
	if err != nil {
		err = fmt.Errorf("%s: %w", p.name, err)
	}
	return err
}

// kill ends all processes with SIGKILL, with their children's children: PostgreSQL puts each into a session of its own.
func (h *host) kill() {
	var pids []int
	for _, cmd := range h.running {
		pids = append(pids, cmd.Process.Pid)
	}
	pids = withDescendants(pids)
	for _, pid := range pids {
		syscall.Kill(pid, syscall.SIGKILL) // fails when it has ended
	}
	for _, cmd := range h.running {
		cmd.Wait() // its status is the signal
	}
	for _, pid := range pids { // the children of a dead one are reaped by init
		until(patience, func() bool { _, alive := parentOf(pid); return !alive })
	}
	h.running = nil
}

func withDescendants(pids []int) []int {
	names, _ := filepath.Glob("/proc/[0-9]*")
	for found := true; found; {
		found = false
		for _, name := range names {
			pid, _ := strconv.Atoi(filepath.Base(name))
			parent, ok := parentOf(pid)
			if ok && slices.Contains(pids, parent) && !slices.Contains(pids, pid) {
				pids, found = append(pids, pid), true
			}
		}
	}
	return pids
}

// parentOf returns the parent of a process that has not ended.
func parentOf(pid int) (parent int, alive bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	var state string
	if _, scanned := fmt.Sscan(rest, &state, &parent); err != nil || scanned != nil {
		return 0, false
	}
	return parent, state != "Z"
}

// until asks until it is so, and says whether it came to be.
func until(atMost time.Duration, so func() bool) bool {
	for end := time.Now().Add(atMost); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// ready waits until a process takes calls.
func ready(what string, so func() bool) error {
	if !until(2*time.Minute, so) {
		return fmt.Errorf("%s is not ready after two minutes", what)
	}
	return nil
}

func answers(url string) bool {
	answer, err := http.Get(url)
	if err != nil {
		return false
	}
	answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// moduleVersion returns the version of a library in this program.
func moduleVersion(path string) (string, error) {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, m := range info.Deps {
			if m.Path == path {
				return m.Version, nil
			}
		}
	}
	return "", errors.New("this program lacks " + path)
}

var versionNumber = regexp.MustCompile(`\d+\.\d+(\.\d+)?`)

// programVersion returns the name of a program with the version that it prints.
func programVersion(name, file string) (string, error) {
	out, err := exec.Command(file, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s is not installed (%w)", name, err)
	}
	return name + " " + versionNumber.FindString(string(out)), nil
}

// caller calls an HTTP API over one connection. It is fasthttp: the callers share two cores with the server.
type caller struct {
	host     fasthttp.HostClient
	request  fasthttp.Request
	response fasthttp.Response
}

func newCaller(addr string) *caller {
	return &caller{host: fasthttp.HostClient{
		Addr: addr, MaxConns: 1, ReadTimeout: patience, WriteTimeout: patience, DisablePathNormalizing: true, // an escaped slash is part of a key
		MaxIdemponentCallAttempts: 1, // a retry would hide a failed call
	}}
}

// call returns the body of a 2xx, which the next call overwrites.
func (c *caller) call(method, path string, body []byte) ([]byte, error) {
	c.request.Header.SetMethod(method)
	c.request.SetRequestURI("http://" + c.host.Addr + path)
	c.request.Header.SetContentType("application/json")
	c.request.SetBodyRaw(body)
	err := c.host.Do(&c.request, &c.response)
	if status := c.response.StatusCode(); err == nil && status/100 != 2 {
		err = fmt.Errorf("%s %s answered %d: %.300s", method, path, status, c.response.Body())
	}
	return c.response.Body(), err
}

func (c *caller) close() { c.host.CloseIdleConnections() }

func escaped(key string) string { return strings.ReplaceAll(key, "/", "%2F") }

// deliverer is the work of a worker: one POST to the sink.
type deliverer struct {
	url  string
	http *http.Client
}

func newDeliverer(sink string) *deliverer {
	return &deliverer{"http://" + sink + "/", &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}}}
}

const keyHeader = "Ce-Reschedulekey" // as the adapter sends it

func (d *deliverer) deliver(ctx context.Context, key string, data []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url, bytes.NewReader(data))
	if err != nil {
		return err
	}
	request.Header.Set(keyHeader, key)
	answer, err := d.http.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	io.Copy(io.Discard, answer.Body) // or the connection would not be used again
	if answer.StatusCode/100 != 2 {
		return errors.New(answer.Status)
	}
	return nil
}

// lastWords returns the end of what the processes wrote.
func (h *host) lastWords() (words string) {
	files, _ := filepath.Glob(filepath.Join(h.dir, "*.log"))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		words += fmt.Sprintf("\n%s: %s", filepath.Base(file), text[max(len(text)-1000, 0):])
	}
	return words
}
