package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// The driver starts itself again for each process beside it: `driver child KIND
// CONFIG`, with the config as JSON. A server prints its address, a job prints its
// result as JSON.

// servers are the children that serve HTTP until a signal.
var servers = map[string]func(config []byte) (http.Handler, error){
	"bare": newBare,
	"sink": func([]byte) (http.Handler, error) { return new(sink), nil },
}

// jobs are the children that end on their own.
var jobs = map[string]func(ctx context.Context, config []byte) (any, error){
	"pebble":    pebbleJob,
	"post":      postJob,
	"workqueue": workqueueJob,
}

func child(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("driver: child wants a kind and a config")
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	kind, config := args[0], []byte(args[1])
	if job, ok := jobs[kind]; ok {
		found, err := job(ctx, config)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(found)
	}
	build, ok := servers[kind]
	if !ok {
		return fmt.Errorf("driver: no child %q", kind)
	}
	handler, err := build(config)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("driver: %w", err)
	}
	fmt.Println(l.Addr())
	go http.Serve(l, handler)
	<-ctx.Done()
	return nil
}

// childProcesses runs children as processes.
type childProcesses struct{}

func (childProcesses) server(kind string, config any) (*service, error) {
	p, err := startChild(kind, config)
	if err != nil {
		return nil, err
	}
	var addr string
	if _, err := fmt.Fscanln(p.stdout, &addr); err != nil {
		p.signal(syscall.SIGKILL)
		return nil, fmt.Errorf("driver: child %s: %w: %s", kind, err, p.stderr)
	}
	p.discardStdout()
	return p.service(addr, ""), nil
}

func (childProcesses) job(ctx context.Context, kind string, config, found any) error {
	p, err := startChild(kind, config)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { p.cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	err = json.NewDecoder(p.stdout).Decode(found)
	<-p.ended
	if p.err != nil {
		return fmt.Errorf("driver: child %s: %w: %s", kind, p.err, p.stderr)
	}
	if err != nil {
		return fmt.Errorf("driver: child %s: %w", kind, err)
	}
	return nil
}

func startChild(kind string, config any) (*process, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("driver: child %s: %w", kind, err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("driver: %w", err)
	}
	return startProcess(exec.Command(self, "child", kind, string(text)))
}
