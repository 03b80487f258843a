package sources

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// watch reads spec.watch of an object with its defaults. The object's own validation
// has reported what cannot be read.
func (r *reader) watch(o *v1alpha1.RescheduleSource) *schedule.Watch {
	spec := o.Spec.Watch
	w := &schedule.Watch{
		Account:          spec.ServiceAccountName,
		OwnNamespace:     spec.NamespaceSelector == nil,
		Resources:        make([]schedule.WatchResource, len(spec.Resources)),
		ResyncOnRevision: *spec.Resync.OnRevision,
		Generation:       o.Generation,
		Since:            o.CreationTimestamp.Time,
	}
	switch {
	case spec.Resync.Over != nil:
		w.ResyncOver = new(r.duration("spec.watch.resync.over", *spec.Resync.Over))
	case o.Spec.Sinkless(): // the workload reads all objects at its start, and then it must not wait for keys
		w.ResyncOver = new(time.Duration)
	}
	if w.ResyncOnRevision {
		w.Revision = o.Status.SinkRevision
	}
	w.Namespaces, _ = v1alpha1.SelectorText(spec.NamespaceSelector)
	for i := range spec.Resources {
		from, to := &spec.Resources[i], &w.Resources[i]
		gv, _ := schema.ParseGroupVersion(from.APIVersion)
		to.Group, to.Version, to.Kind = gv.Group, gv.Version, from.Kind
		to.Selector, _ = v1alpha1.SelectorText(from.Selector)
		if from.Owner != nil {
			owner, _ := schema.ParseGroupVersion(from.Owner.APIVersion)
			to.OwnerGroup, to.OwnerKind = owner.Group, from.Owner.Kind
		}
		to.Key, to.Changes = from.Key, schedule.Changes(from.EffectiveChanges())
		if from.Priority != nil {
			var err error
			to.Priority, err = schedule.ParsePriority("spec.watch.resources[].priority", string(*from.Priority))
			r.note("spec.watch.resources[].priority", err)
		}
	}
	return w
}
