package house

import (
	"path"
	"regexp"
	"testing"
)

// versionLine is a requirement of a go.mod on a library of Kubernetes or of the Go project.
var versionLine = regexp.MustCompile(`(?m)^\s*(?:require )?((?:k8s\.io|sigs\.k8s\.io|golang\.org/x)/\S+) (v\S+)`)

// The modules around the SDK have the same versions of what they share: a second one is compiled
// and looked at by the linters again, with all that imports it.
func TestModules_ShareVersions(t *testing.T) {
	version, in := map[string]string{}, map[string]string{}
	for _, module := range []string{"sdk", "cli", "examples/config-watcher", "examples/metacontroller", "test/operators", "test/operators/helm", "tools/olm"} {
		for _, m := range versionLine.FindAllStringSubmatch(string(readRoot(t, path.Join(module, "go.mod"))), -1) {
			if library := m[1]; version[library] == "" {
				version[library], in[library] = m[2], module
			} else if version[library] != m[2] {
				t.Errorf("%s requires %s %s, and %s %s: raise the older one", module, library, m[2], in[library], version[library])
			}
		}
	}
	if len(version) < 10 {
		t.Errorf("only %d libraries are shared: does the test still read them?", len(version))
	}
}
