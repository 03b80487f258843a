package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

const (
	kubebuilderPage = "../../docs/kubebuilder.md"
	sitesNamespace  = "sites-system"
)

var knativeServices = schema.GroupVersionResource{Group: "serving.knative.dev", Version: "v1", Resource: "services"}

// pageBlocks are the shell commands of a page that are not marked as not tested.
func pageBlocks(t *testing.T, name string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), "\n```sh\n")
	for found {
		block, after, ends := strings.Cut(rest, "\n```\n")
		if !ends {
			t.Fatalf("%s has a block without an end", name)
		}
		if !strings.HasSuffix(strings.TrimSpace(before), "<!-- not tested -->") {
			blocks = append(blocks, block)
		}
		before, rest, found = strings.Cut(after, "\n```sh\n")
	}
	return blocks
}

// kubebuilderTools builds kubebuilder and controller-gen in the versions of
// tools/kubebuilder, and kubectl if there is none. The Makefile of a project finds
// controller-gen by its name, and does not install it again.
func kubebuilderTools(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	build := func(module string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-C", "../../tools/" + module, "-trimpath"}, args...)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("building %s: %v\n%s", args, err, out)
		}
	}
	build("kubebuilder", "-o", filepath.Join(dir, "kubebuilder"), "sigs.k8s.io/kubebuilder/v4")
	const generator = "controller-gen-v0.19.0"
	build("kubebuilder", "-o", filepath.Join(dir, generator), "sigs.k8s.io/controller-tools/cmd/controller-gen")
	if err := os.Symlink(filepath.Join(dir, generator), filepath.Join(dir, "controller-gen")); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("kubectl"); err != nil {
		build("kubernetes", "-o", filepath.Join(dir, "kubectl"), "k8s.io/kubernetes/cmd/kubectl")
	}
	return dir
}

// administratorOf is the kubeconfig of an account that may do everything.
func administratorOf(t *testing.T, ns string) string {
	t.Helper()
	meta := metav1.ObjectMeta{Name: "administrator-of-" + ns}
	if _, err := server.Client.CoreV1().ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := server.Client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: ns, Name: meta.Name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := server.Kubeconfig(t.Context(), ns, meta.Name)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// fromZero is what Knative Serving and a node do for a Knative Service: a process begins
// with a request, and ends after it.
type fromZero struct {
	t            *testing.T
	binary, logs string
	args, env    []string
	mu           sync.Mutex
	served       []string // the types of events that were answered, with the status
}

func (z *fromZero) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if err := z.serve(w, r); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		z.t.Logf("from zero: %v", err)
	}
}

func (z *fromZero) serve(w http.ResponseWriter, r *http.Request) error {
	address, err := harness.FreeAddress()
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(address)
	p, err := kube.Launch(z.logs, append(z.env, "PORT="+port), z.binary, z.args...)
	if err != nil {
		return err
	}
	defer func() { _ = p.Terminate(context.WithoutCancel(r.Context())) }()
	if err := p.Until(r.Context(), listens(address)); err != nil {
		return err
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: address})
	proxy.ModifyResponse = func(answer *http.Response) error {
		z.served = append(z.served, fmt.Sprint(r.Header.Get("Ce-Type"), " ", answer.StatusCode))
		return nil
	}
	proxy.ServeHTTP(w, r)
	return nil
}

func (z *fromZero) count(what string) (n int) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, s := range z.served {
		if s == what {
			n++
		}
	}
	return n
}

