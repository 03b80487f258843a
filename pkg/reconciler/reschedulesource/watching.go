package reschedulesource

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"knative.dev/pkg/controller"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/expression"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// observeWatch sets Watching: from the adapter's report, or False if a key expression
// does not compile.
func observeWatch(source *v1alpha1.RescheduleSource) error {
	watch := source.Spec.Watch
	if watch == nil {
		source.Status.ClearWatching()
		return nil
	}
	for i := range watch.Resources {
		if err := expression.CheckWatchKey(watch.Resources[i].Key); err != nil {
			err = fmt.Errorf("spec.watch.resources[%d].%w", i, err)
			source.Status.MarkNotWatching(v1alpha1.ReasonInvalidKey, err.Error())
			return controller.NewPermanentError(failure("WatchInvalid", "%w", err))
		}
	}
	source.Status.MarkWatching(source.Generation)
	return nil
}

// publishSinkRevision sets status.sinkRevision: the latest ready revision of a sink
// that is a Knative Service and ready, while spec.watch asks for a resync at each revision, and the
// uid of the Service: one that is made again has a revision of the same name. The
// resolver follows the Service, so each change of it leads here. The rights are the
// resolver's own.
func (r *Reconciler) publishSinkRevision(ctx context.Context, source *v1alpha1.RescheduleSource) error {
	service, ok := knativeService(source)
	if !ok || !source.Spec.Watch.ResyncsOnRevision() {
		source.Status.SinkRevision = ""
		return nil
	}
	ref := source.Spec.Sink.Ref
	namespace := ref.Namespace
	if namespace == "" {
		namespace = source.Namespace
	}
	o, err := r.dynamic.Resource(service).Namespace(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		source.Status.SinkRevision = ""
		return nil
	case err != nil: // the last revision stays: without it the next one could not be distinguished from it
		return fmt.Errorf("reading the revision of the sink: %w", err)
	}
	// A revision is ready a moment before requests reach it, and the previous revision
	// would get the first objects. The Service is ready when they do.
	if isReady(o) {
		revision, _, _ := unstructured.NestedString(o.Object, "status", "latestReadyRevisionName")
		if len(revision) > validation.DNS1123SubdomainMaxLength { // its author may write any text: it names no Revision
			revision = ""
		}
		if revision != "" {
			revision += "/" + string(o.GetUID())
		}
		source.Status.SinkRevision = revision
	}
	return nil
}

// isReady reports whether no condition Ready says otherwise.
func isReady(o *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	return !slices.ContainsFunc(conditions, func(c any) bool {
		condition, _ := c.(map[string]any)
		return condition["type"] == "Ready" && condition["status"] != "True"
	})
}

// knativeService is the resource of a sink that is a Knative Service.
func knativeService(source *v1alpha1.RescheduleSource) (schema.GroupVersionResource, bool) {
	ref := source.Spec.Sink.Ref
	if ref == nil || ref.Kind != "Service" {
		return schema.GroupVersionResource{}, false
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	return gv.WithResource("services"), err == nil && gv.Group == "serving.knative.dev"
}
