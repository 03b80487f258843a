package reschedulesource

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// resolveSink sets SinkProvided. The resolver tracks the object of the sink's
// ref. A failure is tried again, because a kind that does not exist yet cannot
// be watched.
func (r *Reconciler) resolveSink(ctx context.Context, source *v1alpha1.RescheduleSource) error {
	sink := source.Spec.Sink
	addr, err := r.address(ctx, sink, source)
	if err != nil {
		source.Status.MarkNoSink(reasonOf(err), "%s: %v", describe(sink), err)
		return failure("SinkNotFound", "Sink not found: %s: %w", describe(sink), err)
	}
	source.Status.MarkSink(addr)
	return nil
}

// resolveDeadLetterSink sets DeadLetterSinkResolved.
func (r *Reconciler) resolveDeadLetterSink(ctx context.Context, source *v1alpha1.RescheduleSource) error {
	if source.Spec.Delivery == nil || source.Spec.Delivery.DeadLetterSink == nil {
		source.Status.MarkDeadLetterSinkNotConfigured()
		return nil
	}
	sink := *source.Spec.Delivery.DeadLetterSink
	addr, err := r.address(ctx, sink, source)
	if err != nil {
		source.Status.MarkNoDeadLetterSink(reasonOf(err), "%s: %v", describe(sink), err)
		return failure("DeadLetterSinkNotFound", "Dead letter sink not found: %s: %w", describe(sink), err)
	}
	source.Status.MarkDeadLetterSink(addr)
	return nil
}

// address resolves a destination.
func (r *Reconciler) address(ctx context.Context, d duckv1.Destination, source *v1alpha1.RescheduleSource) (*duckv1.Addressable, error) {
	addr, err := r.resolver.AddressableFromDestinationV1(ctx, d, source)
	if err != nil {
		return nil, err
	}
	if err := v1alpha1.ValidateAddress(addr); err != nil {
		return nil, err
	}
	return addr, nil
}

// reasonOf distinguishes a missing object from an object without an address.
func reasonOf(err error) string {
	if apierrors.IsNotFound(err) {
		return v1alpha1.ReasonNotFound
	}
	return "NotResolved"
}

// describe names a destination as a user would search for it.
func describe(d duckv1.Destination) string {
	if d.Ref != nil {
		return d.Ref.Kind + " " + d.Ref.Namespace + "/" + d.Ref.Name + " (" + d.Ref.APIVersion + ")"
	}
	return d.URI.URL().Redacted() // many users can read conditions and Events
}
