package cluster

import (
	"encoding/json"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/reschedule-dev/reschedule/pkg/adapter/scale"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/printable"
)

// Workloads implements [sources.Origin].
func (c *Cluster) Workloads() scale.API { return c.clients.Workloads }

// WorkloadChanged implements [sources.Origin]: what must be known is reported promptly.
func (c *Cluster) WorkloadChanged(src *schedule.Spec) { c.WatchChanged(src) }

// WorkloadSaved implements [sources.Origin].
func (c *Cluster) WorkloadSaved(src *schedule.Spec) schedule.ScaleStatus {
	o, err := find(c.sources, cache.ObjectName{Namespace: src.Namespace, Name: src.Name})
	if err != nil || o == nil || string(o.UID) != src.UID || o.Status.Scale == nil {
		return schedule.ScaleStatus{}
	}
	s := o.Status.Scale
	last, _ := time.ParseDuration(s.LastStart) // 0: the next start tells
	return schedule.ScaleStatus{
		Starts: s.Starts, LastStart: last,
		Awake: time.Duration(s.AwakeSeconds) * time.Second, Observed: time.Duration(s.ObservedSeconds) * time.Second,
		Quiet: schedule.Quiet{Runs: s.QuietRuns, Every: time.Duration(s.QuietEverySeconds) * time.Second, Requeues: s.Requeues},
	}
}

// workloadReport is what the status of the object must say about its workload; nil:
// nothing. What the adapter does not know yet does not replace what it knew.
func workloadReport(o *v1alpha1.RescheduleSource, registry sources.Registry) *v1alpha1.ScaleStatus {
	s, known := registry.Workload(string(o.UID))
	if !known {
		return o.Status.Scale
	}
	held := heldReport(s.Held)
	if s.State == "" && s.Reason == "" {
		switch before := o.Status.Scale; {
		case before == nil && held == nil, o.Spec.Scale == nil && held == nil:
			return nil
		case before != nil:
			kept := *before
			kept.Held = held
			return &kept
		}
	}
	report := &v1alpha1.ScaleStatus{
		State: s.State, Starts: s.Starts, AwakeSeconds: int64(s.Awake / time.Second), ObservedSeconds: int64(s.Observed / time.Second),
		QuietRuns: s.Quiet.Runs, QuietEverySeconds: int64(s.Quiet.Every / time.Second), Requeues: s.Quiet.Requeues,
		Reason: s.Reason, Message: printable.Line(s.Message), Held: held,
	}
	if !s.Since.IsZero() {
		report.Since = &metav1.Time{Time: s.Since.UTC().Truncate(time.Second)}
	}
	if s.LastStart > 0 {
		report.LastStart = s.LastStart.Round(time.Millisecond).String()
	}
	return report
}

func heldReport(w schedule.Workload) *v1alpha1.HeldWorkload {
	if w.Name == "" {
		return nil
	}
	return &v1alpha1.HeldWorkload{
		ScaleTarget: v1alpha1.ScaleTarget{APIVersion: w.APIVersion, Kind: w.Kind, Name: w.Name},
		Replicas:    w.Replicas, ServiceAccountName: w.Account,
	}
}

// isUrgent reports whether a report has what others wait for: which workload is held, and why it
// cannot be scaled. States wait for the next round, because a workload may start every few seconds.
func isUrgent(before, after *v1alpha1.ScaleStatus) bool {
	if before == nil || after == nil {
		return before != after
	}
	return before.Reason != after.Reason || !equality.Semantic.DeepEqual(before.Held, after.Held) || before.State == "" && after.State != ""
}

// isWorkloadReported reports whether a status says the same. The seconds alone are reported
// only with the state: else the status of a source at rest would change for ever.
func isWorkloadReported(before, after *v1alpha1.ScaleStatus) bool {
	if before == nil || after == nil {
		return before == after
	}
	b, a := *before, *after
	if a.State == "Asleep" && a.ObservedSeconds-b.ObservedSeconds < int64(10*time.Minute/time.Second) {
		b.ObservedSeconds = a.ObservedSeconds
	}
	return equality.Semantic.DeepEqual(&b, &a)
}

// workloadPatch is what a merge patch writes: each field, because an absent one would stay as it was.
func workloadPatch(s *v1alpha1.ScaleStatus) json.RawMessage {
	if s == nil {
		return marshal(nil)
	}
	return marshal(map[string]any{
		"state": s.State, "since": s.Since, "starts": s.Starts, "awakeSeconds": s.AwakeSeconds, "observedSeconds": s.ObservedSeconds,
		"quietRuns": s.QuietRuns, "quietEverySeconds": s.QuietEverySeconds, "requeues": s.Requeues, "lastStart": s.LastStart, "reason": s.Reason, "message": s.Message, "held": s.Held,
	})
}
