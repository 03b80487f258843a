package sources

import (
	"slices"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// scale reads spec.scale of an object with its defaults. The object's own validation
// has reported what cannot be read.
func (r *reader) scale(o *v1alpha1.RescheduleSource) schedule.Scale {
	spec := o.Spec.Scale
	var busy schedule.Busy
	if spec.Busy != nil {
		busy = schedule.Busy{Port: spec.Busy.Port, Path: *spec.Busy.Path}
	}
	return schedule.Scale{
		Sinkless: o.Spec.Sinkless(), Busy: busy,
		Workload:     workload(spec.TargetRef, o.Spec.ScaleAccount(), *spec.Replicas),
		Mode:         schedule.ScaleMode(*spec.Mode),
		Cooldown:     r.duration("spec.scale.cooldown", *spec.Cooldown),
		StartTimeout: r.duration("spec.scale.startTimeout", *spec.StartTimeout),
	}
}

func workload(ref v1alpha1.ScaleTarget, account string, replicas int32) schedule.Workload {
	return schedule.Workload{APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name, Account: account, Replicas: replicas}
}

// Held fills in what the status of an object says of the workload that its source holds.
func Held(scale *schedule.Scale, o *v1alpha1.RescheduleSource) {
	if o.Status.Scale == nil || o.Status.Scale.Held == nil {
		return
	}
	held := o.Status.Scale.Held
	scale.Held = workload(held.ScaleTarget, held.ServiceAccountName, held.Replicas)
	scale.Recorded = scale.Held == scale.Workload && slices.Contains(o.Finalizers, v1alpha1.ScaleFinalizer)
}
