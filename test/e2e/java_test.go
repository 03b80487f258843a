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
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// siteTests is the operator that the tests of reschedule-josdk have.
const siteTests = "../../java/reschedule-josdk/target/test-classes"

var site = schema.GroupVersionKind{Group: "sample.reschedule.dev", Version: "v1", Kind: "Site"}

// A reconcile that fails is retried as often as JOSDK would, and a finalizer is removed
// when its work is done, although the pods are killed in the middle of it.
func TestJava_RetriesAndFinalizers(t *testing.T) {
	beside(t)
	n := newNamespace(t, "javasite")
	defineAny(t, "sample.reschedule.dev", "Site")
	t.Cleanup(func() { endSites(n) })
	n.account("sites", `
- {apiGroups: [sample.reschedule.dev], resources: [sites, sites/status], verbs: [get, list, watch, patch, update]}
- {apiGroups: [""], resources: [configmaps], verbs: [get, list, watch, create, update, delete]}`)
	n.apply(strings.NewReplacer("IMAGE", javaImage(t, "site"), "value: IT", "value: "+n.name).Replace(siteOperator))
	n.ready(knativeService, "sites")
	n.ready(rescheduling, "sites")
	n.apply(`{apiVersion: sample.reschedule.dev/v1, kind: Site, metadata: {name: kept}, spec: {mode: plain, content: text}}`)
	configMap := func() error {
		_, err := n.Client.CoreV1().ConfigMaps(n.name).Get(t.Context(), "site-kept", metav1.GetOptions{})
		return err
	}
	eventually(t, patience, "the Site has its ConfigMap", configMap)
	n.atZero("sites")

	// The status names the pod that is at work, which is killed then.
	n.apply(`{apiVersion: sample.reschedule.dev/v1, kind: Site, metadata: {name: retried}, spec: {mode: laborious}}`)
	killed := map[string]bool{}
	eventually(t, patience, "three pods were killed in the middle of their work", func() error {
		by, _ := siteStatus(n, "retried")
		for _, pod := range n.podsOf(n.name, "serving.knative.dev/service=sites") {
			if pod.Name == by && !killed[by] {
				killed[by] = true
				n.deleteNow(pod)
			}
		}
		if len(killed) < 3 {
			return fmt.Errorf("%d were", len(killed))
		}
		return nil
	})
	eventually(t, patience, "the Site is done", func() error {
		if message, _ := siteStatus(n, "retried"); message != "done" {
			return errors.New("its status is " + message)
		}
		return nil
	})
	if _, retries := siteStatus(n, "retried"); retries != 2 {
		t.Errorf("it was done with %d retries, want the 2 of its own failures: a pod that is killed is none", retries)
	}
	n.atZero("sites")

	// The pod of the cleanup is killed too.
	sites, err := n.Resource(site, n.name)
	if err != nil {
		t.Fatal(err)
	}
	if err := sites.Delete(t.Context(), "kept", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "a pod comes for the cleanup", func() error {
		pods := n.podsOf(n.name, "serving.knative.dev/service=sites")
		if len(pods) == 0 {
			return errors.New("there is none")
		}
		n.deleteNow(pods[0])
		return nil
	})
	eventually(t, patience, "the Site and its ConfigMap are gone", func() error {
		if _, err := sites.Get(t.Context(), "kept", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the Site is there: %w", err)
		}
		if err := configMap(); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the ConfigMap is there: %w", err)
		}
		return nil
	})
}

// endSites deletes the Sites that are left, without their operator: it goes with the namespace, and a Site that
// waits for it would hold up the namespace and the definition, also for the next run.
func endSites(n *namespace) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the test's own is over
	defer cancel()
	sites, err := n.Resource(site, n.name)
	if err != nil {
		return // the definition was not made
	}
	list, err := sites.List(ctx, metav1.ListOptions{})
	if err != nil {
		n.t.Error(err)
		return
	}
	for _, s := range list.Items {
		err := sites.Delete(ctx, s.GetName(), metav1.DeleteOptions{})
		if err == nil {
			_, err = sites.Patch(ctx, s.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			n.t.Error(err)
		}
	}
}

