package house

import (
	"path"
	"regexp"
	"strings"
	"testing"
)

// docs/versions.md names the versions of the files that the tests are built with. A file without a directory is any of
// that name.
func TestVersions_AreOfTheBuild(t *testing.T) {
	t.Parallel()
	page := string(readRoot(t, "docs/versions.md"))
	for _, c := range []struct{ row, file, version string }{
		{"Kubernetes", "go.mod", `k8s\.io/kubernetes v(\d+\.\d+)`},
		{"Knative Eventing and Serving", "go.mod", `knative\.dev/eventing (v\d+\.\d+)`},
		{"Knative Eventing and Serving", "go.mod", `knative\.dev/serving (v\d+\.\d+)`},
		{"Go", "sdk/go.mod", `\ngo (\d+\.\d+)`},
		{"controller-runtime", "go.mod", `sigs\.k8s\.io/controller-runtime (v\d+\.\d+)`},
		{"kubebuilder", "go.mod", `sigs\.k8s\.io/kubebuilder/v4 (v\d+\.\d+)`},
		{"helm-operator-plugins, Helm", "go.mod", `helm-operator-plugins (v\d+\.\d+)`},
		{"helm-operator-plugins, Helm", "go.mod", `helm\.sh/helm/v3 (v\d+\.\d+)`},
		{"Java Operator SDK", "pom.xml", `<josdk\.version>(.*)<`},
		{"Java", "pom.xml", `<maven\.compiler\.release>(.*)<`},
		{"Quarkus, Spring Boot", "pom.xml", `<quarkus\.version>(\d+\.\d+)`},
		{"Quarkus, Spring Boot", "pom.xml", `<spring-boot\.version>(\d+\.\d+)`},
		{"kopf", "pyproject.toml", `kopf==([\d.]+)`},
		{"Python", "pyproject.toml", `requires-python = ">=(.*)"`},
		{"kube-rs, Rust", "Cargo.toml", `\nkube = { version = "=(\d+\.\d+)`},
		{"kube-rs, Rust", "rust-toolchain.toml", `channel = "(\d+\.\d+)`},
		{"Ansible", "requirements.txt", `ansible-core==(\d+\.\d+)`},
	} {
		_, row, _ := strings.Cut(page, "\n| "+c.row+" | ")
		tested, _, _ := strings.Cut(row, " | ")
		found := false
		for name, text := range readTree(t).texts {
			if name != c.file && path.Base(name) != c.file {
				continue
			}
			for _, m := range regexp.MustCompile(c.version).FindAllStringSubmatch(text, -1) {
				found = true
				if !regexp.MustCompile(`(^|[^\d.])` + regexp.QuoteMeta(m[1]) + `($|[^\d.])`).MatchString(tested) {
					t.Errorf("docs/versions.md: %s: %q, but %s has %s", c.row, tested, name, m[1])
				}
			}
		}
		if !found {
			t.Errorf("no %s has %s: does the test still read it?", c.file, c.version)
		}
	}
}
