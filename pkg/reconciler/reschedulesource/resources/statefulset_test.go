package resources

import (
	"os"
	"strings"
	"testing"
)

func manifest(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile("../../../../config/500-adapter.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The settings are in the manifest that is applied; replicas and namespace are not.
func TestAdapterStatefulSet_Settings(t *testing.T) {
	t.Parallel()
	set, err := AdapterStatefulSet(manifest(t), AdapterSettings{Version: "v1.2.3", Image: "registry/adapter@sha256:a", VolumeSize: "20Gi", StorageClass: "fast.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	volume := set.Spec.VolumeClaimTemplates[0].Spec
	if got := volume.Resources.Requests.Storage().String(); got != "20Gi" || *volume.StorageClassName != "fast.example.com" {
		t.Errorf("the volume is %s of %s", got, *volume.StorageClassName)
	}
	if got := *set.Spec.Template.Spec.Containers[0].Image; got != "registry/adapter@sha256:a" {
		t.Errorf("the image is %s", got)
	}
	if set.Labels[versionLabel] != "v1.2.3" || set.Spec.Template.Labels[versionLabel] != "v1.2.3" {
		t.Errorf("the labels are %v and %v", set.Labels, set.Spec.Template.Labels)
	}
	if _, selects := set.Spec.Selector.MatchLabels[versionLabel]; selects || set.Spec.Replicas != nil || set.Namespace != nil {
		t.Errorf("the selector has the version, or replicas or namespace are set: %+v", set)
	}
	usual, err := AdapterStatefulSet(manifest(t), AdapterSettings{Image: "x"})
	if err != nil {
		t.Fatal(err)
	}
	volume = usual.Spec.VolumeClaimTemplates[0].Spec
	if got := volume.Resources.Requests.Storage().String(); got != "10Gi" || volume.StorageClassName != nil {
		t.Errorf("without settings the volume is %s of %v", got, volume.StorageClassName)
	}
}

// A bad setting is refused with the name of its variable.
func TestAdapterStatefulSet_BadSettings(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]AdapterSettings{
		"RELATED_IMAGE_ADAPTER is not set":    {},
		`ADAPTER_VOLUME_SIZE is "much"`:       {Image: "x", VolumeSize: "much"},
		`ADAPTER_VOLUME_SIZE is "0"`:          {Image: "x", VolumeSize: "0"},
		`ADAPTER_VOLUME_SIZE is "-1Gi"`:       {Image: "x", VolumeSize: "-1Gi"},
		`ADAPTER_STORAGE_CLASS is "No Class"`: {Image: "x", StorageClass: "No Class"},
	} {
		if _, err := AdapterStatefulSet(manifest(t), s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", s, err, want)
		}
	}
	if _, err := AdapterStatefulSet([]byte("kind: Service\nmetadata: {name: x}\nspec: {}"), AdapterSettings{Image: "x"}); err == nil {
		t.Error("another manifest is taken")
	}
}