// The commands of docs/kubebuilder.md, as they are there, with the kubebuilder that its
// authors published: a new project is scaffolded, changed, built, and runs from zero.
// Its Reconcile is called for a new object, and again when RequeueAfter says, each time
// by a process of its own.
func TestKubebuilder_Page(t *testing.T) {
	t.Parallel()
	p := running(t)
	if err := defineKinds(); err != nil { // the Knative Service among them
		t.Fatal(err)
	}
	tools, dir := kubebuilderTools(t), t.TempDir()
	sdk, err := filepath.Abs("../../sdk")
	if err != nil {
		t.Fatal(err)
	}
	namespaceFile := filepath.Join(dir, "namespace")
	if err := os.WriteFile(namespaceFile, []byte(sitesNamespace), 0o600); err != nil {
		t.Fatal(err)
	}
	const module = "github.com/reschedule-dev/reschedule/sdk"
	env := append(os.Environ(),
		"PATH="+tools+":"+os.Getenv("PATH"), "CONTROLLER_GEN="+filepath.Join(tools, "controller-gen"),
		"KUBECONFIG="+administratorOf(t, namespace(t, "kubebuilder")), "CGO_ENABLED=0", "GOWORK=off",
		"GOFLAGS=-trimpath -buildvcs=false -tags=grpcnotrace -ldflags=-X="+module+"/controller.ownNamespace="+namespaceFile,
	)
	project := filepath.Join(dir, "sites")
	run := func(block string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "bash", "-euxo", "pipefail", "-c", block)
		if cmd.Dir = project; strings.HasPrefix(block, "mkdir sites") {
			cmd.Dir = dir
		}
		cmd.Env = env
		began := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", block, err, out)
		}
		t.Logf("%.1f s: %s", time.Since(began).Seconds(), strings.SplitN(block, "\n", 2)[0])
	}
	z := &fromZero{t: t, binary: filepath.Join(project, "bin", "manager"), logs: filepath.Join(dir, "operator.log")}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(z.logs)
			z.mu.Lock()
			defer z.mu.Unlock()
			t.Logf("served %q; the operator:\n%s", z.served, tail(string(log)))
		}
	})
	for _, block := range pageBlocks(t, kubebuilderPage) {
		if line := "go get " + module + "@latest"; strings.Contains(block, line) {
			block = strings.Replace(block, line, "go mod edit -replace="+module+"="+sdk+"\ngo get "+module+"@v0.0.0", 1)
		}
		run(block)
		if strings.Contains(block, "kubectl apply -f source.yaml") {
			z.deploy()
		}
	}

	source := &source{programs: p, t: t, namespace: sitesNamespace, name: "sites", client: typedSourcesIn(t, sitesNamespace)}
	source.ready()
	source.token = source.tokenOf(sitesNamespace, "sites-controller-manager", source.audience())
	settle(t, func() bool { return z.count("dev.reschedule.due 200") >= 2 }, "RequeueAfter does not come back as a timer")
	z.mu.Lock()
	for _, s := range z.served {
		if !strings.Contains(s, " 2") {
			t.Errorf("an event was answered with %q", s)
		}
	}
	z.mu.Unlock()
	var reply struct{ DueAt time.Time }
	settle(t, func() bool {
		r := source.call(source.token, http.MethodGet, harness.KeyPath("Site/default/hello"), "")
		return r.Status == http.StatusOK && json.Unmarshal(r.Body, &reply) == nil && time.Until(reply.DueAt) < 5*time.Second
	}, "the key has no timer")
	source.delete()
}

// deploy runs the Knative Service as its manifest says, from zero.
func (z *fromZero) deploy() {
	z.t.Helper()
	client := server.Dynamic.Resource(knativeServices).Namespace(sitesNamespace)
	service, err := client.Get(z.t.Context(), "sites", metav1.GetOptions{})
	if err != nil {
		z.t.Fatal(err)
	}
	containers, _, _ := unstructured.NestedSlice(service.Object, "spec", "template", "spec", "containers")
	account, _, _ := unstructured.NestedString(service.Object, "spec", "template", "spec", "serviceAccountName")
	z.args, _, _ = unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
	config, err := server.Kubeconfig(z.t.Context(), sitesNamespace, account)
	if err != nil {
		z.t.Fatal(err)
	}
	z.env = []string{"KUBECONFIG=" + config}
	door := httptest.NewServer(z)
	z.t.Cleanup(door.Close)
	status := map[string]any{"address": map[string]any{"url": door.URL}, "latestReadyRevisionName": "sites-00001"}
	if err := unstructured.SetNestedMap(service.Object, status, "status"); err != nil {
		z.t.Fatal(err)
	}
	if _, err := client.UpdateStatus(z.t.Context(), service, metav1.UpdateOptions{}); err != nil {
		z.t.Fatal(err)
	}
}
