package resources

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// ReleaseTimeout is how long after the deletion of a source its finalizer stays at most. It
// is HopelessTimeout if the adapter reports that the workload cannot be scaled: then the
// account, its rights or the workload were deleted too, as with a namespace.
const (
	ReleaseTimeout  = 5 * time.Minute
	HopelessTimeout = 15 * time.Second
)

// HasFinalizer reports whether a source has ScaleFinalizer.
func HasFinalizer(source *v1alpha1.RescheduleSource) bool {
	return slices.Contains(source.Finalizers, v1alpha1.ScaleFinalizer)
}

// Holds reports whether the adapter may have scaled a workload of the source to zero.
func Holds(source *v1alpha1.RescheduleSource) bool {
	return source.Status.Scale != nil && source.Status.Scale.Held != nil
}

// NeedsFinalizer reports whether a source has to have ScaleFinalizer: while it may scale a
// workload, or holds one. A source that is being deleted keeps it while it holds a workload,
// until the returned time; the API server adds none to it.
func NeedsFinalizer(source *v1alpha1.RescheduleSource, now time.Time) (needs bool, until time.Time) {
	if source.DeletionTimestamp == nil {
		return source.Spec.Scales() || Holds(source), time.Time{}
	}
	until = source.DeletionTimestamp.Add(ReleaseTimeout)
	if s := source.Status.Scale; s != nil && (s.Reason == v1alpha1.ReasonScaleForbidden || s.Reason == v1alpha1.ReasonNoSuchTarget) {
		until = source.DeletionTimestamp.Add(HopelessTimeout)
	}
	return HasFinalizer(source) && Holds(source) && now.Before(until), until
}

// FinalizerPatch is the merge patch that adds ScaleFinalizer to a source as the API server has
// it, or removes it. The finalizers of others stay.
func FinalizerPatch(source *v1alpha1.RescheduleSource, add bool) ([]byte, error) {
	type withFinalizers struct {
		metadata
		Finalizers []string `json:"finalizers"`
	}
	all := slices.DeleteFunc(slices.Clone(source.Finalizers), func(f string) bool { return f == v1alpha1.ScaleFinalizer })
	if add {
		all = append(all, v1alpha1.ScaleFinalizer)
	}
	patch, err := json.Marshal(map[string]any{"metadata": withFinalizers{metadata{source.ResourceVersion}, all}})
	if err != nil {
		return nil, fmt.Errorf("encoding finalizers: %w", err)
	}
	return patch, nil
}
