//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// metacontrollerExample is a module of its own.
const metacontrollerExample = "sdk/examples/metacontroller"

// A hook of Metacontroller is called from zero for a new object, and again from zero when
// the time is over that it asked for.
func TestMetacontroller_FromZero(t *testing.T) {
	beside(t)
	const ttl = pastZero + 20*time.Second // with the first run
	definitions, err := world.Resource(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience) // the test's own is over
		defer cancel()
		if err := definitions.Delete(ctx, "previews.metacontroller.reschedule.dev", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	if err := world.ApplyFiles(t.Context(), filepath.Join("../..", metacontrollerExample, "config/100-preview.yaml")); err != nil {
		t.Fatal(err)
	}
	manifests, err := ko(t.Context(), metacontrollerExample, "resolve", "--sbom=none", "-f", "config/200-operator.yaml")
	if err != nil {
		t.Fatal(err)
	}
	n := newNamespace(t, "metacontroller")
	n.apply(manifests)
	n.ready(knativeService, "previews")
	n.ready(rescheduling, "previews")
	n.atZero("previews")

	child := func() (map[string]string, error) {
		c, err := n.Client.CoreV1().ConfigMaps(n.name).Get(t.Context(), "a", metav1.GetOptions{})
		return c.Data, err
	}
	made := time.Now()
	n.apply(fmt.Sprintf(`
apiVersion: metacontroller.reschedule.dev/v1
kind: Preview
metadata: {name: a}
spec: {ttlSeconds: %d, data: {color: blue}}
`, int(ttl.Seconds())))
	eventually(t, patience, "the hook's ConfigMap is there", func() error {
		data, err := child()
		if err == nil && data["color"] != "blue" {
			err = fmt.Errorf("it has %v", data)
		}
		return err
	})
	t.Logf("cold: the ConfigMap was there after %s", time.Since(made).Round(time.Millisecond))

	n.atZero("previews")
	left := time.Until(made.Add(ttl))
	if left < 0 {
		t.Fatalf("Serving took longer than %s to zero: make pastZero longer", ttl)
	}
	if _, err := child(); err != nil {
		t.Errorf("%s before its time the ConfigMap: %v", left, err)
	}
	eventually(t, left+patience, "the ConfigMap is deleted", func() error {
		if _, err := child(); !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("it is there"), err)
		}
		return nil
	})
	t.Logf("cold: the ConfigMap was deleted %s after its time", time.Since(made.Add(ttl)).Round(time.Millisecond))
}
