package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	startWithin = 30 * time.Second // a cold disk is slow
	stopWithin  = 15 * time.Second // the promise of the adapter after SIGTERM
)

// build compiles the adapter, the operator and the command line into dir.
func build(ctx context.Context, dir string) error {
	const module = "github.com/reschedule-dev/reschedule"
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return fmt.Errorf("demo: building: %w", err)
	}
	for _, args := range [][]string{
		{"build", "-o", dir + string(filepath.Separator), module + "/cmd/adapter", module + "/examples/operator"},
		{"-C", filepath.Join(strings.TrimSpace(string(root)), "cli"), "build", "-o", filepath.Join(dir, "kn-source-reschedule"), "."},
	} {
		if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("demo: building: %w\n%s", err, out)
		}
	}
	return nil
}

// process is a program that the demo starts; its log goes to a file.
type process struct {
	cmd   *exec.Cmd
	ready string // its first line, which has an address
	log   string
	ended chan struct{}
}

// start runs the program and waits for its first line, which says where it serves; its log
// goes to dir. When ctx ends, the process is asked to end too.
func start(ctx context.Context, dir, program string, env []string, args ...string) (*process, error) {
	name := filepath.Base(program)
	p := &process{log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	logFile, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("demo: starting %s: %w", name, err)
	}
	defer logFile.Close()
	p.cmd = exec.CommandContext(ctx, program, args...)
	p.cmd.Env, p.cmd.Stderr = append(os.Environ(), env...), logFile
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = stopWithin
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("demo: starting %s: %w", name, err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("demo: starting %s: %w", name, err)
	}
	firstLine := make(chan string, 1)
	go func() {
		defer close(p.ended)
		lines := bufio.NewReader(stdout)
		line, _ := lines.ReadString('\n')
		firstLine <- line
		_, _ = io.Copy(io.Discard, lines)
		_ = p.cmd.Wait() // the demo ends it, so that the result is known
	}()
	select {
	case p.ready = <-firstLine:
	case <-time.After(startWithin):
	case <-ctx.Done():
	}
	if !strings.Contains(p.ready, "http://") {
		p.kill()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		logged, _ := os.ReadFile(p.log)
		return nil, fmt.Errorf("demo: starting %s: it did not get ready within %s:\n%s", name, startWithin, logged)
	}
	return p, nil
}

// address is the URL behind the words, or the first one, in the line of the process that is
// ready.
func (p *process) address(words string) string {
	_, rest, _ := strings.Cut(p.ready, words)
	_, rest, _ = strings.Cut(rest, "http://")
	return "http://" + strings.TrimRight(strings.Fields(rest + " ")[0], ",")
}

// host is the host and port of a URL.
func host(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Host
}

// kill ends the process as a power cut would: SIGKILL cannot be caught.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// stop lets the process end by itself, within a bound.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(stopWithin):
		p.kill()
	}
}

// observer is an HTTP proxy before the operator, which records when each wake-up comes
// and how it is answered. It is the sink of the adapter.
type observer struct {
	server  http.Server
	address string
	seen    chan wakeUp
}

func startObserver(operator func() string) (*observer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("demo: listening: %w", err)
	}
	w := &observer{address: "http://" + listener.Addr().String(), seen: make(chan wakeUp, 1000)}
	type cameAt struct{}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			if to, err := url.Parse(operator()); err == nil {
				r.SetURL(to)
			}
		},
		ModifyResponse: func(resp *http.Response) error {
			seen := readWakeUp(resp.Request.Header, resp)
			seen.cameAt = resp.Request.Context().Value(cameAt{}).(time.Time)
			seen.answeredAt = time.Now() // before the adapter can know of the answer
			w.seen <- seen
			return nil
		},
		ErrorHandler: func(rw http.ResponseWriter, _ *http.Request, _ error) { // as Knative answers for an absent operator
			rw.WriteHeader(http.StatusBadGateway)
		},
	}
	w.server.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		proxy.ServeHTTP(rw, r.WithContext(context.WithValue(r.Context(), cameAt{}, time.Now())))
	})
	w.server.ReadHeaderTimeout = startWithin
	go func() { _ = w.server.Serve(listener) }()
	return w, nil
}

// readWakeUp reads the headers of a delivery. CloudEvents in the binary mode need no
// library.
func readWakeUp(event http.Header, answer *http.Response) wakeUp {
	key, errKey := url.PathUnescape(event.Get("Ce-Reschedulekey"))
	attempt, errAttempt := strconv.Atoi(event.Get("Ce-Rescheduleattempt"))
	dueAt, errDue := time.Parse(time.RFC3339Nano, event.Get("Ce-Rescheduledueat"))
	w := wakeUp{key: key, id: event.Get("Ce-Id"), attempt: attempt, dueAt: dueAt, status: answer.StatusCode}
	if err := errors.Join(errKey, errAttempt, errDue); err != nil {
		w.problem = "is not an event of a RescheduleSource: " + err.Error()
	}
	if after := answer.Header.Get("Reschedule-After"); after != "" {
		w.againAfter, _ = time.ParseDuration(after)
	}
	return w
}

// call is one request to the schedule API.
func call(ctx context.Context, method, source, key string, body map[string]any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("demo: %s %s: %w", method, key, err)
	}
	if body == nil {
		content = nil
	}
	req, err := http.NewRequestWithContext(ctx, method, source+"/schedules/"+url.PathEscape(key), bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("demo: %s %s: %w", method, key, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("demo: %s %s: %w", method, key, err)
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if resp.StatusCode >= 300 {
		return fmt.Errorf("demo: %s %s: %s: %s", method, key, resp.Status, answer)
	}
	return nil
}
