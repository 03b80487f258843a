package reschedulesource

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// observeScale sets Scaled: from the adapter's report, or False if the sink is a Knative
// Service, or a Service that Knative made for one.
func (r *Reconciler) observeScale(ctx context.Context, source *v1alpha1.RescheduleSource) error {
	source.Status.MarkScaled(source.Spec.ScaleMode())
	ref := source.Spec.Sink.Ref
	if source.Spec.Scale == nil || ref == nil {
		return nil
	}
	knative, err := v1alpha1.IsKnativeService(ref), error(nil)
	if !knative && ref.APIVersion == "v1" && ref.Kind == "Service" {
		knative, err = r.madeByKnative(ctx, source.Namespace, ref)
	}
	if knative {
		source.Status.MarkNotScaled(v1alpha1.ReasonKnativeService, fmt.Sprintf("Service %s belongs to a Knative Service, which scales by itself: "+
			"remove spec.scale, or name a Service in front of the workload as the sink.", ref.Name))
	}
	return err
}

// madeByKnative reports whether a Service is a part of a Knative Service. A Service that
// does not exist or may not be read is none.
func (r *Reconciler) madeByKnative(ctx context.Context, namespace string, ref *duckv1.KReference) (bool, error) {
	if ref.Namespace != "" {
		namespace = ref.Namespace
	}
	o, err := r.dynamic.Resource(corev1.SchemeGroupVersion.WithResource("services")).Namespace(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading the Service that is the sink: %w", err)
	}
	return isOfKnative(o), nil
}

// isOfKnative reports whether an owner or a label of an object is of Knative Serving.
func isOfKnative(o *unstructured.Unstructured) bool {
	const serving = "serving.knative.dev"
	for _, owner := range o.GetOwnerReferences() {
		if schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).Group == serving {
			return true
		}
	}
	for label := range o.GetLabels() {
		if strings.HasPrefix(label, serving+"/") {
			return true
		}
	}
	return false
}
