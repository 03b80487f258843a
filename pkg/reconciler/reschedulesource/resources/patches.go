package resources

import (
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"knative.dev/pkg/apis/duck"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// metadata limits a patch to the version of the object that it was made from.
type metadata struct {
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

// StatusPatch is the merge patch from one status to the other; nil if they are
// the same. It never contains pending, nextDueAt, watched, watch and scale: the
// adapter writes them, and their values in before may be out of date.
func StatusPatch(before, after *v1alpha1.RescheduleSource) ([]byte, error) {
	type object struct {
		Metadata *metadata                       `json:"metadata,omitempty"`
		Status   v1alpha1.RescheduleSourceStatus `json:"status"`
	}
	from, to := object{Status: reconciled(before)}, object{Status: reconciled(after)}
	if equality.Semantic.DeepEqual(from, to) {
		return nil, nil
	}
	to.Metadata = &metadata{before.ResourceVersion}
	patch, err := duck.CreateMergePatch(from, to)
	if err != nil {
		return nil, fmt.Errorf("comparing the status before and after: %w", err)
	}
	return patch, nil
}

// reconciled is the part of the status that the reconciler writes.
func reconciled(source *v1alpha1.RescheduleSource) v1alpha1.RescheduleSourceStatus {
	status := source.Status
	status.Pending, status.NextDueAt, status.Watched, status.Watch = nil, nil, nil, nil
	status.OldestDueAt, status.InFlight, status.Retrying, status.Deliveries, status.Scale = nil, nil, nil, nil, nil
	status.Refused = ""
	return status
}

// ScalePatch is the merge patch that sets the number of replicas of s.
func ScalePatch(s *appsv1.StatefulSet, replicas int32) ([]byte, error) {
	var scale struct {
		Metadata metadata `json:"metadata"`
		Spec     struct {
			Replicas int32 `json:"replicas"`
		} `json:"spec"`
	}
	scale.Metadata.ResourceVersion = s.ResourceVersion
	scale.Spec.Replicas = replicas
	patch, err := json.Marshal(scale)
	if err != nil {
		return nil, fmt.Errorf("encoding a scale: %w", err)
	}
	return patch, nil
}
