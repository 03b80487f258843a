//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// The exit codes of why when there is a problem, and when there is no source.
const (
	problem = 8
	absent  = 3
)

// explainer is a user of the command line who has edit in a namespace and the Role
// reschedule-cli, and no more.
type explainer struct {
	*namespace
	binary, user string
}

func (n *namespace) explainer() *explainer {
	n.t.Helper()
	e := &explainer{namespace: n, user: "system:serviceaccount:" + n.name + ":ada"}
	var err error
	if e.binary, err = commandLine(); err != nil {
		n.t.Fatalf("the command line cannot be built: %v", err)
	}
	roles, err := os.ReadFile("../../config/cli/cli-rbac.yaml")
	if err != nil {
		n.t.Fatal(err)
	}
	n.apply(string(roles) + fmt.Sprintf(`
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: ada}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: ada}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
subjects: [{kind: ServiceAccount, name: ada, namespace: %[1]s}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %[1]s, namespace: knative-eventing}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reschedule-cli}
subjects: [{kind: ServiceAccount, name: ada, namespace: %[1]s}]
`, n.name))
	n.t.Cleanup(func() { _ = exec.Command("kubectl", "-n", "knative-eventing", "delete", "rolebinding", n.name).Run() })
	return e
}

// answer is what why prints with -o json.
type answer struct {
	Cause, Sentence string
	Problem         bool
}

// command is a command of the command line, as its user.
func (e *explainer) command(args ...string) *exec.Cmd {
	return exec.CommandContext(e.t.Context(), e.binary, append(args, "-n", e.name, "--as", e.user)...)
}

// why asks the command line.
func (e *explainer) why(args ...string) (answer, error) {
	cmd := e.command(append([]string{"why", "-o", "json"}, args...)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && (exit.ExitCode() == problem || exit.ExitCode() == absent)) {
		return answer{}, fmt.Errorf("why %v: %w: %s%s", args, err, &said, &out)
	}
	var a answer
	if err := json.Unmarshal(out.Bytes(), &a); err != nil {
		return a, fmt.Errorf("why %v: %w: %s", args, err, &out)
	}
	if a.Problem != (err != nil) {
		return a, fmt.Errorf("why %v: the exit code does not say whether there is a problem: %+v", args, a)
	}
	return a, nil
}

// names waits until why names the cause.
func (e *explainer) names(t *testing.T, cause string, args ...string) {
	t.Helper()
	eventually(t, patience, cause, func() error {
		a, err := e.why(args...)
		if err == nil && a.Cause != cause {
			err = fmt.Errorf("why %v says %s: %s", args, a.Cause, a.Sentence)
		}
		return err
	})
}

