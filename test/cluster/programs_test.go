package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// programs are the controller and the adapter, each with its ServiceAccount,
// and what a node and the StatefulSet controller would do for them.
type programs struct {
	dir        string
	config     map[string]string // kubeconfig by ServiceAccount
	binary     string            // of the controller
	flags, env []string          // of the controller, beside the usual ones
	namespace  string            // of both
	controller *kube.Process
	adapter    *harness.Adapter
	program    string // of the adapter; "" = the adapter of this checkout
	listen     string // where the adapter listens: any port, or one that a client keeps over restarts
	tlsListen  string // where the adapter listens with TLS
	endNode    func()
}

// running starts the programs for the first test that needs them. They are
// the same for all: who stops one of them must not be a parallel test.
func running(t *testing.T) *programs {
	t.Helper()
	p, err := start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the controller:\n%s\nthe adapter:\n%s", tail(p.controller.Log()), tail(p.adapter.Log()))
		}
	})
	return p
}

// tail is the end of a log.
func tail(log string) string {
	const most = 30
	lines := strings.Split(log, "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// started are the programs, once they were.
var started *programs

var start = sync.OnceValues(func() (*programs, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // a cold build among it
	defer cancel()
	p := &programs{dir: scratch, namespace: kube.SystemNamespace}
	started = p
	return p, p.start(ctx)
})

// start starts both, as the accounts of their namespace.
func (p *programs) start(ctx context.Context) error {
	p.config, p.listen = map[string]string{}, "127.0.0.1:0"
	for _, account := range []string{controllerAccount, adapterAccount} {
		var err error
		if p.config[account], err = server.Kubeconfig(ctx, p.namespace, account); err != nil {
			return err
		}
	}
	if p.binary = os.Getenv("CONTROLLER_BINARY"); p.binary == "" {
		p.binary = p.path("controller")
		if err := harness.Build(p.binary, "github.com/reschedule-dev/reschedule/cmd/controller"); err != nil {
			return fmt.Errorf("building the controller: %w", err)
		}
	}
	if err := p.startController(ctx); err != nil {
		return err
	}
	if err := p.startAdapter(); err != nil {
		return err
	}
	node, end := context.WithCancel(context.Background())
	p.endNode = end
	go server.RunNode(node, p.namespace)
	return nil
}

func (p *programs) path(name string) string { return filepath.Join(p.dir, name) }

// probes is where a Knative controller answers; it has no setting.
const probes = "http://127.0.0.1:8080"

func (p *programs) startController(ctx context.Context) error {
	var err error
	p.controller, err = kube.Launch(p.path("controller.log"), append([]string{
		"CONFIG_LOGGING_NAME=config-logging", "CONFIG_OBSERVABILITY_NAME=config-observability", "CONFIG_LEADERELECTION_NAME=config-leader-election",
		"PROFILING_PORT=0",
		"SYSTEM_NAMESPACE=" + p.namespace,
	}, p.env...), p.binary, append([]string{"-kubeconfig", p.config[controllerAccount]}, p.flags...)...)
	if err != nil {
		return err
	}
	return p.controller.Until(ctx, func(ctx context.Context) error { return answers(ctx, probes+"/readiness") })
}

// answers is nil when a probe does.
func answers(ctx context.Context, url string) error {
	r, err := harness.Do(ctx, http.MethodGet, url, "")
	if err == nil && r.Status != http.StatusOK {
		err = fmt.Errorf("%s: status %d", url, r.Status)
	}
	return err
}

// startAdapter starts the adapter, with the data of the previous one. If it does not start, p
// keeps the previous adapter, which has ended.
func (p *programs) startAdapter() error {
	var err error
	if p.tlsListen, err = harness.FreeAddress(); err != nil {
		return err
	}
	a, err := harness.Process{Binary: p.program, Env: []string{"SYSTEM_NAMESPACE=" + p.namespace}}.Launch("--kubeconfig", p.config[adapterAccount], "--data-dir", p.path("data"),
		"--listen", p.listen, "--admin-listen", "127.0.0.1:0", "--tls-listen", p.tlsListen, "--tls-dir", p.path("tls"))
	if err == nil {
		p.adapter = a
	}
	return err
}

// stop ends everything at the end of the tests.
func (p *programs) stop() {
	if p == nil {
		return
	}
	if p.controller != nil {
		p.controller.Kill()
	}
	if p.adapter != nil {
		p.adapter.Kill()
		_ = os.WriteFile(p.path("adapter.log"), []byte(p.adapter.Log()), 0o600)
	}
	if p.endNode != nil {
		p.endNode()
	}
}

// environment is the environment of the pods, as far as the programs read it.
func environment() error {
	return errors.Join(os.Setenv("SYSTEM_NAMESPACE", kube.SystemNamespace), os.Setenv("POD_NAME", "reschedule-adapter-0"))
}
