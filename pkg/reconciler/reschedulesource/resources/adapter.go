package resources

import (
	"fmt"
	"hash/fnv"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Availability is the state of the adapter, as the condition Deployed shows it.
type Availability struct {
	Status          corev1.ConditionStatus
	Reason, Message string
}

// AdapterAvailability derives it from the adapter's StatefulSet; nil means that
// there is none in namespace. True requires a ready pod of the newest revision:
// during a rollout no pod serves. Of a group the others do, and each that is ready
// knows an owner.
func AdapterAvailability(namespace string, s *appsv1.StatefulSet) Availability {
	name := namespace + "/" + AdapterName
	switch {
	case s == nil:
		return Availability{corev1.ConditionFalse, "AdapterNotInstalled", fmt.Sprintf(
			"There is no StatefulSet %s. Install it with the release manifest, or from a checkout with: ko apply -f config/", name)}
	case Replicas(s) == 0:
		return Availability{corev1.ConditionUnknown, "AdapterScalingUp", fmt.Sprintf("StatefulSet %s has no replicas yet.", name)}
	case IsReplicated(s) && s.Status.ReadyReplicas > 0:
	case s.Status.ObservedGeneration < s.Generation:
		return Availability{corev1.ConditionUnknown, "AdapterRollingOut", fmt.Sprintf("A change of StatefulSet %s is not observed yet.", name)}
	case s.Status.ReadyReplicas == 0:
		return Availability{corev1.ConditionUnknown, "AdapterNotReady", fmt.Sprintf("No pod of StatefulSet %s is ready.", name)}
	case s.Status.UpdateRevision != s.Status.CurrentRevision && s.Status.UpdatedReplicas == 0:
		return Availability{corev1.ConditionUnknown, "AdapterRollingOut", fmt.Sprintf("The pod of StatefulSet %s is of an older revision.", name)}
	}
	return Availability{Status: corev1.ConditionTrue}
}

// The annotation of a StatefulSet whose pods are groups, which keep the schedules together: the
// number of pods, or "true" for one group. A group has so many members.
const (
	ReplicatedAnnotation = "sources.reschedule.dev/replicated"
	members              = 3
)

// IsReplicated reports that the pods are groups. A value that cannot be read counts: a group
// that is taken for a single adapter would lose its majority.
func IsReplicated(s *appsv1.StatefulSet) bool {
	value := s.Annotations[ReplicatedAnnotation]
	return value != "" && value != "false"
}

// Groups is how many groups the pods are, 0: the adapter is alone.
func Groups(s *appsv1.StatefulSet) (int, error) {
	value := s.Annotations[ReplicatedAnnotation]
	switch {
	case !IsReplicated(s):
		return 0, nil
	case value == "true":
		return 1, nil
	}
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil || n == 0 || n%members != 0 {
		return 0, fmt.Errorf("the annotation %s of StatefulSet %s is %q, want true, or a multiple of three", ReplicatedAnnotation, s.Name, value)
	}
	return int(n) / members, nil
}

// Pods is how many pods so many groups have.
func Pods(groups int) int32 { return int32(groups * members) }

// Group is the group that a new source gets: the sources are spread by their uids, once each pod
// knows all groups. A pod of an older revision would take calls for a source that it does not
// have; so meanwhile the first group gets the source.
func Group(s *appsv1.StatefulSet, uid types.UID) (group int, placed bool) {
	if s == nil {
		return 0, false
	}
	groups, err := Groups(s)
	if err != nil || groups < 2 {
		return 0, false
	}
	pods := Pods(groups)
	if s.Status.ObservedGeneration < s.Generation || s.Status.Replicas != pods || s.Status.UpdatedReplicas != pods || s.Status.ReadyReplicas != pods {
		return 0, true
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(uid))                                // it never fails
	return int(uint64(h.Sum32()) * uint64(groups) >> 32), true // its last bits are poor
}

// Replicas is the number of replicas in the spec; the API's default is 1.
func Replicas(s *appsv1.StatefulSet) int32 {
	if s.Spec.Replicas == nil {
		return 1
	}
	return *s.Spec.Replicas
}
