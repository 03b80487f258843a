package cluster

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

const (
	movePage = "../../docs/move-an-operator.md"
	sdkPage  = "../../docs/sdk.md"
)

// The commands, the diff and the manifests of docs/sdk.md, and then the commands of
// docs/move-an-operator.md, as they are there and in their order, move an operator that
// kubebuilder scaffolded from its Deployment to zero, and back. One Website is there all the
// time, and both forms do the same for it.
//
// There is no kubelet, no registry and no Knative Serving: the pods are processes, the image is
// what go build makes, and the port of the adapter is its own.
func TestMovePage_ThereAndBack(t *testing.T) {
	t.Parallel()
	p := running(t)
	if err := defineKinds(); err != nil { // the Knative Service among them
		t.Fatal(err)
	}
	library, common := pageSections(t, sdkPage), pageSections(t, movePage)
	if len(library) != 4 || len(common) != 3 {
		t.Fatalf("the pages have commands below %d and %d headings, want 4 and 3", len(library), len(common))
	}
	const ns = "websites-system"
	project := newProject(t, ns)
	project.run(`mkdir websites && cd websites
kubebuilder init --domain example.com --repo example.com/websites
kubebuilder create api --version v1 --kind Website --resource --controller --make=false`)
	project.shareVersions("websites")
	project.dir = project.path("websites")
	controller, err := os.ReadFile("testdata/website_controller.go")
	if err != nil {
		t.Fatal(err)
	}
	project.write("internal/controller/website_controller.go", string(controller))
	old := &resident{
		workload: workload{t: t, namespace: ns, name: "websites-controller-manager", binary: project.path("bin/resident"), log: project.path("resident.log")},
		// The ports are of this machine, and the process does not know the namespace of a Lease.
		args: []string{"--metrics-bind-address=0", "--health-probe-bind-address=0", "--leader-elect=false"},
	}
	z := &fromZero{workload: workload{t: t, namespace: ns, name: "websites", binary: project.path("bin/manager"), log: project.path("operator.log")}}
	old.follow()
	z.follow()

	// Before you begin: the operator works resident.
	project.run(`make manifests generate
go build -o bin/resident ./cmd
kubectl apply -k config/default # make deploy, which installs kustomize
kubectl wait --for=condition=Established crd/websites.example.com
kubectl apply -f - <<'EOF'
apiVersion: example.com/v1
kind: Website
metadata: {name: hello, namespace: default}
spec: {}
EOF`)
	deployed(t)

	page := readPage(t, sdkPage)
	project.run(library[0])
	project.write("cmd/main.go", applyDiff(t, readPage(t, project.path("cmd/main.go")), codeBlock(t, page, "diff", 0)))
	project.run(library[1])
	project.run(library[2])
	printed := parsed(t, readPage(t, project.path("source.yaml")))[:1] // then the account that watches
	if diff := cmp.Diff(parsed(t, codeBlock(t, page, "yaml", 0)), printed); diff != "" {
		t.Errorf("%s differs from what is printed: -page +printed\n%s", sdkPage, diff)
	}
	project.write("service.yaml", codeBlock(t, page, "yaml", 1))
	project.run(library[3])
	project.run("go build -o bin/manager ./cmd") // make docker-build docker-push, which needs a registry
	// Pods end at once here, so a page that does not wait for them would do too.
	_, selector, found := strings.Cut(common[0], "wait pod -l ")
	selector, _, _ = strings.Cut(selector, " ")
	if pods, err := server.Client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{LabelSelector: selector}); err != nil || !found || len(pods.Items) != 1 {
		t.Errorf("the page waits for %d pods of the old form, by %q: %v", len(pods.Items), selector, err)
	}
	project.run(common[0])
	source := &source{programs: p, t: t, namespace: ns, name: "websites", client: typedSourcesIn(t, ns)}
	source.ready()

	said := project.run(replace(t, common[1],
		// Another test has Websites of another group.
		"annotate website ", "annotate websites.example.com ",
		// The way to a pod goes through its kubelet, and the adapter is a process of this machine.
		"kubectl -n knative-eventing port-forward service/reschedule-adapter 8080:80", "tail -f /dev/null",
		"http://localhost:8080", p.adapter.URL,
	))
	if !strings.Contains(said, `"dueAt"`) {
		t.Errorf("the page shows no timer of the Website:\n%s", said)
	}
	source.token = source.tokenOf(ns, "websites-controller-manager", source.audience())
	settle(t, func() bool {
		var key struct{ DueAt time.Time }
		r := source.call(source.token, http.MethodGet, harness.KeyPath("Website/default/hello"), "")
		wait := 5 * time.Minute // RequeueAfter
		return r.Status == http.StatusOK && json.Unmarshal(r.Body, &key) == nil && time.Until(key.DueAt).Round(time.Minute) == wait
	}, "the key has no timer")
	undeploy(t)
	settle(t, func() bool { return z.count("dev.reschedule.due 200") > 0 }, "the operator is not woken by what it Owns")
	deployed(t)
	z.succeeded()

	looked := strings.Count(readPage(t, old.log), "Looking")
	project.run(common[2])
	settle(t, func() bool { return strings.Count(readPage(t, old.log), "Looking") > looked }, "the Deployment does not reconcile what is there")
	undeploy(t)
	deployed(t)
	if _, err := source.client.Get(t.Context(), "websites", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the RescheduleSource is still there: %v", err)
	}
}

// deployed waits until the operator has made the Deployment of the Website.
func deployed(t *testing.T) {
	t.Helper()
	settle(t, func() bool {
		d, err := server.Client.AppsV1().Deployments("default").Get(t.Context(), "hello", metav1.GetOptions{})
		return err == nil && metav1.GetControllerOf(d) != nil
	}, "the Website has no Deployment")
}

func undeploy(t *testing.T) {
	t.Helper()
	if err := server.Client.AppsV1().Deployments("default").Delete(t.Context(), "hello", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// replace replaces commands of a page, each of which must be there once.
func replace(t *testing.T, commands string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if n := strings.Count(commands, pairs[i]); n != 1 {
			t.Fatalf("%q is there %d times, want once:\n%s", pairs[i], n, commands)
		}
	}
	return strings.NewReplacer(pairs...).Replace(commands)
}

// codeBlock is the n-th block of a language on a page.
func codeBlock(t *testing.T, page, language string, n int) string {
	t.Helper()
	parts := strings.Split(page, "\n```"+language+"\n")
	if len(parts) < n+2 {
		t.Fatalf("the page has %d blocks of %s", len(parts)-1, language)
	}
	block, _, ends := strings.Cut(parts[n+1], "```\n")
	if !ends {
		t.Fatalf("the page has a block of %s without an end", language)
	}
	return block
}

func parsed(t *testing.T, manifests string) (all []map[string]any) {
	t.Helper()
	objects, err := kube.Objects([]byte(manifests))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		all = append(all, o.Object)
	}
	return all
}

// applyDiff replaces the old lines of each hunk by its new lines. A line " …" separates
// hunks.
func applyDiff(t *testing.T, text, diff string) string {
	t.Helper()
	for hunk := range strings.SplitSeq(diff, " …\n") {
		var before, after strings.Builder
		for line := range strings.Lines(hunk) {
			kind, rest := line[:1], line[1:]
			if kind != "+" {
				before.WriteString(rest)
			}
			if kind != "-" {
				after.WriteString(rest)
			}
		}
		if strings.Count(text, before.String()) != 1 {
			t.Fatalf("main.go does not have these lines exactly once:\n%s", before.String())
		}
		text = strings.Replace(text, before.String(), after.String(), 1)
	}
	return text
}
