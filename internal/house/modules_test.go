package house

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// libraryLine is a requirement of a go.mod on a library that most modules have.
	libraryLine = regexp.MustCompile(`(?m)^\s*(?:require )?((?:golang\.org/x/(?:crypto|net|oauth2|sync|sys|term|text|time)|google\.golang\.org/(?:grpc|protobuf|genproto/\S+)` +
		`|go\.opentelemetry\.io/otel(?:/metric|/sdk|/trace)?|github\.com/prometheus/\S+|github\.com/spf13/cobra|go\.uber\.org/zap)) (v\S+)`)
	// etcdLine is a requirement on a library of etcd.
	etcdLine = regexp.MustCompile(`(?m)^\s*(?:require )?(go\.etcd\.io/\S+) (v\S+)`)
	// kubernetesLine is a requirement on a library of Kubernetes.
	kubernetesLine = regexp.MustCompile(`(?m)^\s*(?:require )?((?:k8s\.io|sigs\.k8s\.io)/\S+) (v\S+)`)
	// clientLine is a requirement on what a client of Kubernetes, or a generator of one, needs.
	clientLine = regexp.MustCompile(`(?m)^\s*(?:require )?((?:k8s\.io/(?:api|apimachinery|client-go|cli-runtime|code-generator|gengo/v2|klog/v2|kube-openapi|streaming|utils)` +
		`|sigs\.k8s\.io/(?:controller-runtime|json|randfill|structured-merge-diff/v6|yaml)` +
		`|github\.com/(?:emicklei/go-restful/v3|fxamacker/cbor/v2|go-openapi/\S+))) (v\S+)`)
	// toolOfModule is a call of go tool for a program of another module.
	toolOfModule = regexp.MustCompile(`go[ ]tool -modfile|"tool", "[-]modfile`)
)

// Scripts and tests call the programs of other modules with go run: go tool ignores -trimpath in GOFLAGS, so that the
// standard library and all that the program imports would be compiled a second time.
func TestTools_AreCalledWithGoRun(t *testing.T) {
	for name, text := range readTree(t).texts {
		if found := toolOfModule.FindString(text); found != "" && path.Ext(name) != ".md" {
			t.Errorf("%s: %q compiles all again: write go run, with the path of the package", name, found)
		}
	}
}

// The command line and the SDK are clients of the adapter: what they do, anyone can do over HTTP.
func TestClients_ImportNothingOfTheAdapter(t *testing.T) {
	for name, text := range readTree(t).texts {
		if (below("cli", name) || below("sdk", name)) && path.Ext(name) == ".go" && strings.Contains(text, `"`+module+"pkg/adapter") {
			t.Errorf("%s imports the adapter", name)
		}
	}
}

// Modules have the same versions of what they share: a second one is compiled, and looked at by
// the linters, again, with all that imports it. A client of Kubernetes has the newest version everywhere, and so have the
// API server of the tests without pods and hack/cluster. They require etcd 3.7, and adapter-replicated has 3.6, with which
// the libraries of the API server in the root have the version of Knative. Knative's own programs have the versions of
// their authors. The SDK asks for the oldest that it works with, and a part of its tests run with others (sdk/versions).
func TestModules_ShareVersions(t *testing.T) {
	var all []string
	for name := range readTree(t).texts {
		if path.Base(name) == "go.mod" && !below("sdk", name) {
			all = append(all, path.Dir(name))
		}
	}
	slices.Sort(all)
	// No test compiles what it measures, and that has the versions of its authors.
	all = slices.DeleteFunc(all, func(module string) bool { return module == "bench/peers" })
	sharedVersions(t, libraryLine, all, 10)
	sharedVersions(t, kubernetesLine, []string{"tools", "tools/cluster"}, 10)
	sharedVersions(t, etcdLine, slices.DeleteFunc(slices.Clone(all), func(module string) bool { return below("tools", module) }), 7)
	operators := []string{"cli", "test/operators"}
	sharedVersions(t, kubernetesLine, operators, 10)
	sharedVersions(t, clientLine, append([]string{".", "bench", "tools"}, operators...), 10)
}

// sharedVersions fails where two modules require a library in two versions. At least so many libraries are compared.
func sharedVersions(t *testing.T, line *regexp.Regexp, modules []string, least int) {
	t.Helper()
	version, in := map[string]string{}, map[string]string{}
	for _, module := range modules {
		for _, m := range line.FindAllStringSubmatch(string(readRoot(t, path.Join(module, "go.mod"))), -1) {
			if library := m[1]; version[library] == "" {
				version[library], in[library] = m[2], module
			} else if version[library] != m[2] {
				t.Errorf("%s requires %s %s, and %s %s: raise the older one", module, library, m[2], in[library], version[library])
			}
		}
	}
	if len(version) < least {
		t.Errorf("only %d libraries are shared: does the test still read them?", len(version))
	}
}