// siteStatus returns the message in the status of a Site, and how many retries it counts.
func siteStatus(n *namespace, name string) (message string, retries int64) {
	n.t.Helper()
	sites, err := n.Resource(site, n.name)
	if err != nil {
		n.t.Fatal(err)
	}
	o, err := sites.Get(n.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	message, _, _ = unstructured.NestedString(o.Object, "status", "message")
	retries, _, _ = unstructured.NestedInt64(o.Object, "status", "count")
	return message, retries
}

const siteOperator = `
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: sites, labels: {networking.knative.dev/visibility: cluster-local}}
spec:
  template:
    metadata:
      annotations: {autoscaling.knative.dev/max-scale: "1", autoscaling.knative.dev/window: 10s}
    spec:
      serviceAccountName: sites
      timeoutSeconds: 30
      containers:
      - image: IMAGE
        args: ["@tests.args"]
        env:
        - {name: RECORD, value: /dev/null}
        - {name: WATCH_NAMESPACE, value: IT}
        resources: {requests: {cpu: 100m, memory: 128Mi}, limits: {memory: 256Mi}}
---
apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata: {name: sites}
spec:
  sink: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: sites}}
  delivery: {timeout: PT1M}
  watch:
    serviceAccountName: sites
    resources:
    - {apiVersion: sample.reschedule.dev/v1, kind: Site, changes: Spec}
    - apiVersion: v1
      kind: ConfigMap
      selector: {matchLabels: {app: site}}
      owner: {apiVersion: sample.reschedule.dev/v1, kind: Site}
`

// javaImages are the image of the example, and the same with the operator of the tests
// of reschedule-josdk.
var javaImages = sync.OnceValues(buildJava)

// javaImage returns an image of an operator with the Java Operator SDK, by digest.
func javaImage(t *testing.T, name string) string {
	t.Helper()
	built, err := javaImages()
	if err != nil {
		t.Fatal(err)
	}
	return built[name]
}

func buildJava() (map[string]string, error) {
	jar, jars, toImage := filepath.Join(webPageExample, "target/webpage.jar"), filepath.Join(webPageExample, "target/lib"), filepath.Join(webPageExample, "image.sh")
	for _, path := range []string{jar, siteTests} {
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("the operators are not built: run make java: %w", err)
		}
	}
	dir, err := os.MkdirTemp("", "e2e-java-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	of := []string{jar, jars, toImage}
	webpage, err := imageOnce("java-webpage", of, func(crane, image string) (string, error) {
		return script(crane, toImage, filepath.Join(dir, "image"), image)
	})
	if err != nil {
		return nil, err
	}
	site, err := imageOnce("java-site", append(of, siteTests), func(crane, image string) (string, error) {
		// The jars are the same, so the archive of classes fits.
		args, layer := filepath.Join(dir, "image/app/args"), filepath.Join(dir, "layer")
		if _, err := os.Stat(args); err != nil { // webpage is of an earlier run
			if _, err := said(exec.Command(toImage, filepath.Join(dir, "image"))); err != nil {
				return "", err
			}
		}
		text, err := os.ReadFile(args)
		if err != nil {
			return "", err
		}
		text = fmt.Appendf(nil, "%s:tests.jar\ndev.reschedule.josdk.Main\n", bytes.TrimSpace(text))
		if err := errors.Join(os.MkdirAll(filepath.Join(layer, "app"), 0o755), os.WriteFile(filepath.Join(layer, "app/tests.args"), text, 0o644)); err != nil {
			return "", err
		}
		for _, cmd := range []*exec.Cmd{
			exec.Command("jar", "--create", "--file", filepath.Join(layer, "app/tests.jar"), "-C", siteTests, "."),
			exec.Command("tar", "-C", layer, "-cf", layer+".tar", "app"),
		} {
			if _, err := said(cmd); err != nil {
				return "", err
			}
		}
		return said(exec.Command(crane, "append", "--base", webpage, "-f", layer+".tar", "-t", image))
	})
	return map[string]string{"webpage": webpage, "site": site}, err
}

// defineAny defines a namespaced kind of version v1 whose spec and status may have anything.
func defineAny(t *testing.T, group, kind string) {
	t.Helper()
	singular := strings.ToLower(kind)
	define(t, singular+"s."+group, strings.NewReplacer("GROUP", group, "KIND", kind, "SINGULAR", singular).Replace(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: SINGULARs.GROUP}
spec:
  group: GROUP
  scope: Namespaced
  names: {kind: KIND, plural: SINGULARs, singular: SINGULAR, listKind: KINDList}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
`))
}

// define makes a CustomResourceDefinition, which is removed in the end if it was not
// there before.
func define(t *testing.T, name, manifest string) {
	t.Helper()
	definitions, err := world.Resource(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := definitions.Get(t.Context(), name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience) // the test's own is over
			defer cancel()
			if err := definitions.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	if err := world.Apply(t.Context(), []byte(manifest)); err != nil {
		t.Fatal(err)
	}
}
