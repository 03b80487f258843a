package kube

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RunNode says of the adapter's StatefulSet what its controller would once the pod that
// it wants runs, until ctx ends.
func (c *Cluster) RunNode(ctx context.Context, namespace string) {
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
		sets := c.Client.AppsV1().StatefulSets(namespace)
		s, err := sets.Get(ctx, "reschedule-adapter", metav1.GetOptions{})
		if err != nil {
			continue // the API server is being restarted
		}
		status := appsv1.StatefulSetStatus{
			ObservedGeneration: s.Generation, Replicas: *s.Spec.Replicas, ReadyReplicas: *s.Spec.Replicas, AvailableReplicas: *s.Spec.Replicas,
			CurrentReplicas: *s.Spec.Replicas, UpdatedReplicas: *s.Spec.Replicas, CurrentRevision: "1", UpdateRevision: "1",
		}
		if s.Status.ObservedGeneration != status.ObservedGeneration || s.Status.ReadyReplicas != status.ReadyReplicas {
			s.Status = status
			_, _ = sets.UpdateStatus(ctx, s, metav1.UpdateOptions{}) // the next round tries again
		}
	}
}