// A user who has edit and the Role of the command line learns from why alone why a key
// has not run.
func TestWhy_NamesEachFault(t *testing.T) {
	beside(t)
	n := newNamespace(t, "why")
	e := n.explainer()
	n.deploy("operator", 1, rule{"503/", behaviour{Status: 503}}, rule{"429/", behaviour{Status: 429}}, rule{"404/", behaviour{Status: 404}},
		rule{"403/", behaviour{Status: 403}}, rule{"400/", behaviour{Status: 400}}, rule{"slow/", behaviour{Work: "2m"}})
	const patient = "delivery: {timeout: PT3M, backoffDelay: PT1M, backoffPolicy: linear}\n"
	ops := n.source("ops", toService("operator")+"delivery: {timeout: PT2S, backoffDelay: PT1M, backoffPolicy: linear}\n")
	busy := n.source("busy", toService("operator")+patient+"limits: {maxInFlight: 1}\n")
	full := n.source("full", toService("operator")+"limits: {maxPending: 1}\n")
	still := n.source("still", toService("operator")+"suspend: true\n")
	down := n.source("down", "sink: {uri: 'http://127.0.0.1:1/'}\n"+patient)
	n.apply(manifestOf("unready", toService("nothing")))

	for _, key := range []string{"503/a", "429/a", "404/a", "403/a", "400/a", "slow/a", "done/a"} {
		ops.put(key, `{}`)
	}
	copied := filepath.Join(t.TempDir(), "reschedule.tar")
	if out, err := exec.CommandContext(t.Context(), e.binary, "backup", "-f", copied).CombinedOutput(); err != nil { // as an administrator
		t.Errorf("backup: %v: %s", err, out)
	} else if f, err := os.Stat(copied); err != nil || f.Size() < 1<<10 {
		t.Errorf("the back-up: %v, %v", f, err)
	}
	if out, err := exec.CommandContext(t.Context(), e.binary, "backup", "-f", copied+"2", "--as", e.user).CombinedOutput(); err == nil || !strings.Contains(string(out), "pods/exec") {
		t.Errorf("backup by a user without the right: %v: %s", err, out)
	}
	ops.put("later/a", `{"delay":"1h"}`)
	ops.put("never/a", fmt.Sprintf(`{"delay":"1h","expiresAt":%q}`, time.Now().Add(30*time.Minute).UTC().Format(time.RFC3339)))
	ops.put("gone/a", fmt.Sprintf(`{"delay":"1h","expiresAt":%q}`, time.Now().Add(2*time.Second).UTC().Format(time.RFC3339Nano)))
	busy.put("slow/a", `{}`)
	eventually(t, patience, "slow/a is in flight", func() error {
		if c := busy.counts(); c.InFlight != 1 {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	busy.put("second/a", `{}`)
	full.put("first/a", `{"delay":"1h"}`)
	still.put("a", `{}`)
	down.put("a", `{}`)

	stranger := e.stranger(ops.name)
	for _, c := range []struct {
		cause string
		args  []string
	}{
		{"InFlight", []string{"busy", "slow/a"}}, // first: it ends after two minutes
		{"AtMaxInFlight", []string{"busy", "second/a"}},
		{"Unauthenticated", stranger("not-a-token")},
		{"Unauthenticated", stranger(e.kubectl("create", "token", "ada", "-n", e.namespace.name))}, // for the API server
		{"NoSource", []string{"absent", "a"}},
		{"SourceNotReady", []string{"unready", "a"}},
		{"Suspended", []string{"still", "a"}},
		{"SinkDown", []string{"down", "a"}},
		{"SinkFails", []string{"ops", "503/a"}},
		{"SinkThrottles", []string{"ops", "429/a"}},
		{"SinkNotFound", []string{"ops", "404/a"}},
		{"SinkDenies", []string{"ops", "403/a"}},
		{"SinkRefuses", []string{"ops", "400/a"}},
		{"SinkSlow", []string{"ops", "slow/a"}},
		{"Delivered", []string{"ops", "done/a"}},
		{"Waiting", []string{"ops", "later/a"}},
		{"ExpiresFirst", []string{"ops", "never/a"}},
		{"Expired", []string{"ops", "gone/a"}},
		{"NeverSeen", []string{"ops", "unknown/a"}},
		{"Quota", []string{"full"}},
	} {
		t.Run(c.cause, func(t *testing.T) { e.names(t, c.cause, c.args...) })
	}
}

// kubectl runs kubectl and returns what it prints.
func (e *explainer) kubectl(args ...string) string {
	e.t.Helper()
	out, err := exec.CommandContext(e.t.Context(), "kubectl", args...).Output()
	if err != nil {
		e.t.Fatalf("kubectl %v: %v", args, err)
	}
	return strings.TrimSpace(string(out))
}

// restore runs kubectl in the system's namespace with each of the arguments, also after the
// context of the test has ended.
func (e *explainer) restore(all ...[]string) {
	e.t.Helper()
	for _, args := range all {
		if out, err := exec.Command("kubectl", append([]string{"-n", system}, args...)...).CombinedOutput(); err != nil {
			e.t.Errorf("kubectl %v: %v\n%s", args, err, out)
		}
	}
}

// stranger returns the arguments of why about a source for a caller who has another token, and a port-forward.
func (e *explainer) stranger(source string) func(token string) []string {
	e.t.Helper()
	forward := exec.CommandContext(e.t.Context(), "kubectl", "-n", system, "port-forward", "pod/reschedule-adapter-0", ":8080")
	out, err := forward.StdoutPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	if err := forward.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = forward.Wait() }) // the context of the test has killed it
	line, err := bufio.NewReader(out).ReadString('\n')
	port := regexp.MustCompile(`^Forwarding from 127\.0\.0\.1:(\d+) `).FindStringSubmatch(line)
	if port == nil {
		e.t.Fatalf("kubectl port-forward says %q, %v", line, err)
	}
	return func(token string) []string {
		file := filepath.Join(e.t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			e.t.Fatal(err)
		}
		return []string{source, "503/a", "--server", "http://127.0.0.1:" + port[1] + "/" + e.name + "/" + source, "--token-file", file}
	}
}

// An adapter that was scaled to zero, while no controller runs to set it right.
func whyAdapterAtZero(t *testing.T, turn func()) {
	n := newNamespace(t, "why-zero")
	e := n.explainer()
	n.source("ops", toService("recorder"))
	turn()
	const deployment, set = "deployment/reschedule-controller", "statefulset/reschedule-adapter"
	replicas := e.kubectl("-n", system, "get", deployment, "-o", "jsonpath={.spec.replicas}")
	t.Cleanup(func() {
		e.restore([]string{"scale", set, "--replicas=1"}, []string{"scale", deployment, "--replicas=" + replicas},
			[]string{"rollout", "status", set, "--timeout=3m"}, []string{"rollout", "status", deployment, "--timeout=3m"})
	})
	e.kubectl("-n", system, "scale", deployment, "--replicas=0")
	e.kubectl("-n", system, "wait", "--for=delete", "pod", "-l", "app.kubernetes.io/component="+controller, "--timeout=2m")
	e.kubectl("-n", system, "scale", set, "--replicas=0")
	e.names(t, "AdapterAtZero", "ops")
	e.names(t, "AdapterAtZero", "ops", "a")
}

// An adapter whose disk is full. The disk is a small one in memory, in place of the
// volume, so other sources see no schedules meanwhile.
func whyStorageFull(t *testing.T, turn func()) {
	n := newNamespace(t, "why-disk")
	e := n.explainer()
	ops := n.source("ops", toService("recorder"))
	const set = "statefulset/reschedule-adapter"
	rollout := []string{"rollout", "status", set, "--timeout=3m"}
	turn()
	restore := sync.OnceFunc(func() {
		e.restore([]string{"patch", set, "--type=json", "-p", `[{"op":"replace","path":"/spec/template/spec/containers/0/volumeMounts/0/name","value":"data"},{"op":"remove","path":"/spec/template/spec/volumes/0"}]`}, rollout)
	})
	t.Cleanup(restore)
	answers := func() error { // a Service learns a new pod a little later
		_, err := ops.try("GET", "", "")
		return err
	}
	e.kubectl("-n", system, "patch", set, "--type=json", "-p", `[{"op":"test","path":"/spec/template/spec/containers/0/volumeMounts/0/name","value":"data"},
		{"op":"replace","path":"/spec/template/spec/containers/0/volumeMounts/0/name","value":"small"},
		{"op":"add","path":"/spec/template/spec/volumes/0","value":{"name":"small","emptyDir":{"medium":"Memory","sizeLimit":"64Mi"}}}]`)
	e.kubectl(append([]string{"-n", system}, rollout...)...)

	eventually(t, patience, "the adapter on a small disk answers", answers)
	e.names(t, "Idle", "ops")
	// Random data, which cannot be compressed.
	random := rand.New(rand.NewPCG(1, 2))
	for i := 0; ; i++ {
		data := make([]byte, 200<<10)
		for j := range data {
			data[j] = byte(random.Uint32())
		}
		body, err := json.Marshal(map[string]any{"delay": "1h", "event": map[string]any{"datacontenttype": "application/octet-stream", "data_base64": data}})
		if err != nil {
			t.Fatal(err)
		}
		if r := ops.call("PUT", harness.KeyPath(fmt.Sprintf("key-%d", i)), string(body)); r.Status == http.StatusInsufficientStorage {
			break
		} else if r.Status != http.StatusCreated || i > 1000 {
			t.Fatalf("key %d: %d %s", i, r.Status, r.Body)
		}
	}
	e.names(t, "StorageFull", "ops")
	e.names(t, "StorageFull", "ops", "absent")
	e.names(t, "Waiting", "ops", "key-0")
	if r := ops.call("DELETE", harness.KeyPath("key-0"), ""); r.Status != http.StatusNoContent {
		t.Errorf("removing a key from a full disk: %d %s", r.Status, r.Body)
	}
	restore()
	eventually(t, patience, "the adapter on its volume answers", answers)
}
