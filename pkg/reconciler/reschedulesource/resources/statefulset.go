package resources

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"sigs.k8s.io/yaml"
)

// ControllerName is the name of the controller's Deployment.
const ControllerName = "reschedule-controller"

const versionLabel = "app.kubernetes.io/version"

// AdapterSettings are what an installation may choose about the adapter. They come
// from environment variables, which the messages name.
type AdapterSettings struct {
	Version      string
	Image        string // RELATED_IMAGE_ADAPTER
	VolumeSize   string // ADAPTER_VOLUME_SIZE; the manifest's by default
	StorageClass string // ADAPTER_STORAGE_CLASS; the cluster's default by default
}

// AdapterStatefulSet is the manifest of the adapter with the settings in it, without a
// namespace. It has no number of replicas, which is the scaler's.
func AdapterStatefulSet(manifest []byte, settings AdapterSettings) (*appsv1ac.StatefulSetApplyConfiguration, error) {
	var set appsv1ac.StatefulSetApplyConfiguration
	if err := yaml.UnmarshalStrict(manifest, &set); err != nil {
		return nil, fmt.Errorf("the manifest of the adapter: %w", err)
	}
	spec := set.Spec
	if set.Name == nil || spec == nil || spec.Template == nil || spec.Template.Spec == nil ||
		*set.Name != AdapterName || spec.Replicas != nil || len(spec.VolumeClaimTemplates) != 1 || len(spec.Template.Spec.Containers) != 1 {
		return nil, errors.New("the manifest of the adapter is not a StatefulSet " + AdapterName + " with one volume, one container and no number of replicas")
	}
	if settings.Image == "" {
		return nil, errors.New("RELATED_IMAGE_ADAPTER is not set: it must be the adapter's image of the same version as the controller")
	}
	spec.Template.Spec.Containers[0].WithImage(settings.Image)
	set.Labels[versionLabel], spec.Template.Labels[versionLabel] = settings.Version, settings.Version
	volume := spec.VolumeClaimTemplates[0].Spec
	if settings.VolumeSize != "" {
		size, err := resource.ParseQuantity(settings.VolumeSize)
		if err != nil || size.Sign() <= 0 {
			return nil, fmt.Errorf("ADAPTER_VOLUME_SIZE is %q, which is no size of a volume such as 10Gi", settings.VolumeSize)
		}
		volume.Resources.WithRequests(corev1.ResourceList{corev1.ResourceStorage: size})
	}
	if settings.StorageClass != "" {
		if wrong := validation.IsDNS1123Subdomain(settings.StorageClass); len(wrong) > 0 {
			return nil, fmt.Errorf("ADAPTER_STORAGE_CLASS is %q, which is no name of a StorageClass: %s", settings.StorageClass, strings.Join(wrong, "; "))
		}
		volume.WithStorageClassName(settings.StorageClass)
	}
	set.Namespace = nil
	return &set, nil
}
