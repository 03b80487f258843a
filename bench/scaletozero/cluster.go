package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// cluster is the cluster of KUBECONFIG. It is called through kubectl proxy, so
// every way to log in that kubectl knows works here.
type cluster struct {
	base string // of kubectl proxy
}

// connect starts kubectl proxy, which ends with ctx.
func connect(ctx context.Context) (*cluster, error) {
	proxy := exec.CommandContext(ctx, "kubectl", "proxy", "--port=0")
	proxy.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr bytes.Buffer
	proxy.Stderr = &stderr
	out, err := proxy.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("scaletozero: %w", err)
	}
	if err := proxy.Start(); err != nil {
		return nil, fmt.Errorf("scaletozero: starting kubectl, which must be in the PATH: %w", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	_, address, found := strings.Cut(strings.TrimSpace(line), "Starting to serve on ")
	if !found {
		return nil, fmt.Errorf("scaletozero: kubectl proxy did not start: %q %s %w", line, stderr.String(), err)
	}
	return &cluster{base: "http://" + address}, nil
}

// get reads an object of the API.
func (c *cluster) get(ctx context.Context, path string, into any) error {
	text, err := c.text(ctx, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("scaletozero: reading %s: %w", path, err)
	}
	return nil
}

func (c *cluster) text(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, fmt.Errorf("scaletozero: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("scaletozero: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("scaletozero: reading %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("scaletozero: %s: %s: %.300s", path, resp.Status, text)
	}
	return text, nil
}

// kubectl runs kubectl and returns its output.
func kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	return run(ctx, "", stdin, "kubectl", args...)
}

// run returns the output of a command, and its stderr in the error.
func run(ctx context.Context, dir, stdin, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("scaletozero: %s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// metadata has the fields of an object that this program reads.
type metadata struct {
	UID, Name, Namespace string
	Labels               map[string]string
	CreationTimestamp    time.Time
}

// pods returns the pods of all namespaces.
func (c *cluster) pods(ctx context.Context) ([]metadata, error) {
	var list struct{ Items []struct{ Metadata metadata } }
	if err := c.get(ctx, "/api/v1/pods", &list); err != nil {
		return nil, err
	}
	var pods []metadata
	for _, item := range list.Items {
		pods = append(pods, item.Metadata)
	}
	return pods, nil
}
