package manifests

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"knative.dev/pkg/configmap"
	"sigs.k8s.io/yaml"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
)

// config-reschedule sets nothing and documents everything: its example has every
// key with the shipped value, and the checksum by which Knative tells that it was
// not edited in place of the data.
func TestCeilings_TheExampleIsWhatIsShipped(t *testing.T) {
	t.Parallel()
	cm := one[corev1.ConfigMap](t, "ConfigMap", ceilings.ConfigMapName)
	if len(cm.Data) != 1 || cm.Immutable != nil || cm.BinaryData != nil {
		t.Errorf("it has data beside the example: %v", cm.Data)
	}
	text := cm.Data[configmap.ExampleKey]
	if want := configmap.Checksum(text); cm.Annotations[configmap.ExampleChecksumAnnotation] != want {
		t.Errorf("the annotation %s is %q, want %q", configmap.ExampleChecksumAnnotation, cm.Annotations[configmap.ExampleChecksumAnnotation], want)
	}
	var data map[string]string
	if err := yaml.UnmarshalStrict([]byte(text), &data); err != nil {
		t.Fatal(err)
	}
	var keys []string
	for key := range data {
		keys = append(keys, key)
	}
	want := ceilings.Keys()
	slices.Sort(keys)
	slices.Sort(want)
	if diff := cmp.Diff(want, keys); diff != "" {
		t.Errorf("keys of the example (-want +got):\n%s", diff)
	}
	config, err := ceilings.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ceilings.Shipped, config.For("any")); diff != "" {
		t.Errorf("the example's values (-want +got):\n%s", diff)
	}
	if config.For("team-a") == ceilings.Shipped || config.For("team-b") == ceilings.Shipped {
		t.Error("the example's namespaces have no values of their own")
	}
	empty, err := ceilings.Parse(cm.Data)
	if err != nil || empty.For("team-a") != ceilings.Shipped {
		t.Errorf("as installed it changes something: %+v %v", empty, err)
	}
}
