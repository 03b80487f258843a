package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

const (
	// settleFor is what a process has to come to rest, idleFor how long it is
	// watched doing nothing.
	settleFor = 30 * time.Second
	idleFor   = time.Minute
)

// BenchmarkIdle says what controller and adapter cost while nothing is due, as
// a release is built: resident memory, how much of it is their own (the rest
// is pages of their program), and CPU. Knative's adapter of PingSources stands
// beside them, with one. Run it alone: go test -run '^$' -bench Idle -benchtime 1x
func BenchmarkIdle(b *testing.B) {
	dir := b.TempDir()
	release := func(name, module, pkg string) string {
		binary := filepath.Join(dir, name)
		cmd := exec.CommandContext(b.Context(), "go", "build", "-C", module, "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", binary, pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		return binary
	}
	adapter := release("adapter", "../..", "github.com/reschedule-dev/reschedule/cmd/adapter")
	controller := release("controller", "../..", "github.com/reschedule-dev/reschedule/cmd/controller")
	ping := release("mtping", "../knative", "knative.dev/eventing/cmd/mtping")

	apply(b, "apiVersion: v1\nkind: Namespace\nmetadata: {name: idle}\n")
	made := 0
	for _, sources := range []int{0, 1, 10_000} {
		for ; made < sources; made++ {
			apply(b, fmt.Sprintf("apiVersion: sources.reschedule.dev/v1alpha1\nkind: RescheduleSource\n"+
				"metadata: {name: s-%d, namespace: idle}\nspec: {sink: {uri: \"http://sink.invalid/%d\"}}\n", made, made))
		}
		// The controller first: it writes the status that the adapter reads.
		idle(b, fmt.Sprintf("controller/%d", sources), program{account: controllerAccount, ready: probes + "/readiness", binary: controller, args: []string{"-kubeconfig"}})
		idle(b, fmt.Sprintf("adapter/%d", sources), program{account: adapterAccount, ready: "http://127.0.0.1:19090/readyz", binary: adapter, args: []string{
			"--data-dir", filepath.Join(dir, "data", strconv.Itoa(sources)), "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:19090", "--kubeconfig",
		}})
	}
	if err := server.ApplyEventing(b.Context(), "resources/pingsource.yaml"); err != nil {
		b.Fatal(err)
	}
	apply(b, "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: ping, namespace: knative-eventing}\n---\n"+
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: ping}\n"+
		"subjects: [{kind: ServiceAccount, name: ping, namespace: knative-eventing}]\n"+
		"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}\n")
	apply(b, "apiVersion: sources.knative.dev/v1\nkind: PingSource\nmetadata: {name: one, namespace: idle}\n"+
		"spec: {schedule: \"0 0 1 1 *\", sink: {uri: \"http://sink.invalid/\"}}\n")
	idle(b, "pingsource/1", program{account: "ping", ready: probes + "/health", binary: ping, args: []string{"--disable-ha", "-kubeconfig"}, env: []string{
		"NAMESPACE=" + kube.SystemNamespace, "K_SINK_TIMEOUT=-1", "K_OBSERVABILITY_CONFIG={}",
		"K_LOGGING_CONFIG=", "K_LEADER_ELECTION_CONFIG=", "K_NO_SHUTDOWN_AFTER=",
	}})
}

func apply(b *testing.B, manifests string) {
	b.Helper()
	if err := server.Apply(b.Context(), []byte(manifests)); err != nil {
		b.Fatal(err)
	}
}

// program is what idle starts. Its last argument must be the flag of its kubeconfig.
type program struct {
	account, ready, binary string // ready is the URL that answers when it has started
	args, env              []string
}

// idle starts a program, waits until it answers and is at rest, and measures it.
func idle(b *testing.B, name string, of program) {
	b.Run(name, func(b *testing.B) {
		config, err := server.Kubeconfig(b.Context(), kube.SystemNamespace, of.account)
		if err != nil {
			b.Fatal(err)
		}
		env := append([]string{"GOMEMLIMIT=2GiB", // so that 10,000 sources of one namespace have memory
			"CONFIG_LOGGING_NAME=config-logging", "CONFIG_OBSERVABILITY_NAME=config-observability",
			"CONFIG_LEADERELECTION_NAME=config-leader-election", "PROFILING_PORT=0"}, of.env...)
		for b.Loop() {
			p, err := kube.Launch(filepath.Join(b.TempDir(), "log"), env, of.binary, append(of.args, config)...)
			if err != nil {
				b.Fatal(err)
			}
			if err := p.Until(b.Context(), func(ctx context.Context) error { return answers(ctx, of.ready) }); err != nil {
				b.Fatal(err)
			}
			for start, before := time.Now(), time.Duration(-1); ; { // at rest: a spell without CPU worth mention
				used := cpu(b, p.PID())
				if before >= 0 && used-before < 200*time.Millisecond || time.Since(start) > 10*time.Minute {
					break
				}
				before = used
				<-time.After(settleFor)
			}
			before := cpu(b, p.PID())
			<-time.After(idleFor)
			b.ReportMetric(float64(cpu(b, p.PID())-before)/float64(idleFor)*1000, "mCPU")
			b.ReportMetric(megabytes(b, p.PID(), "VmRSS"), "MB-rss")
			b.ReportMetric(megabytes(b, p.PID(), "RssAnon"), "MB-own")
			b.ReportMetric(0, "ns/op")
			// A controller that is killed keeps its lease for a while, in which
			// the next one has nothing to do.
			if err := p.Terminate(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// cpu is what the process has used.
func cpu(b *testing.B, pid int) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	// After the name, which is in parentheses, utime and stime are 12th and 13th, in 1/100 s.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

func megabytes(b *testing.B, pid int, field string) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && name == field {
			kilobytes, _ := strconv.Atoi(strings.Fields(value)[0])
			return float64(kilobytes) / 1024
		}
	}
	b.Fatalf("no %s of process %d", field, pid)
	return 0
}
