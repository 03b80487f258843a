package resources

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
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

const (
	// ReplicatedAnnotation is on a StatefulSet whose pods are a group, which keeps the schedules together.
	ReplicatedAnnotation = "sources.reschedule.dev/replicated"
	// Members is how many pods a group has.
	Members = 3
)

// IsReplicated reports that the pods are a group. Any value but false counts: a group that is
// taken for a single adapter would lose its majority.
func IsReplicated(s *appsv1.StatefulSet) bool {
	value := s.Annotations[ReplicatedAnnotation]
	return value != "" && value != "false"
}

// Replicas is the number of replicas in the spec; the API's default is 1.
func Replicas(s *appsv1.StatefulSet) int32 {
	if s.Spec.Replicas == nil {
		return 1
	}
	return *s.Spec.Replicas
}
