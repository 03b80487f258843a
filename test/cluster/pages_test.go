package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// pageSections are the shell commands of a page that are not marked as not tested, one
// text for each heading that has some: the blocks below a heading share variables and jobs.
func pageSections(t *testing.T, name string) (sections []string) {
	t.Helper()
	for section := range strings.SplitSeq(readPage(t, name), "\n## ") {
		var blocks []string
		before, rest, found := strings.Cut(section, "\n```sh\n")
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
		if blocks != nil {
			sections = append(sections, strings.Join(blocks, "\n"))
		}
	}
	return sections
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// pageTools builds kubebuilder and controller-gen in the versions of tools, and kubectl if there is none,
// once. The Makefile of a project finds controller-gen by
// its name, and does not install it again.
var pageTools = sync.OnceValues(func() (dir string, err error) {
	dir = filepath.Join(scratch, "page-tools")
	build := func(name, path string) {
		if err != nil {
			return
		}
		cmd := exec.Command("go", "build", "-C", "../../tools", "-trimpath", "-o", filepath.Join(dir, name), path)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, failed := cmd.CombinedOutput(); failed != nil {
			err = fmt.Errorf("building %s: %w\n%s", path, failed, out)
		}
	}
	build("kubebuilder", "sigs.k8s.io/kubebuilder/v4")
	const generator = "controller-gen-v0.22.0"
	build(generator, "sigs.k8s.io/controller-tools/cmd/controller-gen")
	if _, missing := exec.LookPath("kubectl"); missing != nil {
		build("kubectl", "k8s.io/kubernetes/cmd/kubectl")
	}
	if err != nil {
		return "", err
	}
	return dir, os.Symlink(filepath.Join(dir, generator), filepath.Join(dir, "controller-gen"))
})

// project is a directory in which the commands of a page run, with the tools that the
// page asks for and the rights of an administrator.
type project struct {
	t   *testing.T
	dir string
	env []string
}

// newProject is for an operator that runs in a namespace.
func newProject(t *testing.T, namespaceOfOperator string) *project {
	t.Helper()
	tools, err := pageTools()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	namespaceFile := filepath.Join(dir, "namespace") // a pod has it elsewhere
	if err := os.WriteFile(namespaceFile, []byte(namespaceOfOperator), 0o600); err != nil {
		t.Fatal(err)
	}
	return &project{t, dir, append(os.Environ(),
		"PATH="+tools+":"+os.Getenv("PATH"), "CONTROLLER_GEN="+filepath.Join(tools, "controller-gen"),
		"KUBECONFIG="+administratorOf(t, namespace(t, "page")), "CGO_ENABLED=0", "GOWORK=off",
		// With the flags of make test, most of a project is compiled already.
		"GOFLAGS="+os.Getenv("GOFLAGS")+" -trimpath -buildvcs=false '-ldflags=-s -w -X="+sdkModule+"/controller.ownNamespace="+namespaceFile+"'",
	)}
}

const (
	sdkModule = "github.com/reschedule-dev/reschedule/sdk"
	checkout  = "../reschedule/sdk" // where a page has it
)

// run runs commands in one shell, whose jobs end with it, and returns what they print.
// They get the sdk of this repository.
func (p *project) run(commands string) string {
	p.t.Helper()
	sdk, err := filepath.Abs("../../sdk")
	if err != nil {
		p.t.Fatal(err)
	}
	commands = strings.ReplaceAll(commands, "="+checkout+"\n", "="+sdk+"\n")
	const endJobs = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
	cmd := exec.CommandContext(p.t.Context(), "bash", "-euxo", "pipefail", "-c", endJobs+commands)
	cmd.Dir, cmd.Env = p.dir, p.env
	began := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.t.Fatalf("%s: %v\n%s", commands, err, out)
	}
	p.t.Logf("%.1f s: %s", time.Since(began).Seconds(), strings.SplitN(commands, "\n", 2)[0])
	return string(out)
}

// shareVersions has a module of the project built with the libraries of this repository, which are newer by a patch:
// they are compiled already.
func (p *project) shareVersions(module string) {
	p.t.Helper()
	operators, err := filepath.Abs("../operators")
	if err != nil {
		p.t.Fatal(err)
	}
	p.write("go.work", fmt.Sprintf("go %s\nuse (\n\t./%s\n\t%s\n)\nreplace %s => %s\n", strings.TrimPrefix(runtime.Version(), "go"), module, operators, sdkModule, filepath.Join(operators, "../../sdk")))
	p.env = append(p.env, "GOWORK="+p.path("go.work"))
}

// path is a file of the project.
func (p *project) path(name string) string { return filepath.Join(p.dir, name) }

func (p *project) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(p.path(name), []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// administratorOf is the kubeconfig of an account that may do everything.
func administratorOf(t *testing.T, ns string) string {
	t.Helper()
	const account = "administrator"
	accounts(t, ns, account)
	allow(t, "administrator-of-"+ns, "ClusterRole", `{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}, {nonResourceURLs: ["*"], verbs: ["*"]}`, "ServiceAccount, name: administrator, namespace: "+ns)
	config, err := server.Kubeconfig(t.Context(), ns, account)
	if err != nil {
		t.Fatal(err)
	}
	return config
}
