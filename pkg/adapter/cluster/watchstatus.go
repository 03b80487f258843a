package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/printable"
)

// watchStatusDelay is how long a change of a watch status waits for the next one.
const watchStatusDelay = time.Second

// changed makes runPromptly report the watch and the workload of an object, and whether there is memory for it.
func (r *reporter) changed(name cache.ObjectName) {
	r.changedWatches.AddAfter(name, watchStatusDelay)
}

// runPromptly reports changed objects until ctx ends. One that fails is reported by
// the next round.
func (r *reporter) runPromptly(ctx context.Context, registry sources.Registry) {
	defer context.AfterFunc(ctx, r.changedWatches.ShutDown)()
	for {
		name, ended := r.changedWatches.Get()
		if ended || ctx.Err() != nil {
			return
		}
		if err := r.reportPromptly(ctx, registry, name); err != nil && ctx.Err() == nil {
			r.log.Warn("the status of a source (watch, workload or refusal) was not written; retrying", "source", name.String(), "error", err)
		}
		r.changedWatches.Done(name)
	}
}

// promptReport is what is reported of an object promptly.
type promptReport struct {
	watch    *v1alpha1.WatchStatus
	watched  *int64
	refused  string
	workload *v1alpha1.ScaleStatus
}

// promptReport returns it; known is false for a source that is not served here.
func (r *reporter) promptReport(o *v1alpha1.RescheduleSource, registry sources.Registry) (p promptReport, known bool) {
	p.watch, p.watched, known = watchReport(o, registry)
	if !known {
		p.watch, p.watched = o.Status.Watch, o.Status.Watched
	}
	p.workload, p.refused = workloadReport(o, registry), o.Status.Refused
	if registry.Serves() {
		p.refused = r.refusal(o.UID)
	}
	return p, known
}

// reportPromptly writes what is urgent of the object, if it differs.
func (r *reporter) reportPromptly(ctx context.Context, registry sources.Registry, name cache.ObjectName) error {
	o, err := find(r.lister, name)
	if o == nil {
		return err
	}
	p, _ := r.promptReport(o, registry)
	if equality.Semantic.DeepEqual(o.Status.Watch, p.watch) && o.Status.Refused == p.refused && !isUrgent(o.Status.Scale, p.workload) ||
		r.pauses(name.Namespace) {
		return nil
	}
	if err := r.limit.Wait(ctx); err != nil {
		return err
	}
	var patch struct {
		Metadata patchedVersion `json:"metadata,omitzero"`
		Status   promptPatch    `json:"status"`
	}
	patch.Metadata, patch.Status = p.version(o), p.patch(&o.Status)
	err = r.write(ctx, name, marshal(patch))
	switch {
	case apierrors.IsNotFound(err), errors.Is(err, context.Canceled):
		return nil
	case apierrors.IsConflict(err):
		r.changed(name)
		return nil
	}
	return err
}

// watchReport is what the status of the object must say about its watch; nil: nothing.
// What a start has not read yet does not replace what is known of the same generation.
// known is false for a source that is not served here.
func watchReport(o *v1alpha1.RescheduleSource, registry sources.Registry) (_ *v1alpha1.WatchStatus, watched *int64, known bool) {
	s, known := registry.WatchStatus(string(o.UID))
	if !known || s.Status == "" {
		return nil, nil, known
	}
	before := o.Status.Watch
	if s.Status == schedule.WatchUnknown && before != nil && before.ObservedGeneration == s.Generation {
		return before, o.Status.Watched, true
	}
	report := &v1alpha1.WatchStatus{
		ObservedGeneration: s.Generation, Status: s.Status, Reason: s.Reason, Message: printable.Line(s.Message),
		// What is watched since an edit was never True before its first list.
		WasTrue: s.Status == schedule.WatchTrue || before != nil && before.WasTrue && (s.Complete || before.ObservedGeneration == s.Generation),
	}
	return report, &s.Objects, true
}

// promptPatch is what a merge patch changes of a promptReport; null removes.
type promptPatch struct {
	Refused json.RawMessage `json:"refused,omitempty"`
	Watched json.RawMessage `json:"watched,omitempty"`
	Watch   json.RawMessage `json:"watch,omitempty"`
	Scale   json.RawMessage `json:"scale,omitempty"`
}

// patchedVersion is the version that an object must have for a patch of it.
type patchedVersion struct {
	Version string `json:"resourceVersion,omitempty"`
}

// version is the object's, if the patch changes which workload is held: the source may have taken
// it up again meanwhile.
func (r *promptReport) version(o *v1alpha1.RescheduleSource) (v patchedVersion) {
	if !equality.Semantic.DeepEqual(heldBy(o.Status.Scale), heldBy(r.workload)) {
		v.Version = o.ResourceVersion
	}
	return v
}

func heldBy(s *v1alpha1.ScaleStatus) *v1alpha1.HeldWorkload {
	if s == nil {
		return nil
	}
	return s.Held
}

func (r *promptReport) patch(s *v1alpha1.RescheduleSourceStatus) (p promptPatch) {
	switch {
	case s.Refused == r.refused:
	case r.refused == "":
		p.Refused = marshal(nil)
	default:
		p.Refused = marshal(r.refused)
	}
	if !equality.Semantic.DeepEqual(s.Watched, r.watched) {
		p.Watched = marshal(r.watched)
	}
	if !equality.Semantic.DeepEqual(s.Scale, r.workload) {
		p.Scale = workloadPatch(r.workload)
	}
	switch watch := r.watch; {
	case equality.Semantic.DeepEqual(s.Watch, watch):
	case watch == nil:
		p.Watch = marshal(nil)
	default: // every field is there, because an absent one would stay as it was
		p.Watch = marshal(map[string]any{
			"observedGeneration": watch.ObservedGeneration, "status": watch.Status, "reason": watch.Reason, "message": watch.Message, "wasTrue": watch.WasTrue,
		})
	}
	return p
}
