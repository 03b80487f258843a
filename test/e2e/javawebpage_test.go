//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// webPageExample is an operator with the Java Operator SDK.
const webPageExample = "../../examples/java-webpage"

var webPage = schema.GroupVersionKind{Group: "examples.reschedule.dev", Version: "v1", Kind: "WebPage"}

// An operator with the Java Operator SDK does its work from zero, also when its pods are
// killed.
func TestJava_WorksFromZero(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, "java")
	image := javaImage(t)
	defineWebPage(t)
	for _, file := range []string{"rbac.yaml", "service.yaml", "source.yaml"} {
		n.apply(strings.NewReplacer(
			"example.com/webpages", image,
			"- {name: AUDIENCE,", fmt.Sprintf("- {name: PAGE_IMAGE, value: %q}\n        - {name: AUDIENCE,", images.recorder),
		).Replace(webPageFile(t, "serverless/"+file)))
	}
	n.ready(knativeService, "webpages")
	n.ready(rescheduling, "webpages")
	n.atZero("webpages")

	began := time.Now()
	n.apply(webPageFile(t, "samples/hello.yaml"))
	n.awaitPage("served")
	t.Logf("served %s after it was made, from zero", time.Since(began).Round(10*time.Millisecond))
	n.atZero("webpages")

	// Another hand changes what the page owns.
	maps := n.Client.CoreV1().ConfigMaps(n.name)
	before, err := maps.Get(t.Context(), "hello", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Patch(t.Context(), "hello", types.MergePatchType, []byte(`{"data":{"index.html":"forged"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	n.awaitHTML(before.Data["index.html"])
	n.atZero("webpages")

	// Its pods are killed as soon as they are there, while the page is refused, changed
	// and retried.
	n.changePage("no page")
	killed := map[string]bool{}
	eventually(t, patience, "three pods were killed", func() error {
		for _, pod := range n.podsOf(n.name, "serving.knative.dev/service=webpages") {
			if !killed[pod.Name] {
				killed[pod.Name] = true
				n.deleteNow(pod)
				n.changePage(fmt.Sprintf("no page %d", len(killed)))
			}
		}
		if len(killed) < 3 {
			return fmt.Errorf("%d were", len(killed))
		}
		return nil
	})
	n.awaitPage("the page has no <html>")
	n.changePage("<html>last</html>")
	n.awaitPage("served")
	n.awaitHTML("<html>last</html>")
	n.atZero("webpages")
}

// javaImage builds the image of the example and pushes it, and returns its name.
func javaImage(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(webPageExample, "target/webpage.jar")); err != nil {
		t.Fatalf("the example is not built: run make java: %v", err)
	}
	crane := filepath.Join(t.TempDir(), "crane")
	run := func(name string, env []string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Env = append(os.Environ(), env...)
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, &out, &said)
		}
		return strings.TrimSpace(out.String())
	}
	run("go", []string{"CGO_ENABLED=0"}, "-C", "../../tools/ko", "build", "-o", crane, "github.com/google/go-containerregistry/cmd/crane")
	name := os.Getenv("KO_DOCKER_REPO") + "/java-webpage"
	out := run(filepath.Join(webPageExample, "image.sh"), []string{"CRANE=" + crane}, filepath.Join(t.TempDir(), "image"), name+":e2e")
	return out[strings.LastIndex(out, "\n")+1:] // by digest
}

func webPageFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(webPageExample, "config", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// defineWebPage sees to the definition, which is removed in the end if it was not there
// before.
func defineWebPage(t *testing.T) {
	t.Helper()
	definitions, err := world.Resource(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}, "")
	if err != nil {
		t.Fatal(err)
	}
	const name = "webpages.examples.reschedule.dev"
	if _, err := definitions.Get(t.Context(), name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience) // the test's own is over
			defer cancel()
			if err := definitions.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	if err := world.Apply(t.Context(), []byte(webPageFile(t, "crd/webpages.yaml"))); err != nil {
		t.Fatal(err)
	}
}

// changePage changes the text of the page.
func (n *namespace) changePage(html string) {
	n.t.Helper()
	pages, err := n.Resource(webPage, n.name)
	if err != nil {
		n.t.Fatal(err)
	}
	patch := fmt.Appendf(nil, `{"spec":{"html":%q}}`, html)
	if _, err := pages.Patch(n.t.Context(), "hello", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// awaitPage waits until the status of the page is about its last change.
func (n *namespace) awaitPage(message string) {
	n.t.Helper()
	pages, err := n.Resource(webPage, n.name)
	if err != nil {
		n.t.Fatal(err)
	}
	eventually(n.t, patience, "the page says: "+message, func() error {
		page, err := pages.Get(n.t.Context(), "hello", metav1.GetOptions{})
		if err != nil {
			return err
		}
		got, _, _ := unstructured.NestedString(page.Object, "status", "message")
		seen, _, _ := unstructured.NestedInt64(page.Object, "status", "observedGeneration")
		if got != message || seen != page.GetGeneration() {
			return fmt.Errorf("it says %q of generation %d, and is at %d", got, seen, page.GetGeneration())
		}
		return nil
	})
}

// awaitHTML waits until the page's ConfigMap has this text.
func (n *namespace) awaitHTML(want string) {
	n.t.Helper()
	eventually(n.t, patience, "the ConfigMap is as the page", func() error {
		m, err := n.Client.CoreV1().ConfigMaps(n.name).Get(n.t.Context(), "hello", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if m.Data["index.html"] != want {
			return errors.New("it has " + m.Data["index.html"])
		}
		return nil
	})
}
