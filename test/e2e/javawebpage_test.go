//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
func TestJava_WebPagesFromZero(t *testing.T) {
	beside(t)
	n := newNamespace(t, "java")
	define(t, "webpages.examples.reschedule.dev", webPageFile(t, "crd/webpages.yaml"))
	for _, file := range []string{"rbac.yaml", "service.yaml", "source.yaml"} {
		n.apply(strings.NewReplacer(
			"example.com/webpages", javaImage(t, "webpage"),
			"- {name: AUDIENCE,", fmt.Sprintf("- {name: PAGE_IMAGE, value: %q}\n        - {name: AUDIENCE,", images.recorder),
		).Replace(webPageFile(t, "serverless/"+file)))
	}
	n.ready(knativeService, "webpages")
	n.ready(rescheduling, "webpages")
	n.atZero("webpages")

	began := time.Now()
	n.apply(webPageFile(t, "samples/hello.yaml"))
	awaitPage(n, "served")
	t.Logf("served %s after it was made, from zero", time.Since(began).Round(10*time.Millisecond))
	n.atZero("webpages")

	// Another hand changes what the page owns.
	maps := n.Client.CoreV1().ConfigMaps(n.name)
	before, err := maps.Get(t.Context(), "hello", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = maps.Patch(t.Context(), "hello", types.MergePatchType, []byte(`{"data":{"index.html":"forged"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitHTML(n, before.Data["index.html"])
	t.Log("a ConfigMap that another hand has changed is repaired, from zero")
	n.atZero("webpages")

	// Its pods are killed as soon as they are there, while the page is refused, changed
	// and retried.
	changePage(n, "no page")
	killed := map[string]bool{}
	eventually(t, patience, "three pods were killed", func() error {
		for _, pod := range n.podsOf(n.name, "serving.knative.dev/service=webpages") {
			if !killed[pod.Name] {
				killed[pod.Name] = true
				n.deleteNow(pod)
				changePage(n, fmt.Sprintf("no page %d", len(killed)))
			}
		}
		if len(killed) < 3 {
			return fmt.Errorf("%d were", len(killed))
		}
		return nil
	})
	awaitPage(n, "the page has no <html>")
	changePage(n, "<html>last</html>")
	awaitPage(n, "served")
	awaitHTML(n, "<html>last</html>")
	n.atZero("webpages")
}

func webPageFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(webPageExample, "config", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// changePage changes the text of the page.
func changePage(n *namespace, html string) {
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
func awaitPage(n *namespace, message string) {
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
func awaitHTML(n *namespace, want string) {
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
