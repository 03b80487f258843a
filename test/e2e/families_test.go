//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// An operator with kopf does its work from zero: it retries, handles a change, and lets
// an object go.
func TestKopf_WorksFromZero(t *testing.T) {
	beside(t)
	const example = "../../examples/kopf"
	n := newNamespace(t, "kopf")
	image := imageOf(n, example, "kopf-notices", filepath.Join(example, "handlers.py"), "../../python/requirements.txt", "../../python/src/reschedule_kopf")
	awaitDefined(n, example+"/config/crd/notices.yaml", "notices.examples.reschedule.dev")
	for _, file := range []string{"rbac.yaml", "service.yaml", "source.yaml"} {
		n.apply(strings.ReplaceAll(fileOf(n, example, "serverless/"+file), "example.com/notices", image))
	}
	n.ready(knativeService, "notices")
	n.ready(rescheduling, "notices")
	n.atZero("notices")

	began := time.Now()
	n.apply(fileOf(n, example, "samples/hello.yaml"))
	s := existingSource(n, "notices")
	eventually(t, patience, "it failed, because its signature is not there", func() error {
		now := s.scheduled("Notice/" + n.name + "/hello")
		if now == nil || *now.Attempt < 1 {
			return fmt.Errorf("scheduled is %+v", now)
		}
		return nil
	})
	t.Logf("failed %s after it was made, from zero", time.Since(began).Round(10*time.Millisecond))
	signature := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "signature"}, Data: map[string]string{"text": "bye"}}
	if _, err := n.Client.CoreV1().ConfigMaps(n.name).Create(t.Context(), signature, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitText(n, "hello-notice", "text", "hello\nbye")
	n.atZero("notices") // with a timer of 30 s, and a window of 10 s

	notice := schema.GroupVersionKind{Group: "examples.reschedule.dev", Version: "v1", Kind: "Notice"}
	changeText(n, notice, "hello", "good day")
	awaitText(n, "hello-notice", "text", "good day\nbye")
	notices, err := n.Resource(notice, n.name)
	if err != nil {
		t.Fatal(err)
	}
	if err := notices.Delete(t.Context(), "hello", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "kopf has let it go", func() error {
		_, err := notices.Get(t.Context(), "hello", metav1.GetOptions{})
		if err == nil {
			return errors.New("it is there")
		}
		return onlyNotFound(err)
	})
	n.atZero("notices")
}

// An operator with kube-rs does its work from zero: for a change, and for a ConfigMap
// that another hand has changed.
func TestKubeRS_WorksFromZero(t *testing.T) {
	beside(t)
	const example = "../../examples/kube-rs"
	n := newNamespace(t, "kube-rs")
	image := imageOf(n, example, "kube-rs-banners",
		example+"/src", example+"/Cargo.toml", example+"/Cargo.lock", example+"/rust-toolchain.toml")
	awaitDefined(n, example+"/config/crd.yaml", "banners.examples.reschedule.dev")
	n.apply(strings.ReplaceAll(fileOf(n, example, "serverless.yaml"), "example.com/banners", image))
	n.ready(knativeService, "banners")
	n.ready(rescheduling, "banners")
	n.atZero("banners")

	began := time.Now()
	n.apply("{apiVersion: examples.reschedule.dev/v1, kind: Banner, metadata: {name: hello}, spec: {text: hello}}")
	awaitText(n, "hello", "banner", "hello")
	t.Logf("done %s after it was made, from zero", time.Since(began).Round(10*time.Millisecond))
	n.atZero("banners")
	forged := []byte(`{"data":{"banner":"forged"}}`)
	if _, err := n.Client.CoreV1().ConfigMaps(n.name).Patch(t.Context(), "hello", types.MergePatchType, forged, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitText(n, "hello", "banner", "hello")
	changeText(n, schema.GroupVersionKind{Group: "examples.reschedule.dev", Version: "v1", Kind: "Banner"}, "hello", "bye")
	awaitText(n, "hello", "banner", "bye")
	n.atZero("banners")
}

// imageOf is the image of an example, which its image.sh makes of these files or folders.
func imageOf(n *namespace, example, name string, of ...string) string {
	n.t.Helper()
	image, err := imageOnce(name, append(of, filepath.Join(example, "image.sh")), func(crane, image string) (string, error) {
		return script(crane, filepath.Join(example, "image.sh"), filepath.Join(n.t.TempDir(), "image"), image)
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return image
}

func fileOf(n *namespace, example, name string) string {
	n.t.Helper()
	text, err := os.ReadFile(filepath.Join(example, "config", name))
	if err != nil {
		n.t.Fatal(err)
	}
	return string(text)
}

// awaitDefined sees to a definition, which is removed in the end if it was not there before.
func awaitDefined(n *namespace, file, name string) {
	n.t.Helper()
	definitions, err := world.Resource(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}, "")
	if err != nil {
		n.t.Fatal(err)
	}
	if _, err := definitions.Get(n.t.Context(), name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		n.t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience) // the test's own is over
			defer cancel()
			if err := definitions.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				n.t.Error(err)
			}
		})
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = world.Apply(n.t.Context(), text)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// changeText changes spec.text of an object.
func changeText(n *namespace, kind schema.GroupVersionKind, name, text string) {
	n.t.Helper()
	objects, err := n.Resource(kind, n.name)
	if err != nil {
		n.t.Fatal(err)
	}
	patch := fmt.Appendf(nil, `{"spec":{"text":%q}}`, text)
	if _, err := objects.Patch(n.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// awaitText waits until a field of a ConfigMap has this text.
func awaitText(n *namespace, name, field, want string) {
	n.t.Helper()
	eventually(n.t, patience, "the ConfigMap "+name+" is written", func() error {
		m, err := n.Client.CoreV1().ConfigMaps(n.name).Get(n.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if m.Data[field] != want {
			return fmt.Errorf("it has %q", m.Data[field])
		}
		return nil
	})
}

func onlyNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
